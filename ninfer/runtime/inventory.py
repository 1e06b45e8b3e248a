"""What a device holds and where it runs, as it says of itself once everything is loaded.

Owns values only.  The one thing a reader would get wrong: None means that the backend has no such thing
(host memory is not planned against a card's free bytes); 0 means that it has none of it.
"""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen
class Gpu:
    """One card and the CUDA versions that speak to it; versions are the runtime's integers."""

    index: int
    name: str
    uuid: str | None
    total_bytes: int
    compute_capability: tuple[int, int]
    compile_version: int | None = None
    runtime_version: int | None = None
    driver_version: int | None = None


@attrs.frozen
class Inventory:
    """Bytes, except ``load_seconds`` and ``upload_seconds``.

    ``sequence`` is state images and KV pages; ``workspace`` the one physical scratch allocation;
    ``headroom``, ``reserved`` and the rest of the second group are the sizing of ``--kv-capacity``.
    """

    backend: str = "unknown"
    gpu: Gpu | None = None
    weights: int = 0
    sequence: int = 0
    workspace: int = 0
    graphs: int = 0
    uploaded: int = 0
    peak_staging: int = 0
    load_seconds: float = 0.0
    upload_seconds: float = 0.0

    reserved: int | None = None
    least_reserved: int | None = None
    kv_increment: int | None = None
    headroom: int | None = None
    slack: int | None = None
    free_after_weights: int | None = None
    free_after_start: int | None = None


def bytes_of(value: Any, seen: set[int] | None = None) -> int:
    """Add up the arrays that a tree of attrs values, sequences and mappings holds, each once."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if attrs.has(type(value)):
        return sum(bytes_of(getattr(value, field.name), seen) for field in attrs.fields(type(value)))
    if isinstance(value, (list, tuple)):
        return sum(bytes_of(item, seen) for item in value)
    if isinstance(value, dict):
        return sum(bytes_of(item, seen) for item in value.values())
    return 0
