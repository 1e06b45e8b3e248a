"""Which bytes a unit copies between which memories, for the transfer counters.

Owns the classification only.  The one thing a reader would get wrong: a snapshot moves an image and
pages in one unit, so its time is divided by bytes.
"""

from __future__ import annotations

from ninfer.engine.device import CopyImage, CopyPage, Geometry, HostLoad, HostSave, Unit
from ninfer.engine.stats import Counters

Moved = dict[tuple[str, str], int]


def moved(unit: Unit, geometry: Geometry) -> Moved:
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


def count(counters: Counters, unit: Unit, geometry: Geometry, seconds: float) -> None:
    """Add a unit that has run to the transfer counters."""
    parts = moved(unit, geometry)
    whole = sum(parts.values())
    for key, size in parts.items():
        if size:
            counters.transfer_bytes[key] = counters.transfer_bytes.get(key, 0) + size
            share = seconds * size / whole
            counters.transfer_seconds[key] = counters.transfer_seconds.get(key, 0.0) + share
