"""The environment in which a chat template runs: no way out, no way to take for ever.

A template comes from an artifact or from the operator, but its *cost* is decided by whoever sends the
conversation.  Jinja's sandbox keeps it away from Python; the ``Meter`` bounds its time, the size of
each thing it makes and of all of them together.  Work without bound needs a loop or a call, and both
tick; growth without bound needs an operator, a slice, a call or a filter, and all of them are measured.
What can grow by a number (``center``, ``ljust``, ``%1000d``) is not offered.

The one thing a reader would get wrong: one environment serves one rendering, because it carries that
rendering's meter.  Building one takes a few microseconds.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, NoReturn

import attrs
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, do_indent, make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

_NO_FILTERS = frozenset(
    {"batch", "center", "filesizeformat", "forceescape", "format", "pprint", "random", "slice"}
    | {"urlize", "wordwrap", "xmlattr"}
)
_NO_METHODS = frozenset(
    ("center", "encode", "expandtabs", "ljust", "rjust", "to_bytes", "translate", "zfill")
)
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)|\{[^{}]*\d{4}|\{[^{}]+\{")
_WIDEST_INDENT = 64
_LONGEST_INT = 256  # bits
_ALTOGETHER = 64  # times the size of the largest single thing


class Overrun(Exception):
    """A rendering cost more than it may; the text says what."""


class Objection(TemplateError):
    """The template itself refused the conversation (``raise_exception``)."""


@attrs.define(eq=False)
class Meter:
    """What one conversation may cost in its template.

    ``deadline`` is a time of ``clock`` in seconds, for all its renderings together; no string or list
    may be longer than ``size``.  ``made`` counts the characters and items made in one rendering.
    """

    clock: Callable[[], float]
    deadline: float
    size: int
    made: int = 0

    def tick(self) -> None:
        """Notice that time has passed."""
        if self.clock() > self.deadline:
            raise Overrun("time")

    def fits(self, length: int) -> None:
        """Refuse what would become too long."""
        if length > self.size:
            raise Overrun("size")

    def charge(self, value: Any) -> Any:
        """Account for a thing that was made, and return it."""
        if isinstance(value, (str, list, tuple)):
            length = len(value)
            self.made += length
            if length > self.size or self.made > _ALTOGETHER * self.size:
                raise Overrun("size")
        return value


class Pinned(dict[str, Any]):
    """A JSON object after whose text ``tojson`` writes a pin (see ``seals``)."""

    def __init__(self, body: dict[str, Any], mark: str) -> None:
        super().__init__(body)
        self.mark = mark


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a meter at every place where work or size can grow."""

    intercepted_binops = frozenset({"*", "+", "%", "**"})

    def __init__(self, meter: Meter, now: Callable[[], datetime.datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.meter = meter
        self.concat = self.joined  # type: ignore[method-assign]  # the root and every macro end here
        self.finalize = self._shown
        offered = {name: FILTERS[name] for name in FILTERS if name not in _NO_FILTERS}
        offered |= {"tojson": tojson, "replace": self._replace, "join": self._join, "indent": _indent}
        self.filters = {name: self._metered(body) for name, body in offered.items()}
        self.globals = {
            name: self.globals[name] for name in ("range", "dict", "namespace", "cycler", "joiner")
        }
        self.globals |= {"raise_exception": _object, "strftime_now": lambda form: now().strftime(form)}

    def watched(self, items: Iterable[Any]) -> Iterator[Any]:
        """Tick for every step of a loop."""
        for item in items:
            self.meter.tick()
            yield item

    def step(self) -> None:
        """Do nothing but be called, which ticks."""

    def cut(self, piece: Any) -> Any:
        """Return a slice: like every result of a call it is charged."""
        return piece

    def joined(self, parts: Iterable[Any]) -> str:
        """Join output, if it is not too long."""
        texts: list[str] = []
        length = 0
        for part in parts:
            texts.append(str(part))
            length += len(texts[-1])
            self.meter.fits(length)
        return str(self.meter.charge("".join(texts)))

    def tilde(self, *parts: Any) -> str:
        """Do what ``~`` does."""
        return self.joined(parts)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call macros, methods and functions of the template."""
        self.meter.tick()
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "join" and args:
            args = (self._measured(owner, args[0]),)
        elif isinstance(owner, str) and name == "replace":
            self.meter.fits(len(owner) + owner.count(str(args[0])) * len(str(args[1])))
        if isinstance(owner, str):
            self.meter.charge(owner)  # whatever it does, it reads all of it
        return self.meter.charge(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Measure what an operator would make, then make it."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
            if bits > _LONGEST_INT:
                raise Overrun("size")
        elif operator == "*":
            text, count = (left, right) if isinstance(right, int) else (right, left)
            if isinstance(text, (str, list, tuple)):
                self.meter.fits(len(text) * count)
        elif operator == "%" and isinstance(left, str):
            _refuse_widths(left)
        return self.meter.charge(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Hide methods whose result is as long as a number says."""
        return attr not in _NO_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuse widths in ``str.format``."""
        wrapper = super().wrap_str_format(value)
        if wrapper is not None:
            _refuse_widths(value.__self__)
        return wrapper

    def _shown(self, value: Any) -> str:
        return value if type(value) is str else str(self.meter.charge(str(value)))

    def _measured(self, between: str, items: Iterable[Any]) -> list[str]:
        """Turn what is to be joined into strings, if the result is not too long."""
        parts = [str(item) for item in items]
        self.meter.fits(sum(map(len, parts)) + len(between) * len(parts))
        return parts

    def _join(self, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        items = value if attribute is None else map(make_attrgetter(self, attribute), value)
        return str(d).join(self._measured(str(d), items))

    def _replace(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        self.meter.fits(len(text) + text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _metered(self, body: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(body)  # keeps the marks that tell Jinja what to pass
        def metered(*args: Any, **kwargs: Any) -> Any:
            return self.meter.charge(body(*args, **kwargs))

        return metered


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as templates of this family expect it: order kept, nothing escaped for HTML."""
    if indent is not None and indent > _WIDEST_INDENT:
        raise SecurityError(f"an indent of more than {_WIDEST_INDENT} is not available")
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return text + value.mark if isinstance(value, Pinned) else text


def _indent(text: Any, width: int = 4, first: bool = False, blank: bool = False) -> str:
    if not isinstance(width, int) or width > _WIDEST_INDENT:
        raise SecurityError(f"an indent of more than {_WIDEST_INDENT} is not available")
    return do_indent(str(text), width, first, blank)


def _refuse_widths(form: str) -> None:
    if _WIDE.search(form):
        raise SecurityError("formatting to a width is not available")


def _object(message: object = "") -> NoReturn:
    raise Objection(str(message))
