"""Drafting with the MTP layer: its own output and proposal feed the next proposal.

The one thing a reader would get wrong: only the first proposal reads a hidden state of the target;
entries made from guesses are overwritten by ``follow`` once the target has seen those tokens.
"""

from __future__ import annotations

import attrs

from ninfer.model import mtp
from ninfer.model.weights import Decoder, Loader, Mtp, load_mtp
from ninfer.ops.verbs import Array, Step, Verbs


@attrs.frozen(eq=False)
class MtpDrafter:
    """Implements ``Drafter``."""

    decoder: Decoder
    weights: Mtp

    def follow(self, verbs: Verbs, hidden: Array, step: Step) -> None:
        """Append the cache entries of a target pass."""
        self.remember(verbs, verbs.previous_hidden(hidden, step), step)

    def remember(self, verbs: Verbs, previous: Array, step: Step) -> None:
        """Append cache entries made of tokens and the hidden states before them."""
        mtp.remember(verbs, self.decoder, self.weights, previous, step)

    def begin(self, verbs: Verbs, step: Step) -> tuple[Array, Array]:
        """Propose from the slots' hidden states and the pending tokens."""
        return self.go_on(verbs, verbs.slot_hidden(step), step)

    def go_on(self, verbs: Verbs, state: Array, step: Step) -> tuple[Array, Array]:
        """Propose from the layer's previous output and the token proposed last."""
        hidden = mtp.advance(verbs, self.decoder, self.weights, state, step)
        return mtp.propose(verbs, self.decoder, hidden), hidden


def load(loader: Loader, decoder: Decoder) -> MtpDrafter:
    """Load the mtp component."""
    return MtpDrafter(decoder, load_mtp(loader, decoder.config))
