"""Retained contexts as files: the format of one, and the folder of all.

Owns the format and the folder.  A file names everything that makes its state valid: the device's signature
(weights, KV format, sizes) and the exact identity of the whole history, from its first token.  Promises
that a file is written whole or not at all, that its head is proved when it is found and its state when it
is read, and that a damaged, cut, foreign or outdated one is reported and ignored, never believed.

Only regular files under names that this room gives are looked at, counted and removed: whatever else a
folder holds is somebody else's, and opening it might block.

The one thing a reader would get wrong: the state in a file is that of the last tokens of its history alone;
the KV of those before lies in other files, and ``engine.disk`` knows which.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
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
_HEAD_BYTES = 64 << 20  # no honest head is longer: it has 20 bytes a token
_NAMED = 5  # bad files that are told of one by one
_NAME = re.compile("[0-9a-f]{64}")
SUFFIX, DRAFT = ".context", ".part"


class Damaged(Exception):
    """A file is not what it should be; the text says how."""


@attrs.frozen
class ContextStore:
    """The files under ``folder`` that devices of one ``signature`` may use; ``warn`` hears of bad ones.

    All methods block; call them from a worker thread, one at a time.  ``pause`` is called between pieces
    of long work, and may end it by raising.
    """

    folder: Path
    signature: str
    warn: Callable[[str], None]
    pause: Callable[[], None] = lambda: None

    @property
    def _seal(self) -> bytes:
        return hashlib.sha256(self.signature.encode()).digest()

    def scan(self) -> tuple[list[Stretch], list[Foreign]]:
        """Look at every file: what may be used, and what takes room only, oldest first.

        What interrupted writes left behind goes.
        """
        for path in self._named(DRAFT):
            with suppress(OSError):
                path.unlink()
        good: list[Stretch] = []
        others: list[tuple[int, Foreign]] = []
        troubles: list[str] = []
        for path in self._named(SUFFIX):
            seen = self._look_at(path, troubles)
            if isinstance(seen, Stretch):
                good.append(seen)
            elif seen is not None:
                others.append((seen.st_mtime_ns, Foreign(path.stem, seen.st_size)))
        self._report(troubles)
        return good, [foreign for _, foreign in sorted(others, key=lambda one: one[0])]

    def _report(self, troubles: list[str]) -> None:
        """Tell of bad files, of the first few by name: another model may have left thousands."""
        for trouble in troubles[:_NAMED]:
            self.warn(trouble)
        if len(troubles) > _NAMED:
            self.warn(f"{len(troubles) - _NAMED} more files are ignored for such reasons")

    def _named(self, suffix: str) -> Iterator[Path]:
        """Find what may have been written here, by name.  Raises ``OSError``."""
        for name in sorted(os.listdir(self.folder)):
            self.pause()
            if name.endswith(suffix) and _NAME.fullmatch(name.removesuffix(suffix)):
                yield self.folder / name

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
        draft = self._path(name).with_suffix(DRAFT)
        try:
            with open(draft, "wb", opener=_private) as file:
                for part in parts:
                    self.pause()
                    file.write(part)
                    file.flush()
                    os.fsync(file.fileno())  # by pieces: one of everything could take minutes at its end
            draft.replace(self._path(name))
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def read(self, stretch: Stretch, into: memoryview) -> None:
        """Fill memory with the state of a stretch.  Raises ``Damaged`` or ``OSError``."""
        if len(into) != stretch.payload:
            raise Damaged(f"its state has {stretch.payload} bytes, not {len(into)}")
        digest = hashlib.sha256()
        with _opened(self._path(stretch.name)) as file:
            file.seek(stretch.size - stretch.payload)
            for begin in range(0, len(into), _PIECE):
                self.pause()
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

    def _look_at(self, path: Path, troubles: list[str]) -> Stretch | os.stat_result | None:
        """Read the head of a file; if it is of no use say why, and return its status if it is a file."""
        status: os.stat_result | None = None
        try:
            with _opened(path) as file:
                status = os.fstat(file.fileno())
                stretch = _decode(file, path.stem, status.st_size, self._seal)
        except FileNotFoundError:
            return None
        except (OSError, Damaged) as problem:
            why = problem.strerror if isinstance(problem, OSError) else problem
            troubles.append(f"{path.name} is ignored: {why}")
            return status
        if stretch is None:
            troubles.append(f"{path.name} belongs to another model or format; it is ignored")
        return stretch or status


def name_of(seal: bytes, whole: Identity, start: int) -> str:
    """Name a file by the device and the history that it belongs to, and by where its state begins."""
    shaped = whole.shape is not None
    sizes = struct.pack("<QQII", start, len(whole), len(whole.media), shaped)
    return hashlib.sha256(seal + sizes + _describe(whole)).hexdigest()


def file_bytes(whole: Identity, state: int) -> int:
    """Return the size of a file that holds ``state`` bytes at the end of a history."""
    return len(_MAGIC) + _HEAD.size + len(_describe(whole)) + _SUM + state


def _private(path: str, flags: int) -> int:
    """Open a file that only this user may read, as a context gives away what was said; follow no link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _unblocked(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file to read; a pipe, device or link is none.  Raises ``Damaged`` or ``OSError``."""
    with open(path, "rb", opener=_unblocked) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Damaged("it is not a file")
        yield file


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
    """Reads proved bytes front to back."""

    data: bytes
    at: int = 0

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes.  Raises ``Damaged`` if there are fewer."""
        taken = self.data[self.at : self.at + size]
        if len(taken) != size:
            raise Damaged("its parts do not belong together")
        self.at += size
        return taken

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the next fields."""
        return form.unpack(self.take(form.size))


def _decode(file: BinaryIO, name: str, size: int, seal: bytes) -> Stretch | None:
    """Read the head of a file; None if it is another device's.  Raises ``Damaged``.

    Where its parts lie is only believed once they are proved, and no size that a file claims is allocated
    before it is known to be possible.
    """
    start = _read(file, len(_MAGIC) + _HEAD.size)
    if not start.startswith(_MAGIC):
        raise Damaged("it is not a retained context")
    sealed, first, tokens, items, kind, shaped, state, digest = _HEAD.unpack(start[len(_MAGIC) :])
    if sealed != seal:
        return None
    rest = size - len(start) - _SUM - state
    if not 0 <= rest <= _HEAD_BYTES:
        raise Damaged("its parts do not belong together")
    described = _read(file, rest)
    if _read(file, _SUM) != hashlib.sha256(start + described).digest():
        raise Damaged("the checksum of its head does not match")
    cursor = _Cursor(described)
    ids = cursor.take(tokens * ID)
    shape = cursor.take(tokens * SHAPE) if shaped else None
    whole = Identity(0, ids, shape, tuple(_decode_item(cursor) for _ in range(items)))
    if name != name_of(seal, whole, first):
        raise Damaged("it holds another context")
    if cursor.at != len(described) or first > tokens or kind >= len(KINDS):
        raise Damaged("its parts do not belong together")
    return Stretch(name, whole, first, kind, state, size, digest)


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise Damaged("it is cut short")
    return data


def _decode_item(cursor: _Cursor) -> MediaKey:
    start, stop, t, h, w, digest, runs = cursor.unpack(_ITEM)
    name = cursor.take(digest)
    spans = tuple((first, count) for first, count in (cursor.unpack(_RUN) for _ in range(runs)))
    return start, stop, name, (t, h, w), spans
