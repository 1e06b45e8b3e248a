"""docs/limits.md names every bound with the value that holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from ninfer import settings, startup
from ninfer.engine import device as door
from ninfer.engine import drafting
from ninfer.engine.sequence import Sequence
from ninfer.ops import cuda_state
from ninfer.runtime import arrears
from ninfer.runtime import device as thread

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "limits.md").read_text()
# field -> the beginning of its row, and how the row writes the value
ROWS: dict[str, tuple[str, str]] = {
    "WireLimits.head_bytes": ("request head", "{kib} KiB"),
    "WireLimits.head_fields": ("request head", "{count} fields"),
    "WireLimits.target_bytes": ("request target", "{kib} KiB"),
    "WireLimits.body_bytes": ("request body", "{mib} MiB"),
    "WireLimits.all_bodies_bytes": ("bodies held at one time", "{gib} GiB"),
    "WireLimits.framing_bytes": ("chunk framing", "{mib} MiB"),
    "WireLimits.requests_per_connection": ("requests on one connection", "{count}"),
    "WireLimits.connections": ("open connections", "{count}"),
    "WireLimits.reserved_connections": ("open connections", "{count} are kept"),
    "Patience.head": ("first byte of a head", "{count} s"),
    "Patience.idle": ("idle between requests", "{count} s"),
    "Patience.settled": ("idle in a full house", "{count} s"),
    "Patience.stall": ("silence inside a body", "{count} s"),
    "Patience.body_floor_after": ("body rate after {count} s", ""),
    "Patience.body_floor": ("body rate after", "{kib} KiB/s"),
    "Patience.write": ("one blocked write", "{count} s"),
    "Patience.linger": ("reading away what a refused peer still sends", "{count} s"),
    "Patience.heartbeat": ("silence in a stream", "{count} s"),
    "Patience.keepalive": ("TCP keepalive probes", "{count} s"),
    "Patience.user_timeout_ms": ("bytes that the peer's kernel does not acknowledge", "{seconds} s"),
    "Patience.drain": ("draining at shutdown", "{count} s"),
    "JsonBudget.nodes": ("values in one body", "{count}"),
    "JsonBudget.depth": ("nesting", "{count}"),
    "JsonBudget.number_chars": ("characters of a number", "{count}"),
    "PromptBudget.chars_per_token": ("rendered prompt text", "{count} characters a context token"),
    "PromptBudget.least_chars": ("rendered prompt text", "{mib} Mi"),
    "PromptBudget.seconds": ("template rendering", "{count} s"),
    "ResponseStoreLimits.records": ("stored Responses", "{count}"),
    "ResponseStoreLimits.bytes": ("memory of stored Responses", "{mib} MiB"),
    "EngineOptions.max_context": ("context of one sequence", "{count} tokens"),
    "EngineOptions.kv_capacity": ("KV pool", "one context"),
    "EngineOptions.max_concurrency": ("lanes", "{count}"),
    "EngineOptions.max_pending": ("requests waiting beside the lanes", "{count}"),
    "EngineOptions.pending_timeout": ("wait for admission", "{count} s"),
    "EngineOptions.prefill_chunk": ("prefill unit", "{count} tokens"),
    "EngineOptions.page_tokens": ("KV page", "{count} tokens"),
    "EngineOptions.device_state_slots": ("state images on the device", "two a lane"),
    "EngineOptions.host_context_bytes": ("host memory for contexts", "8 GiB and 8 state images"),
    "EngineOptions.checkpoint_every": ("checkpoints inside a long prompt", "{count} tokens"),
    "EngineOptions.junction_tokens": ("checkpoint where prompts branch", "{count} tokens"),
    "EngineOptions.nearby_tokens": ("implicit checkpoint just before another", "{count} tokens"),
    "EngineOptions.draft_tokens": ("tokens drafted a round", "{count}"),
    "DeviceWaits.load": ("the device at start-up", "{count} s"),
    "DeviceWaits.work": ("one unit, or one copy of state, on the device", "{count} s"),
    "DeviceWaits.numpy_work": ("one unit, or one copy of state, on the device", "with NumPy {count} s"),
    "DeviceWaits.stop": ("unit that runs when the server stops", "{count} s"),
    "ContextDisk.bytes": ("contexts on disk", "{gib} GiB"),
    "ContextDisk.idle": ("rest before contexts are written", "{count} s"),
    "ContextDisk.save_seconds": ("writing contexts at shutdown", "{count} s"),
    "ContextDisk.read_seconds": ("wait of a request for what it could have from disk", "{count} s"),
}
# Bounds of a single mechanism, which live beside it: the value, and its row as above.
BESIDE: dict[str, tuple[Any, str, str]] = {
    "WIDEST_DRAFT": (startup.WIDEST_DRAFT, "tokens drafted a round", "at most {count}"),
    "PATIENCE": (100 * drafting.PATIENCE, "time that automatic drafting may lose", "{count} % of late"),
    "PROBING": (100 * drafting.PROBING, "time that automatic drafting may lose", "for {count} %"),
    "MOST": (arrears.MOST, "plain steps that the NumPy drafter is not told of", "{count} tokens"),
    "LATE": (cuda_state.LATE - 1, "tokens noted beside a state image", "| {count} |"),
    "TAIL_TOKENS": (door.TAIL_TOKENS, "tokens behind the input mark", "| {count} |"),
    "AHEAD": (thread.AHEAD, "units under way on the device", "| {count} |"),
    "looks": (attrs.fields(Sequence).looks.default, "fetches from disk for one request", "| {count} |"),
}
# What is a choice, not a bound.
CHOICES = {
    "kv_dtype",
    "prefix_reuse",
    "costs",
    "waits",
    "spec",
    "draft_auto",
    "proposal_head",
    "vision",
    "folder",
}
CHOICES |= {"kv_auto", "cuda_graphs", "kernels"}
KINDS = (
    "WireLimits",
    "Patience",
    "JsonBudget",
    "PromptBudget",
    "ResponseStoreLimits",
    "EngineOptions",
    "DeviceWaits",
    "ContextDisk",
)


def row(title: str) -> str:
    found = [line for line in PAGE.splitlines() if line.startswith(f"| {title}")]
    assert len(found) == 1, f"{title!r} begins {len(found)} rows"
    return found[0]


def written(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    return {
        "count": f"{value:,g}" if isinstance(value, float) else f"{value:,}",
        "kib": f"{value / 1024:g}",
        "mib": f"{value / 2**20:g}",
        "gib": f"{value / 2**30:g}",
        "seconds": f"{value / 1000:g}",
    }


def test_every_bound_has_a_row() -> None:
    fields = {f"{kind}.{f.name}" for kind in KINDS for f in attrs.fields(getattr(settings, kind))}
    assert {name for name in fields if name.partition(".")[2] not in CHOICES} == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_the_row_names_the_value_that_holds(name: str) -> None:
    kind, _, field = name.partition(".")
    value = getattr(getattr(settings, kind)(), field)
    title, form = (text.format(**written(value)) for text in ROWS[name])
    assert re.search(rf"(?<![\d,.]){re.escape(form)}", row(title)), row(title)


@pytest.mark.parametrize("name", BESIDE)
def test_the_row_names_the_value_beside_its_mechanism(name: str) -> None:
    value, title, form = BESIDE[name]
    assert form.format(**written(value)) in row(title)
