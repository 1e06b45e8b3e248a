"""GET /v1/models and /v1/models/{id}: the one model that is served.

The one thing a reader would get wrong: ``max_model_len`` is the context in tokens that a request can
really use, not what the checkpoint was trained for.
"""

from __future__ import annotations

from ninfer.faults import Refused
from ninfer.http.exchange import Exchange, Reply, Request, Route
from ninfer.protocols.dialect import Kit, must_match
from ninfer.protocols.frames import encode
from ninfer.protocols.service import ModelCard
from ninfer.protocols.status import openai_reply


def model_object(card: ModelCard) -> dict[str, object]:
    """Build the model object; ``created`` is in Unix seconds, ``max_model_len`` in tokens."""
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "ninfer",
        "max_model_len": card.max_context,
    }


def models_routes(kit: Kit) -> tuple[Route, ...]:
    """Build the routes: the list, one by id, and the served id as written when it holds a slash.

    Clients put ``org/name`` into the path as it is, where a capture holds one segment only.
    """

    async def show_list(_: Request, exchange: Exchange) -> None:
        body = {"object": "list", "data": [model_object(kit.service.card)]}
        await exchange.reply(Reply(200, encode(body)))

    async def show_one(request: Request, exchange: Exchange) -> None:
        try:
            must_match(request.variables["id"], kit.service.card)
        except Refused as refused:
            reply = openai_reply(refused.fault)
            await exchange.reply(kit.dialect.failed(refused.fault, reply))
        else:
            await show_served(request, exchange)

    async def show_served(_: Request, exchange: Exchange) -> None:
        await exchange.reply(Reply(200, encode(model_object(kit.service.card))))

    routes = (Route("GET", "/v1/models", show_list), Route("GET", "/v1/models/{id}", show_one))
    if "/" not in kit.service.card.id:
        return routes
    return (*routes, Route("GET", f"/v1/models/{kit.service.card.id}", show_served))
