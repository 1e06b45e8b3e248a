"""The routing table: a method and a target to a handler and its captures.

Owns percent-decoding and matching.  Promises that one path means one route: nothing is normalised,
a trailing slash or a doubled one is another path, and the query plays no part.

The one thing a reader would get wrong: a path is split on ``/`` before it is decoded, so an escaped
slash can stand inside a captured segment and never makes a new one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote_to_bytes

import attrs

from ninfer.http.exchange import Route
from ninfer.http.refusals import malformed

_CONTROL = re.compile("[\x00-\x1f\x7f]")
_CAPTURE = re.compile(r"\{([a-z_]+)\}")


@attrs.frozen
class Target:
    """A request target taken apart: decoded path segments, and the query as it was sent."""

    segments: tuple[str, ...]
    query: str

    @property
    def path(self) -> str:
        """The decoded path."""
        return "/" + "/".join(self.segments) if self.segments else "*"


def split_target(target: str) -> Target:
    """Take an origin-form target (or ``*``) apart; raise ``Turned`` on bytes that are no text."""
    path, _, query = target.partition("?")
    if path == "*":
        return Target((), query)
    return Target(tuple(map(_decode, path[1:].split("/"))), query)


def _decode(segment: str) -> str:
    try:
        text = unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        raise malformed("the path is not UTF-8") from None
    if _CONTROL.search(text):
        raise malformed("the path holds a control character")
    return text


@attrs.frozen
class Match:
    """What a path leads to.  ``route`` is None where the path exists under other methods only."""

    route: Route | None
    variables: Mapping[str, str]
    allow: tuple[str, ...]


_Row = tuple[tuple[str, ...], dict[str, Route]]


@attrs.frozen
class Router:
    """An immutable routing table.  Patterns without captures win over patterns with them."""

    _exact: Mapping[tuple[str, ...], dict[str, Route]]
    _patterns: tuple[_Row, ...]

    def find(self, method: str, target: Target) -> Match | None:
        """Find the route; None for an unknown path.  HEAD is served by GET routes."""
        methods = self._exact.get(target.segments)
        if methods is not None:
            return _match(methods, method, {})
        for pattern, methods in self._patterns:
            variables = _capture(pattern, target.segments)
            if variables is not None:
                return _match(methods, method, variables)
        return None


def build_router(routes: Iterable[Route]) -> Router:
    """Build the table; two routes for the same method and pattern are a ``ValueError``."""
    table: dict[tuple[str, ...], dict[str, Route]] = {}
    for route in routes:
        methods = table.setdefault(tuple(route.pattern[1:].split("/")), {})
        if not route.pattern.startswith("/") or route.method in methods:
            raise ValueError(f"bad or doubled route {route.method} {route.pattern}")
        methods[route.method] = route
    patterned = {row: methods for row, methods in table.items() if any(map(_CAPTURE.fullmatch, row))}
    exact = {row: methods for row, methods in table.items() if row not in patterned}
    return Router(exact, tuple(patterned.items()))


def _match(methods: Mapping[str, Route], method: str, variables: Mapping[str, str]) -> Match:
    allow = {*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])}
    route = methods.get("GET" if method == "HEAD" and "HEAD" not in methods else method)
    return Match(route, variables, tuple(sorted(allow)))


def _capture(pattern: tuple[str, ...], segments: tuple[str, ...]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    variables: dict[str, str] = {}
    for want, have in zip(pattern, segments, strict=True):
        name = _CAPTURE.fullmatch(want)
        if name and have:
            variables[name[1]] = have
        elif name or want != have:
            return None
    return variables
