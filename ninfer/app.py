"""The composition root: options, front end and device become one server, wired but not started.

Owns which part knows which; ``lifecycle`` starts and stops what is built here.  The one thing a reader
would get wrong: ``assemble`` does no I/O and starts nothing, so that the simulation can build the very
same server around a fake device, memory streams and a mock clock.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial

import attrs

from ninfer import presets
from ninfer.engine.device import Device
from ninfer.engine.loop import Engine
from ninfer.faults import Fault, StartupError
from ninfer.http.auth import KeyCheck
from ninfer.http.body import read_json
from ninfer.http.routes import build_router
from ninfer.http.server import Server
from ninfer.http.site import Site
from ninfer.observe.jsonl import RequestLog
from ninfer.observe.metrics import Metrics, Sample
from ninfer.observe.published import Identity, media_samples, samples, stats_object
from ninfer.observe.records import Records
from ninfer.observe.requests import Ledger, Shape
from ninfer.observe.throughput import Throughput
from ninfer.operate import operate_routes
from ninfer.protocols.dialect import Kit, RunBlocking
from ninfer.protocols.fields import Reader
from ninfer.protocols.registry import DIALECTS, protocol_routes
from ninfer.protocols.service import Ask, ModelCard
from ninfer.protocols.status import anthropic_type, code_of, openai_type, speaks_anthropic, status_of
from ninfer.service import FrontEnd, MediaDoor, ServerService, Watch
from ninfer.settings import JsonBudget
from ninfer.startup import ServeOptions


@attrs.frozen
class Ports:
    """The outside world, injected: threads, randomness and wall time."""

    run_blocking: RunBlocking
    mint: Callable[[], int] = lambda: secrets.randbits(64)
    now: Callable[[], float] = time.time


@attrs.frozen
class Model:
    """What the artifact says of itself."""

    name: str
    architecture: str


@attrs.frozen
class Application:
    """Everything that runs, wired together; ``assemble`` builds it."""

    engine: Engine
    server: Server
    metrics: Metrics
    throughput: Throughput
    records: Records
    log: RequestLog
    service: ServerService


def assemble(
    options: ServeOptions,
    model: Model,
    front: FrontEnd,
    device: Device,
    records: Records,
    log: RequestLog,
    ports: Ports,
    media: MediaDoor | None = None,
) -> Application:
    """Wire one server; starts nothing."""
    engine = Engine(device, options.engine)
    card = ModelCard(
        options.model_id or model.name, device.geometry.max_context, int(ports.now()), media is not None
    )
    drafter, window = options.engine.spec, device.geometry.drafts
    identity = Identity(
        card.id, ports.now(), device.geometry.lanes, card.max_context, drafter or "none", window
    )
    metrics = Metrics(partial(_samples, engine, identity, media))
    ledger = Ledger(records, log, metrics, engine.clock, _status, (drafter, window))
    service = ServerService(
        card=card,
        engine=engine,
        front=front,
        preset=preset_of(model.architecture),
        flags=options.sampling,
        defaults=options.defaults,
        run_blocking=ports.run_blocking,
        draw_seed=lambda: ports.mint() >> 1,
        watch=lambda ask: _watch(ledger, options, ask),
        media=media,
        patience=options.engine.pending_timeout,
    )
    site = build_site(options, service, engine, metrics, records, ports, ledger.answered)
    throughput = Throughput(engine.stats, records, log, options.stats_interval, engine.clock)
    return Application(engine, Server(site), metrics, throughput, records, log, service)


def build_site(
    options: ServeOptions,
    service: ServerService,
    engine: Engine,
    metrics: Metrics,
    records: Records,
    ports: Ports,
    on_answered: Callable[[str, bool], None],
) -> Site:
    """Build the routing table and everything the HTTP room is told."""
    dialect = DIALECTS[options.dialect](records.warning)
    budget = JsonBudget()
    kit = Kit(
        service,
        Reader(budget),
        partial(read_json, budget=budget),
        ports.mint,
        ports.now,
        dialect,
        ports.run_blocking,
        options.responses,
        options.defaults.preserve_thinking,
    )
    operate = operate_routes(
        lambda: service.healthy,
        metrics,
        lambda: stats_object(metrics.totals(), metrics.outcomes),
        dialect.health_extra,
    )
    return Site(
        router=build_router((*operate, *protocol_routes(kit))),
        render_fault=dialect.render_fault,
        new_id=lambda: f"req_{ports.mint():016x}",
        on_crash=lambda request, problem: records.error(
            f"{request} crashed | {type(problem).__name__} at {_place(problem)}"
        ),
        on_answered=on_answered,
        id_fields=(("/v1/messages", "request-id"),),
        key=KeyCheck(options.api_key),
        cors=options.cors,
        limits=options.wire,
        patience=options.patience,
        wall_clock=ports.now,
    )


def _samples(engine: Engine, identity: Identity, media: MediaDoor | None) -> Iterator[Sample]:
    yield from samples(engine.stats(), identity, engine.failure is None)
    if media is not None:
        yield from media_samples(media.statistics())


def preset_of(architecture: str) -> presets.Preset:
    """Return the registered sampling defaults.  Raises ``StartupError`` for an unknown architecture."""
    try:
        return presets.PRESETS[architecture]
    except KeyError:
        known = ", ".join(presets.PRESETS)
        raise StartupError(f"architecture {architecture!r} is not served; known: {known}") from None


def _watch(ledger: Ledger, options: ServeOptions, ask: Ask) -> Watch:
    default = options.defaults.max_tokens
    return ledger.watch(
        Shape(
            protocol=ask.protocol,
            http_request_id=ask.request_id,
            response_id=ask.response_id,
            model=ask.model,
            stream=ask.stream,
            conversation=ask.conversation,
            requested_tokens=default if ask.max_tokens is None else ask.max_tokens,
            tokens_source="default" if ask.max_tokens is None else "request",
            tool_choice=ask.tool_choice,
            semantic_change=ask.semantic_change,
        )
    )


_PATHS = {"anthropic_messages": "/v1/messages"}


def _status(protocol: str, fault: Fault) -> tuple[int, str, str | None]:
    path = _PATHS.get(protocol, "/v1/chat/completions")
    status = status_of(path, fault.kind)
    kind = anthropic_type(status) if speaks_anthropic(path) else openai_type(status)
    return status, kind, code_of(fault)


def _place(problem: BaseException) -> str:
    """Where it broke: file and line of the innermost frame; never a value."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
