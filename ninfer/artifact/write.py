"""Writing a version 3 artifact: header first, then every object streamed once, published by rename.

Owns offsets, file splitting and atomicity.  Promises that the final name never shows a file that is
incomplete: everything is written under a temporary name, synced, and the entry file is renamed last.

The one thing a reader would get wrong: sizes are known before any data is, from format and shape, so
the header never has to be patched.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from ninfer.artifact.files import ENTRY_MAGIC, HEAD_BYTES, PAGE, PART_MAGIC
from ninfer.artifact.formats import align
from ninfer.artifact.layouts import LAYOUT_OF, encode, encoded_bytes
from ninfer.artifact.manifest import Proposal, Shape
from ninfer.artifact.schema import TENSOR_ALIGN

MAX_FILE_BYTES = 32_000_000_000
Chunk: TypeAlias = bytes | memoryview | npt.NDArray[np.uint8]
Source = Callable[[], Iterable[Chunk]]


@attrs.frozen
class TensorPlan:
    """A tensor to be written; ``source`` yields its encoded bytes in order when its turn comes."""

    id: str
    shape: Shape
    format: str
    source: Source

    @property
    def bytes(self) -> int:
        """Encoded size."""
        return encoded_bytes(self.format, LAYOUT_OF[self.format], self.shape)


@attrs.frozen
class Slice:
    """Elements ``begin`` .. ``end`` - 1 of the planned tensor ``id``; None: all of it, shape included."""

    id: str
    range: tuple[int, int] | None = None


@attrs.frozen
class ComponentPlan:
    """A component to be written; ``resources`` maps roles to file contents."""

    config: Mapping[str, Any]
    resources: Mapping[str, bytes] = attrs.field(factory=dict)
    target: str | None = None
    proposal: Proposal | None = None


@attrs.frozen
class Plan:
    """Everything that one artifact will hold.  Bindings map a logical name to its slices, in order."""

    name: str
    components: Mapping[str, ComponentPlan]
    tensors: tuple[TensorPlan, ...]
    bindings: Mapping[str, tuple[Slice, ...]]
    provenance: Mapping[str, Any] = attrs.field(factory=dict)
    uses: tuple[Mapping[str, Any], ...] = ()


def planned(id: str, values: npt.NDArray[Any], form: str) -> TensorPlan:
    """Plan a tensor from an array that is already in memory."""
    return TensorPlan(id, values.shape, form, lambda: [encode(values, form)])


@attrs.frozen
class _Placed:
    """An object with its place in the payload."""

    offset: int
    bytes: int
    record: dict[str, Any]
    source: Source


def _resource_id(component: str, role: str) -> str:
    return f"resource/{component}/{role}"


def _just(data: bytes) -> tuple[Chunk]:
    return (data,)


def _place(plan: Plan) -> list[_Placed]:
    """Lay out resources, then tensors, in the order given."""
    placed: list[_Placed] = []
    cursor = 0
    for component, part in plan.components.items():
        for role, data in part.resources.items():
            record = {"id": _resource_id(component, role), "kind": "resource", "encoding": "raw_bytes_v1"}
            placed.append(_Placed(cursor, len(data), record, partial(_just, data)))
            cursor += len(data)
    for tensor in plan.tensors:
        cursor = align(cursor, TENSOR_ALIGN)
        placed.append(_Placed(cursor, tensor.bytes, _tensor_record(tensor), tensor.source))
        cursor += tensor.bytes
    return placed


def _tensor_record(tensor: TensorPlan) -> dict[str, Any]:
    return {
        "id": tensor.id,
        "kind": "tensor",
        "shape": list(tensor.shape),
        "format": tensor.format,
        "layout": LAYOUT_OF[tensor.format],
    }


def _component_json(name: str, part: ComponentPlan) -> dict[str, Any]:
    found: dict[str, Any] = {"config": dict(part.config)}
    if part.target is not None:
        found["target"] = part.target
    if part.resources:
        found["resources"] = {role: _resource_id(name, role) for role in part.resources}
    if part.proposal is not None:
        rows = part.proposal.rows
        found["proposal"] = {"domain": "full"} if rows is None else {"domain": "indexed", "rows": rows}
    return found


def _binding_json(slices: tuple[Slice, ...], tensors: Mapping[str, TensorPlan]) -> dict[str, Any]:
    if len(slices) == 1 and slices[0].range is None:
        return {"object": slices[0].id}
    spans = [(item.id, item.range or (0, math.prod(tensors[item.id].shape))) for item in slices]
    return {"parts": [{"object": id, "range": list(span)} for id, span in spans]}


def _root(plan: Plan, placed: list[_Placed]) -> dict[str, Any]:
    tensors = {tensor.id: tensor for tensor in plan.tensors}
    return {
        "metadata": {"name": plan.name},
        "provenance": dict(plan.provenance),
        "components": {name: _component_json(name, part) for name, part in plan.components.items()},
        "objects": [{**item.record, "offset": item.offset, "bytes": item.bytes} for item in placed],
        "bindings": {name: _binding_json(slices, tensors) for name, slices in plan.bindings.items()},
        "uses": [dict(use) for use in plan.uses],
    }


def _header(root: dict[str, Any], entry: str, total: int, limit: int) -> tuple[bytes, list[int]]:
    """JSON text and the payload bytes of each file.

    How much fits beside the header depends on the header's own size, so grow until it holds.
    """
    capacity = (limit - PAGE) // PAGE * PAGE
    if capacity <= 0:
        raise ValueError(f"a file limit of {limit} bytes leaves no room for a payload")
    room = total
    while True:
        sizes = [min(room, total)]
        rest = total - sizes[0]
        sizes += [min(capacity, rest - at) for at in range(0, rest, capacity)]
        names = [None, *(f"{entry}.part-{index:04d}" for index in range(1, len(sizes)))]
        files = [{"path": name, "payload_bytes": size} for name, size in zip(names, sizes, strict=True)]
        text = json.dumps({**root, "files": files}, ensure_ascii=False, separators=(",", ":")).encode()
        start = align(HEAD_BYTES[3] + len(text), PAGE)
        fits = (limit - start) // PAGE * PAGE
        if fits <= 0:
            raise ValueError(
                f"a file limit of {limit} bytes leaves no room beside a header of {start} bytes"
            )
        if sizes[0] <= fits:
            return text, sizes
        room = fits


class _Sink:
    """Writes one byte stream across several temporary files, and publishes them together."""

    def __init__(self, path: Path, text: bytes, sizes: list[int], artifact_id: bytes) -> None:
        self._finals = [path, *(path.with_name(f"{path.name}.part-{i:04d}") for i in range(1, len(sizes)))]
        self._temporary = [final.with_name(f".{final.name}.{os.getpid()}.tmp") for final in self._finals]
        start = align(HEAD_BYTES[3] + len(text), PAGE)
        head = ENTRY_MAGIC + b"\x03" + len(text).to_bytes(8, "little") + artifact_id + text
        self._heads = [head.ljust(start, b"\0")]
        for index in range(1, len(sizes)):
            part = PART_MAGIC + index.to_bytes(8, "little") + artifact_id
            self._heads.append(part.ljust(PAGE, b"\0"))
        self._sizes = sizes
        self._index = -1
        self._left = 0
        self._file: BinaryIO | None = None
        self.written = 0

    def write(self, data: Chunk) -> None:
        """Append bytes, going on to the next file where one is full."""
        view = memoryview(data.data if isinstance(data, np.ndarray) else data)
        while view:
            if not self._left:
                self._next_file()
            assert self._file is not None
            count = min(len(view), self._left)
            self._file.write(view[:count])
            view, self._left, self.written = view[count:], self._left - count, self.written + count

    def publish(self) -> None:
        """Sync everything and rename; the entry file last."""
        self._finish_file()
        for temporary, final in reversed(list(zip(self._temporary, self._finals, strict=True))):
            os.replace(temporary, final)

    def abandon(self) -> None:
        """Remove what was written."""
        if self._file is not None:
            self._file.close()
        for temporary in self._temporary:
            temporary.unlink(missing_ok=True)

    def _next_file(self) -> None:
        self._finish_file()
        self._index += 1
        self._file = self._temporary[self._index].open("wb")
        self._file.write(self._heads[self._index])
        self._left = self._sizes[self._index]

    def _finish_file(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None


def write_artifact(
    path: Path,
    plan: Plan,
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
    artifact_id: bytes | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write ``plan`` to ``path`` and ``path.part-NNNN``; returns the payload bytes.

    ``artifact_id`` (16 bytes) is random unless given.  ``progress`` gets (bytes done, bytes in all) after
    each object.  Raises ValueError for a source whose bytes don't add up, OSError.
    """
    placed = _place(plan)
    total = placed[-1].offset + placed[-1].bytes
    text, sizes = _header(_root(plan, placed), path.name, total, max_file_bytes)
    sink = _Sink(path, text, sizes, artifact_id or uuid.uuid4().bytes)
    done = False
    try:
        for item in placed:
            sink.write(bytes(item.offset - sink.written))
            for chunk in _checked(item):
                sink.write(chunk)
            if progress is not None:
                progress(sink.written, total)
        sink.publish()
        done = True
    finally:
        if not done:
            sink.abandon()
    return total


def _checked(item: _Placed) -> Iterator[Chunk]:
    """Pass an object's bytes through, refusing a source that yields too many or too few."""
    count = 0
    for chunk in item.source():
        count += chunk.nbytes if isinstance(chunk, (np.ndarray, memoryview)) else len(chunk)
        if count > item.bytes:
            break
        yield chunk
    if count != item.bytes:
        raise ValueError(f"object {item.record['id']} gave {count} bytes of {item.bytes}")
