"""What the engine has done and holds: counters that only grow, and a frozen snapshot of everything.

Owns the counters; the gauges are read from their owners when a snapshot is taken.  Promises that
a snapshot costs no device work and that counters begin at zero with the engine.

The one thing a reader would get wrong: host seconds are wall time of the engine's task, each
instant counted in one phase; waiting for the device is counted apart, in ``device_wait``.
"""

from __future__ import annotations

import enum

import attrs

from ninfer.engine.disk import DiskStatistics
from ninfer.engine.host import HostStatistics
from ninfer.engine.pages import PoolStatistics


class Phase(enum.Enum):
    """What the engine's task is busy with."""

    BOUNDARY = "engine_boundary"
    SUBMIT = "program_submit"
    POST = "program_post"
    COMMIT = "engine_commit_output"
    MAINTENANCE = "engine_maintenance"


class WorkClass(enum.Enum):
    """What kind of unit the engine's time went to."""

    DECODE = "decode"
    PREFILL = "prefill"
    CONTROL = "control"  # control tokens, copies, and time without any unit


@attrs.frozen
class Selection:
    """Where an admitted prompt started."""

    path: str  # "root" or "checkpoint"
    prompt_tokens: int
    reused_tokens: int


@attrs.define
class Counters:
    """Totals since start.  Tokens, units and seconds; names follow the metrics."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prefill_tokens: int = 0
    generation_tokens: int = 0
    decode_tokens: int = 0
    replayed_tokens: int = 0
    decode_rounds: int = 0
    decode_row_rounds: int = 0
    preemptions: int = 0
    snapshot_restores: int = 0
    replay_restores: int = 0
    root_selections: int = 0
    checkpoint_selections: int = 0
    spec_rounds: int = 0
    spec_drafted: int = 0
    spec_accepted: int = 0
    spec_fallbacks: int = 0
    captures: int = 0
    tail_copies: int = 0
    spilled_pages: int = 0
    prompt_tokens_disk: int = 0
    disk_reads: int = 0
    disk_failures: int = 0
    disk_read_bytes: int = 0
    disk_read_seconds: float = 0.0
    disk_written_bytes: int = 0
    device_wait: float = 0.0
    host_work: dict[str, float] = attrs.field(factory=dict)  # by Phase value
    host_by_class: dict[str, float] = attrs.field(factory=dict)  # the same time by WorkClass value
    wait_by_class: dict[str, float] = attrs.field(factory=dict)  # ``device_wait`` by WorkClass value
    transfer_bytes: dict[tuple[str, str], int] = attrs.field(factory=dict)  # (resource, direction)
    transfer_seconds: dict[tuple[str, str], float] = attrs.field(factory=dict)

    def copy(self) -> Counters:
        """Return a snapshot that no longer grows."""
        return attrs.evolve(
            self,
            host_work=dict(self.host_work),
            host_by_class=dict(self.host_by_class),
            wait_by_class=dict(self.wait_by_class),
            transfer_bytes=dict(self.transfer_bytes),
            transfer_seconds=dict(self.transfer_seconds),
        )


@attrs.frozen
class Statistics:
    """The engine at one instant."""

    running: int
    waiting: int
    paused: int
    prefilling: int
    decode_ready: int
    replaying: int
    materializing: int
    pages: PoolStatistics
    slots: PoolStatistics
    host: HostStatistics
    disk: DiskStatistics
    checkpoints: int  # images retained on device and host
    seats_taken: int
    seats_capacity: int
    counters: Counters
    last_selection: Selection | None = None
