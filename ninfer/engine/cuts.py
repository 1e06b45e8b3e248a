"""Where the feeding of a prompt is cut so that a checkpoint can be captured there.

Owns the choice only; capturing is the cache's.  Promises at most four shared marks a request (explicit
ones first, the latest first), every input mark, the junction with a retained history, and regular
checkpoints inside a long prompt; a place inside a media item is never cut.

The one thing a reader would get wrong: every cut costs a pass over all weights, whether the image fits or
not.  So a place that nobody asked for is left out where the next one, a little further on, serves nearly
the same: a short chat is computed in two units.
"""

from __future__ import annotations

import math

from ninfer.engine.identity import splits_media
from ninfer.engine.prefix import Kind
from ninfer.prompt.prepared import MarkKind, Prepared
from ninfer.settings import EngineOptions

SHARED_MARKS = 4
UNASKED = {Kind.IMPLICIT, Kind.INTERVAL}


def plan_cuts(prompt: Prepared, start: int, common: int, spacing: EngineOptions) -> dict[int, Kind]:
    """Return the frontiers behind ``start`` to capture and why, in order.

    ``common`` is where the prompt parts from retained histories; ``spacing`` says how far apart
    checkpoints are to be, and how much a branch point must save to be one.
    """
    stop, every = len(prompt.ids), spacing.checkpoint_every
    wanted = dict.fromkeys(range(every, stop, every), Kind.INTERVAL)
    if common >= start + spacing.junction_tokens:
        wanted[common] = Kind.JUNCTION
    for index, kind in _marked(prompt):
        if index not in wanted or kind.value > wanted[index].value:
            wanted[index] = kind
    places = [i for i in sorted(wanted) if start < i <= stop and not splits_media(prompt, i)]
    return {
        index: wanted[index]
        for index, after in zip(places, [*places[1:], math.inf], strict=False)
        if wanted[index] not in UNASKED or after - index > spacing.nearby_tokens
    }


def _marked(prompt: Prepared) -> list[tuple[int, Kind]]:
    inputs = [(mark.index, Kind.INPUT) for mark in prompt.marks if mark.kind is MarkKind.INPUT]
    explicit = sorted({mark.index for mark in prompt.marks if mark.kind is MarkKind.EXPLICIT})[
        -SHARED_MARKS:
    ]
    room = SHARED_MARKS - len(explicit)
    implicit = sorted({mark.index for mark in prompt.marks if mark.kind is MarkKind.IMPLICIT})
    latest = implicit[len(implicit) - min(room, len(implicit)) :]
    return [
        *inputs,
        *((index, Kind.EXPLICIT) for index in explicit),
        *((index, Kind.IMPLICIT) for index in latest),
    ]
