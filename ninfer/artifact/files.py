"""The bytes of an artifact: the entry file, its continuation files, and one address space over them.

Owns opening, mapping and the fixed-size heads; knows nothing of what the JSON says.
Promises that nothing outside a file is ever addressed and that a continuation file is opened only when
somebody asks for bytes in it.

The one thing a reader would get wrong: payload offsets count from the start of the first payload and run
on through all files; they are not file offsets.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import attrs

from ninfer.artifact.errors import ArtifactError
from ninfer.artifact.formats import align

ENTRY_MAGIC = b"NINFER\0"
PART_MAGIC = b"NINPRT\0\x03"
VERSIONS = (1, 2, 3)
PAGE = 4096
HEAD_BYTES = {1: 16, 2: 16, 3: 32}
JSON_LIMIT = 64 << 20  # the largest published header is under 0.4 MB


class MappedFile:
    """One read-only mapping of a whole file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
                raise ValueError("not a regular file")
            with open(path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else None
        except (OSError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or str(problem)
            raise ArtifactError(path, "file", f"can't be read ({reason})", "a readable file") from problem
        self.view = memoryview(self._map) if self._map is not None else memoryview(b"")

    def forget(self, begin: int, count: int) -> None:
        """Drop the resident pages that lie wholly inside a range; reading them again reads the disk."""
        first, last = align(begin, mmap.PAGESIZE), (begin + count) // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Let go of the mapping; arrays that still look at it keep it alive."""
        self.view.release()
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:
                self._map = None


@attrs.frozen
class Entry:
    """The head of an entry file: version, raw JSON, where its payload starts, the id of the file set."""

    file: MappedFile
    version: int
    json: memoryview
    payload_start: int
    artifact_id: bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of the entry file's own payload."""
        return self.file.size - self.payload_start


def open_entry(path: Path) -> Entry:
    """Map an entry file and check its head.  Raises ArtifactError."""
    file = MappedFile(path)
    try:
        return _read_head(file)
    except ArtifactError:
        file.close()
        raise


def _read_head(file: MappedFile) -> Entry:
    def fail(member: str, problem: str, expected: str) -> ArtifactError:
        return ArtifactError(file.path, member, problem, expected)

    head = bytes(file.view[:32])
    if head[:8] == PART_MAGIC:
        raise fail("magic", "is that of a continuation file", "the entry file, the one without .part-NNNN")
    if head[:7] != ENTRY_MAGIC:
        raise fail("magic", f"is {head[:8]!r}", "a .ninfer file")
    if len(head) < 8 or head[7] not in VERSIONS:
        raise fail("version", f"is {head[7] if len(head) > 7 else 'missing'}", "version 1, 2 or 3")
    version = head[7]
    begin = HEAD_BYTES[version]
    if len(head) < begin:
        raise fail("file", f"ends after {file.size} bytes", f"a head of {begin} bytes")
    count = int.from_bytes(head[8:16], "little")
    room = min(JSON_LIMIT, file.size - begin)
    if not 0 < count <= room:
        raise fail("json_bytes", f"is {count}", f"1 to {room}")
    start = align(begin + count, PAGE)
    if start > file.size:
        raise fail("file", f"ends after {file.size} bytes", f"a payload that starts at byte {start}")
    if any(file.view[begin + count : start]):
        raise fail("padding", "is not zero", f"zeros up to byte {start}")
    return Entry(file, version, file.view[begin : begin + count], start, head[16:begin])


@attrs.frozen
class FileSpan:
    """What the header says of one file: name beside the entry (None: the entry), payload bytes."""

    name: str | None
    payload_bytes: int


class Payload:
    """One address space over the payloads of the entry file and its continuation files."""

    def __init__(self, entry: Entry, spans: tuple[FileSpan, ...]) -> None:
        self.spans = spans
        self.bytes_read = 0  # payload bytes asked for since opening
        self._entry = entry
        self._begins = [0]
        for span in spans:
            self._begins.append(self._begins[-1] + span.payload_bytes)
        self._open: dict[int, tuple[MappedFile, memoryview]] = {
            0: (entry.file, entry.file.view[entry.payload_start :])
        }

    @property
    def size(self) -> int:
        """Payload bytes of all files."""
        return self._begins[-1]

    def path(self, index: int) -> Path:
        """Where file ``index`` lies."""
        name = self.spans[index].name
        return self._entry.file.path if name is None else self._entry.file.path.with_name(name)

    def files_of(self, begin: int, count: int) -> range:
        """Which files hold ``count`` bytes from ``begin``."""
        first = next(i for i in range(len(self.spans)) if begin < self._begins[i + 1] or not count)
        last = first
        while self._begins[last + 1] < begin + count:
            last += 1
        return range(first, last + 1)

    def view(self, begin: int, count: int) -> memoryview:
        """Bytes ``begin`` .. ``begin + count`` - 1; zero-copy when they lie in one file.

        Opens continuation files on the way.  Raises ArtifactError.
        """
        if not 0 <= begin <= begin + count <= self.size:
            raise ValueError(f"bytes {begin}..{begin + count} of a payload of {self.size}")
        if not count:
            return memoryview(b"")
        self.bytes_read += count
        pieces = list(self._pieces(begin, count))
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def touch(self, begin: int, count: int) -> None:
        """Open the files that hold these bytes.  Raises ArtifactError if one is missing or foreign."""
        for index in self.files_of(begin, count):
            self._mapped(index)

    def close(self) -> None:
        """Unmap every file."""
        for file, view in self._open.values():
            view.release()
            file.close()
        self._open.clear()

    def _pieces(self, begin: int, count: int) -> Iterator[memoryview]:
        for index in self.files_of(begin, count):
            start = self._begins[index]
            low, high = max(begin - start, 0), min(begin + count - start, self.spans[index].payload_bytes)
            yield self._mapped(index)[low:high]

    def _mapped(self, index: int) -> memoryview:
        if index not in self._open:
            self._open[index] = self._open_part(index)
        return self._open[index][1]

    def _open_part(self, index: int) -> tuple[MappedFile, memoryview]:
        file = MappedFile(self.path(index))
        try:
            self._check_part(file, index)
        except ArtifactError:
            file.close()
            raise
        return file, file.view[PAGE:]

    def _check_part(self, file: MappedFile, index: int) -> None:
        def require(good: bool, member: str, problem: str, expected: str) -> None:
            if not good:
                raise ArtifactError(file.path, member, problem, expected)

        head, size = file.view[:PAGE], PAGE + self.spans[index].payload_bytes
        require(head[:8] == PART_MAGIC, "magic", f"is {bytes(head[:8])!r}", "a continuation file")
        found = int.from_bytes(head[8:16], "little")
        require(found == index, "part index", f"is {found}", str(index))
        same = head[16:32] == self._entry.artifact_id
        require(
            same, "artifact_id", "belongs to another artifact", f"the id in {self._entry.file.path.name}"
        )
        require(file.size == size, "file", f"has {file.size} bytes", f"{size} bytes")
        require(not any(head[32:]), "padding", "is not zero", f"zeros up to byte {PAGE}")
