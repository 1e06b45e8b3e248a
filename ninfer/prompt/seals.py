"""Control tokens inside text, in a form that no client can write.

Owns the mapping between the spellings of control tokens (``<|im_end|>``, ``<think>``, ...) and their
*seals*: control token number n travels through a chat template as the lone surrogate U+DC00+n.
Text from a client never holds a surrogate (``has_surrogate`` guards the door), so every seal in a
rendered prompt was put there by the template, and every spelling left in it is ordinary text.

The one thing a reader would get wrong: high surrogates (U+D800...) are not control tokens.  They are
*pins*, used by ``frontiers`` to find out where a piece of content ends in the rendered text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ninfer.faults import StartupError

_FIRST_SEAL = 0xDC00
_FIRST_PIN = 0xD800
_ROOM = 0x400

SEAL_RUNS = re.compile("([\udc00-\udfff]+)")
PINS = re.compile("[\ud800-\udbff]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def has_surrogate(text: str) -> bool:
    """Tell whether a text could be mistaken for one of ours (and is no valid Unicode)."""
    return not text.isascii() and _SURROGATES.search(text) is not None


def pin(number: int) -> str:
    """Return the character that marks place ``number``, 0 <= number < 1024."""
    return chr(_FIRST_PIN + number)


def pin_number(character: str) -> int:
    """Return which place a pin marks."""
    return ord(character) - _FIRST_PIN


class Seals:
    """The control tokens of one vocabulary; ``spellings[n]`` is what seal n stands for."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self.spellings = tuple(spellings)
        if len(self.spellings) > _ROOM:
            raise StartupError(
                f"the tokenizer adds {len(self.spellings)} tokens; at most {_ROOM} can be used"
            )
        self._seal = {text: chr(_FIRST_SEAL + n) for n, text in enumerate(self.spellings)}
        # Longest spelling first: the reading that tokenizers give to overlapping added tokens.
        longest_first = sorted(self.spellings, key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def of(self, spelling: str) -> str | None:
        """Return the seal of one spelling, or None when the vocabulary has no such token."""
        return self._seal.get(spelling)

    def seal(self, text: str) -> str:
        """Replace every spelling by its seal.  Only for text of the template or of our own."""
        return self._spelled.sub(lambda found: self._seal[found[0]], text)

    def unseal(self, text: str) -> str:
        """Spell every seal out again."""
        return SEAL_RUNS.sub(lambda run: "".join(self.spellings[number(c)] for c in run[0]), text)


def number(seal: str) -> int:
    """Return which control token a seal stands for."""
    return ord(seal) - _FIRST_SEAL
