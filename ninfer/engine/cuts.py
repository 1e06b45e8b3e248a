"""Where the feeding of a prompt is cut so that a checkpoint can be captured there.

Owns the choice only; capturing is the cache's.  Promises at most four shared marks a request (explicit
ones first, the latest first), every input mark, the junction with a retained history, and regular
checkpoints inside a long prompt; a place inside a media item is never cut.

The one thing a reader would get wrong: a cut costs nothing unless the image fits; it only decides
where a chunk ends.
"""

from __future__ import annotations

from ninfer.engine.identity import splits_media
from ninfer.engine.prefix import Kind
from ninfer.prompt.prepared import MarkKind, Prepared

SHARED_MARKS = 4


def plan_cuts(prompt: Prepared, start: int, common: int, every: int, junction: int) -> dict[int, Kind]:
    """Return the frontiers behind ``start`` to capture and why, in order.

    ``common`` is where the prompt parts from retained histories, ``every`` the distance of regular
    checkpoints and ``junction`` the least gain that makes a branch point worth one, all in tokens.
    """
    stop = len(prompt.ids)
    wanted = dict.fromkeys(range(every, stop, every), Kind.INTERVAL)
    if common >= start + junction:
        wanted[common] = Kind.JUNCTION
    for index, kind in _marked(prompt):
        if index not in wanted or kind.value > wanted[index].value:
            wanted[index] = kind
    return {
        index: wanted[index]
        for index in sorted(wanted)
        if start < index <= stop and not splits_media(prompt, index)
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
