"""Multi-token prediction: one attention layer that guesses the token after the next.

Cache entry i of this layer is made of token i and the hidden state of token i - 1, so an entry
depends on nothing behind it and its prefix can be shared like any other; entry 0 does not exist
(``Step.first`` = 1).  The one thing a reader would get wrong: the rotary position of entry i is
that of token i - 1.  A row predicts token i + 1.
"""

from __future__ import annotations

from ninfer.model.qwen3_5 import block
from ninfer.model.weights import Attention, Decoder, Mtp
from ninfer.ops.verbs import Array, Step, Verbs


def advance(verbs: Verbs, model: Decoder, w: Mtp, previous: Array, step: Step) -> Array:
    """Append the entries of ``step``'s tokens; ``previous`` (T, H) are the hidden states before them.

    -> (T, H) normed outputs, which head and the next recursive draft read.
    """
    x = block(verbs, w.layer, _enter(verbs, model, w, previous, step), step)
    return verbs.final_norm(x, w.final_norm)


def remember(verbs: Verbs, model: Decoder, w: Mtp, previous: Array, step: Step) -> None:
    """Append the same entries and stop there: all that drafting needs of tokens that are known."""
    mixer = w.layer.mixer
    assert isinstance(mixer, Attention)
    x = _enter(verbs, model, w, previous, step)
    k, v = verbs.norm_project(x, mixer.norm, (mixer.key, mixer.value))
    verbs.remember(k, v, mixer.key_norm, w.layer.index, step)


def _enter(verbs: Verbs, model: Decoder, w: Mtp, previous: Array, step: Step) -> Array:
    embedded = verbs.embed(model.embedding, step)
    joined = verbs.concat_norms(embedded, w.embedding_norm, previous, w.hidden_norm)
    return verbs.project(joined, w.input_projection)


def propose(verbs: Verbs, model: Decoder, hidden: Array) -> Array:
    """Pick one draft for each row, by the proposal head where there is one.  -> (T,) int32 ids."""
    if model.proposal is None:
        return verbs.best(verbs.logits(hidden, model.head), None)
    return verbs.best(verbs.logits(hidden, model.proposal.head), model.proposal.ids)
