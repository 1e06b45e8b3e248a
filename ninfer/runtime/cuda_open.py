"""From an artifact and options to a program on a GPU: the card, the memory plan, the weights, the graphs.

Owns the plan.  Weights take what the file says; state, cache and workspace are found by rehearsal; the KV
pool gets what was asked for, or with ``kv_auto`` all that is left.  What does not fit is refused here,
before the first request, with the numbers.  After this the process allocates no device memory.

The one thing a reader would get wrong: blocks are never freed.  They live as long as the process, since
after a device fault nothing can be freed anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs

from ninfer.artifact.inventory import Inventory as Names
from ninfer.artifact.manifest import Parameter, TensorObject
from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.model.config import TextConfig, read_vision_config
from ninfer.model.registry import architecture_of
from ninfer.model.vision import Tower, load_tower
from ninfer.model.weights import Decoder, load_proposal
from ninfer.ops.cuda_state import PAGE_TOKENS, page_bytes
from ninfer.ops.gemm import WORKSPACE_BYTES, CublasLt
from ninfer.ops.gemm_bias import PlanesLt
from ninfer.runtime.arena import RawBlock, Region, Scratch, refuse_allocations
from ninfer.runtime.cuda_build import Machine, Sizes, assemble, check, rehearse, warm
from ninfer.runtime.cuda_card import Card, open_card, starting
from ninfer.runtime.cuda_program import CudaProgram
from ninfer.runtime.cuda_transfers import CupyTransfers
from ninfer.runtime.cuda_weights import PinnedUpload, StoredWeights, objects_of, upload, weight_bytes
from ninfer.runtime.graphs import capture
from ninfer.runtime.inventory import Gpu, Inventory
from ninfer.settings import EngineOptions
from ninfer.spec.drafter import DRAFTERS, Drafter

LEAST_CHUNK = 64  # tokens: what closes a reasoning block is one unit, however small prompts are cut
HEADROOM_BYTES = 384 << 20  # modules, cuBLAS and the driver's own
AUTO_HEADROOM_BYTES = 1 << 30  # what a pool that takes the rest leaves free, the former included
GRAPH_BYTES = 16 << 20  # of one lane's graphs: of steps, and of rounds of the widest draft
DRAFT_GRAPH_BYTES = 4 << 20  # of one lane's graph of another width
EXTRA_BYTES = 64 << 20  # a block for weights that had to be gathered
_HELD: list[RawBlock] = []


class StoredModel(Protocol):
    """What is read of an artifact."""

    @property
    def components(self) -> Mapping[str, Any]:
        """Components by id, each with a ``config``."""

    def has(self, name: str) -> bool:
        """Whether a parameter is bound."""

    def has_resource(self, role: str) -> bool:
        """Whether a frontend file is there."""

    def resource(self, role: str) -> bytes:
        """Read a frontend file."""

    def inventory(self, component: str) -> Names:
        """The parameters that a component must have."""

    def parameter(self, name: str) -> Parameter:
        """A parameter's shape and parts."""

    def raw(self, tensor: TensorObject) -> memoryview:
        """The stored bytes of an object."""

    def decode(self, name: str) -> Any:
        """A parameter's values."""


@attrs.frozen
class Plan:
    """How much of everything, in bytes, and how many pages of cache."""

    pages: int
    kept: int
    scratch: int
    free: int
    headroom: int


def cuda_is_here() -> bool:
    """Whether CuPy is installed and finds a card."""
    try:
        import cupy
    except ImportError:
        return False
    try:
        return bool(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


def build_cuda(
    model: StoredModel, options: EngineOptions, progress: Callable[[str], None], vocab: int
) -> CudaProgram:
    """Load everything onto the card.  ``vocab`` ids may be sampled.  Raises StartupError."""
    with starting():
        return _build(model, options, progress, vocab)


def _build(
    model: StoredModel, options: EngineOptions, progress: Callable[[str], None], vocab: int
) -> CudaProgram:
    text = model.components["text"].config
    architecture = architecture_of(text)
    config = architecture.read(text)
    card = open_card(pack=Path(options.kernels) if options.kernels else None)
    machine = _machine(card, options)
    begun = time.perf_counter()
    loader = _load(model, _components(model, options), card, progress)
    decoder = architecture.load(loader, config)
    if options.proposal_head:
        decoder = attrs.evolve(decoder, proposal=load_proposal(loader))
    drafter = DRAFTERS[options.spec](loader, decoder) if options.spec else None
    tower = _tower(model, loader, config) if options.vision else None
    uploaded = time.perf_counter() - begun
    sizes, plan = plan_memory(card, machine, options, (config, decoder, drafter, tower), vocab)
    program = _assembled(machine, (config, decoder, drafter, tower), sizes, plan)
    host = options.host_context_bytes
    image = program.geometry.image_bytes
    host_bytes = (8 << 30) + 8 * image if host is None else host
    program.geometry = attrs.evolve(program.geometry, host_bytes=host_bytes)
    progress("capturing graphs")
    warm(program)
    card.wait()
    refuse_allocations()
    program.inventory = _inventory(card, loader, plan, uploaded, time.perf_counter() - begun)
    return program


def _machine(card: Card, options: EngineOptions) -> Machine:
    block = RawBlock.allocate(WORKSPACE_BYTES, "the workspace of cuBLAS")
    _HELD.append(block)
    gemm = CublasLt(DeviceArray(block.ptr, (WORKSPACE_BYTES,), "u8"), card.stream.ptr)
    record = (lambda body: capture(card.library, card.stream, body)) if options.cuda_graphs else None
    return Machine(
        card.library,
        card.multiprocessors,
        card.shared_bytes,
        gemm,
        CupyTransfers(card.stream),
        record,
        PlanesLt(gemm),
    )


def _components(model: StoredModel, options: EngineOptions) -> list[str]:
    wanted = ["text"]
    if options.spec:
        if options.spec not in DRAFTERS:
            known = ", ".join(DRAFTERS)
            raise StartupError(f"there is no drafter {options.spec!r}: choose one of {known}")
        if options.draft_tokens < 1:
            raise StartupError(f"--spec {options.spec} needs --draft-tokens of at least 1")
        wanted.append(options.spec)
    if options.vision:
        wanted.append("vision")
    for name in wanted:
        if name not in model.components:
            raise StartupError(f"the artifact has no {name} component: start without it")
    if options.proposal_head:
        if not model.has("proposal/head"):
            raise StartupError("the artifact has no proposal head: start without --lm-head-draft")
        wanted.append("proposal")
    return wanted


def _load(
    model: StoredModel, components: Iterable[str], card: Card, progress: Callable[[str], None]
) -> StoredWeights:
    names = [name for component in components for name in model.inventory(component).names()]
    objects = objects_of(model, names)
    block = RawBlock.allocate(weight_bytes(objects) + 256, "the weights")
    _HELD.append(block)
    region, copies = Region(block.ptr, block.nbytes), PinnedUpload(card.stream)
    try:
        placed = upload(model, objects, region.take, copies, progress)
    finally:
        copies.close()
    return StoredWeights(model, placed, Extras().take, PinnedUpload(card.stream, 1 << 20))


@attrs.define
class Extras:
    """Blocks for what the file scatters; usually none is taken."""

    _regions: list[Region] = attrs.field(factory=list)

    def take(self, shape: tuple[int, ...], kind: str) -> DeviceArray:
        """Place an array in the last block, or in a new one."""
        need = Region(0, 1 << 60)
        need.take(shape, kind)
        if not self._regions or self._regions[-1].nbytes - self._regions[-1].used < need.used:
            block = RawBlock.allocate(max(EXTRA_BYTES, need.used), "weights that had to be gathered")
            _HELD.append(block)
            self._regions.append(Region(block.ptr, block.nbytes))
        return self._regions[-1].take(shape, kind)


Loaded = tuple[TextConfig, Decoder, Drafter | None, Tower | None]


def _tower(model: StoredModel, loader: StoredWeights, config: TextConfig) -> Tower:
    return load_tower(loader, read_vision_config(model.components["vision"].config, config))


def plan_memory(
    card: Card, machine: Machine, options: EngineOptions, loaded: Loaded, vocab: int
) -> tuple[Sizes, Plan]:
    """Choose the sizes; raises StartupError when the least of them does not fit."""
    config, decoder, drafter, tower = loaded
    sizes = sizes_of(options, config, vocab, drafter is not None)
    check(config, sizes, options.page_tokens)
    kept, scratch = rehearse(machine, config, decoder, drafter, sizes, tower)
    graphs = GRAPH_BYTES + DRAFT_GRAPH_BYTES * sizes.drafts
    headroom = HEADROOM_BYTES + graphs * sizes.lanes * bool(machine.capture)
    layers = config.layer_kinds.count("full_attention") + (drafter is not None)
    step = page_bytes(sizes.kv_kind, layers, config.kv_heads)
    free = card.free_bytes()
    spare = free - headroom - kept - scratch
    if spare < 0:
        gib = [f"{n / 2**30:.2f}" for n in (-spare, free, kept, scratch, headroom)]
        raise StartupError(
            f"the GPU lacks {gib[0]} GiB: {gib[1]} GiB are free after the weights, state and cache take "
            f"{gib[2]}, workspace {gib[3]}, headroom {gib[4]}: lower --max-context, --max-concurrency, "
            "--kv-capacity or --prefill-chunk"
        )
    if options.kv_auto:
        most = sizes.lanes * sizes.table_width
        more = max(0, spare - max(0, AUTO_HEADROOM_BYTES - headroom)) // step
        sizes = attrs.evolve(sizes, pages=min(most, sizes.pages + more))
        kept, scratch = rehearse(machine, config, decoder, drafter, sizes, tower)
    return sizes, Plan(sizes.pages, kept, scratch, free, headroom)


def sizes_of(options: EngineOptions, config: TextConfig, vocab: int, drafts: bool) -> Sizes:
    """What was asked for, the pool at its least when it is to be sized automatically."""
    context = min(options.max_context, config.max_positions)
    width, lanes = -(-context // PAGE_TOKENS), options.max_concurrency
    asked = context if options.kv_auto else options.kv_capacity or context
    extra = options.device_state_slots
    return Sizes(
        lanes=lanes,
        slots=lanes + (lanes if extra is None else extra),
        pages=min(max(-(-asked // PAGE_TOKENS), width, lanes), lanes * width),
        context=context,
        chunk=min(max(options.prefill_chunk, LEAST_CHUNK), context),
        drafts=options.draft_tokens if drafts else 0,
        vocab=min(vocab, config.vocab),
        kv_kind=options.kv_dtype,
    )


def _assembled(machine: Machine, loaded: Loaded, sizes: Sizes, plan: Plan) -> CudaProgram:
    config, decoder, drafter, tower = loaded
    kept = RawBlock.allocate(plan.kept + 256, "state and cache")
    lent = RawBlock.allocate(plan.scratch + 256, "the workspace")
    _HELD.extend((kept, lent))
    region, scratch = Region(kept.ptr, kept.nbytes), Scratch(lent.ptr, plan.scratch + 256)
    return assemble(machine, config, decoder, drafter, sizes, region.take, scratch.take, tower)


def _inventory(card: Card, loader: StoredWeights, plan: Plan, uploaded: float, seconds: float) -> Inventory:
    weights = sum(array.nbytes for array in loader.objects.values())
    return Inventory(
        backend="cuda",
        gpu=_gpu(card),
        weights=weights,
        sequence=plan.kept,
        workspace=plan.scratch,
        uploaded=weights,
        load_seconds=seconds,
        upload_seconds=uploaded,
        headroom=plan.headroom,
        free_after_weights=plan.free,
        free_after_start=card.free_bytes(),
    )


def _gpu(card: Card) -> Gpu:
    from cupy.cuda import runtime

    index = int(runtime.getDevice())
    found = runtime.getDeviceProperties(index)
    return Gpu(
        index=index,
        name=card.name,
        uuid=bytes(found["uuid"]).hex() if "uuid" in found else None,
        total_bytes=card.total_bytes,
        compute_capability=(int(found["major"]), int(found["minor"])),
        runtime_version=int(runtime.runtimeGetVersion()),
        driver_version=int(runtime.driverGetVersion()),
    )
