"""Retained contexts on disk, one file for each stretch of a history.

Owns the file format and the directory.  A file names everything that makes its state valid: the
device's signature (weights, KV format, sizes), the stretch above it, and the exact identity of its
tokens.  Promises that a file is written whole or not at all, and that a damaged, cut, foreign or
outdated one is reported and ignored, never believed.

The one thing a reader would get wrong: the name of a stretch is a digest of the whole path to it, so a
stretch whose parent is gone can never be attached to another history.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from ninfer.engine.identity import ID, SHAPE, Identity, MediaKey

_MAGIC = b"NINFERCX1\n"
_HEAD = struct.Struct(
    "<32s32s32sQIIHHQQ"
)  # signature, name, parent, start, tokens, media, kind, flags, sizes
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
class ContextStore:
    """The files under ``folder`` made by devices of one ``signature``; ``warn`` hears of bad ones.

    All methods block; call them from a worker thread.
    """

    folder: Path
    signature: str
    warn: Callable[[str], None]

    @property
    def _seal(self) -> bytes:
        return hashlib.sha256(self.signature.encode()).digest()

    def write(self, stretch: Stretch) -> None:
        """Put a stretch on disk, replacing an older file of that name."""
        path = self._path(stretch.name)
        data = _encode(stretch, self._seal)
        draft = path.with_suffix(".part")
        with draft.open("wb") as file:
            file.write(data)
            file.write(hashlib.sha256(data).digest())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def has(self, name: bytes) -> bool:
        """Whether a file of that name is there."""
        return self._path(name).exists()

    def read_all(self) -> Iterator[Stretch]:
        """Yield every good stretch whose path is complete, parents first."""
        found = {head[1]: (head, path) for path, head in self._heads()}
        known = {ROOT}
        for name in sorted(found, key=lambda name: (found[name][0][3], name)):
            head, path = found[name]
            if head[2] in known and (stretch := self._read(path)) is not None:
                known.add(name)
                yield stretch

    def keep_only(self, names: set[bytes]) -> None:
        """Remove all other files of ours, and what interrupted writes left behind."""
        for path in self.folder.iterdir():
            ours = path.suffix == SUFFIX and path.stem not in {name.hex() for name in names}
            if ours or path.suffix == ".part":
                path.unlink(missing_ok=True)

    def _path(self, name: bytes) -> Path:
        return self.folder / (name.hex() + SUFFIX)

    def _heads(self) -> Iterator[tuple[Path, tuple[bytes, bytes, bytes, int]]]:
        """Read only what orders the files; everything is proved when it is read whole."""
        size = len(_MAGIC) + _HEAD.size
        for path in sorted(self.folder.glob("*" + SUFFIX)):
            with path.open("rb") as file:
                raw = file.read(size)
            if len(raw) < size or not raw.startswith(_MAGIC):
                self.warn(f"{path.name} is not a retained context; it is ignored")
                continue
            seal, name, parent, start = _HEAD.unpack(raw[len(_MAGIC) :])[:4]
            if seal == self._seal:
                yield path, (seal, name, parent, start)
            else:
                self.warn(f"{path.name} belongs to another model or format; it is ignored")

    def _read(self, path: Path) -> Stretch | None:
        try:
            stretch = _decode(path.read_bytes(), self._seal)
        except (OSError, Damaged) as problem:
            self.warn(f"{path.name} is ignored: {problem}")
            return None
        if path.stem != stretch.name.hex():
            self.warn(f"{path.name} is ignored: it holds another context")
            return None
        return stretch


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
