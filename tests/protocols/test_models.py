"""GET /v1/models."""

from __future__ import annotations

from ninfer.protocols.models import models_routes
from tests.protocols.fakes import CARD, RecordingExchange, ScriptedService, kit, request

MODEL = {
    "id": "tiny",
    "object": "model",
    "created": CARD.created,
    "owned_by": "ninfer",
    "max_model_len": 8192,
}


async def test_the_list_holds_the_one_model() -> None:
    listing, _ = models_routes(kit(ScriptedService()))
    exchange = RecordingExchange()
    await listing.handler(request(path="/v1/models", method="GET"), exchange)
    assert exchange.json == {"object": "list", "data": [MODEL]}


async def test_the_model_is_found_by_its_id() -> None:
    _, one = models_routes(kit(ScriptedService()))
    exchange = RecordingExchange()
    await one.handler(request(path="/v1/models/tiny", method="GET", variables={"id": "tiny"}), exchange)
    assert (exchange.status, exchange.json) == (200, MODEL)


async def test_another_id_is_not_found() -> None:
    _, one = models_routes(kit(ScriptedService()))
    exchange = RecordingExchange()
    await one.handler(request(path="/v1/models/huge", method="GET", variables={"id": "huge"}), exchange)
    assert exchange.status == 404
    error = exchange.json["error"]
    assert (error["code"], error["param"], error["type"]) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )
