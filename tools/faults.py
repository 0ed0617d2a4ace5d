"""The faults that `seed_faults.py` puts into the Python layer, one at a time.

A fault is an edit of one of the package's files, or, where what it spoils is computed by the
compiled part, a wrapper put in front of a public function. `first` names the tests that should know
it best; they run before all others.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One fault: in `file`, `old`, found exactly once, becomes `new`; no `old` means the end."""

    name: str
    first: str
    file: str
    old: str | None
    new: str


def api(name: str, first: str, old: str, new: str) -> Fault:
    """Spoil a public function."""
    return Fault(name, first, "_api.py", old, new)


def arrays(name: str, first: str, old: str, new: str) -> Fault:
    """Spoil the checks that are common to all array libraries."""
    return Fault(name, first, "_arrays.py", old, new)


def kinds(name: str, first: str, old: str, new: str) -> Fault:
    """Spoil what one array library needs."""
    return Fault(name, first, "_kinds.py", old, new)


def tokens(name: str, first: str, old: str, new: str) -> Fault:
    """Spoil what counts as an integer."""
    return Fault(name, first, "_tokens.py", old, new)


STEP = """
import numpy as _np
_step = speculative_decode_step
def speculative_decode_step(draft_probs, target_probs, drafted_token):
    {}
speculative_decode_step.__doc__ = _step.__doc__
"""
ROWS = """
import numpy as _np
_rows = accept_residual
def accept_residual(draft_probs, target_probs, draft_token_ids, *, out=None, check=True):
    {}
accept_residual.__doc__ = _rows.__doc__
"""


def step(name: str, first: str, *body: str) -> Fault:
    """Spoil what goes into or comes out of the compiled `speculative_decode_step`."""
    return Fault(name, first, "__init__.py", None, STEP.format("\n    ".join(body)))


def rows(name: str, first: str, *body: str) -> Fault:
    """Spoil what goes into or comes out of `accept_residual`."""
    return Fault(name, first, "__init__.py", None, ROWS.format("\n    ".join(body)))


ANSWER = "answer = _step(draft_probs, target_probs, drafted_token)"
ROW_ANSWERS = "answer = _rows(draft_probs, target_probs, draft_token_ids, out=out, check=check)"
# With nothing wrong in them the wrappers must pass all tests: then a test that fails has seen the
# fault, not the wrapper.
CONTROLS = (
    step("nothing, in front of the step", "", ANSWER, "return answer"),
    rows("nothing, in front of the rows", "", ROW_ANSWERS, "return answer"),
)


def tolerant(argument: str, condition: str) -> tuple[str, ...]:
    """Accept bad entries, as zeros."""
    return (
        f"if isinstance({argument}, _np.ndarray) and {argument}.dtype.kind == 'f':",
        f"    {argument} = _np.where({condition}, {argument}.dtype.type(0), {argument})",
        ANSWER,
        "return answer",
    )


FAULTS = (
    # Results of one step.
    step(
        "keys in the wrong order", "contract", ANSWER, "return dict(reversed(list(answer.items())))"
    ),
    step("a third key", "contract", ANSWER, "return answer | {'mass': 0.0}"),
    step(
        "a numpy float returned",
        "contract",
        ANSWER,
        "return answer | {'accept_prob': _np.float64(answer['accept_prob'])}",
    ),
    step(
        "accept_prob rounded",
        "contract",
        ANSWER,
        "return answer | {'accept_prob': round(answer['accept_prob'], 15)}",
    ),
    step(
        "accept_prob divided in float32",
        "contract",
        ANSWER,
        "return answer | {'accept_prob': float(_np.float32(answer['accept_prob']))}",
    ),
    step(
        "the residual a view of something larger",
        "contract",
        ANSWER,
        "if isinstance(answer['residual'], _np.ndarray):",
        "    answer['residual'] = _np.repeat(answer['residual'], 2)[::2]",
        "return answer",
    ),
    step(
        "the residual in memory that is used again",
        "contract",
        ANSWER,
        "if isinstance(answer['residual'], _np.ndarray):",
        "    shared = globals().setdefault('_shared', {})",
        "    key = answer['residual'].dtype, len(answer['residual'])",
        "    kept = shared.setdefault(key, answer['residual'])",
        "    kept[:] = answer['residual']",
        "    answer['residual'] = kept",
        "return answer",
    ),
    step(
        "the residual read-only",
        "contract",
        ANSWER,
        "if isinstance(answer['residual'], _np.ndarray):",
        "    answer['residual'].flags.writeable = False",
        "return answer",
    ),
    step(
        "the draft row written to",
        "contract",
        ANSWER,
        "if isinstance(draft_probs, _np.ndarray) and draft_probs.flags.writeable:",
        "    draft_probs[drafted_token] = 0",
        "return answer",
    ),
    step(
        "the target row written to",
        "contract",
        ANSWER,
        "if isinstance(target_probs, _np.ndarray) and target_probs.flags.writeable:",
        "    target_probs[:] = answer['residual']",
        "return answer",
    ),
    # Entries that are no probabilities.
    step(
        "NaN accepted in the draft",
        "errors",
        *tolerant("draft_probs", "draft_probs != draft_probs"),
    ),
    step(
        "NaN accepted in the target",
        "errors",
        *tolerant("target_probs", "target_probs != target_probs"),
    ),
    step("infinity accepted", "errors", *tolerant("target_probs", "abs(target_probs) == _np.inf")),
    step("negative entries accepted", "errors", *tolerant("draft_probs", "draft_probs < 0")),
    # Tokens.
    step(
        "-1 wrapped",
        "tokens cases",
        "if type(drafted_token) is int and drafted_token == -1:",
        "    drafted_token += len(draft_probs)",
        ANSWER,
        "return answer",
    ),
    tokens(
        "a bool accepted as a token",
        "tokens",
        'isinstance(token, bool) or str(getattr(token, "dtype", "")).endswith("bool")',
        'str(getattr(token, "dtype", "")).endswith("bool")',
    ),
    tokens(
        "a bool tensor accepted as a token",
        "tokens",
        ' or str(getattr(token, "dtype", "")).endswith("bool")',
        "",
    ),
    tokens("an array of one element accepted as a token", "tokens", "and shape:", "and False:"),
    tokens(
        "a float token truncated", "tokens", "int.__index__(operator.index(token))", "int(token)"
    ),
    tokens(
        "a token beyond 64 bits not refused here",
        "tokens",
        "if not _INT64.min <= token <= _INT64.max:",
        "if False:",
    ),
    # Ids of rows.
    tokens(
        "the dtype of ids unchecked",
        "rows",
        "    raise _not_integers(name, dtype)\n\n\n@lru_cache",
        "    return array\n\n\n@lru_cache",
    ),
    tokens(
        "bool ids accepted",
        "rows",
        '    if array.dtype.kind in "iu":\n        return array\n',
        '    if array.dtype.kind in "iub":\n        return array\n',
    ),
    tokens(
        "bools in a list of ids accepted",
        "rows",
        "[as_index(name, token, _row(row)) for",
        "[operator.index(token) for",
    ),
    tokens(
        "uint64 ids wrapped",
        "rows",
        "if ids.dtype == np.uint64:",
        "if False:",
    ),
    tokens("the shape of ids unchecked", "rows", "if shape != (rows,):", "if False:"),
    tokens(
        "a masked id accepted",
        "tokens rows",
        "    if isinstance(token, np.ma.MaskedArray):",
        "    if False:",
    ),
    tokens(
        "masked ids accepted", "rows", "if isinstance(numbers, np.ma.MaskedArray):", "if False:"
    ),
    # Kinds, dtypes and devices.
    arrays(
        "mixed libraries accepted",
        "errors",
        "if any(other is not kind for other in kinds):",
        "if False:",
    ),
    arrays(
        "mixed dtypes promoted",
        "errors",
        "    dtypes = [_seen(name, kind.dtype, array) for name, array in arrays.items()]\n",
        "    if all(isinstance(array, np.ndarray) for array in arrays.values()):\n"
        "        common = np.result_type(*arrays.values())\n"
        "        arrays = {name: np.asarray(array, common) for name, array in arrays.items()}\n"
        "    dtypes = [_seen(name, kind.dtype, array) for name, array in arrays.items()]\n",
    ),
    arrays(
        "other dtypes not refused here",
        "errors",
        "if len(set(dtypes)) == 1 and dtypes[0] in DTYPES:",
        "if len(set(dtypes)) == 1:",
    ),
    arrays("devices that differ accepted", "errors", "if len(set(devices)) > 1:", "if False:"),
    arrays(
        "other devices not refused",
        "chain_errors",
        'if devices[0].partition(":")[0] != "cpu":',
        "if False:",
    ),
    kinds(
        "masked arrays accepted",
        "errors",
        "if isinstance(array, np.ma.MaskedArray):",
        "if False:",
    ),
    kinds("bools in a row accepted", "errors", "if isinstance(entry, bool) or not", "if not"),
    kinds(
        "sparse tensors accepted", "errors", "if array.layout is not torch.strided:", "if False:"
    ),
    kinds("quantised tensors accepted", "errors", "if array.is_quantized:", "if False:"),
    kinds("meta tensors accepted", "errors", 'if array.device.type == "meta":', "if False:"),
    kinds(
        "fake tensors accepted",
        "errors",
        "if type(array).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:",
        "if False:",
    ),
    kinds(
        "tensors without memory accepted",
        "tricks",
        "        if not in_memory(array):",
        "        if False:",
    ),
    kinds(
        "tensors without memory seen by the short way",
        "errors tricks",
        "return view if held else None",
        "return view",
    ),
    # Torch's results and views.
    kinds(
        "bfloat16 not restored on Torch",
        "plain",
        'tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor',
        "tensor",
    ),
    kinds(
        "results that require gradients",
        "plain",
        "tensor = torch.from_numpy(array)",
        "tensor = torch.from_numpy(array).requires_grad_(array.dtype.kind == 'f')",
    ),
    kinds("gradients not detached", "layout", ".detach().resolve_neg()", ".resolve_neg()"),
    kinds("the negative bit not resolved", "layout", ".detach().resolve_neg()", ".detach()"),
    api(
        "NumPy's accept probabilities for Torch",
        "rows",
        'return rows.kind.wrap(accepted, "float64", rows.device)',
        "return accepted",
    ),
    api(
        "a token that moves the rows not followed",
        "tricks",
        "        return step(draft_probs, target_probs, _tokens.as_index(",
        "        return step(*_arrays.pair(draft_probs, target_probs)[3:], _tokens.as_index(",
    ),
    # Shapes and messages.
    api(
        "the shape check dropped",
        "errors",
        "if draft != target or len(draft) != ndim or draft[-1] == 0:",
        "if len(draft) != ndim:",
    ),
    api("an empty vocabulary accepted", "errors", " or draft[-1] == 0:", ":"),
    api("shapes swapped in a message", "errors", 'got {draft} "', 'got {target} "'),
    arrays(
        "dtypes swapped in a message",
        "errors",
        '" and ".join(dtypes)',
        '" and ".join(dtypes[::-1])',
    ),
    arrays(
        "libraries swapped in a message",
        "errors",
        '" and ".join(map(type_name, arrays.values()))',
        '" and ".join(map(type_name, reversed(arrays.values())))',
    ),
    arrays(
        "the other argument named in a message",
        "errors",
        "kinds = [kind_of(name, array) for name, array",
        'kinds = [kind_of("draft_probs", array) for _, array',
    ),
    api(
        "the token checked before the shapes",
        "precedence",
        "    if type(drafted_token) is not int:\n",
        "    if type(drafted_token) is not int:\n"
        '        _tokens.as_index("drafted_token", drafted_token)\n',
    ),
    # Rows.
    rows(
        "a float32 mass",
        "rows contract",
        ROW_ANSWERS,
        "if isinstance(answer.mass, _np.ndarray):",
        "    answer = answer._replace(mass=answer.mass.astype(_np.float32).astype(_np.float64))",
        "return answer",
    ),
    rows(
        "a float32 accept_prob",
        "rows contract",
        ROW_ANSWERS,
        "if isinstance(answer.mass, _np.ndarray):",
        "    answer = answer._replace(accept_prob=answer.accept_prob.astype(_np.float32))",
        "return answer",
    ),
    api(
        "draft and target exchanged",
        "cases",
        "_core.accept_rows(\n        rows.draft, rows.target",
        "_core.accept_rows(\n        rows.target, rows.draft",
    ),
    api(
        "accept_prob and mass exchanged",
        "cases",
        "accept_prob, mass = _core",
        "mass, accept_prob = _core",
    ),
    api("check ignored: always", "rows", "residual, check,", "residual, True,"),
    api("check ignored: never", "rows", "residual, check,", "residual, False,"),
    api("residuals in the byte order of the rows", "layout", '.newbyteorder("=")', ""),
    # Outputs.
    api("out ignored", "out", "    if out is None:", "    if True:"),
    api("another object than out returned", "out", "if out is None else out", ""),
    arrays("the library of out unchecked", "out", "if kind.name != library:", "if False:"),
    api(
        "other flags taken",
        "errors",
        'check = _tokens.as_flag("check", check)',
        "check = bool(check)",
    ),
    arrays("the dtype of out unchecked", "out", "if kind.dtype(out) != rows.dtype:", "if False:"),
    arrays(
        "the device of out unchecked", "out", "if kind.device(out) != rows.device:", "if False:"
    ),
    arrays(
        "the shape of out unchecked",
        "out",
        "if view.shape != tuple(rows.draft.shape):",
        "if False:",
    ),
    kinds(
        "a read-only out written to",
        "out",
        "return None if array.flags.writeable else ",
        "array.flags.writeable = True\n        return None and ",
    ),
    kinds(
        "an out that records gradients written to", "out", "if array.requires_grad:", "if False:"
    ),
    kinds("a copy of a negated out written to", "out", "if array.is_neg()", "if False"),
    arrays(
        "an out that overlaps itself unchecked", "out", "if overlaps_itself(view):", "if False:"
    ),
    api(
        "an out that overlaps the draft unchecked",
        "out",
        '            "draft_probs": draft_probs,\n',
        "",
    ),
    api(
        "an out that overlaps the target unchecked",
        "out",
        '            "target_probs": target_probs,\n',
        "",
    ),
    api(
        "an out that overlaps the ids unchecked",
        "tricks",
        '            "draft_token_ids": draft_token_ids,\n',
        "",
    ),
    kinds(
        "an out under a negated input unchecked",
        "tricks",
        "    if not array.is_neg():\n        return TORCH",
        "    if True:\n        return TORCH",
    ),
    api(
        "a write that Torch does not learn of",
        "tricks",
        "        rows.kind.written(out)",
        "        pass",
    ),
    arrays(
        "an overlap that is hard to find passed over",
        "tricks",
        "TooHardError:\n        return True",
        "TooHardError:\n        return False",
    ),
)
