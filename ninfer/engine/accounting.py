"""Counts what landed units did, for the request and for everyone.

Owns no state.  Promises that what is counted for everyone is the sum of what is counted for each request.
The one thing a reader would get wrong: tokens are counted when they have landed; what lands for a request
that has ended meanwhile is nobody's, because its account is closed.
"""

from __future__ import annotations

from ninfer.engine.cycle import Flight
from ninfer.engine.device import (
    CopyImage,
    CopyPage,
    Decode,
    Geometry,
    HostLoad,
    HostSave,
    Prefill,
    Result,
    Unit,
)
from ninfer.engine.sequence import State
from ninfer.engine.stats import Counters


def count(counters: Counters, flight: Flight, result: Result, geometry: Geometry) -> None:
    """Count a unit that has run."""
    if isinstance(flight.unit, Prefill):
        _count_feed(counters, flight, len(flight.unit.ids))
        flight.rows[0].tally.vision_seconds += result.vision_seconds
    elif isinstance(flight.unit, Decode):
        _count_decode(counters, flight, result)
    else:
        _count_transfer(counters, flight, geometry, result.seconds)


def _count_feed(counters: Counters, flight: Flight, tokens: int) -> None:
    if flight.rows[0].state is State.DONE:
        return
    tally = flight.rows[0].tally
    if flight.role is State.REPLAYING:
        tally.replayed_tokens += tokens
        counters.replayed_tokens += tokens
    elif flight.role is State.STEERING:
        tally.control_units += 1
    else:
        tally.prefill_units += 1
        tally.computed_prefill_tokens += tokens
        counters.prefill_tokens += tokens


def _count_decode(counters: Counters, flight: Flight, result: Result) -> None:
    counters.decode_rounds += 1
    counters.decode_row_rounds += len(flight.rows)
    for seq in flight.rows:
        seq.tally.decode_rounds += 1
    told = zip(flight.drafts, result.rows, flight.rows, strict=True) if flight.drafts else ()
    for asked, row, seq in told:
        if seq.state is State.DONE:
            continue
        counters.spec_rounds += asked > 0
        counters.spec_drafted += row.drafted
        counters.spec_accepted += len(row.tokens) - 1 if asked else 0


def moved(unit: Unit, geometry: Geometry) -> dict[tuple[str, str], int]:
    """Return the bytes a unit copies by (resource, direction)."""
    match unit:
        case HostSave() | HostLoad():
            way = "d2h" if isinstance(unit, HostSave) else "h2d"
            image = geometry.image_bytes if unit.slot is not None else 0
            return {("state", way): image, ("main_kv", way): len(unit.pages) * geometry.page_bytes}
        case CopyImage():
            return {("state", "d2d"): geometry.image_bytes}
        case CopyPage():
            return {("main_kv", "d2d"): geometry.page_bytes}
        case _:
            return {}


def _count_transfer(counters: Counters, flight: Flight, geometry: Geometry, seconds: float) -> None:
    """A snapshot moves an image and pages in one unit; its time is divided by bytes."""
    parts = moved(flight.unit, geometry)
    whole = sum(parts.values())
    for key, size in parts.items():
        if size:
            counters.transfer_bytes[key] = counters.transfer_bytes.get(key, 0) + size
            share = seconds * size / whole
            counters.transfer_seconds[key] = counters.transfer_seconds.get(key, 0.0) + share
            if flight.owner is not None:
                flight.owner.tally.moved.add(key, size, share)
