"""Wire values to typed values: nothing is coerced, and every fault names its field.

Owns the converter that all protocols share; ``rules.py`` holds the rules a field may carry.  A schema is an
``attrs.frozen`` class whose annotations say everything: ``Annotated[float, Range(0, 2)] | None``.
It promises that ``Reader.read`` either returns the typed value or raises one ``Refused`` whose
``param`` is the exact path (``messages[0].content[1].image_url.url``), the first fault in field
order; that an exact JSON type is required (a boolean is no integer, a string no array); that
numbers are finite, strings hold no lone surrogates, and free JSON keeps its member order.

The one thing a reader would get wrong: an attrs validator or converter on a wire class would raise
without a path.  Put a rule into ``Annotated`` instead.  ``null`` is accepted only where the
annotation says ``| None``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import Converter

from ninfer.prompt.conversation import Json
from ninfer.protocols.rules import (
    Length,
    Match,
    Misfit,
    Never,
    Only,
    Range,
    Rule,
    join,
    lacking,
    misfit,
    split,
)
from ninfer.protocols.scalars import (
    NOUNS,
    Hook,
    check_json,
    check_text,
    exactly,
    null,
    number,
    one_of,
    text,
)
from ninfer.settings import JsonBudget

__all__ = [
    "JsonObject",
    "Length",
    "Match",
    "Misfit",
    "Never",
    "Only",
    "Range",
    "ReadJson",
    "Reader",
    "Rule",
    "Source",
    "check_json",
    "check_text",
    "join",
    "lacking",
    "misfit",
    "split",
    "wire_fields",
]

T = TypeVar("T")
ReadJson = Callable[[bytes], object]  # raises Refused; built by the HTTP room
JsonObject = NewType("JsonObject", dict[str, Json])
"""A free-form JSON object: checked for depth, text and numbers, otherwise as the client sent it."""
Source = NewType("Source", dict[str, Json])
"""A schema member of this type receives the whole object it stands in, as sent."""


@attrs.frozen
class _Member:
    """One field of a wire class, ready to be read."""

    name: str
    kind: Any
    hook: Hook
    required: bool


class Reader:
    """Reads bodies into wire classes.

    A wire class may set ``UNKNOWN = "refuse"`` (a ClassVar) to answer a member that it does not
    declare with ``unknown_parameter``; otherwise such members are ignored.
    """

    def __init__(self, budget: JsonBudget) -> None:
        self._room = budget.depth
        self._converter = converter = Converter(detailed_validation=False)
        factories: list[tuple[Callable[[Any], bool], Callable[[Any], Hook]]] = [
            (lambda kind: isinstance(kind, type) and attrs.has(kind), self._object),
            (lambda kind: get_origin(kind) in (Union, UnionType), self._union),
            (lambda kind: get_origin(kind) in (list, tuple), self._array),
            (lambda kind: get_origin(kind) is dict, self._map),
            (lambda kind: get_origin(kind) is Annotated, self._ruled),
            (lambda kind: get_origin(kind) is Literal, lambda _: one_of),
            (lambda kind: kind in (JsonObject, Source), lambda _: self._free_object),
            (lambda kind: kind is object, lambda _: self._free),
        ]
        for accepts, factory in factories:
            converter.register_structure_hook_factory(accepts, factory)
        for kind, hook in {str: text, float: number, NoneType: null}.items():
            converter.register_structure_hook(kind, hook)
        for kind in (int, bool):
            converter.register_structure_hook(kind, exactly(kind))

    def read(self, body: object, shape: type[T]) -> T:
        """Read a parsed JSON body as ``shape``.  Raises ``Refused``."""
        try:
            return self._hook(shape)(body, shape)  # type: ignore[no-any-return]
        except Misfit as fault:
            raise fault.refusal() from None

    def _hook(self, kind: Any) -> Hook:
        return self._converter.get_structure_hook(kind)

    def _free(self, value: object, _: Any) -> object:
        check_json(value, self._room)
        return value

    def _free_object(self, value: object, _: Any) -> object:
        if type(value) is not dict:
            raise Misfit("must be an object", "invalid_type")
        check_json(value, self._room)
        return value

    def _object(self, cls: type) -> Hook:
        members = [self._member(field) for field in wire_fields(cls)]
        known = {member.name for member in members}
        strict = getattr(cls, "UNKNOWN", "ignore") == "refuse"

        def hook(value: object, _: Any) -> object:
            if type(value) is not dict:
                raise Misfit("must be an object", "invalid_type")
            found = {}
            for member in members:
                if member.name in value or member.kind is Source:
                    found[member.name] = _structure(member, value)
                elif member.required:
                    raise Misfit("is required", "missing_required_parameter").under(member.name)
            if strict:
                _refuse_unknown(value, known)
            return cls(**found)

        return hook

    def _member(self, field: attrs.Attribute[Any]) -> _Member:
        return _Member(field.name, field.type, self._hook(field.type), field.default is attrs.NOTHING)

    def _array(self, kind: Any) -> Hook:
        inner = get_args(kind)[0]
        hook_item, make = self._hook(inner), get_origin(kind)

        def hook(value: object, _: Any) -> object:
            if type(value) is not list:
                raise Misfit("must be an array", "invalid_type")
            items: list[object] = []
            try:
                for item in value:
                    items.append(hook_item(item, inner))
            except Misfit as fault:
                raise fault.under(len(items))  # noqa: B904
            return make(items)

        return hook

    def _map(self, kind: Any) -> Hook:
        key_kind, inner = get_args(kind)
        hook_key, hook_item = self._hook(key_kind), self._hook(inner)

        def hook(value: object, _: Any) -> object:
            if type(value) is not dict:
                raise Misfit("must be an object", "invalid_type")
            items = {}
            for name, item in value.items():
                try:
                    items[hook_key(name, key_kind)] = hook_item(item, inner)
                except Misfit as fault:
                    raise fault.under(name)  # noqa: B904
            return items

        return hook

    def _ruled(self, kind: Any) -> Hook:
        inner, *rules = get_args(kind)
        hook_inner = self._hook(inner)

        def hook(value: object, _: Any) -> object:
            typed = hook_inner(value, inner)
            for rule in rules:
                rule.check(typed)
            return typed

        return hook

    def _union(self, kind: Any) -> Hook:
        objects = [member for member in get_args(kind) if isinstance(member, type) and attrs.has(member)]
        table: dict[type, tuple[Hook, Any]] = {}
        for member in get_args(kind):
            for json_type in _json_types(member):
                table.setdefault(json_type, (self._hook(member), member))
        if len(objects) > 1:
            table[dict] = (self._tagged(objects), kind)
        nouns = " or ".join(NOUNS[json_type] for json_type in table if json_type in NOUNS)
        if int in table and float in table:
            nouns = nouns.replace("an integer or ", "")

        def hook(value: object, _: Any) -> object:
            entry = table.get(type(value))
            if entry is None:
                raise Misfit(f"must be {nouns}", "invalid_type")
            return entry[0](value, entry[1])

        return hook

    def _tagged(self, classes: list[type]) -> Hook:
        tag, choices, default = _tags(classes)
        hooks = {value: (self._hook(cls), cls) for value, cls in choices.items()}

        def hook(value: object, _: Any) -> object:
            assert type(value) is dict
            if tag in value:
                named = value[tag]
            elif default is None:
                raise Misfit("is required", "missing_required_parameter").under(tag)
            else:
                named = default
            if type(named) is not str:
                raise Misfit("must be a string", "invalid_type").under(tag)
            if named not in hooks:
                raise Misfit("must be one of " + ", ".join(map(json.dumps, hooks))).under(tag)
            inner, cls = hooks[named]
            return inner(value, cls)

        return hook


def wire_fields(cls: type) -> tuple[attrs.Attribute[Any], ...]:
    """Return the fields of a wire class with their annotations resolved."""
    attrs.resolve_types(cls)
    return tuple(attrs.fields(cls))


def _structure(member: _Member, value: dict[str, object]) -> object:
    if member.kind is Source:
        return member.hook(value, member.kind)
    try:
        return member.hook(value[member.name], member.kind)
    except Misfit as fault:
        raise fault.under(member.name)  # noqa: B904


def _refuse_unknown(value: dict[str, object], known: set[str]) -> None:
    for name in value:
        if name not in known:
            raise Misfit("is not a known parameter", "unknown_parameter").under(name)


def _json_types(kind: Any) -> tuple[type, ...]:
    """The Python types of the JSON values that ``kind`` may accept."""
    kind = _plain(kind)
    origin = get_origin(kind)
    if origin is Literal:
        return tuple({type(choice): None for choice in get_args(kind)})
    if origin in (list, tuple):
        return (list,)
    if kind is float:
        return (int, float)
    if kind in (str, int, bool, NoneType):
        return (kind,)
    return (*NOUNS,) if kind is object else (dict,)


def _plain(kind: Any) -> Any:
    """The annotation without its rules."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _tags(classes: list[type]) -> tuple[str, dict[str, type], str | None]:
    """(member, its values to classes, the value that its absence means) of a tagged union."""
    first = wire_fields(classes[0])
    tag = next(field.name for field in first if get_origin(_plain(field.type)) is Literal)
    choices: dict[str, type] = {}
    default = None
    for cls in classes:
        field = next(field for field in wire_fields(cls) if field.name == tag)
        for value in get_args(_plain(field.type)):
            choices[value] = cls
        if default is None and isinstance(field.default, str):
            default = field.default
    return tag, choices, default
