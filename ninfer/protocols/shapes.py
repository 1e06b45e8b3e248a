"""Wire shapes and wordings that the OpenAI protocols share.

The one thing a reader would get wrong: the pairs in capitals are (what is lacking, code); a rule says
"asks for ..., which NInfer cannot guarantee" with them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import attrs

from ninfer.faults import Refused
from ninfer.prompt.conversation import Json
from ninfer.protocols.fields import ReadJson
from ninfer.protocols.rules import Match, Only, Range, misfit

INT31 = 2**31 - 1
FORCED = ("a forced tool call", "tool_choice_not_supported")
NOT_FUNCTION = ("tools other than client-executed functions", "tool_type_not_supported")
STRICT = ("arguments that follow the schema strictly", "strict_tools_not_supported")

Tokens = Annotated[int, Range(0, INT31, "tokens")]
FunctionName = Annotated[str, Match("[A-Za-z0-9_-]{1,64}")]
FunctionType = Annotated[str, Only(("function",), *NOT_FUNCTION)]
NotStrict = Annotated[bool, Only((False,), *STRICT)]
AllowedMode = Annotated[Literal["auto", "required"], Only(("auto",), *FORCED)]
Retention = Literal["in_memory", "in-memory", "24h"]


@attrs.frozen
class Breakpoint:
    """A wish for a shared-prefix checkpoint after the part that carries it."""

    mode: Literal["explicit"]


@attrs.frozen
class CacheOptions:
    """Hints on shared-prefix writes; a time to live is accepted and promises nothing."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Annotated[str, Match("[0-9]{1,6}[smhd]")] | None = None


def read_arguments(text: str, path: str, read_json: ReadJson) -> dict[str, Json]:
    """Read the JSON text of historical arguments; blank text means none.  Raises ``Refused``."""
    if not text.strip():
        return {}
    try:
        value = read_json(text.encode())
    except Refused:
        value = None
    if type(value) is not dict:
        raise misfit(path, "must be the text of a JSON object", "invalid_prompt")
    return value
