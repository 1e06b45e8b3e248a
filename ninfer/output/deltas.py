"""The typed deltas that leave the output room and that every protocol renders.

The one thing a reader would get wrong: the concatenation of all deltas of a channel equals the
aggregate text of that channel byte for byte, whatever way tokens and markers were cut.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ninfer.prompt.conversation import Json


@attrs.frozen
class Piece:
    """Visible text set free by one committed token: reasoning first, then content."""

    reasoning: str = ""
    content: str = ""

    def __bool__(self) -> bool:
        """Whether there is any text."""
        return bool(self.reasoning or self.content)


@attrs.frozen
class ParsedCall:
    """A structured call found in the content channel; arguments in generated order."""

    name: str
    arguments: Mapping[str, Json]


@attrs.frozen
class ToolParse:
    """What the tool parser saw; counters only, never text.

    ``fallback`` is one of none, malformed_structure, duplicate_parameter, invalid_tool_name,
    undeclared_tool, trailing_content.
    """

    marker_seen: bool = False
    calls: int = 0
    empty_omitted: int = 0
    schema_mismatches: int = 0
    fallback: str = "none"
