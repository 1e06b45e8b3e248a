"""From a checkpoint and a recipe to a write plan: groups, object ids, bindings, streamed encoders.

Owns packing and the block-wise encoding of each object.  Promises that the memory of one conversion is
one encoded object and a block of rows, whatever the model's size.

The one thing a reader would get wrong: blocks follow the *parent's* row order, which can jump
through several tensors and many short spans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from ninfer.artifact.convert.checkpoint import Checkpoint
from ninfer.artifact.convert.recipes import pack
from ninfer.artifact.convert.sources import Source, Sources, merge
from ninfer.artifact.errors import ArtifactError
from ninfer.artifact.formats import DIRECT, NVFP4, Unencodable, nvfp4_divisor
from ninfer.artifact.inventory import Inventory
from ninfer.artifact.layouts import Encoder
from ninfer.artifact.manifest import Shape
from ninfer.artifact.write import Chunk, Slice, TensorPlan

BLOCK_BYTES = 4 << 20  # of float32, encoded at once
# Parameters that are stored together when their formats agree, relative to their layer.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("query", "key", "gate", "value")),
    ("gdn", ("query", "key", "value", "z")),
    ("gdn", ("a_projection", "b_projection")),
    ("mlp", ("gate", "up")),
    ("moe", ("router", "shared_score")),
    ("moe/shared", ("gate", "up")),
)
VISION_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("query", "key", "value")),
    ("attention", ("query_bias", "key_bias", "value_bias")),
)
DRAFT_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("query", "key", "value")),
    ("mlp", ("gate", "up")),
)


@attrs.frozen
class Planned:
    """What one component adds to a plan."""

    tensors: tuple[TensorPlan, ...]
    bindings: Mapping[str, tuple[Slice, ...]]


def blocks(checkpoint: Checkpoint, sources: Sequence[Source]) -> Iterator[npt.NDArray[Any]]:
    """Yield the sources' rows in order, in blocks (n, K) of the checkpoint's own type."""
    for source in merge(sources):
        whole = checkpoint.view(source.tensor).reshape(-1, source.columns)
        if source.transposed:
            yield np.ascontiguousarray(whole.T)
            continue
        step = max(1, BLOCK_BYTES // (4 * source.columns))
        for spans in _batches(source.rows, step):
            pieces = [whole[begin:end] for begin, end in spans]
            yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _batches(spans: Iterable[tuple[int, int]], step: int) -> Iterator[list[tuple[int, int]]]:
    """Cut spans to ``step`` rows and gather short ones, so that each batch has at most ``step`` rows."""
    batch: list[tuple[int, int]] = []
    room = step
    for begin, end in spans:
        while begin < end:
            count = min(room, end - begin)
            batch.append((begin, begin + count))
            begin, room = begin + count, room - count
            if not room:
                yield batch
                batch, room = [], step
    if batch:
        yield batch


def encode_object(
    checkpoint: Checkpoint, sources: Sequence[Source], form: str, shape: Shape
) -> Iterator[Chunk]:
    """Encode an object from its sources.  Raises ArtifactError for values that the format can't hold."""
    names = list(dict.fromkeys(source.tensor for source in sources))
    try:
        if form in DIRECT:
            for block in blocks(checkpoint, sources):
                yield (
                    np.ascontiguousarray(block.astype(DIRECT[form], copy=False)).reshape(-1).view(np.uint8)
                )
        else:
            yield _quantised(checkpoint, sources, form, shape)
    except Unencodable as problem:
        raise ArtifactError(
            checkpoint.directory, names[0], str(problem), f"values that {form} holds"
        ) from None
    finally:
        for name in names:
            checkpoint.forget(name)


def _quantised(
    checkpoint: Checkpoint, sources: Sequence[Source], form: str, shape: Shape
) -> npt.NDArray[np.uint8]:
    divisor = None
    if form == NVFP4:
        peaks = (np.abs(block.astype(np.float32)).max() for block in blocks(checkpoint, sources))
        divisor = nvfp4_divisor(float(np.max(list(peaks))))
    encoder = Encoder(form, shape, divisor)
    row = 0
    for block in blocks(checkpoint, sources):
        encoder.put(row, block.astype(np.float32))
        row += len(block)
    return encoder.data


def groups_of(known: Inventory, groups: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Gather an inventory's names into packing groups, in inventory order."""
    home: dict[str, tuple[str, ...]] = {}
    for name in known.names():
        layer, _, rest = name.rpartition("/")
        for below, members in groups:
            if layer.endswith(f"/{below}") and rest in members:
                home[name] = tuple(f"{layer}/{member}" for member in members)
    found = {**_experts(known), **home}
    return list(dict.fromkeys(found.get(name, (name,)) for name in known.names()))


def _experts(known: Inventory) -> dict[str, tuple[str, ...]]:
    """All experts of a layer share two parents: gate and up by turns, and down."""
    home: dict[str, tuple[str, ...]] = {}
    for pattern in known.shapes:
        if "/experts/*/" in pattern:
            stem, leaf = pattern.split("*/")
            leaves = ("down",) if leaf == "down" else ("gate", "up")
            members = tuple(f"{stem}{e}/{name}" for e in range(known.experts) for name in leaves)
            home |= dict.fromkeys(members, members)
    return home


def plan_component(
    checkpoint: Checkpoint,
    known: Inventory,
    sources: Sources,
    groups: Sequence[tuple[str, tuple[str, ...]]],
    format_of: Callable[[str, Shape], str],
) -> Planned:
    """Plan every parameter of an inventory that has a source."""

    def chosen(name: str) -> str:
        return format_of(name, _shape(known, name))

    tensors: list[TensorPlan] = []
    bindings: dict[str, tuple[Slice, ...]] = {}
    for group in groups_of(known, groups):
        present = [name for name in group if name in sources]
        for run in pack(present, chosen) if present else ():
            tensor = _object(checkpoint, run, known, sources, chosen(run[0]))
            tensors.append(tensor)
            bindings |= _bindings(tensor, run, known)
    return Planned(tuple(tensors), bindings)


def _shape(known: Inventory, name: str) -> Shape:
    shape = known.shape(name)
    assert shape is not None
    return shape


def _object(
    checkpoint: Checkpoint, run: Sequence[str], known: Inventory, sources: Sources, form: str
) -> TensorPlan:
    shapes = [_shape(known, name) for name in run]
    shape = (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(run) > 1 else shapes[0]
    members = tuple(sources[name] for name in run)
    return TensorPlan(object_id(run), shape, form, partial(encode_object, checkpoint, members, form, shape))


def object_id(run: Sequence[str]) -> str:
    """Name a stored object after its members: ``.../attention/query_key``, ``.../experts/gate_up``."""
    stem, _, first = run[0].rpartition("/")
    if len(run) == 1:
        return run[0]
    leaves = list(dict.fromkeys([first, *(name.rpartition("/")[2] for name in run[1:])]))
    return "/".join([stem.removesuffix("/0") if "/experts/" in stem else stem, "_".join(leaves)])


def _bindings(tensor: TensorPlan, run: Sequence[str], known: Inventory) -> dict[str, tuple[Slice, ...]]:
    if len(run) == 1:
        return {run[0]: (Slice(tensor.id),)}
    found: dict[str, tuple[Slice, ...]] = {}
    cursor = 0
    for name in run:
        end = cursor + math.prod(_shape(known, name))
        found[name] = (Slice(tensor.id, (cursor, end)),)
        cursor = end
    return found
