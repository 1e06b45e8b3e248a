"""The operator's endpoints: /health, /metrics and /stats.

They read published snapshots only and answer whatever the engine is doing.  The one thing a reader
would get wrong: ``/metrics`` stays readable after an engine failure; only ``/health`` changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from ninfer.http.exchange import Exchange, Reply, Request, Route
from ninfer.observe.metrics import CONTENT_TYPE, Metrics, exposition


def operate_routes(
    healthy: Callable[[], bool],
    metrics: Metrics,
    stats: Callable[[], Mapping[str, object]],
    health_extra: Mapping[str, object],
) -> tuple[Route, ...]:
    """Build the operator's routes.  ``health_extra`` is what a dialect adds to a healthy answer."""

    async def health(_: Request, exchange: Exchange) -> None:
        ok = healthy()
        body = {"status": "ok", **health_extra} if ok else {"status": "unavailable"}
        await exchange.reply(_json(200 if ok else 503, body))

    async def scrape(_: Request, exchange: Exchange) -> None:
        await exchange.reply(Reply(200, exposition(metrics), CONTENT_TYPE))

    async def show(_: Request, exchange: Exchange) -> None:
        await exchange.reply(_json(200, stats()))

    return (
        Route("GET", "/health", health, open=True, reserved=True),
        Route("GET", "/metrics", scrape, reserved=True),
        Route("GET", "/stats", show),
    )


def _json(status: int, body: Mapping[str, object]) -> Reply:
    return Reply(status, json.dumps(body).encode())
