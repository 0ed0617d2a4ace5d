"""The faults that `seed_faults.py` puts into what arrays on a GPU need, the kernels among them."""

from __future__ import annotations

from faults import Fault


def launch(name: str, old: str, new: str) -> Fault:
    """Spoil the launches."""
    return Fault(name, "cuda_route", "_cuda.py", old, new)


def located(name: str, old: str, new: str) -> Fault:
    """Spoil what the launches know of arrays."""
    return Fault(name, "cuda_route cuda_cupy", "_cuda_arrays.py", old, new)


def kernel(name: str, old: str, new: str) -> Fault:
    """Spoil the kernels."""
    return Fault(name, "cuda_kernel", "kernel.cu", old, new)


GPU_FAULTS = (
    launch("no rows launched all the same", "if work.rows == 0:", "if False:"),
    launch("bad rows on a GPU answered", "if check and np.isnan", "if False and np.isnan"),
    launch("a bad step on a GPU answered", "if np.isnan(accept_prob):", "if False:"),
    launch("always a wait on a GPU", "if check and np.isnan(", "if np.isnan("),
    launch("a launch on another stream", "stream = _Stream(work.stream)", "stream = _Stream(0)"),
    launch(
        "Torch not told of writes on a GPU", "            kind.written(out)\n", "            pass\n"
    ),
    launch("a flag of one byte", "int(check), accept_prob", "check, accept_prob"),
    launch("ids on a GPU not checked first", "ids_good, int(check)", "ids_good, 0"),
    launch(
        "out on a GPU not checked",
        "_arrays.output(out, _arrays.pair(draft, target), inputs)",
        "pass",
    ),
    located("the strides of the first row alone", "strides[0] if len(strides) > 1 else 0", "0"),
    located(
        "ids from the CPU not checked without a check",
        "_tokens.as_indices if check else _tokens.as_possible",
        "_tokens.as_indices",
    ),
    located(
        "fields of records taken for rows",
        "if all(stride % size == 0 for stride in array.strides):",
        "if True:",
    ),
    located("results for JAX let go", "            self._held.append((copy, array))\n", ""),
    located("results for JAX kept", "if not pair[0].is_ready()", "if True"),
    located("results of others given as CuPy's", "if self._import is None", "if True"),
    located("negated tensors taken as they lie", ".detach().resolve_neg()", ".detach()"),
    located("ids of 32 bits taken for 64", "dtype=torch.int64).contiguous()", "dtype=ids.dtype)"),
    located(
        "ids of CuPy taken as they lie",
        'cupy().ascontiguousarray(ids, dtype="int64")',
        "ids",
    ),
    Fault(
        "where there is an output on a GPU unknown",
        "cuda_route",
        "_kinds.py",
        "        return addresses(array)\n",
        "        return np.empty(array.shape)\n",
    ),
    Fault(
        "no CuPy no word of it",
        "cuda_route",
        "_elsewhere.py",
        'cure = "install draftverify[cuda12x] or draftverify[cuda13x]"',
        'cure = "install CuPy"',
    ),
    kernel(
        "the tree of a chunk from afar",
        "for (int width = LANES; width < BLOCK; width *= 2) { // their tree\n    __syncthreads();\n"
        "    if (thread % (2 * width) == 0)",
        "for (int width = BLOCK / 2; width >= LANES; width /= 2) {\n    __syncthreads();\n"
        "    if (thread < width)",
    ),
    kernel("groups of chunks forgotten", "level++) total += trees[level];", "level++) {}"),
    kernel(
        "a negative entry summed", "(bits < STORAGE::INFINITE) |", "(bits != STORAGE::INFINITE) |"
    ),
    kernel("-0.0 refused", "| (bits == STORAGE::MINUS_ZERO)", ""),
    kernel("bfloat16 cut off", "bits + 0x7fffu + ((bits >> 16) & 1u)", "bits"),
    kernel("a mass of 0 divided by", "if (mass == 0.0) divisor = (Wide)1;", ""),
    kernel("a mass out of range answered", "is_finite(divisor) &&", ""),
    kernel("a draft of 0 answered", "return bits != 0 && bits", "return bits"),
)
