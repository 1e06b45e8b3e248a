"""Declared tools and the choice among them to the effective tool set.

Promises that a definition reaches the prompt with its known members in the order in which the client
sent them; members that nobody knows, null members and ``strict: false`` do not reach it.

The one thing a reader would get wrong: the same name may be declared twice (clients merge tool
lists); the output room then treats its arguments as untyped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ninfer.prompt.conversation import Json, ToolDef
from ninfer.protocols.chat import schema
from ninfer.protocols.fields import lacking, misfit

_SHOWN = ("name", "description", "parameters")


def lower_tools(request: schema.ChatRequest) -> tuple[tuple[ToolDef, ...], str]:
    """Return the effective tools and the word for the choice.  Raises ``Refused``."""
    tools = tuple(_definition(tool) for tool in request.tools or ())
    choice = request.tool_choice
    if isinstance(choice, schema.AllowedChoice):
        allowed = _allowed(choice, {tool.name for tool in tools})
        tools, word = tuple(tool for tool in tools if tool.name in allowed), "allowed_tools"
    else:
        word = choice if isinstance(choice, str) else "auto"
        tools = () if word == "none" else tools
    if tools and request.parallel_tool_calls is False:
        guarantee = "at most one tool call"
        raise lacking("parallel_tool_calls", guarantee, "parallel_tool_calls_not_supported")
    return tools, word


def _definition(tool: schema.Tool) -> ToolDef:
    function = tool.function
    shown: dict[str, Json] = {
        name: _picked(function.source, _SHOWN) if name == "function" else value
        for name, value in tool.source.items()
        if name in ("type", "function")
    }
    return ToolDef(function.name, shown, function.parameters)


def _picked(source: Mapping[str, Json], names: Iterable[str]) -> dict[str, Json]:
    return {name: value for name, value in source.items() if name in names and value is not None}


def _allowed(choice: schema.AllowedChoice, declared: set[str]) -> set[str]:
    """Names of an allowed set, nested or flat."""
    where = "tool_choice.allowed_tools" if choice.allowed_tools else "tool_choice"
    entries = choice.allowed_tools.tools if choice.allowed_tools else choice.tools
    if choice.allowed_tools is None and choice.mode is None:
        raise misfit(f"{where}.mode", "is required", "missing_required_parameter")
    if entries is None:
        raise misfit(f"{where}.tools", "is required", "missing_required_parameter")
    names = set()
    for index, entry in enumerate(entries):
        path = f"{where}.tools[{index}]"
        name = entry.function.name if entry.function else entry.name
        path += ".function.name" if entry.function else ".name"
        if name is None:
            raise misfit(path, "is required", "missing_required_parameter")
        if name not in declared:
            raise misfit(path, "is not the name of a declared tool", "invalid_tool_choice")
        names.add(name)
    return names
