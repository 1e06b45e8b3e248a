"""Start, serve, stop: the life of ``ninfer serve``.

Start: artifact, front end, device, engine, warm-up, then the port.  Stop: the port, open answers (until
the drain deadline), engine, device.  Promises that the port opens only when the engine has produced
tokens, that the first signal drains and the second cuts, and that every exit code is one of ``cli``'s.

The one thing a reader would get wrong: after a device fault the process stays up, answering 503, until
it is told to stop (unless ``--exit-on-engine-failure``); only then does it say so with its exit code.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from functools import partial

import anyio
import anyio.to_thread
import attrs
from anyio.abc import SocketAttribute, TaskGroup, TaskStatus

from ninfer import __version__
from ninfer.app import Application, Model, Ports, assemble
from ninfer.artifact import Artifact, open_artifact
from ninfer.engine.job import Done, Failed, Finish, Job, Sampling, Verdict
from ninfer.faults import StartupError
from ninfer.frontend import build_front, build_media
from ninfer.http.server import listen
from ninfer.observe.jsonl import RequestLog, open_log
from ninfer.observe.records import Records, count, seconds, size
from ninfer.prompt.prepared import Prepared
from ninfer.runtime.build import build_device
from ninfer.startup import ServeOptions

ENGINE_FAILED = 3  # exit code
WARM_UP_TOKENS = 4
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(options: ServeOptions) -> int:
    """Serve until stopped; returns the exit code.  Raises ``StartupError``."""
    records = Records(sys.stderr, options.log_level, time.time, sys.stderr.isatty())
    return anyio.run(_serve, options, records, backend="trio")


async def _serve(options: ServeOptions, records: Records) -> int:
    started = anyio.current_time()
    with ExitStack() as stack:
        await _check_port(options)
        artifact = stack.enter_context(open_artifact(options.artifact))
        artifact.require(_components(options))
        log = stack.enter_context(_log(options, records))
        records.info(f"ninfer {__version__} | {artifact.name} | {size(artifact.size_bytes)}")
        media = build_media(artifact, options.media) if options.engine.vision else None
        front = build_front(
            artifact,
            options.chat_template,
            options.engine.max_context,
            options.defaults,
            media.geometry.merge if media else None,
        )
        async with build_device(artifact, options.engine, options.backend, records.transient) as device:
            app = assemble(
                options,
                Model(artifact.name, artifact.architecture),
                front,
                device,
                records,
                log,
                Ports(anyio.to_thread.run_sync),
                media,
            )
            _server_start(log, options, artifact, app)
            return await _live(app, options, started)


def _components(options: ServeOptions) -> list[str]:
    """What of the artifact this process will use; each is checked whole before anything is loaded."""
    engine = options.engine
    chosen = {engine.spec: engine.spec, "proposal": engine.proposal_head, "vision": engine.vision}
    return ["text", *(name for name, wanted in chosen.items() if name and wanted)]


async def _live(app: Application, options: ServeOptions, started: float) -> int:
    async with anyio.create_task_group() as tasks:
        engine = partial(_engine, app, options, tasks)
        tasks.start_soon(engine)
        await _warm_up(app)
        listeners = await listen(options.host, options.port)
        app.metrics.start_counting()
        tasks.start_soon(app.throughput.run)
        await tasks.start(_signals, app, tasks)
        for listener in listeners:
            port = listener.extra(SocketAttribute.local_port)
            app.records.info(f"serving {app.service.card.id} on http://{options.host}:{port}")
        app.records.info(f"ready after {seconds(anyio.current_time() - started)}")
        await app.server.run(listeners)
        tasks.cancel_scope.cancel()
    app.throughput.report(final=True)
    app.records.info("stopped")
    return ENGINE_FAILED if app.engine.failure else 0


async def _engine(app: Application, options: ServeOptions, tasks: TaskGroup) -> None:
    """Run the engine; when it fails, say so, and end the process if that was asked for."""
    await app.engine.run()
    problem = app.engine.failure
    if problem is None:
        return
    app.records.write("critical", f"engine failed | {type(problem).__name__}: {problem}")
    if options.exit_on_engine_failure:
        app.server.stop()
        tasks.cancel_scope.cancel()


async def _signals(
    app: Application, tasks: TaskGroup, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """The first signal drains, the second cuts."""
    with anyio.open_signal_receiver(*SIGNALS) as received:
        task_status.started()
        async for number in received:
            if app.server.house.draining:
                app.records.info(f"{number.name} again: stopping at once")
                tasks.cancel_scope.cancel()
                return
            app.records.info(f"{number.name}: no new requests; open answers may finish")
            app.server.stop()


@attrs.frozen
class _Silent:
    """The judge of the warm-up: takes every token and shows nothing."""

    def take(self, token: int) -> Verdict:
        """Accept one token."""
        return Verdict()

    def finish(self) -> None:
        """Hold nothing."""


async def _warm_up(app: Application) -> None:
    """Generate a few tokens, so that kernels, graphs and caches exist before the port does."""
    engine = app.engine
    job = Job(
        request_id="warm-up",
        prompt=Prepared(ids=(1, 2, 3), thinking=False),
        sampling=Sampling(),
        max_tokens=WARM_UP_TOKENS,
        judge=_Silent(),
        deadline=float("inf"),
    )
    with engine.seat(), engine.submit(job) as events:
        last = [event async for event in events][-1]
    if isinstance(last, Failed):
        raise StartupError(f"the warm-up generation failed: {last.fault.message} ({engine.failure})")
    assert isinstance(last, Done) and last.finish in (Finish.OUTPUT_LIMIT, Finish.CONTEXT)


async def _check_port(options: ServeOptions) -> None:
    """Fail on a taken port before minutes of loading, not after."""
    for listener in await listen(options.host, options.port):
        await listener.aclose()


def _log(options: ServeOptions, records: Records) -> RequestLog:
    stream = open_log(options.request_log, options.artifact) if options.request_log else None
    instance = f"serve-{os.getpid()}-{time.time_ns() // 1000}"
    return RequestLog(stream, instance, time.time, records.error)


def _server_start(log: RequestLog, options: ServeOptions, artifact: Artifact, app: Application) -> None:
    geometry = app.engine.device.geometry
    app.records.info(
        f"{count(geometry.pages)} pages of {geometry.page_tokens} tokens | {geometry.lanes} lanes"
        f" | context {count(geometry.max_context)}"
    )
    log.event(
        "server_start",
        {
            "server": {
                "public_model_id": app.service.card.id,
                "request_log_jsonl": str(options.request_log),
                "default_thinking_budget": options.defaults.thinking_budget,
                "default_preserve_thinking": options.defaults.preserve_thinking,
                "api_key_configured": options.api_key is not None,
                "cors_enabled": options.cors,
                "max_request_bytes": options.wire.body_bytes,
                "default_output_tokens": options.defaults.max_tokens,
            },
            "artifact": {
                "path": str(artifact.path),
                "size_bytes": artifact.size_bytes,
                "architecture": artifact.architecture,
                "formats": sorted(artifact.formats()),
            },
            "engine": {
                "max_context": geometry.max_context,
                "max_concurrency": geometry.lanes,
                "kv_capacity": geometry.pages * geometry.page_tokens,
                "kv_cache": options.engine.kv_dtype,
                "prefill_chunk": options.engine.prefill_chunk,
                "prefix_reuse": options.engine.prefix_reuse,
                "log_stats_interval_ms": int(options.stats_interval * 1000),
                "vision": options.engine.vision,
            },
            "sampling_defaults": {
                "thinking": attrs.asdict(app.service.preset.thinking),
                "non_thinking": attrs.asdict(app.service.preset.plain),
                "server_overrides": attrs.asdict(options.sampling),
            },
            "environment": {"device": options.backend},
            "argv": list(options.argv),
        },
    )
