"""Put a CUDA program together: what it keeps on the device, what a pass borrows, and how much of each.

Owns the sizes.  Permanent memory is laid out once by ``assemble``; the scratch that passes need is found by
running the widest units on a machine that launches nothing and lends addresses only, so no formula has
to agree with the code.

The one thing a reader would get wrong: ``rehearse`` runs the same program; were a body to choose its arrays
by values in device memory, the peak it finds would be wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ninfer import __version__
from ninfer.engine.device import TAIL_TOKENS, Bind, Decode, Geometry, Prefill, Row, Settle
from ninfer.engine.job import Sampling
from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.pack import Library
from ninfer.model.config import TextConfig
from ninfer.model.vision import Tower
from ninfer.model.weights import Decoder, Delta, norms_behind
from ninfer.ops.cuda_attention import AttentionKernels, splits_of
from ninfer.ops.cuda_delta import SHARED_BY
from ninfer.ops.cuda_delta import Delta as DeltaKernels
from ninfer.ops.cuda_experts import Experts
from ninfer.ops.cuda_sampler import MAX_DRAFTS, LaneMemory, Sampler
from ninfer.ops.cuda_state import (
    DELTA_DIM,
    HEAD_DIM,
    KV_KINDS,
    PAGE_TOKENS,
    TAPS,
    DeltaWeights,
    ImagePool,
    Notes,
    PagePool,
    Records,
    Shape,
    Take,
    image_bytes,
    page_bytes,
)
from ninfer.ops.cuda_vision import CudaVision, check_vision, wide_biases
from ninfer.ops.gemm import FEW_ROWS, Gemm, trying
from ninfer.ops.gemm_bias import Plane, PlaneGemm
from ninfer.ops.linear import COUNTERS, Linear
from ninfer.ops.numpy_attention import Rotary
from ninfer.ops.on_cuda import CudaVerbs
from ninfer.ops.products import Products
from ninfer.runtime.arena import Region, Scratch
from ninfer.runtime.cuda_eyes import MOST_TOKENS, CudaEyes
from ninfer.runtime.cuda_program import CudaProgram, Replay
from ninfer.runtime.cuda_steps import Packer
from ninfer.runtime.cuda_transfers import Bytes, Mark, Transfers
from ninfer.spec.drafter import Drafter

MOST_ROWS = 128  # rows that one decode round may have, drafts included
_ENDLESS = 1 << 60


@attrs.frozen(eq=False)
class Machine:
    """A card, or what stands in for one.

    planes   products of the vision tower; None where there is none
    capture  records a body as a graph; None runs everything eagerly
    """

    library: Library
    multiprocessors: int
    shared_bytes: int
    gemm: Gemm
    transfers: Transfers
    capture: Callable[[Callable[[], object]], Replay] | None = None
    planes: PlaneGemm | None = None


@attrs.frozen
class Sizes:
    """How much of everything.  ``vocab`` counts ids that may be sampled; context and chunk are tokens.

    patches  the most that one time slice of an item may have
    """

    lanes: int
    slots: int
    pages: int
    context: int
    chunk: int
    drafts: int
    vocab: int
    kv_kind: str = "bf16"
    host_bytes: int = 0
    patches: int = 65_536

    @property
    def table_width(self) -> int:
        """Pages of one context."""
        return -(-self.context // PAGE_TOKENS)

    @property
    def rows(self) -> int:
        """The most rows of a decode round."""
        return self.lanes * (1 + self.drafts)


def check(config: TextConfig, sizes: Sizes, page_tokens: int) -> None:
    """Refuse what no kernel was written for.  Raises StartupError."""
    keys, values = config.key_heads, config.value_heads
    shared = values % keys == 0 and values <= SHARED_BY * keys
    wanted = {
        f"head_dim {config.head_dim}": config.head_dim == HEAD_DIM,
        f"key_dim {config.key_dim}": config.key_dim == DELTA_DIM,
        f"value_dim {config.value_dim}": config.value_dim == DELTA_DIM,
        f"{values} value heads over {keys} key heads": shared,
        f"{config.conv_taps} convolution taps": config.conv_taps == TAPS,
        f"{config.heads // config.kv_heads} queries a kv head": config.heads // config.kv_heads <= 8,
        f"rotary_dims {config.rotary_dims}": config.rotary_dims in (16, 32, 64, 128, 256),
        f"hidden {config.hidden}": config.hidden % 16 == 0,
        f"--page-tokens {page_tokens}": page_tokens == PAGE_TOKENS,
        f"--kv-dtype {sizes.kv_kind}": sizes.kv_kind in KV_KINDS,
        f"{sizes.drafts} drafts": sizes.drafts < MAX_DRAFTS,
        f"{sizes.rows} rows a round": sizes.rows <= MOST_ROWS,
    }
    lacking = [what for what, fine in wanted.items() if not fine]
    if lacking:
        raise StartupError(f"the CUDA backend cannot run {', '.join(lacking)}: use --backend numpy")


def assemble(
    machine: Machine,
    config: TextConfig,
    decoder: Decoder,
    drafter: Drafter | None,
    sizes: Sizes,
    keep: Take,
    lend: Take,
    tower: Tower | None = None,
) -> CudaProgram:
    """Lay out permanent memory with ``keep`` (contents arbitrary; ``reset`` clears it) and build a program.

    ``lend`` lends the scratch of a pass.
    """
    shape = Shape(
        config.hidden, config.heads, config.kv_heads, config.key_heads, config.value_heads, config.eps
    )
    attention_layers = config.layer_kinds.count("full_attention") + (drafter is not None)
    pool = PagePool(
        keep((sizes.pages, page_bytes(sizes.kv_kind, attention_layers, shape.kv_heads)), "u8"),
        sizes.kv_kind,
        attention_layers,
        shape.kv_heads,
    )
    deltas = [layer.mixer for layer in decoder.layers if isinstance(layer.mixer, Delta)]
    images = ImagePool(keep((sizes.slots, image_bytes(shape, len(deltas))), "u8"), shape, len(deltas))
    library = machine.library
    products = Products(
        Linear(library, machine.multiprocessors, machine.shared_bytes, lend, keep((COUNTERS,), "u32")),
        machine.gemm,
    )
    sampler = Sampler(library, lend, LaneMemory.take(keep, sizes.lanes, sizes.vocab, 1 + sizes.drafts))
    width = sizes.table_width
    verbs = CudaVerbs(
        shape=shape,
        take=lend,
        products=products,
        attention=_attention(machine, config, shape, pool, sizes, keep, lend),
        delta=_delta(machine, shape, images, deltas, sizes, keep, lend),
        experts=Experts(library, lend, shape, products, keep((MOST_ROWS,), "u32")),
        sampler=sampler,
        followers={weight.data.codes: norm for weight, norm in norms_behind(decoder)},
    )
    return CudaProgram(
        geometry=_geometry(sizes, images.image_bytes, pool.page_bytes),
        verbs=verbs,
        decoder=decoder,
        images=images,
        pages=pool,
        transfers=machine.transfers,
        packer=Packer(keep((_block_numbers(sizes),), "i32"), width),
        results=keep((sizes.lanes * (3 + sizes.drafts),), "i32"),
        drafter=drafter,
        eyes=None if tower is None else _eyes(machine, tower, products, sizes, keep, lend),
        capture=machine.capture,
        signature=signature_of(str(library.arch), images, pool, drafter),
    )


def signature_of(arch: str, images: ImagePool, pool: PagePool, drafter: Drafter | None) -> str:
    """Name all that exported state depends on beside the weights: the card's kind, since bits may."""
    sizes = f"{PAGE_TOKENS} {images.image_bytes} {pool.page_bytes}"
    return f"cuda {__version__} {arch} {pool.kind} {type(drafter).__name__} {sizes}"


def _eyes(
    machine: Machine, tower: Tower, products: Products, sizes: Sizes, keep: Take, lend: Take
) -> CudaEyes:
    check_vision(tower.config)
    if machine.planes is None:
        raise StartupError("the vision tower needs cuBLAS: install the extra cuda13 or cuda12")
    endings = [linear for block in tower.blocks for linear in (block.output, block.fc2)]
    biases = wide_biases(machine.library, endings, keep)
    verbs = CudaVision(machine.library, lend, products, machine.planes, machine.transfers.send, biases)
    rows = min(MOST_TOKENS, sizes.context)
    memory = keep((rows, tower.config.out_hidden), "bf16")
    patches = min(sizes.patches, rows * tower.config.merge**2)
    return CudaEyes(verbs, tower, machine.transfers, memory, patches, machine.capture)


def _block_numbers(sizes: Sizes) -> int:
    """Numbers of the largest unit: a prompt piece, or a drafting round with its steps."""
    piece = 8 * sizes.chunk + sizes.table_width
    line = sizes.table_width + 32
    return 1024 + max(piece, sizes.lanes * line * (1 + sizes.drafts) + 8 * sizes.rows)


def _geometry(sizes: Sizes, image: int, page: int) -> Geometry:
    return Geometry(
        lanes=sizes.lanes,
        slots=sizes.slots,
        pages=sizes.pages,
        page_tokens=PAGE_TOKENS,
        max_context=sizes.context,
        prefill_chunk=sizes.chunk,
        vocab=sizes.vocab,
        image_bytes=image,
        page_bytes=page,
        host_bytes=sizes.host_bytes,
        drafts=sizes.drafts,
    )


def _attention(
    machine: Machine, config: TextConfig, shape: Shape, pool: PagePool, sizes: Sizes, keep: Take, lend: Take
) -> AttentionKernels:
    rotary = Rotary.of(config.rotary_dims, config.rope_theta, config.mrope_section)
    frequencies, axes = keep((rotary.axes.size,), "f64"), keep((rotary.axes.size,), "i32")
    line = keep((sizes.table_width,), "i32")
    machine.transfers.send(line, np.arange(sizes.table_width, dtype=np.int32))
    machine.transfers.send(frequencies, rotary.frequencies)
    machine.transfers.send(axes, rotary.axes.astype(np.int32))
    return AttentionKernels(
        library=machine.library,
        take=lend,
        shape=shape,
        pool=pool,
        frequencies=frequencies,
        axes=axes,
        line=line,
        counters=keep((max(sizes.rows, TAIL_TOKENS) * shape.heads,), "u32"),
        splits=splits_of(sizes.table_width),
        shared_limit=machine.shared_bytes,
    )


def _delta(
    machine: Machine,
    shape: Shape,
    images: ImagePool,
    layers: Sequence[Delta],
    sizes: Sizes,
    keep: Take,
    lend: Take,
) -> DeltaKernels:
    weights = (DeltaWeights(w.convolution, w.a_log, w.dt_bias, w.inner_norm) for w in layers)
    packed = np.frombuffer(b"".join(w.pack(shape) for w in weights), np.uint8)
    table = keep((max(1, packed.size),), "u8")
    machine.transfers.send(table, packed)
    records = None
    if sizes.drafts:
        records = Records.take(keep, shape, len(layers), sizes.lanes, 1 + sizes.drafts)
    kernels = DeltaKernels(
        machine.library,
        lend,
        shape,
        images,
        records,
        table,
        machine.shared_bytes,
        blocks=machine.multiprocessors,
    )
    if kernels.many(sizes.lanes):
        kernels.notes = Notes.take(keep, shape, len(layers), sizes.lanes)
    return kernels


def reset(program: CudaProgram) -> None:
    """Clear everything that outlives a pass: images, pages, lanes, counters."""
    verbs, fill = program.verbs, program.transfers.fill
    memory = verbs.sampler.memory
    for array in (
        program.images.data,
        program.pages.data,
        memory.samplers,
        memory.counts,
        memory.pending,
        memory.published,
        verbs.products.linear.counters,
        verbs.experts.counters,
        verbs.attention.counters,
    ):
        fill(array)
    program.edges[:] = 0
    program.lags.clear()


def warm(program: CudaProgram) -> None:
    """Run every body once, capture every graph, and forget all of it."""
    reset(program)
    with trying(program.verbs.products.gemm, program.transfers) as choices:
        batches = range(1, program.geometry.lanes + 1)
        _widest(program, batches, turns=2, widths=range(program.geometry.drafts))
        if choices:
            _short(program)
    program.transfers.mark().wait()
    reset(program)


def _widest(
    program: CudaProgram, batches: Sequence[int], turns: int, item: int = 0, widths: Sequence[int] = ()
) -> None:
    """Run the widest prompt piece, with a picture of ``item`` tokens, and decode rounds of some batches.

    ``widths`` are drafts a round beside none and the most.
    """
    g = program.geometry
    for lane in range(g.lanes):
        program.run(Bind(lane, Sampling(temperature=1.0, presence=0.5)))
    pages = tuple(range(min(g.pages, -(-g.max_context // PAGE_TOKENS))))
    piece = min(g.prefill_chunk, len(pages) * PAGE_TOKENS - 1 - g.drafts)
    ids, eyes = (0,) * max(1, piece), program.eyes
    media = () if eyes is None else (eyes.widest(item or len(ids)),)
    program.run(Prefill(0, 0, 0, ids, pages, sample=True, media=media))
    program.run(Prefill(0, 0, 0, ids[:TAIL_TOKENS], pages, sample=True, tail=True))
    if eyes is not None:
        eyes.forget(0)
    drafts = {0, g.drafts, *widths} if program.drafter else {0}
    for count, draft, _ in itertools.product(batches, drafts, range(turns)):
        rows = tuple(Row(lane, lane % g.slots, 0, pages, 0, draft=draft) for lane in range(count))
        found = program.run(Decode(rows)).rows
        for row, result in zip(rows, found, strict=True):
            if draft:
                program.run(Settle(row.lane, row.slot, len(result.tokens)))


def _furthest(program: CudaProgram) -> None:
    """Run the last piece of the longest prompt: a cache of few bits is widened as far as a piece sees."""
    g = program.geometry
    pages = tuple(range(min(g.pages, -(-g.max_context // PAGE_TOKENS))))
    end = len(pages) * PAGE_TOKENS - 1 - g.drafts
    piece = max(1, min(g.prefill_chunk, end))
    program.run(Prefill(0, 0, max(0, end - piece), (0,) * piece, pages, sample=True))


def _short(program: CudaProgram) -> None:
    """Run prompt pieces of every number of rows that products choose an algorithm for."""
    g = program.geometry
    pages = tuple(range(min(g.pages, -(-g.max_context // PAGE_TOKENS))))
    for rows in FEW_ROWS:
        if rows < min(g.prefill_chunk, len(pages) * PAGE_TOKENS):
            program.run(Prefill(0, 0, 0, tuple(i % g.vocab for i in range(rows)), pages, sample=True))


def rehearse(
    machine: Machine,
    config: TextConfig,
    decoder: Decoder,
    drafter: Drafter | None,
    sizes: Sizes,
    tower: Tower | None = None,
) -> tuple[int, int]:
    """Bytes of permanent memory and of scratch that a program of these sizes needs."""
    region, scratch = Region(1 << 40, _ENDLESS), Scratch(1 << 40, _ENDLESS)
    idle: Any = IdleLibrary(machine.library)
    nobody = Machine(
        idle,
        machine.multiprocessors,
        machine.shared_bytes,
        _no_product,
        NoTransfers(),
        planes=_no_planes,
    )
    program = assemble(nobody, config, decoder, drafter, sizes, region.take, scratch.take, tower)
    _widest(program, (1, sizes.lanes), turns=1, item=MOST_TOKENS)
    _furthest(program)
    return region.used, scratch.peak


def _no_product(x: DeviceArray, w: DeviceArray, out: DeviceArray, add: DeviceArray | None = None) -> None:
    return None


def _no_planes(
    x: Plane,
    w: DeviceArray,
    out: Plane,
    bias: DeviceArray | None = None,
    *,
    gelu: bool = False,
    add: bool = False,
) -> None:
    return None


@attrs.frozen(eq=False)
class IdleLibrary:
    """A library whose kernels do nothing; it says of the card what the real one says."""

    real: Any

    @property
    def arch(self) -> str:
        """The card's architecture."""
        return str(self.real.arch)

    def supports(self, file: str) -> bool:
        """Whether the card has code of a source."""
        return bool(self.real.supports(file))

    def get(self, file: str, name: str, **defines: int) -> IdleLibrary:
        """Anything."""
        return self

    def launch(self, *arguments: object, **options: object) -> None:
        """Do nothing."""


class NoTransfers:
    """Transfers that move nothing; also its own mark."""

    def send(self, target: DeviceArray, values: NDArray[Any]) -> None:
        """Do nothing."""

    def fetch(self, source: DeviceArray) -> tuple[NDArray[Any], Mark]:
        """Results are zero."""
        return np.zeros(source.shape, np.int32), self

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        """Do nothing."""

    def fill(self, array: DeviceArray, byte: int = 0) -> None:
        """Do nothing."""

    def save(self, arrays: Sequence[DeviceArray]) -> Bytes:
        """Nothing is saved."""
        return np.zeros(0, np.uint8)

    def load(self, array: DeviceArray, saved: Bytes, at: int) -> None:
        """Do nothing."""

    def room(self, nbytes: int) -> Bytes:
        """Nothing is lent."""
        return np.zeros(0, np.uint8)

    def drop(self, saved: Bytes) -> None:
        """Do nothing."""

    def read(self, arrays: Sequence[DeviceArray]) -> Bytes:
        """Nothing is read."""
        return np.zeros(0, np.uint8)

    def mark(self) -> Mark:
        """Nothing to wait for."""
        return self

    def wait(self) -> None:
        """Nothing to wait for."""

    def seconds(self, begin: Mark, end: Mark) -> float:
        """No time passes."""
        return 0.0
