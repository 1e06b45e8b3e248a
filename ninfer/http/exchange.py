"""The door of the HTTP room: what a handler receives and what it may answer.

A handler is ``async def handler(request, exchange)``.  It answers exactly once, either with
``await exchange.reply(...)`` or by writing frames inside ``async with exchange.stream(...)``.
The handler's own scopes (a seat in the engine, media references) therefore span the whole
answer, and a client that leaves cancels the handler where it stands.

The one thing a reader would get wrong: ``stream`` sends no head until the first frame or the
first heartbeat is due, so a refusal raised before that still becomes a plain error reply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs


@attrs.frozen
class Request:
    """One whole HTTP request.

    ``headers`` has lower-case names; a repeated field is joined with ``", "``.  ``path`` is the
    decoded path without the query; ``variables`` holds what the route pattern captured.
    ``id`` is unique in this server and is what response headers carry.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    id: str
    variables: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Reply:
    """One whole answer; ``body`` bytes are sent with a Content-Length."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class PeerGone(Exception):
    """The peer can no longer be written to.  Handlers let it pass; the connection ends quietly."""


class Sink(Protocol):
    """Where a streaming handler puts its frames."""

    async def send(self, frame: bytes) -> None:
        """Write one whole SSE frame; wait at most the write deadline; raise ``PeerGone``."""


class Exchange(Protocol):
    """The answering half of one request."""

    @property
    def started(self) -> bool:
        """Whether a response head has been sent."""

    async def reply(self, reply: Reply) -> None:
        """Send a whole answer."""

    def stream(self, headers: tuple[tuple[str, str], ...] = ()) -> AbstractAsyncContextManager[Sink]:
        """Open an SSE answer (200, text/event-stream) with a heartbeat after each silence."""


Handler = Callable[[Request, Exchange], Awaitable[None]]


@attrs.frozen
class Route:
    """One row of the routing table; ``{name}`` in ``pattern`` captures one path segment."""

    method: str
    pattern: str
    handler: Handler
    open: bool = False  # served without the API key
    reserved: bool = False  # served also when the house is full
