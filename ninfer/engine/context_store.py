"""Retained contexts as files: the format of one, and the folder of all.

Owns the format and the folder.  A file names everything that makes its state valid: the device's signature
(weights, KV format, sizes) and the exact identity of the whole history, from its first token.  Promises
that a file is written whole or not at all, that its head is proved when it is found and its state when it
is read, and that a damaged, cut, foreign or outdated one is reported and ignored, never believed.

The one thing a reader would get wrong: the state in a file is that of the last tokens of its history alone;
the KV of those before lies in other files, and ``engine.disk`` knows which.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import attrs

from ninfer.engine.device import Raw
from ninfer.engine.disk import KINDS, Foreign, Stretch
from ninfer.engine.identity import ID, SHAPE, Identity, MediaKey

_MAGIC = b"NINFERCX2\n"
# seal, start, tokens, media, kind, shape or not, bytes of state, their digest
_HEAD = struct.Struct("<32sQQIHHQ32s")
_ITEM = struct.Struct("<QQIIIII")  # start, stop, grid (3), digest bytes, runs
_RUN = struct.Struct("<QQ")
_SUM = 32
_PIECE = 8 << 20  # bytes read at a time
SUFFIX = ".context"


class Damaged(Exception):
    """A file is not what it should be; the text says how."""


@attrs.frozen
class ContextStore:
    """The files under ``folder`` that devices of one ``signature`` may use; ``warn`` hears of bad ones.

    All methods block; call them from a worker thread, one at a time.
    """

    folder: Path
    signature: str
    warn: Callable[[str], None]

    @property
    def _seal(self) -> bytes:
        return hashlib.sha256(self.signature.encode()).digest()

    def scan(self) -> tuple[list[Stretch], list[Foreign]]:
        """Look at every file: what may be used, and what takes room only, oldest first.

        What interrupted writes left behind goes.
        """
        for path in self.folder.glob("*.part"):
            path.unlink(missing_ok=True)
        good: list[Stretch] = []
        others: list[tuple[int, Foreign]] = []
        for path in sorted(self.folder.glob("*" + SUFFIX)):
            seen = self._look_at(path)
            if isinstance(seen, Stretch):
                good.append(seen)
            else:
                status = path.stat()
                others.append((status.st_mtime_ns, Foreign(path.stem, status.st_size)))
        return good, [foreign for _, foreign in sorted(others, key=lambda one: one[0])]

    def write(
        self, whole: Identity, start: int, kind: int, state: Sequence[Raw], instead_of: Iterable[str] = ()
    ) -> Stretch:
        """Put the state of the tokens from ``start`` on into a file, in the room of others."""
        self.remove(instead_of)
        digest = hashlib.sha256()
        for piece in state:
            digest.update(piece)
        size = sum(map(len, state))
        head = _encode(whole, start, kind, size, digest.digest(), self._seal)
        name = name_of(self._seal, whole, start)
        self._write(name, (head, hashlib.sha256(head).digest(), *state))
        return Stretch(name, whole, start, kind, size, len(head) + _SUM + size, digest.digest())

    def _write(self, name: str, parts: Iterable[Raw]) -> None:
        draft = self._path(name).with_suffix(".part")
        try:
            with open(draft, "wb", opener=_private) as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path(name))
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def read(self, stretch: Stretch, into: memoryview) -> None:
        """Fill memory with the state of a stretch.  Raises ``Damaged`` or ``OSError``."""
        if len(into) != stretch.payload:
            raise Damaged(f"its state has {stretch.payload} bytes, not {len(into)}")
        digest = hashlib.sha256()
        with self._path(stretch.name).open("rb") as file:
            file.seek(stretch.size - stretch.payload)
            for begin in range(0, len(into), _PIECE):
                piece = into[begin : begin + _PIECE]
                if file.readinto(piece) != len(piece):
                    raise Damaged("it is cut short")
                digest.update(piece)
        if digest.digest() != stretch.digest:
            raise Damaged("its checksum does not match")

    def remove(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / (name + SUFFIX)

    def _look_at(self, path: Path) -> Stretch | None:
        """Read the head of a file and say what is wrong with it, if anything is."""
        try:
            with path.open("rb") as file:
                stretch = _decode(file, path.stem, os.fstat(file.fileno()).st_size, self._seal)
        except (OSError, Damaged) as problem:
            self.warn(f"{path.name} is ignored: {problem}")
            return None
        if stretch is None:
            self.warn(f"{path.name} belongs to another model or format; it is ignored")
        return stretch


def name_of(seal: bytes, whole: Identity, start: int) -> str:
    """Name a file by the device and the history that it belongs to, and by where its state begins."""
    shaped = whole.shape is not None
    sizes = struct.pack("<QQII", start, len(whole), len(whole.media), shaped)
    return hashlib.sha256(seal + sizes + _describe(whole)).hexdigest()


def file_bytes(whole: Identity, state: int) -> int:
    """Return the size of a file that holds ``state`` bytes at the end of a history."""
    return len(_MAGIC) + _HEAD.size + len(_describe(whole)) + _SUM + state


def _private(path: str, flags: int) -> int:
    """Open a file that only this user may read: a context gives away what was said."""
    return os.open(path, flags, 0o600)


# Format


def _describe(whole: Identity) -> bytes:
    """Spell out everything that identifies the tokens of a history."""
    items = b"".join(_describe_item(item) for item in whole.media)
    return whole.ids + (whole.shape or b"") + items


def _describe_item(item: MediaKey) -> bytes:
    start, stop, digest, grid, runs = item
    head = _ITEM.pack(start, stop, *grid, len(digest), len(runs))
    return head + digest + b"".join(_RUN.pack(*run) for run in runs)


def _encode(whole: Identity, start: int, kind: int, size: int, digest: bytes, seal: bytes) -> bytes:
    shaped = whole.shape is not None
    head = _HEAD.pack(seal, start, len(whole), len(whole.media), kind, shaped, size, digest)
    return _MAGIC + head + _describe(whole)


@attrs.define
class _Cursor:
    """Reads a file front to back and refuses to run over its end; remembers what it has read."""

    file: BinaryIO
    size: int
    seen: bytearray = attrs.field(factory=bytearray)

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        if len(self.seen) + size > self.size:
            raise Damaged("it is cut short")
        data = self.file.read(size)
        self.seen += data
        return data

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the next fields."""
        return form.unpack(self.take(form.size))


def _decode(file: BinaryIO, name: str, size: int, seal: bytes) -> Stretch | None:
    """Read the head of a file; None if it is another device's.  Raises ``Damaged``."""
    cursor = _Cursor(file, size)
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise Damaged("it is not a retained context")
    sealed, start, tokens, items, kind, shaped, state, digest = _HEAD.unpack(cursor.take(_HEAD.size))
    if sealed != seal:
        return None
    ids = cursor.take(tokens * ID)
    shape = cursor.take(tokens * SHAPE) if shaped else None
    whole = Identity(0, ids, shape, tuple(_decode_item(cursor) for _ in range(items)))
    proof = hashlib.sha256(cursor.seen).digest()
    if cursor.take(_SUM) != proof:
        raise Damaged("the checksum of its head does not match")
    if name != name_of(seal, whole, start):
        raise Damaged("it holds another context")
    if len(cursor.seen) + state != size or start > tokens or kind >= len(KINDS):
        raise Damaged("its parts do not belong together")
    return Stretch(name, whole, start, kind, state, size, digest)


def _decode_item(cursor: _Cursor) -> MediaKey:
    start, stop, t, h, w, digest, runs = cursor.unpack(_ITEM)
    name = cursor.take(digest)
    spans = tuple((first, count) for first, count in (cursor.unpack(_RUN) for _ in range(runs)))
    return start, stop, name, (t, h, w), spans
