"""Cache markers of a request to the places that carry them.

Promises at most four places, one time to live at each, and that a marker on the whole request counts
as one on its last block that can be cached.

The one thing a reader would get wrong: a place is where a marker lies in the prompt.  The last block
inside a tool result and the result itself are one place.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ninfer.protocols.fields import misfit
from ninfer.protocols.messages import blocks
from ninfer.protocols.messages.blocks import CacheControl, placed
from ninfer.protocols.messages.schema import Prompt

MOST = 4
BILLING = "x-anthropic-billing-header:"


@attrs.frozen
class _Spot:
    """A block that may be marked: its place, its path on the wire, and whether it holds anything."""

    place: str
    path: str
    control: CacheControl | None
    full: bool = True


def system_blocks(prompt: Prompt) -> Iterator[tuple[str, blocks.Text]]:
    """Walk the top-level system text; a billing header in the first block of an array is not there."""
    for path, block in placed(prompt.system, "system"):
        if not (path == "system[0]" and block.text.startswith(BILLING)):
            yield path, block


def marked_places(prompt: Prompt) -> frozenset[str]:
    """Return the places to mark.  Raises ``Refused``."""
    lifetimes: dict[str, str] = {}
    last = None
    for spot in _spots(prompt):
        if spot.control is not None:
            _mark(lifetimes, spot.place, spot.control, f"{spot.path}.cache_control")
        last = spot.place if spot.full else last
    if prompt.cache_control is not None and last is not None:
        _mark(lifetimes, last, prompt.cache_control, "cache_control")
    return frozenset(lifetimes)


def _mark(lifetimes: dict[str, str], place: str, control: CacheControl, path: str) -> None:
    lifetime = control.ttl or "5m"
    if lifetimes.setdefault(place, lifetime) != lifetime:
        complaint = "differs from that of another marker at the same place"
        raise misfit(f"{path}.ttl", complaint, "conflicting_cache_control")
    if len(lifetimes) > MOST:
        complaint = f"is one marker too many; a request may set at most {MOST}"
        raise misfit(path, complaint, "too_many_cache_markers")


def _spots(prompt: Prompt) -> Iterator[_Spot]:
    """Walk the blocks that can be cached, in the order of the prompt."""
    for index, tool in enumerate(prompt.tools or ()):
        yield _Spot(f"tools[{index}]", f"tools[{index}]", tool.cache_control)
    for path, text in system_blocks(prompt):
        yield _Spot(path, path, text.cache_control, bool(text.text))
    for index, message in enumerate(prompt.messages):
        for path, block in placed(message.content, f"messages[{index}].content"):
            yield from _block_spots(block, path)


def _block_spots(block: blocks.Block, path: str) -> Iterator[_Spot]:
    match block:
        case blocks.Text():
            yield _Spot(path, path, block.cache_control, bool(block.text))
        case blocks.Image() | blocks.ToolUse():
            yield _Spot(path, path, block.cache_control)
        case blocks.ToolResult():
            for inner_path, inner in placed(block.content, f"{path}.content"):
                yield from _block_spots(inner, inner_path)
            place = _result_place(block, path)
            yield _Spot(place, path, block.cache_control, place != path)


def _result_place(result: blocks.ToolResult, path: str) -> str:
    """Return where a marker on a tool result lies: the end of its last block."""
    inner = list(placed(result.content, f"{path}.content"))
    return inner[-1][0] if inner else path
