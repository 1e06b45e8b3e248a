"""What makes two token histories the same: ids, three position axes, token types, media.

Owns the exact comparison; nothing here hashes.  Promises that two histories agree up to a token only
if every id, every position and every media item (digest, grid, rows) up to there is equal, and that
no agreement ends inside a media item.

The one thing a reader would get wrong: tokens are compared at their own absolute index, so plain
text (where all axes equal the index) needs no positions: ``shape`` is None and stands for zeros.
"""

from __future__ import annotations

from array import array

import attrs

from ninfer.prompt.prepared import MediaSpan, Prepared

ID = 4  # bytes of an id
SHAPE = 16  # bytes of three position offsets and a media flag

MediaKey = tuple[int, int, bytes, tuple[int, int, int], tuple[tuple[int, int], ...]]
TokenKey = tuple[bytes, bytes, MediaKey | None]


@attrs.frozen(eq=False)
class Identity:
    """The tokens ``start .. stop`` of a history.

    ``ids`` has 4 bytes a token.  ``shape`` has 16 bytes a token (axis minus index for each axis,
    1 for a media row) or is None for plain text.  ``media`` lists (start, stop, digest, grid, runs).
    """

    start: int
    ids: bytes
    shape: bytes | None = None
    media: tuple[MediaKey, ...] = ()

    def __len__(self) -> int:
        return len(self.ids) // ID

    @property
    def stop(self) -> int:
        """One past the last token."""
        return self.start + len(self)

    def part(self, start: int, stop: int) -> Identity:
        """Return the tokens ``start .. stop``; neither end may lie inside a media item."""
        first, last = start - self.start, stop - self.start
        shape = self.shape and self.shape[first * SHAPE : last * SHAPE]
        media = tuple(item for item in self.media if start <= item[0] and item[1] <= stop)
        return Identity(start, self.ids[first * ID : last * ID], shape, media)

    def joined(self, *tails: Identity) -> Identity:
        """Return this history with the tokens behind it, which follow each other in ``tails``."""
        parts, shape = (self, *tails), None
        if any(part.shape is not None for part in parts):
            shape = b"".join(
                bytes(SHAPE * len(part)) if part.shape is None else part.shape for part in parts
            )
        media = tuple(item for part in parts for item in part.media)
        return Identity(self.start, b"".join(part.ids for part in parts), shape, media)

    def extended(self, tail: tuple[int, ...], rope_delta: int) -> Identity:
        """Return this history with generated tokens behind it."""
        ids = self.ids + array("I", tail).tobytes()
        if self.shape is None:
            return Identity(self.start, ids)
        more = array("i", (rope_delta, rope_delta, rope_delta, 0) * len(tail)).tobytes()
        return Identity(self.start, ids, self.shape + more, self.media)

    def key(self, index: int) -> TokenKey:
        """Return what tells the token at ``index`` (or the media item starting there) from any other."""
        item = next((item for item in self.media if item[0] == index), None)
        at, end = index - self.start, (item[1] if item else index + 1) - self.start
        shape = bytes(SHAPE) if self.shape is None else self.shape[at * SHAPE : end * SHAPE]
        return self.ids[at * ID : end * ID], shape, item

    def agrees(self, other: Identity) -> int:
        """Return the index up to which ``self`` and ``other`` are the same, from ``self.start`` on.

        ``other`` must contain ``self.start``.
        """
        count = min(len(self), other.stop - self.start)
        offset = self.start - other.start
        equal = _common(self.ids, 0, other.ids, offset * ID, count * ID) // ID
        if self.shape or other.shape:
            equal = self._agrees_in_shape(other, offset, equal)
        return self._agrees_in_media(other, self.start + equal)

    def _agrees_in_shape(self, other: Identity, offset: int, count: int) -> int:
        mine = self.shape or bytes(count * SHAPE)
        theirs = other.shape or bytes((offset + count) * SHAPE)
        return _common(mine, 0, theirs, offset * SHAPE, count * SHAPE) // SHAPE

    def _agrees_in_media(self, other: Identity, stop: int) -> int:
        """Move ``stop`` back to before the first media item that differs or is cut."""
        mine = [item for item in self.media if item[0] < stop]
        theirs = [item for item in other.media if self.start <= item[0] < stop]
        for index in range(max(len(mine), len(theirs))):
            both = mine[index : index + 1] + theirs[index : index + 1]
            first = min(item[0] for item in both)
            if len(both) == 1 or both[0] != both[1] or both[0][1] > stop:
                return min(first, stop)
        return stop


def identify(prompt: Prepared) -> Identity:
    """Describe a prompt."""
    ids = array("I", prompt.ids).tobytes()
    if prompt.positions is None and not prompt.media and not prompt.rope_delta:
        return Identity(0, ids)
    return Identity(0, ids, _shape(prompt), tuple(_media_key(span) for span in prompt.media))


def splits_media(prompt: Prepared, index: int) -> bool:
    """Whether a frontier at ``index`` would cut a media item in two."""
    return any(span.start < index < span.stop for span in prompt.media)


def _media_key(span: MediaSpan) -> MediaKey:
    return span.start, span.stop, span.digest, span.grid, span.runs


def _shape(prompt: Prepared) -> bytes:
    """Lay out 16 bytes a token."""
    length = len(prompt.ids)
    shape = array("i", [0]) * (4 * length)
    for axis in range(3):
        if prompt.positions is None:
            offsets = [prompt.rope_delta] * length
        else:
            offsets = [position - index for index, position in enumerate(prompt.positions[axis])]
        shape[axis::4] = array("i", offsets)
    for span in prompt.media:
        for start, count in span.runs:
            shape[4 * start + 3 : 4 * (start + count) : 4] = array("i", [1]) * count
    return shape.tobytes()


def _common(a: bytes, a_from: int, b: bytes, b_from: int, count: int) -> int:
    """Return how many of the ``count`` bytes are equal, by halving; compares at memory speed."""
    if a[a_from : a_from + count] == b[b_from : b_from + count]:
        return count
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if a[a_from + low : a_from + middle] == b[b_from + low : b_from + middle]:
            low = middle
        else:
            high = middle
    return low
