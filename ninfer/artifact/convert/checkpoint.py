"""Reading a Hugging Face checkpoint directory: safetensors headers, mapped tensors, side files.

Owns the safetensors format (u64 header length, JSON, raw little-endian tensors).  Promises that a tensor
handed out lies inside its file and has the bytes that its shape asks for.

The one thing a reader would get wrong: arrays are views of the mapping; ``forget`` drops their pages
from memory without invalidating them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from ninfer.artifact.errors import ArtifactError, Member, shown
from ninfer.artifact.files import MappedFile
from ninfer.artifact.formats import BF16
from ninfer.artifact.manifest import Shape
from ninfer.artifact.schema import parse_json, read_shape

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
HEADER_LIMIT = 100_000_000
SIDE_FILE_LIMIT = 64 << 20
DTYPES: Mapping[str, np.dtype[Any]] = {
    "BF16": BF16,
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
}


@attrs.frozen
class Stored:
    """One tensor of a shard; ``begin`` is its place in the file."""

    file: MappedFile
    dtype: str
    shape: Shape
    begin: int
    bytes: int


def read_side_file(path: Path) -> bytes:
    """Read a small file whole.  Raises ArtifactError."""
    try:
        if path.stat().st_size > SIDE_FILE_LIMIT:
            raise ArtifactError(path, "file", "is too large", f"at most {SIDE_FILE_LIMIT} bytes")
        return path.read_bytes()
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise ArtifactError(path, "file", f"can't be read ({reason})", "a readable file") from problem


def read_json_file(path: Path) -> Member:
    """Parse a JSON file strictly.  Raises ArtifactError."""
    return parse_json(path, memoryview(read_side_file(path)))


class Checkpoint:
    """The tensors of a directory, single file or sharded.  A context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: list[MappedFile] = []
        self.tensors: dict[str, Stored] = {}
        try:
            for name in _shards(directory):
                self._add(directory / name)
        except ArtifactError:
            self.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap every shard."""
        for file in self._files:
            file.close()

    def view(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor as a view in its own dtype and shape; KeyError for a name it does not have."""
        stored = self.tensors[name]
        raw = stored.file.view[stored.begin : stored.begin + stored.bytes]
        return np.frombuffer(raw, DTYPES[stored.dtype]).reshape(stored.shape)

    def forget(self, name: str) -> None:
        """Let a tensor's pages go."""
        stored = self.tensors[name]
        stored.file.forget(stored.begin, stored.bytes)

    def _add(self, path: Path) -> None:
        file = MappedFile(path)
        self._files.append(file)
        for name, stored in _read_shard(file):
            if name in self.tensors:
                other = self.tensors[name].file.path.name
                raise ArtifactError(path, shown(name), f"is also in {other}", "each tensor once")
            self.tensors[name] = stored


def _shards(directory: Path) -> list[str]:
    if not directory.is_dir():
        raise ArtifactError(directory, "directory", "is not there", "a Hugging Face checkpoint directory")
    if (directory / INDEX).exists():
        index = read_json_file(directory / INDEX).mapping().get("weight_map")
        if index is None:
            raise ArtifactError(directory / INDEX, "root", "has no member 'weight_map'", "a weight map")
        names = {member.string(): member for member in index.mapping().values()}
        for name, member in names.items():
            member.refuse_unless(not set(name) & {"/", "\\"}, "a plain file name")
        return sorted(names)
    found = (
        [SINGLE]
        if (directory / SINGLE).exists()
        else sorted(p.name for p in directory.glob("*.safetensors"))
    )
    if len(found) != 1:
        problem = f"holds {len(found)} safetensors files and no {INDEX}"
        raise ArtifactError(directory, "directory", problem, f"{SINGLE} or shards with their index")
    return found


def _read_shard(file: MappedFile) -> Iterator[tuple[str, Stored]]:
    count = int.from_bytes(file.view[:8], "little")
    room = min(HEADER_LIMIT, file.size - 8)
    if not 0 < count <= room:
        raise ArtifactError(file.path, "header length", f"is {count}", f"1 to {max(room, 0)}")
    for name, member in parse_json(file.path, file.view[8 : 8 + count]).mapping().items():
        if name != "__metadata__":
            yield name, _read_tensor(member, file, 8 + count)


def _read_tensor(member: Member, file: MappedFile, data: int) -> Stored:
    fields = member.members(("dtype", "shape", "data_offsets"))
    dtype = fields["dtype"].one_of(*DTYPES)
    shape = read_shape(fields["shape"])
    bounds = [bound.uint() for bound in fields["data_offsets"].array()]
    fields["data_offsets"].refuse_unless(len(bounds) == 2, "[begin, end)")
    size = math.prod(shape) * DTYPES[dtype].itemsize
    good = bounds[1] - bounds[0] == size and data + bounds[1] <= file.size
    fields["data_offsets"].refuse_unless(good, f"{size} bytes inside the file's {file.size - data}")
    return Stored(file, dtype, shape, data + bounds[0], size)
