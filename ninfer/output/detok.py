"""Token ids to text, one token at a time.

Promises that no character is shown before all its bytes are there, that invalid bytes become
U+FFFD by maximal subpart, and that a partial character left at the end becomes one U+FFFD.
The one thing a reader would get wrong: a token is bytes, not text; a character may span three.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

_Utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Decodes one answer.  ``table[id]`` holds the bytes that a token shows."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._utf8 = _Utf8("replace")

    def take(self, token: int) -> str:
        """Return the characters that this token completes."""
        return self._utf8.decode(self._table[token])

    def finish(self) -> str:
        """Return what is left of a partial character: nothing or one U+FFFD."""
        return self._utf8.decode(b"", True)
