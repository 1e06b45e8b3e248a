"""Media inside a prompt: placeholders, spans, and the three position axes.  Arithmetic only.

A template writes one placeholder per item.  An image's becomes one pad per merged patch; a video's
becomes, for each temporal run, its time in seconds and a group of pads.

The one thing a reader would get wrong: after a run that began at position p the next token stands at
p + max(height, width) of the merged grid, not at p + number of pads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal

import attrs

from ninfer.faults import Broken, invalid
from ninfer.prompt.prepared import MediaSpan
from ninfer.prompt.seals import Seals

VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
PADS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@attrs.frozen
class MediaItem:
    """One decoded image or video, in the order of the conversation.

    ``grid`` is (t, h, w) in patches; ``seconds`` holds the mean time of each temporal run of a video;
    ``digest`` identifies source bytes and modality; ``payload`` is opaque here.
    """

    kind: Literal["image", "video"]
    grid: tuple[int, int, int]
    digest: bytes
    seconds: tuple[float, ...] = ()
    payload: Any = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class Expansion:
    """Sealed text with every placeholder written out; ``moved`` translates offsets into it."""

    text: str
    _edits: tuple[tuple[int, int], ...]  # (end of a placeholder in the old text, growth so far)

    def moved(self, offset: int) -> int:
        """Return where a boundary of the old text lies in the new one."""
        growth = 0
        for end, total in self._edits:
            if end <= offset:
                growth = total
        return offset + growth


def expand(text: str, items: Sequence[MediaItem], seals: Seals, merge: int) -> Expansion:
    """Write out the placeholders of sealed text; ``merge`` patches a side make one token."""
    start, end = seals.of(VISION_START) or "", seals.of(VISION_END) or ""
    pads = {seals.of(pad): kind for kind, pad in PADS.items() if seals.of(pad)}
    pattern = re.compile(f"(?:{start})?({'|'.join(filter(None, pads))})(?:{end})?")
    found = list(pattern.finditer(text)) if pads else []
    if [pads[match[1]] for match in found] != [item.kind for item in items]:
        message = "the chat template does not show every image and video of the conversation once, in order"
        raise invalid(message, code="invalid_chat_template")
    parts, edits, last, growth = [], [], 0, 0
    for match, item in zip(found, items, strict=True):
        written = "".join(_groups(item, merge, start, match[1], end))
        parts += [text[last : match.start()], written]
        growth += len(written) - len(match[0])
        last = match.end()
        edits.append((last, growth))
    return Expansion("".join([*parts, text[last:]]), tuple(edits))


def _groups(item: MediaItem, merge: int, start: str, pad: str, end: str) -> Iterator[str]:
    """Yield what one item looks like in the prompt."""
    frames, height, width = item.grid
    run = start + pad * (height // merge * (width // merge)) + end
    if item.kind == "image":
        yield run
    for n in range(frames if item.kind == "video" else 0):
        yield f"<{item.seconds[n]:.1f} seconds>{run}"


def spans(ids: Sequence[int], items: Sequence[MediaItem], pads: Sequence[int]) -> tuple[MediaSpan, ...]:
    """Find the runs of pads in the ids and give them to their items."""
    wanted = frozenset(pads)
    runs: list[tuple[int, int]] = []
    at = 0
    for is_pad, group in groupby(ids, wanted.__contains__):
        length = sum(1 for _ in group)
        if is_pad:
            runs.append((at, length))
        at += length
    found = []
    for item in items:
        count = item.grid[0] if item.kind == "video" else 1
        mine, runs = tuple(runs[:count]), runs[count:]
        if len(mine) != count:
            raise Broken("fewer runs of media placeholders than temporal runs")
        found.append(MediaSpan(item.digest, item.grid, mine, item.payload))
    if runs:
        raise Broken("more runs of media placeholders than media items")
    return tuple(found)


def positions(length: int, media: Sequence[MediaSpan], merge: int) -> tuple[Axes, int]:
    """Return the three axes (temporal, height, width) of ``length`` tokens, and rope_delta."""
    axes: tuple[list[int], list[int], list[int]] = ([], [], [])
    at = 0
    for span in media:
        height, width = span.grid[1] // merge, span.grid[2] // merge
        for start, count in span.runs:
            at = _text_until(axes, start, at)
            axes[0].extend([at] * count)
            axes[1].extend(at + row for row in range(height) for _ in range(width))
            axes[2].extend([*range(at, at + width)] * height)
            at += max(height, width)
    at = _text_until(axes, length, at)
    return (tuple(axes[0]), tuple(axes[1]), tuple(axes[2])), at - length


def _text_until(axes: tuple[list[int], list[int], list[int]], index: int, at: int) -> int:
    """Count text tokens up to ``index`` along all axes; return the position after them."""
    stop = at + index - len(axes[0])
    for axis in axes:
        axis.extend(range(at, stop))
    return stop
