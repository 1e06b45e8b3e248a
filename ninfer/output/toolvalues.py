"""What the text of a tool parameter means, given the type that the tool declares for it.

Owns the conversion from the untyped text of the call markup to JSON values.  It guides, it does not
judge: a value that misses its type stays in the call and is counted, so that the tool can complain.

The one thing a reader would get wrong: where a string is admitted the text is a string, even if it
looks like JSON; only one framing newline at either side is not part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import attrs

from ninfer.output.channels import SPACE
from ninfer.prompt.conversation import Json, ToolDef
from ninfer.prompt.seals import has_surrogate

_SIMPLE = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_DEEPEST = 63  # requests may nest 64 deep, the arguments' own object included

Types = frozenset[str] | None


@attrs.frozen
class Value:
    """One argument: ``omitted`` when an empty block stands for nothing, ``mismatch`` to be counted."""

    value: Json = None
    omitted: bool = False
    mismatch: bool = False


@attrs.frozen
class Signature:
    """The declared types of one tool's parameters; ``typed`` is False when nothing is declared."""

    types: Mapping[str, Types]
    typed: bool

    def read(self, key: str, text: str) -> Value:
        """Convert the text of one parameter."""
        types = self.types.get(key)
        if types is None:
            return Value(_guess(text), mismatch=self.typed and key not in self.types)
        if "string" in types:
            return Value(_unframed(text))
        return _typed(text.strip(SPACE), types)


def signatures(tools: Iterable[ToolDef]) -> dict[str, Signature]:
    """Read every tool's declared types; a tool defined twice with different schemas has none."""
    schemas: dict[str, list[dict[str, Json] | None]] = {}
    for tool in tools:
        schemas.setdefault(tool.name, []).append(tool.parameters)
    return {name: _signature(found) for name, found in schemas.items()}


def _signature(schemas: list[dict[str, Json] | None]) -> Signature:
    properties = (schemas[0] or {}).get("properties")
    if any(schema != schemas[0] for schema in schemas) or not isinstance(properties, dict):
        return Signature({}, False)
    return Signature({key: declared_types(schema) for key, schema in properties.items()}, True)


def declared_types(schema: Json) -> Types:
    """Return the types that a parameter schema admits, or None when it names no type we know.

    Understood: ``type`` as a name or a list of names; else ``anyOf`` or ``oneOf`` whose every branch
    has such a ``type``.
    """
    if not isinstance(schema, dict):
        return None
    if "type" in schema:
        return _names(schema["type"])
    branches = schema.get("anyOf", schema.get("oneOf"))
    if not isinstance(branches, list) or not branches:
        return None
    union: set[str] = set()
    for branch in branches:
        names = _names(branch.get("type")) if isinstance(branch, dict) else None
        if names is None:
            return None
        union |= names
    return frozenset(union)


def _names(declared: Json) -> Types:
    names = [declared] if isinstance(declared, str) else declared
    if not isinstance(names, list) or not names:
        return None
    known = [name for name in names if isinstance(name, str) and name in _SIMPLE]
    return frozenset(known) if len(known) == len(names) else None


def _typed(text: str, types: frozenset[str]) -> Value:
    if not text:
        return Value(omitted=True)
    valid, value = _parsed(text)
    if valid and not types.isdisjoint(_kinds(value)):
        return Value(value)
    if "boolean" in types and text.lower() in ("true", "false"):
        return Value(text.lower() == "true")
    return Value(value if valid else text, mismatch=True)


def _guess(text: str) -> Json:
    valid, value = _parsed(text.strip(SPACE))
    return value if valid else _unframed(text)


def _unframed(text: str) -> str:
    """Drop one newline at each side, the frame that the markup puts around a value."""
    for newline in ("\r\n", "\n"):
        if text.startswith(newline):
            text = text[len(newline) :]
            break
    for newline in ("\r\n", "\n"):
        if text.endswith(newline):
            return text[: -len(newline)]
    return text


def _kinds(value: Json) -> tuple[str, ...]:
    """Return the JSON Schema types that a value has: 3 and 3.0 are integers and numbers."""
    if value is None:
        return ("null",)
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int):
        return ("integer", "number")
    if isinstance(value, float):
        return ("integer", "number") if value.is_integer() else ("number",)
    return ({str: "string", list: "array"}.get(type(value), "object"),)


def _parsed(text: str) -> tuple[bool, Json]:
    """Parse strict JSON that can be sent back; (False, None) for anything else."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return False, None
    return (True, value) if _sendable(value) else (False, None)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError("too large for a number")
    return value


def _sendable(value: Json) -> bool:
    """Tell whether no string holds a lone surrogate and nothing is nested too deeply."""
    stack: list[tuple[Json, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, str):
            if has_surrogate(item):
                return False
        elif isinstance(item, (list, dict)):
            if depth > _DEEPEST:
                return False
            inside = item if isinstance(item, list) else [*item, *item.values()]
            stack += [(inner, depth + 1) for inner in inside]
    return True
