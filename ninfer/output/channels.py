"""The reasoning and the content channel of one answer.

Owns the close marker: found in decoded text, so it may span tokens; shown in neither channel; the
whitespace that follows it is dropped from the beginning of the content.
The one thing a reader would get wrong: an answer to a prompt without thinking has no reasoning
channel, so a marker in it is ordinary text.
"""

from __future__ import annotations

from ninfer.output.finder import Finder

THINK_CLOSE = "</think>"
SPACE = " \t\r\n\f\v"


class Channels:
    """Splits text into (reasoning, content); ``open`` while the reasoning channel is open."""

    def __init__(self, thinking: bool) -> None:
        self.open = thinking
        self._finder = Finder((THINK_CLOSE,))
        self._leading = False  # only whitespace has followed the marker so far

    def feed(self, text: str) -> tuple[str, str]:
        """Take more text; return what it adds to each channel."""
        if not self.open:
            return "", self._content(text)
        found = self._finder.feed(text)
        if found.match is None:
            return found.text, ""
        self.open, self._leading = False, True
        return found.text, self._content(found.rest)

    def finish(self) -> str:
        """Return the reasoning still held: the beginning of a marker that never came."""
        return self._finder.held if self.open else ""

    def _content(self, text: str) -> str:
        if self._leading:
            text = text.lstrip(SPACE)
            self._leading = not text
        return text
