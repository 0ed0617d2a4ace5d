"""The array libraries that `gpu-check` goes through, and what only one of them has."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftverify._api import accept_residual
from draftverify._core import speculative_decode_step
from draftverify._gpu_checks import Bits, Rows, compare, expect_same, rows_of


def _of(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        return None


class GpuLibrary:
    """One library, with a GPU."""

    name: str

    def __init__(self, module: Any) -> None:
        self.module = module

    @classmethod
    def found(cls) -> GpuLibrary | None:
        """Make one, if the library is installed and has a GPU here."""
        raise NotImplementedError

    def on_gpu(self, rows: Bits, dtype: str) -> Any:
        """Copy rows, or the bits of bfloat16, to the GPU."""
        raise NotImplementedError

    def on_cpu(self, rows: Bits, dtype: str) -> Any:
        """Show rows to the CPU's functions."""
        raise NotImplementedError

    def both_on_gpu(self, rows: Rows, dtype: str = "float32") -> tuple[Any, Any]:
        """Copy the rows of both models to the GPU."""
        return self.on_gpu(rows[0], dtype), self.on_gpu(rows[1], dtype)

    def both_on_cpu(self, rows: Rows, dtype: str = "float32") -> tuple[Any, Any]:
        """Show the rows of both models to the CPU's functions."""
        return self.on_cpu(rows[0], dtype), self.on_cpu(rows[1], dtype)

    def ids(self, ids: NDArray[np.int64]) -> Any:
        """Copy ids to the GPU."""
        return self.on_gpu(ids, "int64")

    def bits(self, array: Any) -> Bits:
        """Copy an array of this library, or of NumPy, to the CPU."""
        raise NotImplementedError

    def checks(self) -> dict[str, Callable[[], str]]:
        """Name the checks of what only this library has."""
        return {}


class Torch(GpuLibrary):
    """CUDA tensors."""

    name = "Torch"

    @classmethod
    def found(cls) -> GpuLibrary | None:
        torch = _of("torch")
        return cls(torch) if torch is not None and torch.cuda.is_available() else None

    def on_cpu(self, rows: Bits, dtype: str) -> Any:
        if dtype == "bfloat16":
            return self.module.from_numpy(rows.view(np.int16)).view(self.module.bfloat16)
        return self.module.from_numpy(rows)

    def on_gpu(self, rows: Bits, dtype: str) -> Any:
        return self.on_cpu(rows, dtype).cuda()

    def bits(self, array: Any) -> Bits:
        if isinstance(array, np.ndarray):
            return array
        array = array.cpu()
        whole = array.view(self.module.int16) if array.dtype is self.module.bfloat16 else array
        numbers: Bits = whole.numpy()
        return numbers

    def checks(self) -> dict[str, Callable[[], str]]:
        return {
            "strides and gradients": self.strides,
            "a stream that is late": self.late_stream,
            "eight threads": self.threads,
            "graph capture": self.capture,
            "memory": self.memory,
            "several devices": self.devices,
        }

    def strides(self) -> str:
        """Rows and entries apart, an entry off alignment, broadcast, recording gradients."""
        draft, target, ids = rows_of("float32", 3, 5000)
        expected = accept_residual(draft, target, ids).residual
        wide = self.module.zeros(3, 10_003, device="cuda")
        place = wide[:, 1:10_001:2]
        place.copy_(self.on_gpu(draft, "float32"))
        turned = self.on_gpu(np.ascontiguousarray(target.T), "float32").T
        out = self.module.zeros(3, 5001, device="cuda")[:, 1:]
        answer = accept_residual(place.requires_grad_(), turned, ids, out=out)
        expect_same(self.bits(answer.residual), expected, "residual of strided rows")
        one = self.on_gpu(draft[:1], "float32").expand(3, 5000)
        same = np.repeat(ids[:1], 3)
        wanted = accept_residual(np.repeat(draft[:1], 3, axis=0), target, same)
        found = accept_residual(one, self.on_gpu(target, "float32"), same)
        expect_same(self.bits(found.residual), wanted.residual, "residual of one row many times")
        return "read and written where they are"

    def late_stream(self) -> str:
        """Rows that are written late on the caller's stream are read after that."""
        torch = self.module
        draft, target, ids = rows_of("float32", 1, 128_256)
        expected = accept_residual(draft, target, ids)
        sources = [torch.from_numpy(side).pin_memory() for side in (draft, target)]
        tokens = self.ids(ids)
        for _ in range(20):
            rows = tuple(torch.full_like(source, 9, device="cuda") for source in sources)
            stream = torch.cuda.Stream()
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                for row, source in zip(rows, sources, strict=True):
                    row.copy_(source, non_blocking=True)
                answer = accept_residual(rows[0], rows[1], tokens, check=False)
                if stream.query():
                    message = "the call waited for the stream, with check=False"
                    raise AssertionError(message)
                step = speculative_decode_step(rows[0][0], rows[1][0], int(ids[0]))
            stream.synchronize()
            expect_same(self.bits(answer.residual), expected.residual, "residual")
            expect_same(self.bits(step["residual"]), expected.residual[0], "residual of a step")
        return "waited for; the call itself does not wait"

    def threads(self) -> str:
        """Threads with streams of their own get each its own answers."""
        torch, errors = self.module, list[BaseException]()

        def work(seed: int) -> None:
            rows = rows_of("float32", 2, 50_257, seed)
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    for _ in range(20):
                        compare(self, rows, "float32")
            except Exception as error:
                errors.append(error)

        crew = [Thread(target=work, args=(seed,)) for seed in range(8)]
        for member in crew:
            member.start()
        for member in crew:
            member.join()
        if errors:
            raise errors[0]
        return "each its own answers"

    def capture(self) -> str:
        """Capture a call in a graph, and replay it with other rows in the same memory."""
        torch = self.module
        first, second = (rows_of("float32", 4, 128_256, seed) for seed in range(2))
        rows, tokens = self.both_on_gpu(first), self.ids(first[2])
        out = torch.empty(4, 128_256, device="cuda")
        accept_residual(*rows, tokens, out=out, check=False)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            answer = accept_residual(*rows, tokens, out=out, check=False)
        for given in (first, second):
            for place, row in zip((*rows, tokens), given, strict=True):
                place.copy_(torch.from_numpy(row))
            out.fill_(-1)
            graph.replay()
            expected = accept_residual(*given)
            expect_same(self.bits(out), expected.residual, "residual of a replay")
            expect_same(self.bits(answer.mass), expected.mass, "mass of a replay")
        return "captured once, replayed with other rows"

    def memory(self) -> str:
        """Torch owns the results, and nothing is kept."""
        torch = self.module
        draft, target, ids = rows_of("float32", 1, 262_144)
        rows, token = self.both_on_gpu((draft[0], target[0], ids)), int(ids[0])
        speculative_decode_step(*rows, token)
        before = torch.cuda.memory_allocated()
        kept = [speculative_decode_step(*rows, token)["residual"] for _ in range(8)]
        if torch.cuda.memory_allocated() - before < 8 * 4 * 262_144:
            message = "the results are not in Torch's memory"
            raise AssertionError(message)
        del kept
        for _ in range(1000):
            speculative_decode_step(*rows, token)
        if torch.cuda.memory_allocated() != before:
            message = f"{torch.cuda.memory_allocated() - before} bytes are kept"
            raise AssertionError(message)
        return "results are Torch's, 1000 steps keep nothing"

    def devices(self) -> str:
        """Every device answers, whichever is the current one."""
        count = self.module.cuda.device_count()
        given = rows_of("bfloat16", 2, 50_257)
        expected = accept_residual(*self.both_on_cpu(given, "bfloat16"), given[2])
        for number in range(count):
            draft, target = self.both_on_cpu(given, "bfloat16")
            rows = draft.to(f"cuda:{number}"), target.to(f"cuda:{number}")
            answer = accept_residual(*rows, given[2])
            if answer.residual.device != rows[0].device:
                message = f"rows on {rows[0].device} answered on {answer.residual.device}"
                raise AssertionError(message)
            residual = self.bits(answer.residual)
            expect_same(residual, self.bits(expected.residual), f"residual on device {number}")
        return f"{count} checked" if count > 1 else "there is one alone"


class Cupy(GpuLibrary):
    """CuPy arrays."""

    name = "CuPy"

    @classmethod
    def found(cls) -> GpuLibrary | None:
        return cls(import_module("cupy"))

    def on_cpu(self, rows: Bits, dtype: str) -> Any:
        return rows.view(_bfloat16()) if dtype == "bfloat16" else rows

    def on_gpu(self, rows: Bits, dtype: str) -> Any:
        return self.module.asarray(self.on_cpu(rows, dtype))

    def bits(self, array: Any) -> Bits:
        numbers: Bits = array if isinstance(array, np.ndarray) else array.get()
        return numbers


class Jax(GpuLibrary):
    """JAX arrays."""

    name = "JAX"

    @classmethod
    def found(cls) -> GpuLibrary | None:
        jax = _of("jax")
        if jax is None or jax.default_backend() != "gpu":
            return None
        jax.config.update("jax_enable_x64", True)  # for answers of float64
        return cls(jax)

    def on_cpu(self, rows: Bits, dtype: str) -> Any:
        return rows.view(_bfloat16()) if dtype == "bfloat16" else rows

    def on_gpu(self, rows: Bits, dtype: str) -> Any:
        return self.module.device_put(self.on_cpu(rows, dtype), self.module.devices("gpu")[0])

    def bits(self, array: Any) -> Bits:
        return np.asarray(array)

    def checks(self) -> dict[str, Callable[[], str]]:
        return {"results outlive their memory's owner": self.lifetime}

    def lifetime(self) -> str:
        """Results stay what they are while CuPy takes memory again and again."""
        cupy = import_module("cupy")
        draft, target, ids = rows_of("float32", 4, 262_144)
        rows = self.both_on_gpu((draft, target, ids))
        expected = accept_residual(draft, target, ids).residual
        for _ in range(200):
            residual = accept_residual(*rows, ids, check=False).residual
            junk = cupy.full(4 * 262_144, -5, "float32")
            expect_same(self.bits(residual), expected, "residual")
            del residual, junk
        return "200 rounds"


def _bfloat16() -> np.dtype[Any]:
    bfloat16: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    return bfloat16
