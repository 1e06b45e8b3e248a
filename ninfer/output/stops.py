"""Stop strings of one channel.

The one thing a reader would get wrong: text is matched as the channel shows it, so a stop string
never matches across a channel's end or over a marker that is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.output.finder import Finder


class StopFilter:
    """Passes text on up to the first stop string; ``matched`` then names it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._stops = stops
        self._finder = Finder(stops) if stops else None

    def feed(self, text: str) -> str:
        """Return what may be shown; nothing once a stop string has matched."""
        if self._finder is None or not text:
            return text
        if self.matched is not None:
            return ""
        found = self._finder.feed(text)
        if found.match is not None:
            self.matched = self._stops[found.match]
        return found.text

    def flush(self) -> str:
        """End the channel: return the held text, which no stop string can claim any more."""
        held = self._finder.held if self._finder is not None else ""
        self._finder = None
        return held
