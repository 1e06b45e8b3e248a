"""An artifact's weights on the device, in the layout of the file: their size, their upload, their lookup.

``upload`` copies every object of the selected components once, in file order; threads read the file, each
into a pinned buffer of its own, while the buffers of others are on their way.  ``StoredWeights`` then hands
out views as a ``Loader``.  What the file scatters (a matrix of several parts, experts at unequal distances)
is gathered on the host, still encoded.

The one thing a reader would get wrong: objects are shared.  A fused parent is copied once, however many
parameters are rows of it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import outcome
from numpy.typing import NDArray

from ninfer.artifact import formats, layouts
from ninfer.artifact.manifest import Parameter, Part, TensorObject
from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.cuda_experts import bank_of
from ninfer.ops.stored import StoredMatrix, stored_matrix
from ninfer.ops.verbs import Weight
from ninfer.runtime.arena import aligned

Bytes = NDArray[np.uint8]
Take = Callable[[tuple[int, ...], str], DeviceArray]
PIECE_BYTES = 8 << 20  # fits the processor's cache, so that a copy engine reads what was just written there
COPIERS = max(1, min(16, os.cpu_count() or 1))
_FLOAT32 = ("/a_log", "/dt_bias")
_KINDS = {"bf16": "bf16", "fp32": "f32"}


class Parameters(Protocol):
    """What is read of an artifact."""

    def has(self, name: str) -> bool:
        """Whether a parameter is bound."""

    def parameter(self, name: str) -> Parameter:
        """Its shape and parts."""

    def raw(self, tensor: TensorObject) -> memoryview:
        """The stored bytes of an object."""

    def decode(self, name: str) -> NDArray[Any]:
        """Its values."""


class Upload(Protocol):
    """Copies host bytes to device addresses."""

    def put(self, target: int, source: memoryview) -> None:
        """Note what is to be copied; the source must stay as it is until ``finish``."""

    def finish(self, tell: Callable[[int], None] = ...) -> None:
        """Copy and wait until everything has arrived; ``tell`` hears now and then of how many bytes."""


def objects_of(artifact: Parameters, names: Iterable[str]) -> list[TensorObject]:
    """The objects that parameters lie in, each once, in file order."""
    found = {part.object.id: part.object for name in names for part in artifact.parameter(name).parts}
    return sorted(found.values(), key=lambda item: item.offset)


def weight_bytes(objects: Iterable[TensorObject]) -> int:
    """Device bytes of a set of objects."""
    return sum(aligned(item.bytes) for item in objects)


def upload(
    artifact: Parameters,
    objects: Sequence[TensorObject],
    take: Take,
    copies: Upload,
    progress: Callable[[str], None],
) -> dict[str, DeviceArray]:
    """Copy objects to the device and report how far it is; returns them by id."""
    total, begun = sum(item.bytes for item in objects), time.monotonic()
    placed = {}
    for item in objects:
        placed[item.id] = take((item.bytes,), "u8")
        copies.put(placed[item.id].ptr, artifact.raw(item))
    copies.finish(lambda done: progress(f"loading weights: {done / total:.0%} of {total / 1e9:.1f} GB"))
    seconds = max(time.monotonic() - begun, 1e-9)
    progress(f"loaded {total / 1e9:.2f} GB in {seconds:.1f} s ({total / 1e9 / seconds:.1f} GB/s)")
    return placed


@attrs.frozen(eq=False)
class StoredWeights:
    """Implements ``model.weights.Loader`` over uploaded objects.

    ``take`` and ``copies`` place what has to be gathered or converted.
    """

    artifact: Parameters
    objects: Mapping[str, DeviceArray]
    take: Take
    copies: Upload

    def has(self, name: str) -> bool:
        """Whether the parameter exists."""
        return self.artifact.has(name)

    def weights(self, *names: str) -> tuple[Weight, ...]:
        """Load matrices."""
        return tuple(self._weight(self.matrix(name)) for name in names)

    def table(self, name: str) -> Weight:
        """Load an embedding."""
        return self._weight(self.matrix(name))

    def stack(self, names: tuple[str, ...]) -> Weight:
        """Load experts as a bank; gather them if they are not at equal distances in one object."""
        try:
            bank = bank_of([self.matrix(name) for name in names])
        except ValueError:
            parts = [part for name in names for part in self.artifact.parameter(name).parts]
            whole = self._gather(names[0], parts)
            rows = whole.rows // len(names)
            bank = bank_of([whole.take(i * rows, (i + 1) * rows) for i in range(len(names))])
        return Weight(bank.rows.rows, bank.rows.columns, bank.rows.format, bank)

    def vector(self, name: str) -> DeviceArray:
        """Load a small parameter: float32 for the decay's constants, bf16 for everything else."""
        parameter = self.artifact.parameter(name)
        wanted = "f32" if name.endswith(_FLOAT32) else "bf16"
        part = parameter.parts[0]
        if len(parameter.parts) == 1 and _KINDS.get(part.object.format) == wanted:
            at = self.objects[part.object.id].ptr + part.begin * (4 if wanted == "f32" else 2)
            return DeviceArray(at, parameter.shape, wanted)
        values = np.ascontiguousarray(self.artifact.decode(name), np.float32)
        stored = values if wanted == "f32" else values.astype(formats.BF16)
        return self._place(stored, parameter.shape, wanted)

    def indices(self, name: str) -> DeviceArray:
        """Load an int32 parameter."""
        values = np.ascontiguousarray(self.artifact.decode(name), np.int32)
        return self._place(values, values.shape, "i32")

    def matrix(self, name: str) -> StoredMatrix:
        """Find a matrix; gather it if it has several parts.  Raises StartupError."""
        parts = self.artifact.parameter(name).parts
        if len(parts) > 1:
            return self._gather(name, parts)
        item, (begin, end) = parts[0].object, _rows_of(name, parts[0])
        try:
            whole = stored_matrix(self.objects[item.id], item.format, item.shape)
        except layouts.Unsupported as problem:
            raise StartupError(f"{name}: {problem}: convert the model again") from None
        return whole.take(begin, end)

    def _weight(self, matrix: StoredMatrix) -> Weight:
        return Weight(matrix.rows, matrix.columns, matrix.format, matrix)

    def _gather(self, name: str, parts: Sequence[Part]) -> StoredMatrix:
        form, columns = parts[0].object.format, parts[0].object.shape[-1]
        if any((p.object.format, p.object.shape[-1]) != (form, columns) for p in parts):
            raise StartupError(f"{name} is made of several formats: convert the model again")
        pieces = [
            (self.artifact.raw(part.object), part.object.shape, _rows_of(name, part)) for part in parts
        ]
        joined = gather_rows(form, columns, pieces)
        shape = (sum(end - begin for _, _, (begin, end) in pieces), columns)
        return stored_matrix(self._place(joined, (joined.nbytes,), "u8"), form, shape)

    def _place(self, values: NDArray[Any], shape: tuple[int, ...], kind: str) -> DeviceArray:
        made = self.take(shape, kind)
        self.copies.put(made.ptr, memoryview(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data))
        self.copies.finish()
        return made


def _rows_of(name: str, part: Part) -> tuple[int, int]:
    columns = part.object.shape[-1]
    if part.begin % columns or part.end % columns:
        raise StartupError(f"{name} does not begin and end at whole rows: convert the model again")
    return part.begin // columns, part.end // columns


Rows = tuple[memoryview, tuple[int, ...], tuple[int, int]]


def gather_rows(form: str, columns: int, pieces: Sequence[Rows]) -> Bytes:
    """Encode nothing, move rows: one stored matrix of the given rows of others of the same format.

    A piece is the bytes of an object, its shape, and its first and last-plus-one row.  Raises StartupError.
    """
    total = sum(end - begin for _, _, (begin, end) in pieces)
    if form == "bf16":
        width = 2 * columns
        return np.concatenate(
            [np.frombuffer(raw, np.uint8)[b * width : e * width] for raw, _, (b, e) in pieces]
        )
    try:
        place = layouts.planes(form, (total, columns))
    except layouts.Unsupported as problem:
        raise StartupError(f"a matrix of scattered rows: {problem}") from None
    out: Bytes = np.zeros(place.total, np.uint8)
    at = 0
    for raw, shape, (begin, end) in pieces:
        _move_rows(
            form, out, place, at, np.frombuffer(raw, np.uint8), layouts.planes(form, shape), begin, end
        )
        at += end - begin
    return out


def _move_rows(
    form: str,
    out: Bytes,
    to: layouts.Planes,
    at: int,
    data: Bytes,
    source: layouts.Planes,
    begin: int,
    end: int,
) -> None:
    count = end - begin
    swizzled = form == formats.NVFP4
    for plane, width in enumerate(to.row_bytes[:1] if swizzled else to.row_bytes):
        target, origin = to.offsets[plane] + at * width, source.offsets[plane] + begin * width
        out[target : target + count * width] = data[origin : origin + count * width]
    if not swizzled:
        return
    here = layouts.nvfp4_scale_offsets(range(at, at + count), to.columns) + to.offsets[1]
    out[here] = data[source.offsets[1] + layouts.nvfp4_scale_offsets(range(begin, end), source.columns)]
    if at and not np.array_equal(out[-4:], data[-4:]):
        raise StartupError(
            "nvfp4 rows with different divisors cannot be one matrix: convert the model again"
        )
    out[-4:] = data[-4:]


Piece = tuple[int, Bytes]


@attrs.define(eq=False)
class PinnedUpload:
    """Threads, each with a pinned buffer of its own: one fills it while the buffers of others are copied.

    Everything goes to CuPy's ``stream``.  Buffers are kept from one ``finish`` to the next.
    """

    stream: Any
    piece: int = PIECE_BYTES
    copiers: int = COPIERS
    patience: float = 1.0  # seconds between two reports
    _pieces: list[Piece] = attrs.field(factory=list)
    _buffers: dict[int, Buffer] = attrs.field(factory=dict)

    def put(self, target: int, source: memoryview) -> None:
        """Note what is to be copied."""
        data = np.frombuffer(source, np.uint8)
        for begin in range(0, data.nbytes, self.piece):
            self._pieces.append((target + begin, data[begin : begin + self.piece]))

    def finish(self, tell: Callable[[int], None] = lambda nbytes: None) -> None:
        """Copy everything and wait until it has arrived; raises what a thread came upon."""
        work = Work(iter(self._pieces))
        count = min(self.copiers, len(self._pieces))
        self._pieces = []
        device = _device()
        threads = [
            threading.Thread(
                target=self._copy, args=(number, device, work), name="ninfer-load", daemon=True
            )
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.patience)
            while thread.is_alive():
                tell(work.done)
                thread.join(self.patience)
        if work.fault is not None:
            raise work.fault
        self.stream.synchronize()

    def close(self) -> None:
        """Give the buffers back."""
        for buffer in self._buffers.values():
            outcome.capture(buffer.wait)
        self._buffers.clear()

    def _copy(self, number: int, device: int, work: Work) -> None:
        done = outcome.capture(self._run, number, device, work)
        if isinstance(done, outcome.Error):
            work.stop(done.error)

    def _run(self, number: int, device: int, work: Work) -> None:
        _use(device)
        if number not in self._buffers:
            self._buffers[number] = Buffer(self.stream, self.piece)
        while (piece := work.take()) is not None:
            self._buffers[number].send(*piece)


@attrs.define(eq=False)
class Work:
    """Pieces that threads share; after a fault there are none left."""

    pieces: Iterator[Piece]
    done: int = 0  # bytes that were taken
    fault: BaseException | None = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def take(self) -> Piece | None:
        """Take the next piece."""
        with self._lock:
            piece = None if self.fault is not None else next(self.pieces, None)
            self.done += 0 if piece is None else piece[1].nbytes
            return piece

    def stop(self, fault: BaseException) -> None:
        """Note the first fault."""
        with self._lock:
            self.fault = self.fault or fault


def _device() -> int:
    from cupy.cuda import runtime

    return int(runtime.getDevice())


def _use(device: int) -> None:
    """Choose a thread's device; each thread has its own."""
    from cupy.cuda import runtime

    runtime.setDevice(device)


class Buffer:
    """Pinned memory that one thread sends pieces from."""

    def __init__(self, stream: Any, nbytes: int) -> None:
        import cupy

        self._stream, self._memory = stream, cupy.cuda.PinnedMemory(nbytes)
        self._passed = cupy.cuda.Event(disable_timing=True)

    def send(self, target: int, source: Bytes) -> None:
        """Fill the buffer, once its last copy has run, and begin to copy it."""
        from cupy.cuda import runtime

        from ninfer.runtime.cuda_transfers import host_view

        self.wait()
        np.copyto(host_view(self._memory.ptr, source.nbytes), source)
        runtime.memcpyAsync(target, self._memory.ptr, source.nbytes, 1, self._stream.ptr)
        self._passed.record(self._stream)

    def wait(self) -> None:
        """Wait until the last copy has run."""
        self._passed.synchronize()
