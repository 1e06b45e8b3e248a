"""Finding fixed strings in a stream of text, in linear time and with the least hold-back.

Owns the one search that channels, stop strings and tool markers share.  Whatever is set free can no
longer be part of a match; whatever is held is exactly the longest suffix that still may be.

The one thing a reader would get wrong: held text is never stored.  It always equals the beginning of
the pattern that has come furthest, so its length alone tells what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class Found:
    """What one chunk set free; ``match`` is the pattern completed in it and ``rest`` what follows."""

    text: str
    match: int | None = None
    rest: str = ""


class Finder:
    """Looks for the first of several non-empty strings; ends with its first match."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._watches = [_Watch(text) for text in patterns]
        self._firsts = frozenset(text[0] for text in patterns)
        self._held = ("", 0)  # the furthest pattern and how many of its characters have been seen

    @property
    def held(self) -> str:
        """The suffix of the stream that may still become a match."""
        text, length = self._held
        return text[:length]

    def feed(self, chunk: str) -> Found:
        """Take more text.  Of several matches in one chunk the one that begins first wins, then the
        one declared first."""
        if not self._held[1] and self._firsts.isdisjoint(chunk):
            return Found(chunk)  # the common case, at a fifth of the cost
        ends = [watch.feed(chunk) for watch in self._watches]
        starts = [(end - len(self._watches[n].text), n) for n, end in enumerate(ends) if end >= 0]
        if starts:
            start, winner = min(starts)
            shown = self._stream(chunk, start)
            self._held = ("", 0)
            return Found(shown, winner, chunk[ends[winner] :])
        furthest = max(self._watches, key=lambda watch: watch.seen)
        shown = self._stream(chunk, len(chunk) - furthest.seen)
        self._held = (furthest.text, furthest.seen)
        return Found(shown)

    def _stream(self, chunk: str, stop: int) -> str:
        """Return held text and chunk up to ``stop``, an index of the chunk (negative: in held text)."""
        text, length = self._held
        if stop <= 0:
            return text[: length + stop]
        return text[:length] + chunk[:stop] if length else chunk[:stop]


class _Watch:
    """How much of one pattern the stream ends with (Knuth, Morris and Pratt)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.seen = 0
        self._fall = _fallbacks(text)

    def feed(self, chunk: str) -> int:
        """Return where in the chunk the pattern is first completed, or -1."""
        text, fall, seen, at = self.text, self._fall, self.seen, 0
        while at < len(chunk):
            if seen == 0:
                at = chunk.find(text[0], at)
                if at < 0:
                    break
            character = chunk[at]
            while seen and text[seen] != character:
                seen = fall[seen - 1]
            seen += text[seen] == character
            at += 1
            if seen == len(text):
                self.seen = 0
                return at
        self.seen = seen
        return -1


def _fallbacks(text: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    fall = [0] * len(text)
    length = 0
    for at in range(1, len(text)):
        while length and text[at] != text[length]:
            length = fall[length - 1]
        length += text[at] == text[length]
        fall[at] = length
    return fall
