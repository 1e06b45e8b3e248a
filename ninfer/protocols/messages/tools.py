"""Declared tools and the choice among them to the effective tool set.

Promises that a definition reaches the prompt in the form of a function, with its known members in the
order in which the client sent them and the schema under the name that templates read.

The one thing a reader would get wrong: the cache marker of a tool travels with it, and goes with it when
the choice is ``none``.
"""

from __future__ import annotations

from ninfer.prompt.conversation import Json, ToolDef
from ninfer.protocols.fields import lacking
from ninfer.protocols.messages import schema

_SHOWN = {
    "name": "name",
    "description": "description",
    "input_schema": "parameters",
    "input_examples": "input_examples",
}


def lower_tools(prompt: schema.Prompt, marked: frozenset[str]) -> tuple[tuple[ToolDef, ...], str]:
    """Return the effective tools and the word for the choice.  Raises ``Refused``."""
    choice = prompt.tool_choice
    if isinstance(choice, schema.NoChoice):
        return (), "none"
    tools = tuple(
        _definition(tool, f"tools[{index}]" in marked) for index, tool in enumerate(prompt.tools or ())
    )
    if tools and isinstance(choice, schema.AutoChoice) and choice.disable_parallel_tool_use:
        path = "tool_choice.disable_parallel_tool_use"
        raise lacking(path, "at most one tool call", "parallel_tool_use_not_supported")
    return tools, "auto"


def _definition(tool: schema.Tool, mark: bool) -> ToolDef:
    function: dict[str, Json] = {
        _SHOWN[name]: value for name, value in tool.source.items() if name in _SHOWN and value is not None
    }
    return ToolDef(tool.name, {"type": "function", "function": function}, tool.input_schema, mark)
