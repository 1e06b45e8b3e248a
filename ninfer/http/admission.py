"""May this request be served?  Everything that a head alone can decide.

Owns the order of the refusals: key, path, method, room, encoding, size.  Promises that none of them
reads a byte of the body, and that a preflight is never asked for a key.

The one thing a reader would get wrong: without the key an unknown path is 401 like a known one, so
the routing table cannot be felt out.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ninfer.faults import Fault, Kind
from ninfer.http import cors
from ninfer.http.exchange import Exchange, Handler, Reply, Request
from ninfer.http.head import Head
from ninfer.http.refusals import Fields, Turned, too_large
from ninfer.http.routes import Match, Target
from ninfer.http.site import Site


@attrs.frozen
class Admitted:
    """What will answer, and what the route captured."""

    handler: Handler
    variables: Mapping[str, str]


def admit(site: Site, head: Head, target: Target, *, scarce: bool) -> Admitted:
    """Decide over one head; raise ``Turned``.  ``scarce`` admits reserved routes only."""
    match = site.router.find(head.method, target)
    if match is not None and cors.is_preflight(head.method, head.headers):
        return _options(match, cors.preflight_fields(head.headers, match.allow) if site.cors else ())
    route = match.route if match is not None else None
    if route is None or not route.open:
        site.key.require(head.headers)
    if scarce and not (route and route.reserved):
        raise full_house()
    if match is None or route is None:
        return _without_route(head, target, match)
    _check_body(site, head)
    return Admitted(route.handler, match.variables)


def full_house() -> Turned:
    """Build the refusal of a connection that there is no room for."""
    fault = Fault(Kind.OVERLOADED, "the server has no room for another connection", "server_overloaded")
    return Turned(503, fault, (("retry-after", "1"),))


def _without_route(head: Head, target: Target, match: Match | None) -> Admitted:
    if head.method == "OPTIONS" and (match is not None or not target.segments):
        return _options(match or Match(None, {}, ()), ())
    if match is None:
        raise Turned(404, Fault(Kind.NOT_FOUND, "there is nothing at this path", "not_found"))
    allow = ", ".join(match.allow)
    fault = Fault(Kind.METHOD, f"this path takes {allow}", "method_not_allowed")
    raise Turned(405, fault, (("allow", allow),))


def _options(match: Match, fields: Fields) -> Admitted:
    async def answer(request: Request, exchange: Exchange) -> None:
        await exchange.reply(Reply(204, headers=(("allow", ", ".join(match.allow)), *fields)))

    return Admitted(answer, {})


def _check_body(site: Site, head: Head) -> None:
    encoding = head.headers.get("content-encoding", "identity").lower()
    if encoding != "identity" and head.has_body:
        fault = Fault(Kind.UNSUPPORTED_ENCODING, "request bodies are taken without content coding only")
        raise Turned(415, fault, (("accept-encoding", "identity"),))
    if head.length is not None and head.length > site.limits.body_bytes:
        raise too_large(site.limits.body_bytes)
