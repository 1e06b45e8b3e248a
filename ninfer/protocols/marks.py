"""Shared-prefix marks of a conversation: how many one request may write.

Owns the bound of OpenAI's cache hints: at most four writes a request, explicit ones first, the latest
ones kept.  The one thing a reader would get wrong: a mark is only a wish to write; reading a prefix
that is already there needs none.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ninfer.prompt.conversation import CachePolicy, Message

WRITES = 4  # a request's shared-prefix writes, explicit and automatic together


def settle_marks(messages: Iterable[Message], *, implicit: bool) -> tuple[tuple[Message, ...], CachePolicy]:
    """Keep the latest explicit marks; an automatic one is added only if a slot is left."""
    messages = tuple(messages)
    count = sum(part.mark for message in messages for part in message.parts)
    policy = CachePolicy(implicit=implicit and count < WRITES)
    surplus = count - WRITES
    if surplus <= 0:
        return messages, policy
    kept = []
    for message in messages:
        marked = sum(part.mark for part in message.parts)
        kept.append(_without_marks(message, min(marked, surplus)) if surplus > 0 else message)
        surplus -= marked
    return tuple(kept), policy


def _without_marks(message: Message, count: int) -> Message:
    parts = []
    for part in message.parts:
        if part.mark and count:
            part, count = attrs.evolve(part, mark=False), count - 1
        parts.append(part)
    return attrs.evolve(message, parts=tuple(parts))
