"""Where a prompt is worth a checkpoint: candidate places, and where they lie in the rendered text.

The template is rendered a second time with a pin at each place.  Only if that rendering, pins taken
out, is the very text of the first does a pin tell the truth; a place that changes what the template
does (it trims, it compares) has no exact frontier and is ignored.

Marks are hints: a further rendering that fails or takes too long costs them, never the request.
The one thing a reader would get wrong: offsets count characters of the sealed text without pins;
``frontiers`` turns them into token counts or rejects them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import attrs

from ninfer.faults import Refused
from ninfer.prompt.conversation import Conversation, MediaPart, Message
from ninfer.prompt.prepared import MarkKind
from ninfer.prompt.sandbox import Overrun
from ninfer.prompt.seals import PINS, SEAL_RUNS, pin, pin_number
from ninfer.prompt.variables import Pin, Pins, Place

MOST_SHARED = 4
_NEWLINES = re.compile("\n*")

Render = Callable[[Pins], str]


@attrs.frozen
class Cut:
    """A boundary in sealed text: the first of ``offsets`` that is an exact frontier counts."""

    kind: MarkKind
    offsets: tuple[int, ...]


def shared_places(conversation: Conversation) -> dict[Place, MarkKind]:
    """Choose at most four places to share: the latest explicit ones, then the implicit one."""
    explicit = list(_explicit(conversation))[-MOST_SHARED:]
    chosen = dict.fromkeys(explicit, MarkKind.EXPLICIT)
    latest = _latest_part(conversation.messages) if conversation.cache.implicit else None
    if latest is not None and len(chosen) < MOST_SHARED:
        chosen.setdefault(latest, MarkKind.IMPLICIT)
    return chosen


def shared_cuts(plain: str, places: dict[Place, MarkKind], render: Render) -> list[Cut]:
    """Find the places in the rendered text; those that cannot be found are left out."""
    found = _locate(plain, list(places), render)
    return [Cut(kind, found[place]) for place, kind in places.items() if place in found]


def input_boundary(
    plain: str,
    conversation: Conversation,
    keeps: bool,
    turn: str | None,
    render: Callable[[Conversation], str],
) -> int | None:
    """Return where the part of the prompt ends that the next turn will begin with as well.

    Where reasoning is kept (``keeps``) that is the generation prologue; otherwise it is the first
    assistant turn since the last user turn, whose reasoning a later prompt leaves out.  ``turn`` is
    the seal that opens turns.
    """
    if turn is None:
        return None
    first = None if keeps else _first_turn_after_query(conversation)
    text = plain
    if first is not None:
        try:
            text = render(
                attrs.evolve(conversation, messages=conversation.messages[:first], continue_final=False)
            )
        except (Refused, Overrun):
            return None
    at = text.rfind(turn)
    return at if at >= 0 and plain.startswith(text[:at]) else None


def _first_turn_after_query(conversation: Conversation) -> int | None:
    """Return the first assistant turn after the last user turn; None when that is yet to be made."""
    roles = [message.role for message in conversation.messages]
    if conversation.continue_final:
        roles.pop()
    after = len(roles) - roles[::-1].index("user") if "user" in roles else 0
    return roles.index("assistant", after) if "assistant" in roles[after:] else None


def _explicit(conversation: Conversation) -> Iterable[Place]:
    """Yield the marked places in the order in which they are rendered."""
    yield from (Place("tool", n) for n, tool in enumerate(conversation.tools) if tool.mark)
    for number, message in enumerate(conversation.messages):
        yield from (Place("part", number, n) for n, part in enumerate(message.parts) if part.mark)
        yield from (Place("call", number, n) for n, call in enumerate(message.calls) if call.mark)


def _latest_part(messages: Sequence[Message]) -> Place | None:
    for number in range(len(messages) - 1, -1, -1):
        for n in range(len(messages[number].parts) - 1, -1, -1):
            part = messages[number].parts[n]
            if isinstance(part, MediaPart) or part.text.strip():
                return Place("part", number, n)
    return None


def _locate(plain: str, places: list[Place], render: Render) -> dict[Place, tuple[int, ...]]:
    """Pin all places at their very ends, or before the blanks that end them, or each place alone."""
    for inside in (False, True):
        found = _attempt(plain, places, render, inside)
        if found is not None:
            return found
    alone: dict[Place, tuple[int, ...]] = {}
    for place in places if len(places) > 1 else []:
        alone |= _locate(plain, [place], render)
    return alone


def _attempt(
    plain: str, places: list[Place], render: Render, inside: bool
) -> dict[Place, tuple[int, ...]] | None:
    """Return where the pinned places lie, or None when the pins changed the text."""
    try:
        pinned = render({place: Pin(pin(n), inside) for n, place in enumerate(places)})
    except (Refused, Overrun):
        return None
    if PINS.sub("", pinned) != plain:
        return None
    seen: dict[Place, list[int]] = {place: [] for place in places}
    for before, found in enumerate(PINS.finditer(pinned)):
        seen[places[pin_number(found[0])]].append(found.start() - before)
    return {place: _offsets(plain, place, at[0]) for place, at in seen.items() if len(at) == 1}


def _offsets(plain: str, place: Place, at: int) -> tuple[int, ...]:
    """Return where a piece ends whose pin stood before character ``at`` of the plain text."""
    if place.what == "part":
        return (at,)
    if place.what == "tool":  # its line end may belong to its last token
        end = _NEWLINES.match(plain, at)
        return (at, end.end()) if end else (at,)
    closing = SEAL_RUNS.search(plain, at)  # the pin stands in the name; the call ends with a token
    return (closing.start() + 1,) if closing else ()
