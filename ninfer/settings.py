"""Every bound, duration and default of the server, as frozen values that are passed in.

Owns the numbers; no module keeps a limit of its own.  Seconds are clock seconds, bytes are bytes,
tokens are tokens.  ``docs/limits.md`` explains each of them to operators.

The one thing a reader would get wrong: nothing here reads argv, files or the environment;
``ninfer/commands/serve.py`` builds these values and ``ninfer/app.py`` hands them out.
"""

from __future__ import annotations

from pathlib import Path

import attrs


@attrs.frozen
class WireLimits:
    """What one HTTP request may cost on the wire."""

    head_bytes: int = 16_384
    head_fields: int = 100
    target_bytes: int = 8_192
    body_bytes: int = 384 << 20
    all_bodies_bytes: int = 2 << 30  # bodies being read or served at one time, over all connections
    framing_bytes: int = 1 << 20  # chunk sizes and extensions, all of it
    requests_per_connection: int = 1_000
    connections: int = 1_024
    reserved_connections: int = 16  # of these, kept for /health and /metrics


@attrs.frozen
class Patience:
    """How long the server waits for a peer, in seconds."""

    head: float = 10.0  # first byte of a head to its blank line
    idle: float = 75.0  # between requests of one connection
    settled: float = 1.0  # idle for less than this, a connection is not closed to make room
    stall: float = 15.0  # longest gap between two body reads
    body_floor_after: float = 30.0  # from here on a body must keep the floor rate
    body_floor: int = 65_536  # bytes a second, averaged
    write: float = 15.0  # longest that one send may block
    linger: float = 2.0  # reading away what a refused peer still sends
    heartbeat: float = 5.0  # silence in a stream before a comment is sent
    keepalive: int = 5  # silence before, and between, TCP keepalive probes
    user_timeout_ms: int = 15_000  # TCP_USER_TIMEOUT
    drain: float = 30.0  # open answers may finish during shutdown


@attrs.frozen
class JsonBudget:
    """What one JSON body may cost after its bytes are in."""

    nodes: int = 500_000  # values of any kind; a million-token conversation has some 20,000
    depth: int = 64
    number_chars: int = 64


@attrs.frozen
class ResponseStoreLimits:
    """What stored Responses may cost together."""

    records: int = 1_024
    bytes: int = 256 << 20  # envelopes and items, as measured in memory


@attrs.frozen
class PromptBudget:
    """What one prompt may cost before it is tokens.

    ``chars_per_token`` bounds rendered text before tokenising (times the context, but never below
    ``least_chars``, so that small contexts still answer with exact counts); ``seconds`` bounds
    template rendering.
    """

    chars_per_token: int = 8
    least_chars: int = 1 << 20
    seconds: float = 10.0


@attrs.frozen
class ContextCosts:
    """Measured coefficients that weigh recomputing against copying; the defaults are generic.

    Seconds, seconds a token, seconds a query-key pair, bytes a second.
    """

    transfer_seconds: float = 50e-6
    transfer_bytes_per_second: float = 20e9
    prefill_token_seconds: float = 100e-6
    prefill_pair_seconds: float = 1e-9
    disk_bytes_per_second: float = 1e9  # checksum included


@attrs.frozen
class ContextDisk:
    """Where retained contexts outlive the process.  Bytes, seconds."""

    folder: Path | None = None  # None: nowhere
    bytes: int = 16 << 30
    idle: float = 10.0  # without change before contexts are written
    save_seconds: float = 20.0  # that shutdown spends on writing
    read_seconds: float = 5.0  # that a request waits for what it could have from there


@attrs.frozen
class MediaOptions:
    """What media may cost, and from where they may come.  Bytes, seconds, pixels."""

    policy: str = "public"  # public, any, off
    cache_bytes: int = 1_024 << 20  # prepared payloads kept for later requests
    live_bytes: int = 2_048 << 20  # all prepared payloads, cached or in use
    threads: int = 0  # preprocessing workers; 0: as many as cores, at most 16
    source_bytes: int = 64 << 20  # of one item
    request_source_bytes: int = 256 << 20  # of all items of one request
    preparing: int = 16  # requests that acquire or build media at one time
    fetches: int = 8  # of one request at one time
    fetch_seconds: float = 20.0
    stall_seconds: float = 5.0
    redirects: int = 5
    pixels: int = 64_000_000  # of one picture or frame
    video_pixels: int = 500_000_000  # of an animation's frames
    container_pixels: int = 20_000_000_000  # of a video container's frames
    frames: int = 20_000  # of a video
    decoding_pixels: int = 128_000_000  # of all pictures being decoded at one time


@attrs.frozen
class DeviceWaits:
    """How long the device is waited for, in seconds; no honest work takes as long as the first three."""

    load: float = 7_200.0  # until it is ready: weights, kernels compiled for the first time
    work: float = 600.0  # for one unit, or one copy of state, on a card
    numpy_work: float = 14_400.0  # the same with NumPy, where a picture may take hours
    stop: float = 10.0  # that shutdown waits for the unit that runs


@attrs.frozen
class EngineOptions:
    """Lanes, queue and memory of the engine."""

    max_context: int = 8_192
    kv_capacity: int | None = None  # tokens; None: max_context
    kv_auto: bool = False  # instead: as much cache as the card has room for
    cuda_graphs: bool = True  # replay decode rounds from graphs
    kernels: str | None = None  # folder of kernels compiled ahead of time
    max_concurrency: int = 1
    max_pending: int = 16
    pending_timeout: float = 30.0
    prefill_chunk: int = 1_024
    page_tokens: int = 64
    kv_dtype: str = "bf16"
    device_state_slots: int | None = None  # beyond the lanes; None: as many as lanes
    host_context_bytes: int | None = None  # None: 8 GiB and eight images
    prefix_reuse: bool = True
    checkpoint_every: int = 4_096  # tokens between checkpoints inside a long prompt
    junction_tokens: int = 64  # a branch point is worth a checkpoint when it saves this many
    nearby_tokens: int = 32  # an implicit checkpoint this close before the next one is left out
    costs: ContextCosts = ContextCosts()
    spec: str | None = None  # drafter: a key of spec.drafter.DRAFTERS
    draft_tokens: int = 0  # drafts a round, with ``spec``
    draft_auto: bool = False  # choose the width of each round, up to ``draft_tokens``
    proposal_head: bool = False  # draft with the artifact's small head
    vision: bool = False
    waits: DeviceWaits = DeviceWaits()


@attrs.frozen
class SamplingValues:
    """One complete set of sampling values."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence: float
    frequency: float = 0.0


@attrs.frozen
class SamplingOverrides:
    """Process-level sampling flags; None means not given."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence: float | None = None
    frequency: float | None = None
    seed: int | None = None
    greedy: bool = False


@attrs.frozen
class GenerationDefaults:
    """What a request inherits when it says nothing."""

    max_tokens: int = 8_192
    thinking_budget: int | None = None
    enable_thinking: bool | None = None  # None: the template's own default
    preserve_thinking: bool | None = None
