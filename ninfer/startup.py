"""From argv, YAML and environment to frozen options, before anything heavy is loaded.

Owns the order flag > ``--config`` file > environment > built-in default, and every refusal that needs
no model.  The one thing a reader would get wrong: the API key is kept out of ``argv`` as recorded.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import attrs

from ninfer.faults import StartupError
from ninfer.settings import (
    ContextCosts,
    ContextDisk,
    DeviceWaits,
    EngineOptions,
    GenerationDefaults,
    MediaOptions,
    Patience,
    ResponseStoreLimits,
    SamplingOverrides,
    WireLimits,
)

K = TypeVar("K")
WIDEST_DRAFT = 5
NOT_OPTIONS = {"command", "run", "artifact", "config"}


@attrs.frozen
class ServeOptions:
    """Everything ``ninfer serve`` was asked for."""

    artifact: Path
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = attrs.field(default=None, repr=False)
    cors: bool = False
    model_id: str | None = None
    chat_template: Path | None = None
    backend: str = "auto"
    dialect: str = "ninfer"
    media: MediaOptions = attrs.field(factory=MediaOptions)
    wire: WireLimits = attrs.field(factory=WireLimits)
    patience: Patience = attrs.field(factory=Patience)
    engine: EngineOptions = attrs.field(factory=EngineOptions)
    defaults: GenerationDefaults = attrs.field(factory=GenerationDefaults)
    sampling: SamplingOverrides = attrs.field(factory=SamplingOverrides)
    responses: ResponseStoreLimits = attrs.field(factory=ResponseStoreLimits)
    log_level: str = "info"
    stats_interval: float = 5.0  # seconds; 0 is off
    request_log: Path | None = None
    exit_on_engine_failure: bool = False
    contexts: ContextDisk = attrs.field(factory=ContextDisk)
    context_costs: Path | None = None  # where ``engine.costs`` come from
    argv: tuple[str, ...] = ()


def read_options(args: argparse.Namespace) -> ServeOptions:
    """Settle every option.  Raises ``StartupError``."""
    if args.config:
        _merge_file(args, Path(args.config))
    if not args.artifact:
        raise StartupError("no artifact given; run `ninfer serve FILE.ninfer` or name it in --config")
    key = _api_key(args)
    return ServeOptions(
        artifact=Path(args.artifact),
        api_key=key,
        argv=tuple(_redact(sys.argv, key)),
        wire=_given(WireLimits, connections=args.max_connections, body_bytes=_mib(args.max_request_mib)),
        patience=_given(Patience, drain=args.drain_seconds),
        engine=_engine(args),
        media=_given(
            MediaOptions,
            policy=args.media_url_policy,
            cache_bytes=_mib(args.media_cache_mib),
            live_bytes=_mib(args.media_live_mib),
            threads=args.media_preprocess_threads,
        ),
        contexts=_contexts(args),
        defaults=_defaults(args),
        sampling=_sampling(args),
        responses=_given(
            ResponseStoreLimits,
            records=args.response_store_max_records,
            bytes=_mib(args.response_store_max_mib),
        ),
        **_plain(args),
    )


def backend_of(args: argparse.Namespace) -> str | None:
    """What the option names, or else the environment; None: neither."""
    return args.backend or os.environ.get("NINFER_BACKEND") or None


def _plain(args: argparse.Namespace) -> dict[str, Any]:
    interval = args.log_stats_interval_ms
    found = {
        "host": args.host,
        "port": args.port,
        "cors": args.cors,
        "model_id": args.model_id,
        "chat_template": Path(args.chat_template) if args.chat_template else None,
        "dialect": args.dialect,
        "backend": backend_of(args),
        "log_level": args.log_level,
        "stats_interval": None if interval is None else interval / 1000,
        "request_log": Path(args.request_log_jsonl) if args.request_log_jsonl else None,
        "exit_on_engine_failure": args.exit_on_engine_failure,
        "context_costs": Path(args.context_cost_presets) if args.context_cost_presets else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _engine(args: argparse.Namespace) -> EngineOptions:
    timeout = args.pending_timeout_ms
    return _given(
        EngineOptions,
        max_context=args.max_context,
        kv_capacity=None if args.kv_capacity == "auto" else args.kv_capacity,
        kv_auto=True if args.kv_capacity == "auto" else None,
        cuda_graphs=False if args.no_cuda_graph else None,
        kernels=args.kernels,
        max_concurrency=args.max_concurrency,
        max_pending=args.max_pending_requests,
        pending_timeout=None if timeout is None else timeout / 1000,
        waits=_waits(args.device_patience_seconds),
        prefill_chunk=args.prefill_chunk,
        kv_dtype=args.kv_dtype,
        device_state_slots=args.device_state_slots,
        host_context_bytes=_mib(args.host_context_mib),
        prefix_reuse=False if args.no_prefix_reuse else None,
        costs=read_costs(Path(args.context_cost_presets)) if args.context_cost_presets else None,
        spec=args.spec,
        **_drafts(args),
        proposal_head=args.lm_head_draft,
        vision=args.vision,
    )


def _waits(work: float | None) -> DeviceWaits:
    return _given(DeviceWaits, work=work, numpy_work=work)


def _drafts(args: argparse.Namespace) -> dict[str, Any]:
    if args.spec is None and (args.draft_tokens or args.lm_head_draft):
        raise StartupError("--draft-tokens and --lm-head-draft need --spec mtp")
    if args.spec is not None and args.draft_tokens is None:
        raise StartupError(f"--spec {args.spec} needs --draft-tokens N (1..5) or auto")
    if args.draft_tokens == "auto":
        return {"draft_tokens": WIDEST_DRAFT, "draft_auto": True}
    return {"draft_tokens": args.draft_tokens}


def _contexts(args: argparse.Namespace) -> ContextDisk:
    if args.context_dir is None and args.context_disk_mib is not None:
        raise StartupError("--context-disk-mib needs --context-dir")
    if args.context_dir is not None and (args.no_prefix_reuse or args.host_context_mib == 0):
        raise StartupError("--context-dir needs prefix reuse and host memory (--host-context-mib above 0)")
    folder = None if args.context_dir is None else Path(args.context_dir)
    return _given(ContextDisk, folder=folder, bytes=_mib(args.context_disk_mib))


def read_costs(path: Path) -> ContextCosts:
    """Read measured context costs: a JSON object with members of ``ContextCosts``, all numbers above 0."""
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise StartupError(f"--context-cost-presets {path}: cannot be read ({problem})") from None
    known = {field.name for field in attrs.fields(ContextCosts)}
    if not isinstance(loaded, dict) or not set(loaded) <= known:
        raise StartupError(
            f"--context-cost-presets {path}: must be an object with members of {sorted(known)}"
        )
    for name, value in loaded.items():
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise StartupError(f"--context-cost-presets {path}: {name} must be a number above 0")
    return ContextCosts(**loaded)


def _defaults(args: argparse.Namespace) -> GenerationDefaults:
    return _given(
        GenerationDefaults,
        max_tokens=args.default_max_tokens,
        thinking_budget=args.default_thinking_budget,
        enable_thinking=False if args.no_thinking else None,
        preserve_thinking=True if args.preserve_thinking else None,
    )


def _sampling(args: argparse.Namespace) -> SamplingOverrides:
    return _given(
        SamplingOverrides,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        presence=args.presence_penalty,
        frequency=args.frequency_penalty,
        seed=args.seed,
        greedy=args.greedy,
    )


def _given(kind: Callable[..., K], **values: object) -> K:
    """Build a settings value from the options that were given; the rest keep their defaults."""
    return kind(**{name: value for name, value in values.items() if value is not None})


def _mib(value: int | None) -> int | None:
    return None if value is None else value << 20


def _api_key(args: argparse.Namespace) -> str | None:
    key = args.api_key
    if args.api_key_file and key is not None:
        raise StartupError("give the key with --api-key or with --api-key-file, not with both")
    if args.api_key_file:
        try:
            key = Path(args.api_key_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise StartupError(f"--api-key-file {args.api_key_file}: cannot be read ({problem})") from None
    key = os.environ.get("NINFER_API_KEY") if key is None else key
    if key == "":
        raise StartupError("the API key is empty; give a value or leave the option out")
    return key


def _redact(argv: Iterable[str], key: str | None) -> list[str]:
    if not key:
        return list(argv)
    return [word.replace(key, "<redacted>") for word in argv]


def _merge_file(args: argparse.Namespace, path: Path) -> None:
    """Fill options that no flag gave from the ``server:`` section of a YAML file."""
    section = _read_section(path)
    known = {name.replace("_", "-") for name in vars(args)} - NOT_OPTIONS | {"artifact"}
    for key, value in section.items():
        option = str(key).replace("_", "-")
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise StartupError(f"{path}: unknown option {key!r} in `server:`{hint}")
        name = option.replace("-", "_")
        if getattr(args, name) is None and value is not None:
            setattr(args, name, _convert(path, option, value))


def _read_section(path: Path) -> dict[str, Any]:
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text())
    except OSError as problem:
        raise StartupError(f"--config {path}: cannot be read ({problem.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        where = " ".join(str(problem).split())
        raise StartupError(f"--config {path}: not valid YAML ({where})") from None
    section = loaded.get("server") if isinstance(loaded, dict) else None
    if not isinstance(section, dict):
        raise StartupError(f"--config {path}: needs a `server:` section of option: value lines")
    if strange := sorted(str(key) for key in loaded if key != "server"):
        raise StartupError(f"{path}: unknown section {strange[0]!r}; everything belongs under `server:`")
    return section


def _convert(path: Path, option: str, value: object) -> object:
    """Give a YAML value the type and the range check of its flag."""
    from ninfer.commands import serve

    parser = argparse.ArgumentParser(exit_on_error=False)
    serve.configure(parser)
    action = next(a for a in parser._actions if a.dest == option.replace("-", "_"))
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise StartupError(f"{path}: {option} must be true or false")
        return value or None
    if value is False and action.choices is not None and "off" in action.choices:
        return "off"  # YAML reads a bare off as false
    if isinstance(value, (bool, dict, list)):
        raise StartupError(f"{path}: {option} must be a single value")
    try:
        return parser._get_value(action, str(value)) if action.type else _choice(action, str(value))
    except (argparse.ArgumentError, ValueError) as problem:
        raise StartupError(f"{path}: {option}: {problem}") from None


def _choice(action: argparse.Action, value: str) -> str:
    if action.choices is not None and value not in action.choices:
        raise ValueError(f"{value!r} is not one of {', '.join(map(str, action.choices))}")
    return value
