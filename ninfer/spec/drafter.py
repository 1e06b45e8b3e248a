"""The door of the drafters: who proposes tokens, and the registry of them.

A drafter sees every forward pass of the target, at once (``follow``) or later (``remember``), and
proposes (``begin``, ``go_on``); verification and acceptance are the program's.  Rewinding is implied:
whatever a drafter stored for tokens that were not kept lies beyond the frontier and is overwritten by
the next ``follow``.

The one thing a reader would get wrong: ``follow`` must run before ``keep_hidden`` of the same step,
since it reads the hidden state that the slot held before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ninfer.model.weights import Decoder, Loader
from ninfer.ops.verbs import Array, Step, Verbs
from ninfer.spec.mtp import load as load_mtp


class Drafter(Protocol):
    """Proposes tokens for a target decoder."""

    def follow(self, verbs: Verbs, hidden: Array, step: Step) -> None:
        """Take in a target pass: its rows and (T, H) hidden states.  ``step`` is already shifted."""

    def remember(self, verbs: Verbs, previous: Array, step: Step) -> None:
        """Take in known tokens; ``previous`` are the hidden states before them, ``step`` is shifted."""

    def begin(self, verbs: Verbs, step: Step) -> tuple[Array, Array]:
        """Propose after the pending token of each sequence.  -> ids (S,), state for ``go_on``."""

    def go_on(self, verbs: Verbs, state: Array, step: Step) -> tuple[Array, Array]:
        """Propose after the proposal that ``step`` feeds.  -> ids (S,), state for ``go_on``."""


DRAFTERS: dict[str, Callable[[Loader, Decoder], Drafter]] = {"mtp": load_mtp}
