"""cuBLASLt through ctypes: bf16 products for many rows, with an algorithm pinned for each matrix shape.

Owns a handle and its fixed workspace, so products may be captured.  The algorithm for (N, K, output kind)
is pinned to what cuBLAS names first for ``TUNED_ROWS`` rows without split sums.  While a program warms up
(``trying``), others take its place for few rows if they are faster and their bits are the same: a row's sum
runs over K in one order, whatever chunk it comes in and whichever algorithm was faster today.

The one thing a reader would get wrong: cuBLAS is column-major.  y (T, N) = x (T, K) @ w (N, K).T is asked
for as y.T (N, T) = w.T.T @ x.T, so "m" is N and "n" is T.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import attrs

from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.driver import DriverError
from ninfer.kernels_cu.libraries import find_library

WORKSPACE_BYTES = 32 << 20
TUNED_ROWS = 2048
FEW_ROWS = (64, 128, 256, 512, 1024)  # up to so many rows a choice reaches; one more is for all others
_ASKED_ROWS = (*FEW_ROWS, TUNED_ROWS, 8192)
_ASKED, _WORTH, _LONG_SECONDS = 8, 0.95, 1e-3  # answers each; least gain; products that are left alone
COMPARED, _REPEATS = 32, 3  # rows at either end; timed runs
_MOST_LAYOUTS = 512
_COMPUTE_32F, _R_32F, _R_16BF = 68, 0, 14
_TRANS_A, _PREF_WORKSPACE, _PREF_REDUCTION = 3, 1, 3
_TYPES = {"bf16": _R_16BF, "f32": _R_32F}
_ONE, _ZERO = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))


class _Choice(ctypes.Structure):
    """One answer of the heuristic; its first 64 bytes are the algorithm."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Clock(Protocol):
    """What a trial needs of the stream; ``runtime.cuda_transfers.Transfers`` is one."""

    def mark(self) -> Any:
        """Mark this point of the stream; the mark has ``wait``."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Device time between two marks that have been passed."""

    def read(self, arrays: Sequence[DeviceArray]) -> Any:
        """Copy arrays, end to end, into fresh host memory; waits for them."""


class Gemm(Protocol):
    """A product for many rows."""

    def __call__(
        self, x: DeviceArray, w: DeviceArray, out: DeviceArray, add: DeviceArray | None = None
    ) -> None:
        """out = x @ w.T (+ add): x (T, K) bf16, w (N, K) bf16, out (T, N) bf16 or f32, add like out.

        Rows of out may have a pitch.
        """


_Key = tuple[int, int, str, bool]  # N, K, output kind, whether something is added


@attrs.define(eq=False)
class Layouts:
    """Descriptions of column-major matrices, kept until there are many: rows come in any number."""

    do: Callable[..., None]
    _made: dict[tuple[int, int, int, int], Any] = attrs.field(factory=dict)

    def __call__(self, kind: int, rows: int, columns: int, stride: int) -> Any:
        """Find or make one."""
        key = (kind, rows, columns, stride)
        if key not in self._made:
            made = ctypes.c_void_p()
            self.do(
                "MatrixLayoutCreate", ctypes.byref(made), kind,
                ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(stride),
            )  # fmt: skip
            self._made[key] = made
        return self._made[key]

    def trim(self) -> None:
        """Give all back if there are many; a product that is being put together must not lose its own."""
        if len(self._made) > _MOST_LAYOUTS:
            for layout in self._made.values():
                self.do("MatrixLayoutDestroy", layout)
            self._made.clear()


@attrs.define(eq=False)
class CublasLt:
    """Products on ``stream`` with a workspace of ``WORKSPACE_BYTES``; ``clock`` is there during a trial."""

    workspace: DeviceArray
    stream: int = 0
    clock: Clock | None = None
    _lib: Any = None
    _handle: Any = None
    _product: Any = None
    _pinned: dict[_Key, Any] = attrs.field(factory=dict)
    _chosen: dict[tuple[_Key, int], Any] = attrs.field(factory=dict)
    layouts: Layouts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.layouts = Layouts(self._do)
        path = find_library("cublasLt")
        if path is None:
            raise StartupError("cuBLAS is missing: install the extra cuda13 or cuda12")
        self._lib = ctypes.CDLL(path)
        self._handle, self._product = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("Create", ctypes.byref(self._handle))
        self._do("MatmulDescCreate", ctypes.byref(self._product), _COMPUTE_32F, _R_32F)
        transposed = ctypes.c_int(1)
        self._do(
            "MatmulDescSetAttribute", self._product, _TRANS_A, ctypes.byref(transposed), ctypes.c_size_t(4)
        )

    def _do(self, call: str, *arguments: Any) -> None:
        code = getattr(self._lib, f"cublasLt{call}")(*arguments)
        if code:
            raise DriverError(f"cublasLt{call}", code)

    def __call__(
        self, x: DeviceArray, w: DeviceArray, out: DeviceArray, add: DeviceArray | None = None
    ) -> None:
        """Multiply; see ``Gemm``.  Raises ValueError on shapes, DriverError when cuBLAS refuses."""
        (rows, columns), width = x.shape, w.shape[0]
        if (
            w.shape[1] != columns
            or out.shape != (rows, width)
            or (add is not None and (add.shape, add.stride) != (out.shape, out.stride))
        ):
            raise ValueError(f"gemm: {x.shape} @ {w.shape}.T -> {out.shape}")
        self.layouts.trim()
        run = functools.partial(self._multiply, x, w, out, add)
        run(self._algorithm((width, columns, out.kind, add is not None), out, run))

    def _multiply(
        self, x: DeviceArray, w: DeviceArray, out: DeviceArray, add: DeviceArray | None, algorithm: Any
    ) -> None:
        (rows, columns), width = x.shape, w.shape[0]
        left, right = self._layout(_R_16BF, columns, width), self._layout(_R_16BF, columns, rows)
        result = self.layouts(_TYPES[out.kind], width, rows, out.stride)
        self._do(
            "Matmul", self._handle, self._product,
            _ONE, ctypes.c_void_p(w.ptr), left, ctypes.c_void_p(x.ptr), right,
            _ZERO if add is None else _ONE, ctypes.c_void_p((add or out).ptr), result,
            ctypes.c_void_p(out.ptr), result, algorithm,
            ctypes.c_void_p(self.workspace.ptr), ctypes.c_size_t(self.workspace.nbytes),
            ctypes.c_void_p(self.stream),
        )  # fmt: skip

    def _layout(self, kind: int, rows: int, columns: int) -> Any:
        return self.layouts(kind, rows, columns, rows)

    def _algorithm(self, key: _Key, out: DeviceArray, run: Callable[[Any], None]) -> Any:
        place = key, sum(out.shape[0] > reach for reach in FEW_ROWS)
        if place not in self._chosen and self.clock is not None:
            self._chosen[place] = self._try(key, out, run, self.clock)
        return self._chosen.get(place) or self._pin(key)

    def _pin(self, key: _Key) -> Any:
        if key not in self._pinned:
            self._pinned[key] = ctypes.byref(self._answers(key, TUNED_ROWS, 1)[0].algorithm)
        return self._pinned[key]

    def _try(self, key: _Key, out: DeviceArray, run: Callable[[Any], None], clock: Clock) -> Any:
        rows = out.shape[0]
        ends = out.rows(0, min(COMPARED, rows)), out.rows(max(0, rows - COMPARED), rows)

        def others() -> Iterator[Any]:
            asked = (one for rows in _ASKED_ROWS for one in self._answers(key, rows, _ASKED))
            for one in {bytes(one.algorithm): one for one in asked}.values():
                yield ctypes.byref(one.algorithm)

        return fastest(clock, run, self._pin(key), others(), ends)

    def _answers(self, key: _Key, rows: int, most: int) -> list[_Choice]:
        """What cuBLAS names for so many rows, the best first by its own guess.  Raises StartupError."""
        width, columns, kind, _ = key
        preference, count = ctypes.c_void_p(), ctypes.c_int()
        limit, no_split = ctypes.c_uint64(self.workspace.nbytes), ctypes.c_uint32(0)
        self._do("MatmulPreferenceCreate", ctypes.byref(preference))
        for attribute, value in ((_PREF_WORKSPACE, limit), (_PREF_REDUCTION, no_split)):
            size = ctypes.c_size_t(ctypes.sizeof(value))
            self._do("MatmulPreferenceSetAttribute", preference, attribute, ctypes.byref(value), size)
        result = self._layout(_TYPES[kind], width, rows)
        choices = (_Choice * most)()
        self._do(
            "MatmulAlgoGetHeuristic", self._handle, self._product,
            self._layout(_R_16BF, columns, width), self._layout(_R_16BF, columns, rows),
            result, result, preference, most, choices, ctypes.byref(count),
        )  # fmt: skip
        self._do("MatmulPreferenceDestroy", preference)
        if not count.value:
            raise StartupError(f"cuBLAS has no product of {columns} by {width} for this card")
        return list(choices[: count.value])


def fastest(
    clock: Clock,
    run: Callable[[Any], None],
    pinned: Any,
    others: Iterable[Any],
    results: Sequence[DeviceArray],
) -> Any:
    """The fastest way that leaves the same bits in ``results`` as ``pinned`` and is worth the change."""
    limit = _WORTH * _seconds(clock, run, pinned)
    if limit > _LONG_SECONDS:
        return pinned
    want = bytes(clock.read(results))
    timed = [(_seconds(clock, run, one), one) for one in others]
    for seconds, one in sorted(timed, key=operator.itemgetter(0)):
        if seconds > limit:
            break
        run(one)
        if bytes(clock.read(results)) == want:
            return one
    return pinned


def _seconds(clock: Clock, run: Callable[[Any], None], algorithm: Any) -> float:
    """Device seconds of one run, the first left out."""
    run(algorithm)
    begin = clock.mark()
    for _ in range(_REPEATS):
        run(algorithm)
    end = clock.mark()
    end.wait()
    return clock.seconds(begin, end) / _REPEATS


@contextlib.contextmanager
def trying(gemm: Gemm, clock: Clock) -> Iterator[bool]:
    """While this lasts, products of a new shape and number of rows choose their algorithm by trial.

    Yields whether there is any choice.
    """
    if not isinstance(gemm, CublasLt):
        yield False
        return
    gemm.clock = clock
    try:
        yield True
    finally:
        gemm.clock = None
