"""Wire values to typed values: nothing is coerced, and every fault names its field.

Owns the converter that all dialects share and the rules a field may carry.  A schema is an
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
import re
from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Protocol, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import Converter

from ninfer.faults import Fault, Kind, Refused, invalid
from ninfer.prompt.conversation import Json
from ninfer.settings import JsonBudget

T = TypeVar("T")
Hook = Callable[[object, Any], Any]
ReadJson = Callable[[bytes], object]  # raises Refused; built by the HTTP room
JsonObject = NewType("JsonObject", dict[str, Json])
"""A free-form JSON object: checked for depth, text and numbers, otherwise as the client sent it."""
Source = NewType("Source", dict[str, Json])
"""A schema member of this type receives the whole object it stands in, as sent."""

NOUNS: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "an object",
}
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
_HUGE = 1 << 1023  # an integer from here on has no finite double


class Misfit(Exception):
    """A value that does not fit its field; gathers its path while it rises."""

    def __init__(self, complaint: str, code: str = "invalid_value") -> None:
        super().__init__(complaint)
        self.complaint = complaint
        self.code = code
        self.steps: list[str | int] = []

    def under(self, step: str | int) -> Misfit:
        """Add the member name or the index by which the value was reached."""
        self.steps.append(step)
        return self

    def refusal(self) -> Refused:
        """Turn into the refusal that the peer is told."""
        path = join(reversed(self.steps))
        subject = path or "the request body"
        return Refused(Fault(Kind.INVALID, f"{subject} {self.complaint}", self.code, path or None))


def join(steps: Iterator[str | int]) -> str:
    """Spell a path: ``messages[0].content``; a member name that is no word is quoted and cut."""
    path = ""
    for step in steps:
        if type(step) is int:
            path += f"[{step}]"
        elif _PLAIN_NAME.match(str(step)):
            path += f".{step}" if path else str(step)
        else:
            path += f"[{json.dumps(str(step)[:64])}]"
    return path


def misfit(param: str, complaint: str, code: str = "invalid_value") -> Refused:
    """Build the refusal of a value found wrong after reading (``complaint`` follows the path)."""
    return invalid(f"{param} {complaint}", param=param, code=code)


def lacking(param: str, guarantee: str, code: str) -> Refused:
    """Build the refusal of a request for something that this server cannot guarantee."""
    return misfit(param, _lack(guarantee), code)


def _lack(guarantee: str) -> str:
    return f"asks for {guarantee}, which NInfer cannot guarantee"


# Rules.  Each looks at a value that already has its type.


class Rule(Protocol):
    """What an ``Annotated`` may carry: raises ``Misfit``, or lets the value pass."""

    def check(self, value: Any) -> None:
        """Look at one value of the annotated type."""


@attrs.frozen
class Range:
    """Inclusive bounds of a number; ``unit`` is named in the message."""

    low: float | None = None
    high: float | None = None
    unit: str = ""

    def check(self, value: float) -> None:
        """Refuse a number outside the bounds."""
        if (self.low is None or value >= self.low) and (self.high is None or value <= self.high):
            return
        raise Misfit("must be " + _bounds(self.low, self.high, self.unit))


@attrs.frozen
class Length:
    """Inclusive bounds of a string's or an array's length, in ``unit``."""

    low: int = 0
    high: int | None = None
    unit: str = "characters"

    def check(self, value: str | tuple[object, ...] | dict[str, object]) -> None:
        """Refuse a value that is too short or too long."""
        if self.low <= len(value) and (self.high is None or len(value) <= self.high):
            return
        low = None if self.low == 0 else self.low
        raise Misfit("must hold " + _bounds(low, self.high, self.unit))


def _bounds(low: float | None, high: float | None, unit: str) -> str:
    if low is not None and high is not None:
        text = f"{low:g}" if low == high else f"between {low:g} and {high:g}"
    else:
        text = f"at least {low:g}" if low is not None else f"at most {high:g}"
    one = 1 in (low, high) and (low is None or high is None or low == high)
    return f"{text} {unit.removesuffix('s') if one else unit}".rstrip()


@attrs.frozen
class Match:
    """A pattern that the whole string must match, shown as it is."""

    pattern: str

    def check(self, value: str) -> None:
        """Refuse a string that the pattern does not cover."""
        if not re.fullmatch(self.pattern, value, re.ASCII):
            raise Misfit(f"must match {self.pattern}")


@attrs.frozen
class Only:
    """Values that change nothing; any other asks for ``lacks``, which we cannot guarantee."""

    values: tuple[object, ...]
    lacks: str
    code: str

    def check(self, value: object) -> None:
        """Refuse a value that would have to change the answer."""
        if value not in self.values:
            raise Misfit(_lack(self.lacks), self.code)


@attrs.frozen
class Never:
    """A field whose mere presence (other than null) asks for ``lacks``."""

    lacks: str
    code: str

    def check(self, value: object) -> None:
        """Refuse any value."""
        raise Misfit(_lack(self.lacks), self.code)


# Hooks.  Each takes a JSON value and returns the typed one, or raises Misfit.


def _exactly(kind: type) -> Hook:
    def hook(value: object, _: Any) -> object:
        if type(value) is not kind:
            raise Misfit(f"must be {NOUNS[kind]}", "invalid_type")
        return value

    return hook


def check_text(value: str) -> None:
    """Refuse a string that cannot be written as UTF-8."""
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Misfit("must not hold lone surrogates") from None


def _text(value: object, _: Any) -> str:
    if type(value) is not str:
        raise Misfit("must be a string", "invalid_type")
    check_text(value)
    return value


def _number(value: object, _: Any) -> float:
    if type(value) is not int and type(value) is not float:
        raise Misfit("must be a number", "invalid_type")
    if not -_HUGE < value < _HUGE:  # false for NaN and both infinities
        raise Misfit("must be a finite number")
    return float(value)


def _null(value: object, _: Any) -> None:
    if value is not None:
        raise Misfit("must be null", "invalid_type")


def _one_of(value: object, kind: Any) -> object:
    choices = get_args(kind)
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    if type(value) not in {type(choice) for choice in choices}:
        raise Misfit(f"must be {NOUNS[type(choices[0])]}", "invalid_type")
    raise Misfit("must be one of " + ", ".join(map(json.dumps, choices)))


def check_json(value: object, room: int) -> None:
    """Refuse free JSON nested deeper than ``room`` levels, or holding bad text or numbers."""
    kind = type(value)
    if kind is str:
        check_text(value)  # type: ignore[arg-type]
    elif kind is float:
        _number(value, float)
    elif kind is dict or kind is list:
        _check_members(value, room)  # type: ignore[arg-type]


def _check_members(value: dict[str, object] | list[object], room: int) -> None:
    if not room:
        raise Misfit("is nested too deeply")
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for step, inner in members:
        try:
            if isinstance(step, str):
                check_text(step)
            check_json(inner, room - 1)
        except Misfit as fault:
            raise fault.under(step)  # noqa: B904


# Types to hooks.


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
            (lambda kind: get_origin(kind) is Literal, lambda _: _one_of),
            (lambda kind: kind in (JsonObject, Source), lambda _: self._free_object),
            (lambda kind: kind is object, lambda _: self._free),
        ]
        for accepts, factory in factories:
            converter.register_structure_hook_factory(accepts, factory)
        for kind, hook in {str: _text, float: _number, NoneType: _null}.items():
            converter.register_structure_hook(kind, hook)
        for kind in (int, bool):
            converter.register_structure_hook(kind, _exactly(kind))

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
    origin = get_origin(kind)
    if origin is Annotated:
        return _json_types(get_args(kind)[0])
    if origin is Literal:
        return tuple({type(choice): None for choice in get_args(kind)})
    if origin in (list, tuple):
        return (list,)
    if kind is float:
        return (int, float)
    if kind in (str, int, bool, NoneType):
        return (kind,)
    return (*NOUNS,) if kind is object else (dict,)


def _tags(classes: list[type]) -> tuple[str, dict[str, type], str | None]:
    """(member, its values to classes, the value that its absence means) of a tagged union."""
    first = wire_fields(classes[0])
    tag = next(field.name for field in first if get_origin(field.type) is Literal)
    choices: dict[str, type] = {}
    default = None
    for cls in classes:
        field = next(field for field in wire_fields(cls) if field.name == tag)
        for value in get_args(field.type):
            choices[value] = cls
        if field.default is not attrs.NOTHING and default is None:
            default = str(field.default)
    return tag, choices, default
