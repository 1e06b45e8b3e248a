"""Start, serve, stop: the life of ``ninfer serve``.

Start: artifact, front end, device, engine, warm-up, then the port.  Stop: the port, open answers (until
the drain deadline), engine, device.  Promises that the port opens only when the engine has produced
tokens, that the first signal drains and the second cuts, and that every exit code is one of ``cli``'s.

The one thing a reader would get wrong: after a device fault the process stays up, answering 503, until
it is told to stop (unless ``--exit-on-engine-failure``); only then does it say so with its exit code.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import anyio
import anyio.to_thread
import attrs
from anyio.abc import SocketAttribute, TaskGroup, TaskStatus

from ninfer import __version__
from ninfer.app import Application, Model, Ports, assemble
from ninfer.artifact import Artifact, open_artifact
from ninfer.contexts import Contexts, opened_contexts
from ninfer.faults import StartupError
from ninfer.frontend import build_rooms, components_of
from ninfer.http.server import Server, listen
from ninfer.observe.jsonl import RequestLog, opened_log
from ninfer.observe.records import Records, count, seconds, size
from ninfer.runtime.build import build_device
from ninfer.runtime.device import ThreadDevice
from ninfer.server_start import Started, overlooked, place
from ninfer.startup import ServeOptions
from ninfer.warmup import explain, warm_up

STOPPED, ENGINE_FAILED, INTERRUPTED = 0, 3, 130  # exit codes
SIGNALS = (signal.SIGINT, signal.SIGTERM)
BuildDevice = Callable[..., AbstractAsyncContextManager[ThreadDevice]]


def serve(options: ServeOptions, build: BuildDevice = build_device) -> int:
    """Serve until stopped; returns the exit code.  Raises ``StartupError``.

    ``build`` takes what ``runtime.build.build_device`` takes.
    """
    occupy_standard_descriptors()
    with io.TextIOWrapper(io.FileIO(2, "wb", closefd=False), "utf-8", write_through=True) as stderr:
        records = Records(stderr, options.log_level, time.time, stderr.isatty())
        return anyio.run(_run, options, records, build, backend="trio")


def occupy_standard_descriptors() -> None:
    """Put /dev/null where stdin, stdout or stderr are closed, so that no file or socket takes the place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


async def _run(options: ServeOptions, records: Records, build: BuildDevice) -> int:
    return await _Life(options, records, build).run()


@attrs.define(eq=False)
class _Life:
    """One run of the server."""

    options: ServeOptions
    records: Records
    build: BuildDevice
    starting: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    serving: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    server: Server | None = None  # once it is ready
    contexts: Contexts | None = None
    code: int = STOPPED
    problem: StartupError | None = None

    async def run(self) -> int:
        """Run to the end, whatever it is; returns the exit code."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._signals)
            with self.starting:
                try:
                    async with self._application() as app:
                        await self._live(app)
                except StartupError as problem:
                    self.problem = problem
            tasks.cancel_scope.cancel()
        if self.problem is not None:
            raise self.problem
        return self.code

    # Signals

    async def _signals(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """The first signal drains, the second cuts; before readiness the first one cuts."""
        with anyio.open_signal_receiver(*SIGNALS) as received:
            task_status.started()
            async for number in received:
                self._hear(number)

    def _hear(self, number: signal.Signals) -> None:
        if self.server is None:
            self.records.info(f"{number.name} during start-up: stopping")
            self.code = INTERRUPTED if number is signal.SIGINT else STOPPED
            self.starting.cancel()
        elif self.server.house.draining:
            self.records.info(f"{number.name} again: stopping at once")
            self.serving.cancel()
        else:
            self.records.info(f"{number.name}: no new requests; open answers may finish")
            self.server.stop()

    # Start

    @asynccontextmanager
    async def _application(self) -> AsyncIterator[Application]:
        """Build everything in order; nothing runs yet."""
        options, records = self.options, self.records
        async with AsyncExitStack() as stack:
            await _check_port(options)
            artifact = stack.enter_context(open_artifact(options.artifact))
            artifact.require(components_of(options.engine))
            log = _log(options, records, stack)
            records.info(f"ninfer {__version__} | {artifact.name} | {size(artifact.size_bytes)}")
            front, media = build_rooms(artifact, options)
            loading = self.build(artifact, options.engine, options.backend, records.transient)
            device = await stack.enter_async_context(loading)
            model, ports = Model(artifact.name, artifact.architecture), Ports(anyio.to_thread.run_sync)
            app = assemble(options, model, front, device, records, log, ports, media)
            opened = opened_contexts(app.engine, device.archive, artifact, options.contexts, records)
            self.contexts = await stack.enter_async_context(opened)
            _announce(app, options, artifact, device)
            yield app

    # Serve and stop

    async def _live(self, app: Application) -> None:
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            self.serving = tasks.cancel_scope
            tasks.start_soon(self._engine, app)
            try:
                await self._serve(app, tasks, began)
            except StartupError as problem:  # not out of the group, which would wrap it
                self.problem = problem
            tasks.cancel_scope.cancel()
        if self.server is not None:
            app.throughput.report(final=True)
            self.records.info("stopped")
        if app.engine.failure is not None:
            self.code = ENGINE_FAILED

    async def _serve(self, app: Application, tasks: TaskGroup, began: float) -> None:
        """Warm up, open the port, and serve until the drain is over."""
        if self.contexts is not None:
            self.records.transient("looking for contexts")
            await self.contexts.find()
        self.records.transient("warming up")
        await warm_up(app.engine)
        gc.collect()
        gc.freeze()  # what start-up made stays; a collection need not look at it again
        listeners = await listen(self.options.host, self.options.port)
        app.metrics.start_counting()
        app.throughput.start()
        tasks.start_soon(app.throughput.run)
        if self.contexts is not None:
            tasks.start_soon(self.contexts.serve)
        self.server = app.server
        for listener in listeners:
            port = listener.extra(SocketAttribute.local_port)
            self.records.info(f"serving {app.service.card.id} on http://{self.options.host}:{port}")
        self.records.info(f"ready | warm-up {seconds(anyio.current_time() - began)}")
        await app.server.run(listeners)
        if self.contexts is not None:
            await self.contexts.close()

    async def _engine(self, app: Application) -> None:
        """Run the engine; when it fails, say so, and end the process if that was asked for."""
        await app.engine.run()
        if app.engine.failure is None:
            return
        self.records.write("critical", f"engine failed | {explain(app.engine)}")
        if self.options.exit_on_engine_failure and self.server is not None:
            self.server.stop()
            await anyio.sleep(self.options.patience.linger)  # for the answers that say so
            self.serving.cancel()


async def _check_port(options: ServeOptions) -> None:
    """Fail on a taken port before minutes of loading, not after."""
    for listener in await listen(options.host, options.port):
        await listener.aclose()


def _log(options: ServeOptions, records: Records, stack: AsyncExitStack) -> RequestLog:
    path = options.request_log
    file = stack.enter_context(opened_log(path, options.artifact)) if path else None
    instance = f"serve-{os.getpid()}-{time.time_ns() // 1000}"
    return RequestLog(file, instance, time.time, records.warning)


def _announce(app: Application, options: ServeOptions, artifact: Artifact, device: ThreadDevice) -> None:
    """Record what was settled."""
    geometry, stats = device.geometry, app.engine.stats()
    app.records.info(place(device.inventory))
    if hint := overlooked(device.inventory, options.backend):
        app.records.warning(hint)
    app.records.info(
        f"{count(geometry.pages)} pages of {geometry.page_tokens} tokens | {geometry.lanes} lane(s)"
        f" | context {count(geometry.max_context)}"
    )
    preset, public = app.service.preset, app.service.card.id
    started = Started(options, artifact, device.inventory, geometry, stats, preset, public)
    app.log.event("server_start", started.members())
