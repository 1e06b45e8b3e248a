"""Structured tool calls out of the content channel, streamed with the least hold-back.

Promises that nothing is lost: what ``feed`` returned plus what ``finish`` returns is the whole
content, less the markup that became calls and the blanks before it.
The one thing a reader would get wrong: once a call marker is complete everything is held to the end,
because only the whole rest of the text decides whether it is calls or ordinary text.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.output.channels import SPACE
from ninfer.output.deltas import ParsedCall, ToolParse
from ninfer.output.finder import Finder
from ninfer.output.toolgrammar import OPEN, RawCall, Region, find_region
from ninfer.output.toolvalues import Signature, Value, signatures
from ninfer.prompt.conversation import Json, ToolDef


class ToolStream:
    """Looks for calls of ``tools`` (the effective set; empty: all content is text).

    ``name_limit`` is the longest function name that may become a structured call.
    """

    def __init__(self, tools: Sequence[ToolDef], *, name_limit: int = 64) -> None:
        self._tools = tools
        self._name_limit = name_limit
        self._finder = Finder((OPEN,))
        self._blanks: list[str] = []  # trailing whitespace, dropped if calls follow
        self._region: list[str] = []  # everything from the first marker on

    def feed(self, content: str) -> str:
        """Take more content; return what may be shown."""
        if not self._tools or not content:
            return content
        if self._region:
            self._region.append(content)
            return ""
        found = self._finder.feed(content)
        if found.match is not None:
            self._region += [OPEN, found.rest]
        return self._without_trailing_blanks(found.text)

    def finish(self) -> tuple[str, tuple[ParsedCall, ...], ToolParse]:
        """Return the text still to be shown, the calls, and what the parser saw."""
        blanks = "".join(self._blanks)
        if not self._region:
            return blanks + self._finder.held, (), ToolParse()
        held = "".join(self._region)
        declared = signatures(self._tools)
        region = find_region(held, declared, self._name_limit)
        if not region.calls:
            return blanks + held, (), ToolParse(marker_seen=True, fallback=region.fallback)
        calls, seen = _read(held, region, declared)
        return (blanks + held[: region.start]).rstrip(SPACE), calls, seen

    def _without_trailing_blanks(self, text: str) -> str:
        solid = text.rstrip(SPACE)
        if not solid:
            self._blanks.append(text)
            return ""
        shown = "".join([*self._blanks, solid])
        self._blanks = [text[len(solid) :]]
        return shown


def _read(
    text: str, region: Region, declared: dict[str, Signature]
) -> tuple[tuple[ParsedCall, ...], ToolParse]:
    """Convert every argument and count what was unusual."""
    calls: list[ParsedCall] = []
    empty = mismatches = 0
    for raw in region.calls:
        values = _values(text, raw, declared[raw.name])
        empty += sum(value.omitted for value in values.values())
        mismatches += sum(value.mismatch for value in values.values())
        arguments: dict[str, Json] = {k: v.value for k, v in values.items() if not v.omitted}
        calls.append(ParsedCall(raw.name, arguments))
    return tuple(calls), ToolParse(True, len(calls), empty, mismatches)


def _values(text: str, raw: RawCall, signature: Signature) -> dict[str, Value]:
    return {key: signature.read(key, text[begin:end]) for key, (begin, end) in raw.arguments.items()}
