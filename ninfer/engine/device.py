"""The door between the engine and the device: units of work in, committed token ids out.

The engine names lanes, slots and pages by number and never sees an array.  A *lane* is one row
of the decode batch (its sampler, penalty counts, pending token).  A *slot* holds one StateImage
(everything of fixed size at one exact frontier).  A *page* holds the KV of ``page_tokens``
consecutive tokens in every full-attention layer.  The *frontier* of a lane is the number of
tokens whose state is in its slot and pages; the *pending* token is sampled but not yet forwarded.

``submit`` never waits; units run strictly in submission order, so unit n+1 may be submitted
before unit n has been read (run-ahead of one).  The one thing a reader would get wrong: a decode
row with ``token=None`` feeds the token that this lane's previous unit produced on the device.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from ninfer.engine.job import Sampling
from ninfer.prompt.prepared import MediaSpan

Raw = bytes | bytearray | memoryview
TAIL_TOKENS = 16  # most rows of a tail


@attrs.frozen
class Geometry:
    """What the device offers, fixed at start-up.  Bytes are bytes, sizes are tokens."""

    lanes: int
    slots: int  # C + H StateImage slots
    pages: int
    page_tokens: int
    max_context: int
    prefill_chunk: int
    vocab: int  # ids below this may be sampled
    image_bytes: int
    page_bytes: int
    host_bytes: int = 0
    drafts: int = 0  # widest draft a lane may ask for


@attrs.frozen
class Bind:
    """Give a lane its sampler and its penalty counts (``generated`` are re-counted, not sampled)."""

    lane: int
    sampling: Sampling
    generated: tuple[int, ...] = ()


@attrs.frozen
class Clear:
    """Make a slot the empty state of frontier 0."""

    slot: int


@attrs.frozen
class Prefill:
    """Append ``ids`` at ``start`` to the lane's frontier.

    ``start`` is the lane's frontier.  ``pages`` is the lane's whole page table, long enough for
    ``start + len(ids)`` tokens.  ``positions`` are the three axes of these rows, or None when all
    equal ``start + i + rope_delta``.  With ``sample`` the result holds one token chosen with RNG
    purpose 0 at position ``start + len(ids)``.  Empty ``ids`` with ``sample`` samples from the
    slot's saved hidden state.  ``media`` lists the items whose placeholder rows meet this unit.
    ``tail`` says that these are the few rows behind the input mark, of which there are always the
    same: a device may compute them as it computes decode rows.
    """

    lane: int
    slot: int
    start: int
    ids: tuple[int, ...]
    pages: tuple[int, ...]
    positions: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None
    rope_delta: int = 0
    sample: bool = False
    media: tuple[MediaSpan, ...] = ()
    tail: bool = False


@attrs.frozen
class Row:
    """One lane's part of a decode batch.

    Forwards the pending token at index ``frontier`` (position ``frontier + rope_delta``), then
    samples with RNG purpose 1 at position ``frontier``.  ``draft`` is how many tokens to propose
    and verify (0: a plain step).  ``keep`` settles the lane's previous verification first: the
    state advances over its first ``keep`` positions.
    """

    lane: int
    slot: int
    frontier: int
    pages: tuple[int, ...]
    token: int | None
    rope_delta: int = 0
    draft: int = 0
    keep: int | None = None


@attrs.frozen
class Decode:
    """One compact decode batch; results come in the order of ``rows``."""

    rows: tuple[Row, ...]


@attrs.frozen
class Settle:
    """Fold a lane's last verification to its first ``keep`` positions, without decoding."""

    lane: int
    slot: int
    keep: int
    pages: tuple[int, ...] = ()


@attrs.frozen
class Remember:
    """Bring what drafts are made from up to the frontier: slot and pages will be kept as they are."""

    lane: int
    slot: int
    pages: tuple[int, ...] = ()


@attrs.frozen
class CopyImage:
    """Copy a whole StateImage between device slots."""

    source: int
    target: int


@attrs.frozen
class CopyPage:
    """Copy a KV page (a shared tail about to be written)."""

    source: int
    target: int


@attrs.frozen
class HostSave:
    """Copy an image (if any) and pages to host memory under ``key``."""

    key: int
    slot: int | None
    pages: tuple[int, ...]


@attrs.frozen
class HostLoad:
    """Copy an image (if any) and pages back from ``key``; ``pages`` lists targets in saved order.

    ``skip`` pages at the beginning of the saved order are not needed (they are still shared).
    """

    key: int
    slot: int | None
    pages: tuple[int, ...]
    skip: int = 0


@attrs.frozen
class HostDrop:
    """Forget host memory of ``key``."""

    key: int


Unit = (
    Bind
    | Clear
    | Prefill
    | Decode
    | Settle
    | Remember
    | CopyImage
    | CopyPage
    | HostSave
    | HostLoad
    | HostDrop
)


@attrs.frozen
class RowResult:
    """Tokens a row produced: one, or with drafts the accepted ones and the bonus or correction.

    A token of -1 says the row's logits were not finite: that request fails, others go on.
    """

    tokens: tuple[int, ...]
    drafted: int = 0


@attrs.frozen
class Result:
    """Outcome of one unit; ``seconds`` is device time spent on it, encoding of media included."""

    rows: tuple[RowResult, ...] = ()
    seconds: float = 0.0
    vision_seconds: float = 0.0


class DeviceFailed(Exception):
    """The device is lost.  Every open request hears it; new ones are refused."""


class Ticket(Protocol):
    """A submitted unit."""

    async def result(self) -> Result:
        """Wait for the unit; raises ``DeviceFailed`` once the device is lost."""


class Device(Protocol):
    """Runs units in order.  Real ones hide a thread; the simulated one sleeps on the mock clock."""

    @property
    def geometry(self) -> Geometry:
        """What the device offers."""

    def submit(self, unit: Unit) -> Ticket:
        """Queue a unit; never blocks."""


class Archive(Protocol):
    """What a device may offer beside running units: state given out as bytes, and taken back.

    What gives out takes its place among the units when it is awaited: it sees what was submitted before it
    and nothing that is submitted later.  What is given out under one ``signature`` may be taken back by any
    device of that signature that holds the same weights.
    """

    @property
    def signature(self) -> str:
        """Everything but the weights that the bytes depend on: backend, formats, sizes."""

    async def export(self, slot: int | None, pages: tuple[int, ...]) -> Raw:
        """Give out the image in ``slot``, or else ``pages``."""

    async def export_host(self, key: int, skip: int, count: int) -> Raw:
        """Give out what ``key`` holds: its image, or ``count`` pages from ``skip`` on."""

    async def room(self, key: int, pages: int) -> memoryview:
        """Set host memory aside under a new ``key`` for an image, or for ``pages`` pages, to be filled.

        Any thread may fill it until a ``HostLoad`` of that key is submitted; ``HostDrop`` gives it back.
        Raises ``MemoryError``.
        """
