"""Retained contexts on disk, one file for each stretch of a history.

Owns the file format and the directory.  A file names everything that makes its state valid: the
device's signature (weights, KV format, sizes), the stretch above it, and the exact identity of its
tokens.  Promises that a file is written whole or not at all, that all files together stay within their
bound, and that a damaged, cut, foreign or outdated one is reported and ignored, never believed.

The one thing a reader would get wrong: the name of a stretch is a digest of the whole path to it, so a
stretch whose parent is gone can never be attached to another history.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path

import attrs

from ninfer.engine.identity import ID, SHAPE, Identity, MediaKey

_MAGIC = b"NINFERCX1\n"
_HEAD = struct.Struct("<32s32s32sQIIHHQQ")  # seal, name, parent, start, tokens, media, kind, flags, sizes
_ITEM = struct.Struct("<QQIIIII")  # start, stop, grid (3), digest bytes, runs
_RUN = struct.Struct("<QQ")
_SUM = 32
SUFFIX = ".context"
ROOT = bytes(32)


@attrs.frozen
class Stretch:
    """A stretch of a retained history; ``kind`` is an index the caller gives meaning.

    ``kv`` and ``image`` are what the device gave out for it; a stretch without a checkpoint has no image.
    """

    name: bytes
    parent: bytes
    part: Identity
    kind: int
    kv: bytes
    image: bytes = b""


class Damaged(Exception):
    """A file is not what it should be; the text says how."""


def name_of(parent: bytes, part: Identity) -> bytes:
    """Name a stretch by the path to it."""
    return hashlib.sha256(parent + _describe(part)).digest()


@attrs.frozen
class _File:
    """One of our files: its size in bytes, when it was written, and the beginning of its head."""

    path: Path
    size: int
    stamp: int
    seal: bytes
    name: bytes
    parent: bytes
    start: int
    tokens: int


@attrs.define(eq=False)
class ContextStore:
    """The files under ``folder``, together at most ``capacity`` bytes; ``warn`` hears of bad ones.

    Files of devices of another ``signature`` are left alone until their room is needed.
    All methods but ``has`` block; call them from a worker thread, one at a time.
    """

    folder: Path
    signature: str
    capacity: int
    warn: Callable[[str], None]
    _files: dict[bytes, _File] = attrs.field(factory=dict)  # ours, by name
    _foreign: list[_File] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        for path in sorted(self.folder.glob("*" + SUFFIX)):
            file = self._look_at(path)
            if file is not None and file.seal == self._seal:
                self._files[file.name] = file
            elif file is not None:
                self._foreign.append(file)
                self.warn(f"{path.name} belongs to another model or format; it is ignored")
        self._make_room(0, set())

    @property
    def _seal(self) -> bytes:
        return hashlib.sha256(self.signature.encode()).digest()

    @property
    def used(self) -> int:
        """Bytes of all retained contexts here."""
        return sum(file.size for file in (*self._files.values(), *self._foreign))

    def write(self, stretch: Stretch, keep: Set[bytes] = frozenset()) -> bool:
        """Put a stretch on disk at the cost of the oldest others but ``keep``; False if it won't fit."""
        data = _encode(stretch, self._seal)
        if not self._make_room(len(data) + _SUM, keep):
            return False
        path = self._path(stretch.name)
        draft = path.with_suffix(".part")
        with open(draft, "wb", opener=_private) as file:
            file.write(data)
            file.write(hashlib.sha256(data).digest())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        if (file_now := self._look_at(path)) is not None:
            self._files[stretch.name] = file_now
        return True

    def has(self, name: bytes) -> bool:
        """Whether a file of that name is there."""
        return name in self._files

    def read_all(self) -> Iterator[Stretch]:
        """Yield every good stretch whose path is complete, parents first."""
        known = {ROOT}
        for file in sorted(self._files.values(), key=lambda file: (file.start, file.tokens, file.name)):
            if file.parent in known and (stretch := self._read(file.path)) is not None:
                known.add(file.name)
                yield stretch

    def keep_only(self, names: Set[bytes]) -> None:
        """Remove all other files of this device, and what interrupted writes left behind."""
        for name in [name for name in self._files if name not in names]:
            self._remove(self._files.pop(name))
        for path in self.folder.glob("*.part"):
            path.unlink(missing_ok=True)

    def _make_room(self, size: int, keep: Set[bytes]) -> bool:
        """Remove files until ``size`` bytes more fit: foreign ones first, then the oldest."""
        excess = self.used + size - self.capacity
        if excess <= 0:
            return True
        ours = [file for file in self._files.values() if file.name not in keep]
        for file in (*_by_age(self._foreign), *_by_age(ours)):
            self._remove(file)
            if file.seal == self._seal:
                del self._files[file.name]
            else:
                self._foreign.remove(file)
            excess -= file.size
            if excess <= 0:
                return True
        return False

    def _remove(self, file: _File) -> None:
        file.path.unlink(missing_ok=True)

    def _path(self, name: bytes) -> Path:
        return self.folder / (name.hex() + SUFFIX)

    def _look_at(self, path: Path) -> _File | None:
        """Read only what orders a file; everything is proved when it is read whole."""
        size = len(_MAGIC) + _HEAD.size
        try:
            with path.open("rb") as file:
                raw, seen = file.read(size), os.fstat(file.fileno())
        except OSError as problem:
            self.warn(f"{path.name} is ignored: {problem.strerror}")
            return None
        if len(raw) < size or not raw.startswith(_MAGIC):
            self.warn(f"{path.name} is not a retained context; it is ignored")
            return None
        seal, name, parent, start, tokens = _HEAD.unpack(raw[len(_MAGIC) :])[:5]
        if seal == self._seal and path.stem != name.hex():
            self.warn(f"{path.name} is ignored: it holds another context")
            return None
        return _File(path, seen.st_size, seen.st_mtime_ns, seal, name, parent, start, tokens)

    def _read(self, path: Path) -> Stretch | None:
        try:
            return _decode(path.read_bytes(), self._seal)
        except (OSError, Damaged) as problem:
            self.warn(f"{path.name} is ignored: {problem}")
            return None


def stretch_bytes(part: Identity, payload: int) -> int:
    """Return the size of a file that holds ``payload`` bytes of KV and image for ``part``."""
    items = sum(len(_describe_item(item)) for item in part.media)
    return len(_MAGIC) + _HEAD.size + len(part.ids) + len(part.shape or b"") + items + payload + _SUM


def _private(path: str, flags: int) -> int:
    """Open a file that only this user may read: a context gives away what was said."""
    return os.open(path, flags, 0o600)


def _by_age(files: Iterable[_File]) -> list[_File]:
    return sorted(files, key=lambda file: file.stamp)


# Format


def _describe(part: Identity) -> bytes:
    """Spell out everything that identifies the tokens of a stretch."""
    items = b"".join(_describe_item(item) for item in part.media)
    shape = part.shape or b""
    head = struct.pack("<QIII", part.start, len(part), len(shape), len(part.media))
    return head + part.ids + shape + items


def _describe_item(item: MediaKey) -> bytes:
    start, stop, digest, grid, runs = item
    head = _ITEM.pack(start, stop, *grid, len(digest), len(runs))
    return head + digest + b"".join(_RUN.pack(*run) for run in runs)


def _encode(stretch: Stretch, seal: bytes) -> bytes:
    part = stretch.part
    flags = part.shape is not None
    sizes = len(stretch.kv), len(stretch.image)
    head = _HEAD.pack(
        seal,
        stretch.name,
        stretch.parent,
        part.start,
        len(part),
        len(part.media),
        stretch.kind,
        flags,
        *sizes,
    )
    items = b"".join(_describe_item(item) for item in part.media)
    return b"".join((_MAGIC, head, part.ids, part.shape or b"", items, stretch.kv, stretch.image))


@attrs.define
class _Cursor:
    """Reads a buffer front to back and refuses to run over its end."""

    data: bytes
    at: int = 0

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        if self.at + size > len(self.data):
            raise Damaged("it is cut short")
        self.at += size
        return self.data[self.at - size : self.at]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the next fields."""
        return form.unpack(self.take(form.size))


def _decode(data: bytes, seal: bytes) -> Stretch:
    body = data[:-_SUM]
    if hashlib.sha256(body).digest() != data[-_SUM:]:
        raise Damaged("its checksum does not match")
    cursor = _Cursor(body)
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise Damaged("it has another format")
    sealed, name, parent, start, tokens, items, kind, flags, kv, image = _HEAD.unpack(
        cursor.take(_HEAD.size)
    )
    ids = cursor.take(tokens * ID)
    shape = cursor.take(tokens * SHAPE) if flags else None
    media = tuple(_decode_item(cursor) for _ in range(items))
    part = Identity(start, ids, shape, media)
    stretch = Stretch(name, parent, part, kind, cursor.take(kv), cursor.take(image))
    if sealed != seal or cursor.at != len(body) or name_of(parent, part) != name:
        raise Damaged("its parts do not belong together")
    return stretch


def _decode_item(cursor: _Cursor) -> MediaKey:
    start, stop, t, h, w, digest, runs = cursor.unpack(_ITEM)
    name = cursor.take(digest)
    spans = tuple((first, count) for first, count in (cursor.unpack(_RUN) for _ in range(runs)))
    return start, stop, name, (t, h, w), spans
