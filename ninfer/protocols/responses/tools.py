"""Declared functions and namespaces to the effective tool set, and their names there and back.

Promises that every (namespace, function) pair, declared or only remembered, has a name of its own in the
prompt, that the same declarations give the same names on every turn, and that a definition reaches the
prompt as Chat would render it: its known members in the order in which the client sent them.

The one thing a reader would get wrong: a name in the prompt is not taken apart to find the namespace; the
table that made it is asked.  ``a`` + ``b__c`` and ``a__b`` + ``c`` would look alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import attrs

from ninfer.prompt.conversation import Json, ToolDef
from ninfer.protocols.fields import lacking, misfit
from ninfer.protocols.responses import schema

FunctionKey = tuple[str | None, str]  # (namespace, function name)
_SHOWN = ("name", "description", "parameters")


@attrs.define(eq=False)
class Names:
    """The names that functions have in one prompt."""

    _given: dict[FunctionKey, str] = attrs.field(factory=dict)
    _taken: dict[str, FunctionKey] = attrs.field(factory=dict)

    def of(self, key: FunctionKey) -> str:
        """Return the name of a function; the first come has the plainest."""
        if key not in self._given:
            name = _joined(key)
            if name in self._taken:
                name = next(
                    numbered
                    for number in range(2, len(self._taken) + 3)
                    if (numbered := f"{name}_{number}") not in self._taken
                )
            self._given[key], self._taken[name] = name, key
        return self._given[key]

    def origin(self, name: str) -> FunctionKey:
        """Return the namespace and the function that a name stands for."""
        return self._taken.get(name, (None, name))


def _joined(key: FunctionKey) -> str:
    namespace, name = key
    if namespace is None:
        return name
    return f"{namespace}{'' if namespace.endswith('__') else '__'}{name}"


@attrs.frozen
class ToolSet:
    """The tools that may be called, the names in the prompt and the word for the choice."""

    effective: tuple[ToolDef, ...]
    names: Names
    choice: str

    @property
    def name_limit(self) -> int:
        """The longest name that may become a call."""
        return max([64, *(len(tool.name) for tool in self.effective)])


def lower_tools(request: schema.CreateRequest) -> ToolSet:
    """Settle the effective tools.  Raises ``Refused``."""
    declared = list(_declared(request.tools or ()))
    names = Names()
    for key, _ in sorted(declared, key=lambda pair: pair[0][0] is not None):
        names.of(key)  # functions outside a namespace keep their own names
    choice = request.tool_choice
    if isinstance(choice, schema.AllowedChoice):
        allowed = _allowed(choice, {key for key, _ in declared})
        declared, word = [pair for pair in declared if pair[0] in allowed], "allowed_tools"
    else:
        word = choice if isinstance(choice, str) else "auto"
        declared = [] if word == "none" else declared
    if declared and request.parallel_tool_calls is False:
        guarantee = "at most one tool call"
        raise lacking("parallel_tool_calls", guarantee, "parallel_tool_calls_not_supported")
    return ToolSet(tuple(_definition(names.of(key), tool) for key, tool in declared), names, word)


def _declared(tools: tuple[schema.Tool, ...]) -> Iterator[tuple[FunctionKey, schema.Function]]:
    """Yield every declared function in its order."""
    for index, tool in enumerate(tools):
        if isinstance(tool, schema.Function):
            _check_callers(tool, f"tools[{index}]")
            yield (None, tool.name), tool
        elif isinstance(tool, schema.Namespace):
            for inner, member in enumerate(tool.tools):
                if isinstance(member, schema.Function):
                    _check_callers(member, f"tools[{index}].tools[{inner}]")
                    yield (tool.name, member.name), member


def _check_callers(function: schema.Function, path: str) -> None:
    callers = function.allowed_callers
    if callers is not None and "direct" not in callers:
        raise lacking(f"{path}.allowed_callers", "callers other than direct", schema.FUNCTION_OPTION)


def _definition(name: str, function: schema.Function) -> ToolDef:
    shown: dict[str, Json] = {
        member: name if member == "name" else value
        for member, value in function.source.items()
        if member in _SHOWN and value is not None
    }
    return ToolDef(name, {"type": "function", "function": shown}, function.parameters)


def _allowed(choice: schema.AllowedChoice, declared: set[FunctionKey]) -> set[FunctionKey]:
    keys = set()
    for index, entry in enumerate(choice.tools):
        key = (entry.namespace, entry.name)
        if key not in declared:
            path = f"tool_choice.tools[{index}].name"
            raise misfit(path, "is not the name of a declared tool", "invalid_tool_choice")
        keys.add(key)
    return keys


def shown_choice(request: schema.CreateRequest) -> Json | Literal["auto"]:
    """Return the choice as answers tell it."""
    choice = request.tool_choice
    if isinstance(choice, schema.AllowedChoice):
        return dict(choice.source)
    return choice if isinstance(choice, str) else "auto"
