"""The tables by which protocols and dialects are found.

A new protocol is a folder and one line in ``PROTOCOLS``; a new dialect is a module and one line in
``DIALECTS``.  The one thing a reader would get wrong: a dialect is not a protocol; it bends the habits
of all of them (``--dialect``).
"""

from __future__ import annotations

from collections.abc import Callable

from ninfer.http.exchange import Route
from ninfer.protocols.astrai import astrai
from ninfer.protocols.chat.handler import chat_routes
from ninfer.protocols.dialect import Dialect, Kit, Warn
from ninfer.protocols.messages.handler import messages_routes
from ninfer.protocols.models import models_routes
from ninfer.protocols.responses.handler import responses_routes

PROTOCOLS: dict[str, Callable[[Kit], tuple[Route, ...]]] = {
    "models": models_routes,
    "chat": chat_routes,
    "responses": responses_routes,
    "messages": messages_routes,
}

DIALECTS: dict[str, Callable[[Warn], Dialect]] = {
    "ninfer": lambda warn: Dialect(),
    "astrai": astrai,
}


def protocol_routes(kit: Kit) -> tuple[Route, ...]:
    """Build the routes of every protocol."""
    return tuple(route for build in PROTOCOLS.values() for route in build(kit))
