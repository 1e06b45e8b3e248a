"""The prepared prompt: what the engine needs to know of a conversation.

The one thing a reader would get wrong: ``positions`` is None for text-only prompts, where all
three axes simply count 0..n-1; ``rope_delta`` is then 0.
"""

from __future__ import annotations

import enum
from typing import Any

import attrs


class MarkKind(enum.Enum):
    """Why a frontier is worth a checkpoint."""

    INPUT = "input"  # stable boundary before the answer (see facts on input checkpoints)
    EXPLICIT = "explicit"  # the client asked for it
    IMPLICIT = "implicit"  # end of the latest cacheable part


@attrs.frozen
class Mark:
    """A candidate checkpoint: the state after ``index`` prompt tokens."""

    index: int
    kind: MarkKind


@attrs.frozen
class MediaSpan:
    """One media item inside the prompt.

    Rows ``start .. start+count`` are its placeholder tokens over all temporal runs (``runs`` lists
    each run as (start, count)).  ``digest`` identifies the source bytes and modality; ``grid`` is
    (t, h, w) in patches; ``payload`` is the immutable patch array, opaque to the engine.
    """

    digest: bytes
    grid: tuple[int, int, int]
    runs: tuple[tuple[int, int], ...]
    payload: Any = attrs.field(default=None, eq=False, repr=False)

    @property
    def start(self) -> int:
        """First placeholder row."""
        return self.runs[0][0]

    @property
    def stop(self) -> int:
        """One past the last placeholder row."""
        return self.runs[-1][0] + self.runs[-1][1]


@attrs.define
class Preparation:
    """What preparing one prompt took, filled in by whoever does the work.  Seconds, counts, bytes.

    ``media_preprocess`` is the wait for prepared media, ``media_preprocess_work`` the time of the workers
    that built what was missing; ``tokenize`` covers rendering and tokenising.
    """

    acquisition: float = 0.0
    media_preprocess: float = 0.0
    media_preprocess_work: float = 0.0
    tokenize: float = 0.0
    media_items: int = 0
    media_bytes: int = 0  # as acquired
    raw_patches: int = 0
    vision_tokens: int = 0
    patch_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    singleflight_waits: int = 0
    built_patch_bytes: int = 0
    reused_patch_bytes: int = 0


@attrs.frozen
class MediaStatistics:
    """Prepared media of this moment in bytes and payloads; hits and misses count since start."""

    live_bytes: int  # in use or kept for later
    cached_bytes: int  # kept for later only
    capacity_bytes: int
    entries: int
    hits: int
    misses: int


@attrs.frozen
class Prepared:
    """A tokenised prompt, ready for admission."""

    ids: tuple[int, ...]
    thinking: bool  # the prompt ends inside an open reasoning block
    positions: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None
    rope_delta: int = 0
    media: tuple[MediaSpan, ...] = ()
    marks: tuple[Mark, ...] = ()
