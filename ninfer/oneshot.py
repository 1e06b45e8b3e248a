"""One answer without a server: what ``ninfer run`` does.

Builds a Chat request from the command line and sends it through the server's own service.  Images and
videos of a ``--messages`` file may be paths, relative to that file.  The one
thing a reader would get wrong: refusals carry wire paths (``messages[0].content``), which here name
places in the ``--messages`` file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import attrs

from ninfer.app import Model, Ports, assemble
from ninfer.artifact import open_artifact
from ninfer.faults import Refused, StartupError
from ninfer.frontend import build_rooms, components_of
from ninfer.http.body import read_json
from ninfer.media.local import inline_media
from ninfer.observe.jsonl import RequestLog
from ninfer.observe.records import Records, count, rate
from ninfer.protocols.chat.lower import lower_chat, report_of
from ninfer.protocols.chat.schema import ChatRequest
from ninfer.protocols.fields import Reader
from ninfer.protocols.service import (
    Ask,
    ContentDelta,
    Delta,
    Finished,
    Generation,
    GenerationFailed,
    ReasoningDelta,
    ToolCallsDelta,
)
from ninfer.runtime.build import build_device
from ninfer.settings import EngineOptions, GenerationDefaults, JsonBudget, MediaOptions, SamplingOverrides
from ninfer.startup import ServeOptions, backend_of


def answer(args: argparse.Namespace) -> int:
    """Answer one conversation; returns the exit code.  Raises ``StartupError``."""
    body = _body(args)
    try:
        ask = _ask(body, args)
        return anyio.run(_answer, args, ask, backend="trio")
    except Refused as refused:
        return _refused(refused)


def _refused(refused: Refused) -> int:
    fault = refused.fault
    where = f" ({fault.param})" if fault.param else ""
    print(f"ninfer: {fault.message}{where}", file=sys.stderr)
    return 1


def _body(args: argparse.Namespace) -> dict[str, object]:
    if args.messages is None:
        system = [{"role": "system", "content": args.system}] if args.system else []
        return {"messages": [*system, {"role": "user", "content": args.prompt}]}
    try:
        loaded = read_json(Path(args.messages).read_bytes(), JsonBudget())
    except OSError as problem:
        raise StartupError(f"--messages {args.messages}: cannot be read ({problem.strerror})") from None
    except Refused as refused:
        complaint = refused.fault.message.removeprefix("the request body ")
        raise StartupError(f"--messages {args.messages}: {complaint}") from None
    if isinstance(loaded, list):
        loaded = {"messages": loaded}
    if isinstance(loaded, dict):
        inline_media(loaded.get("messages"), Path(args.messages).parent, MediaOptions().source_bytes)
        return {name: loaded[name] for name in ("messages", "tools") if name in loaded}
    raise StartupError(f"--messages {args.messages}: must hold an array of messages or an object with them")


def _ask(body: dict[str, object], args: argparse.Namespace) -> Ask:
    switches = {
        "model": "local",
        "stream": True,
        "max_tokens": args.max_new,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "seed": args.seed,
        "stop": args.stop or None,
    }
    if args.no_thinking:
        switches["enable_thinking"] = False
    given = {name: value for name, value in switches.items() if value is not None}
    budget = JsonBudget()
    request = Reader(budget).read({**body, **given}, ChatRequest)
    report = report_of(request, "run", 0, "local")
    ask = lower_chat(request, report, "run", partial(read_json, budget=budget))
    return attrs.evolve(ask, thinking_budget=args.thinking_budget)


async def _answer(args: argparse.Namespace, ask: Ask) -> int:
    records = Records(sys.stderr, "warning", time.time, sys.stderr.isatty())
    options = ServeOptions(
        artifact=Path(args.artifact),
        engine=EngineOptions(
            max_context=args.max_context,
            prefill_chunk=args.prefill_chunk,
            prefix_reuse=False,
            vision=args.vision,
        ),
        defaults=GenerationDefaults(max_tokens=args.max_new),
        sampling=SamplingOverrides(greedy=args.greedy),
        chat_template=Path(args.chat_template) if args.chat_template else None,
        stats_interval=0,
        backend=backend_of(args) or "auto",
    )
    with ExitStack() as stack:
        artifact = stack.enter_context(open_artifact(options.artifact))
        artifact.require(components_of(options.engine))
        front, media = build_rooms(artifact, options)
        log = RequestLog(None, "run", time.time, records.error)
        async with (
            build_device(artifact, options.engine, options.backend, records.transient) as device,
            anyio.create_task_group() as tasks,
        ):
            ports = Ports(anyio.to_thread.run_sync)
            model = Model(artifact.name, artifact.architecture)
            app = assemble(options, model, front, device, records, log, ports, media)
            tasks.start_soon(app.engine.run)
            if args.raw_output:
                ask = attrs.evolve(ask, parse_tools=False)
            try:
                code = await _print(app.service.open(ask), args)
            except Refused as refused:  # outside, it would come in a group
                code = _refused(refused)
            tasks.cancel_scope.cancel()
    return code


async def _print(opening: AbstractAsyncContextManager[Generation], args: argparse.Namespace) -> int:
    reasoning = False
    async with opening as generation:
        async for delta in generation:
            if isinstance(delta, GenerationFailed):
                print(f"\nninfer: {delta.fault.message}", file=sys.stderr)
                return 1
            if reasoning and not isinstance(delta, ReasoningDelta):
                print(file=sys.stderr)
            reasoning = isinstance(delta, ReasoningDelta)
            _show(delta, args)
    return 0


def _show(delta: Delta, args: argparse.Namespace) -> None:
    match delta:
        case ReasoningDelta():
            print(delta.text, end="", file=sys.stderr, flush=True)
        case ContentDelta():
            print(delta.text, end="", flush=True)
        case ToolCallsDelta():
            for call in delta.calls:
                shown = {"name": call.name, "arguments": call.arguments}
                print(json.dumps(shown, ensure_ascii=False), flush=True)
        case Finished():
            print(flush=True)
            _summarise(delta, args)


def _summarise(done: Finished, args: argparse.Namespace) -> None:
    t = done.timings
    later = max(0, t.predicted_n - 1)
    parts = [
        done.finish.value,
        f"prompt {count(done.prompt_tokens)} at {rate(t.prompt_n, t.prompt_ms / 1e3)}",
        f"output {count(done.completion_tokens)} at {rate(later, t.predicted_ms / 1e3)}",
    ]
    print(" | ".join(parts), file=sys.stderr)
    if args.print_token_ids:
        print("token ids:", *done.summary.output_tokens, file=sys.stderr)
