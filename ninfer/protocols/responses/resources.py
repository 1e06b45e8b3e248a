"""Stored responses as resources: retrieve, delete, list input items; and what is refused outright.

The one thing a reader would get wrong: the list holds the items of that request alone, newest first
unless asked otherwise, not the history that they continued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import parse_qs

import attrs

from ninfer.faults import Refused
from ninfer.http.exchange import Exchange, Reply, Request, Route
from ninfer.protocols.dialect import Kit
from ninfer.protocols.fields import lacking, misfit
from ninfer.protocols.frames import encode
from ninfer.protocols.responses.schema import BACKGROUND, INCLUDE
from ninfer.protocols.responses.store import JsonItem, ResponseStore
from ninfer.protocols.status import openai_reply

LIMIT, MOST = 20, 100
RECOVERY = ("the recovery of a stream", "stream_recovery_not_supported")


@attrs.frozen
class Page:
    """What part of a list is asked for."""

    after: str | None = None
    limit: int = LIMIT
    newest_first: bool = True


def read_query(query: str) -> dict[str, str]:
    """Take a query apart; of a repeated name the last value counts, and ``name[]`` is ``name``."""
    found = parse_qs(query, keep_blank_values=True)
    return {name.removesuffix("[]"): values[-1] for name, values in found.items()}


def read_page(query: dict[str, str]) -> Page:
    """Read a page from a query.  Raises ``Refused``."""
    limit, order = query.get("limit", str(LIMIT)), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= MOST):
        raise misfit("limit", f"must be an integer between 1 and {MOST}")
    if order not in ("asc", "desc"):
        raise misfit("order", 'must be one of "asc", "desc"')
    return Page(query.get("after"), int(limit), order == "desc")


def list_object(items: Sequence[JsonItem], page: Page) -> dict[str, object]:
    """Build one page of a list.  Raises ``Refused`` when ``after`` is no item of it."""
    ordered = list(items)[::-1] if page.newest_first else list(items)
    start = 0
    if page.after is not None:
        ids = [item["id"] for item in ordered]
        if page.after not in ids:
            raise misfit("after", "is not the id of an input item of this response")
        start = ids.index(page.after) + 1
    data = ordered[start : start + page.limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + len(data) < len(ordered),
    }


@attrs.frozen
class Resources:
    """Answers from the store; each method returns a body or raises ``Refused``."""

    store: ResponseStore

    def retrieve(self, request: Request) -> object:
        """Return a stored response."""
        query = read_query(request.query)
        _refuse_include(query)
        for name in "stream", "starting_after":
            if query.get(name, "false") not in ("false", ""):
                raise lacking(name, *RECOVERY)
        return self.store.find(request.variables["id"]).response

    def delete(self, request: Request) -> object:
        """Forget a stored response."""
        id = request.variables["id"]
        self.store.delete(id)
        return {"id": id, "object": "response.deleted", "deleted": True}

    def input_items(self, request: Request) -> object:
        """List the items of a stored response's request."""
        query = read_query(request.query)
        _refuse_include(query)
        page = read_page(query)
        return list_object(self.store.find(request.variables["id"]).link.input, page)

    def cancel(self, request: Request) -> object:
        """Refuse: nothing runs in the background."""
        guarantee, code = BACKGROUND
        raise lacking("background", guarantee, code)

    def compact(self, request: Request) -> object:
        """Refuse: histories are not compacted."""
        raise lacking("input", "compaction", "compaction_not_supported")


def _refuse_include(query: dict[str, str]) -> None:
    if query.get("include"):
        raise lacking("include", *INCLUDE)


def resource_routes(kit: Kit, store: ResponseStore) -> tuple[Route, ...]:
    """Build the routes of stored responses."""
    resources = Resources(store)

    def route(method: str, pattern: str, work: Callable[[Request], object]) -> Route:
        async def handle(request: Request, exchange: Exchange) -> None:
            try:
                reply = Reply(200, encode(work(request)))
            except Refused as refused:
                reply = kit.dialect.failed(refused.fault, openai_reply(refused.fault))
            await exchange.reply(reply)

        return Route(method, pattern, handle)

    return (
        route("POST", "/v1/responses/compact", resources.compact),
        route("GET", "/v1/responses/{id}", resources.retrieve),
        route("DELETE", "/v1/responses/{id}", resources.delete),
        route("GET", "/v1/responses/{id}/input_items", resources.input_items),
        route("POST", "/v1/responses/{id}/cancel", resources.cancel),
    )
