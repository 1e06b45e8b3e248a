"""GET /v1/models."""

from __future__ import annotations

import attrs
import pytest

from ninfer.http.routes import build_router, split_target
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


@pytest.mark.parametrize("target", ["/v1/models/org/name-1", "/v1/models/org%2Fname-1"])
async def test_an_id_with_a_slash_is_found_escaped_or_as_written(target: str) -> None:
    service = ScriptedService()
    service.card = attrs.evolve(CARD, id="org/name-1")
    found = build_router(models_routes(kit(service))).find("GET", split_target(target))
    assert found is not None and found.route is not None
    exchange = RecordingExchange()
    await found.route.handler(request(path=target, method="GET", variables=found.variables), exchange)
    assert (exchange.status, exchange.json["id"]) == (200, "org/name-1")
