"""`ninfer bench gpu`: a whole decoder of published shape on this card, with random weights and no file.

Owns the accounting: bytes that a decode step must move, operations that a prompt token needs, and the two
ceilings of the card that they are compared with, measured in the same run.

A prompt is rated by the operations of all its rows in all layers; which share of them is done stands beside
that.  The one thing a reader would get wrong: a fraction of bandwidth counts each byte once (weights, state
read and written, keys and values read); what a kernel reads twice is its own loss.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ninfer.artifact import inventory
from ninfer.bench import reuse
from ninfer.bench.random_weights import RandomWeights
from ninfer.bench.rounds import ROUNDS, compare, pace, without_drafter
from ninfer.bench.shapes import SHAPES, Recipe, recipe
from ninfer.bench.timing import gemm_rate, read_rate, sustained_gemm_rate
from ninfer.engine.device import Bind, Prefill
from ninfer.engine.job import Sampling
from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.model.config import TextConfig
from ninfer.model.weights import Attention, Decoder, Dense, Layer, load_decoder, load_proposal
from ninfer.ops.cuda_experts import bank_of
from ninfer.ops.cuda_state import LATE
from ninfer.ops.gemm import WORKSPACE_BYTES, CublasLt
from ninfer.ops.stored import StoredMatrix
from ninfer.ops.verbs import Weight
from ninfer.runtime.arena import RawBlock, Region, Scratch
from ninfer.runtime.cuda_build import Machine, Sizes, assemble, rehearse, warm
from ninfer.runtime.cuda_card import Card, open_card
from ninfer.runtime.cuda_program import CudaProgram
from ninfer.runtime.cuda_transfers import CupyTransfers
from ninfer.runtime.graphs import capture
from ninfer.runtime.steps import ending, prefill_step
from ninfer.spec.drafter import DRAFTERS, Drafter

PAGE = 64
SIDE = 8192  # of the square product that the prompt's rate is compared with
SPARE_BYTES = 2 << 30


@attrs.frozen
class Asked:
    """What to measure.  ``contexts`` and ``prompts`` are tokens."""

    shape: str
    recipe: str
    batches: tuple[int, ...] = (1,)
    contexts: tuple[int, ...] = (512,)
    prompts: tuple[int, ...] = (8192,)
    kv_kind: str = "bf16"
    layers: int = 0  # 0: all
    reuse: tuple[int, ...] = ()  # retained prefixes to go on from, tokens
    drafts: int = 0  # the widest round to measure; 0: none
    proposal_rows: int = 0  # of the drafting head; 0: drafts read the whole head
    pack: Path | None = None  # kernels compiled ahead of time


@attrs.define(eq=False)
class RandomLoader:
    """Implements ``model.weights.Loader`` with random weights, and counts what a step reads of them."""

    made: RandomWeights
    shapes: inventory.Inventory
    form: Recipe
    share: float = 1.0  # of the experts that one row uses
    send: Callable[[DeviceArray, NDArray[Any]], None] | None = None  # to the card; ids alone need it
    dense_bytes: int = 0
    expert_bytes: int = 0
    flops: float = 0.0  # of one prompt token, the head left out

    def has(self, name: str) -> bool:
        """Whether the parameter exists."""
        return name == "text/output_head" or name in self.shapes.shapes

    def _together(self, names: tuple[str, ...]) -> list[StoredMatrix]:
        shapes, forms = [self._shape(name) for name in names], [self.form(name) for name in names]
        if len(set(forms)) > 1:
            return [self.made.matrix(form, *shape) for form, shape in zip(forms, shapes, strict=True)]
        ends = np.cumsum([rows for rows, _ in shapes]).tolist()
        whole = self.made.matrix(forms[0], -(-ends[-1] // 128) * 128, shapes[0][1])
        return [whole.take(end - rows, end) for (rows, _), end in zip(shapes, ends, strict=True)]

    def _shape(self, name: str) -> tuple[int, int]:
        rows, columns = self.shapes.shapes.get(name) or self.shapes.shape(name) or (0, 0)
        return rows, columns

    def step_bytes(self, batch: int) -> float:
        """Weights that a step of ``batch`` rows reads, as if rows shared no expert (capped at all)."""
        return self.dense_bytes + self.expert_bytes * min(1.0, batch * self.share)

    def weights(self, *names: str) -> tuple[Weight, ...]:
        """Make matrices, side by side where their formats agree."""
        found = self._together(names)
        self.dense_bytes += sum(m.nbytes for m in found)
        if names != ("text/output_head",):
            self.flops += sum(2 * m.rows * m.columns for m in found)
        return tuple(Weight(m.rows, m.columns, m.format, m) for m in found)

    def table(self, name: str) -> Weight:
        """Make an embedding; a step reads next to nothing of it."""
        (m,) = self._together((name,))
        return Weight(m.rows, m.columns, m.format, m)

    def stack(self, names: tuple[str, ...]) -> Weight:
        """Make experts as a bank."""
        found = self._together(names)
        self.expert_bytes += sum(m.nbytes for m in found)
        self.flops += self.share * sum(2 * m.rows * m.columns for m in found)
        bank = bank_of(found)
        return Weight(bank.rows.rows, bank.rows.columns, bank.rows.format, bank)

    def vector(self, name: str) -> DeviceArray:
        """Make a small parameter."""
        kind = "f32" if name.endswith(("a_log", "dt_bias")) else "bf16"
        return self.made.values(tuple(self.shapes.shape(name) or ()), kind, 0.02)

    def indices(self, name: str) -> DeviceArray:
        """Make distinct ids in ascending order: those of a drafting head."""
        assert self.send is not None
        (count,) = self.shapes.shapes[name]
        made = self.made.take((count,), "i32")
        self.send(made, np.arange(count, dtype=np.int32))
        return made


@attrs.frozen
class Ceilings:
    """What the card can do: bytes read a second, operations a second of one bf16 product of ``SIDE``.

    gemm       a few products on a card at rest
    sustained  a second of products without a pause
    """

    read: float
    gemm: float
    sustained: float


@attrs.frozen(eq=False)
class Stage:
    """A program ready to run, and what its steps cost."""

    card: Card
    program: CudaProgram
    config: TextConfig
    weights: RandomLoader
    ceilings: Ceilings
    seconds: float  # from the opened card to the program, weights made and graphs captured

    def pages(self, lane: int) -> tuple[int, ...]:
        """The pages of a lane: each has its own share of the pool."""
        width = self.program.geometry.pages // self.program.geometry.lanes
        return tuple(range(lane * width, (lane + 1) * width))


def measure(asked: Asked, say: Callable[[str], None]) -> dict[str, Any]:
    """Run everything that was asked for; figures by name.  Raises StartupError."""
    stage = open_stage(asked, say)
    found: dict[str, Any] = {
        "card": stage.card.name,
        "shape": asked.shape,
        "recipe": asked.recipe,
        "kv_dtype": asked.kv_kind,
        "layers": stage.config.layers,
        "read_gb_per_second": stage.ceilings.read / 1e9,
        "gemm_tflops": stage.ceilings.gemm / 1e12,
        "gemm_sustained_tflops": stage.ceilings.sustained / 1e12,
        "weight_gb_per_step": stage.weights.step_bytes(1) / 1e9,
        "ready_seconds": stage.seconds,
    }
    found["prefill"] = [_prefill(stage, count) for count in asked.prompts]
    each = [(n, batch) for n in asked.contexts for batch in asked.batches]
    plain = without_drafter(stage.program) if asked.drafts else stage.program
    found["decode"] = [_decode(stage, plain, batch, n) for n, batch in each]
    if asked.drafts:
        found["drafting"] = [_drafting(stage, plain, batch, n, asked.drafts) for n, batch in each]
    if asked.reuse:
        found["reuse"] = [reuse.measure(stage.program, stage.pages(0), n) for n in asked.reuse]
    return found


def _drafting(stage: Stage, plain: CudaProgram, batch: int, context: int, widest: int) -> dict[str, Any]:
    tables = [stage.pages(lane) for lane in range(batch)]
    return compare(stage.program, plain, tables, context, widest)


def open_stage(asked: Asked, say: Callable[[str], None]) -> Stage:
    """Open the card, measure its ceilings and build the program, warm.  Raises StartupError."""
    card = open_card(pack=asked.pack)
    config = SHAPES[asked.shape]()
    if asked.layers:
        config = attrs.evolve(config, layer_kinds=config.layer_kinds[: asked.layers])
    block = RawBlock.allocate(card.free_bytes() - SPARE_BYTES, "the benchmark")
    region = Region(block.ptr, block.nbytes)
    gemm = CublasLt(region.take((WORKSPACE_BYTES,), "u8"), card.stream.ptr)
    ceilings = _ceilings(card, gemm, Region(region.base + region.used, region.nbytes - region.used))
    say(
        f"reads {ceilings.read / 1e9:.0f} GB/s, bf16 product {ceilings.gemm / 1e12:.0f} TFLOP/s, "
        f"{ceilings.sustained / 1e12:.0f} for a second"
    )
    begun = time.monotonic()
    machine = Machine(
        card.library,
        card.multiprocessors,
        card.shared_bytes,
        gemm,
        CupyTransfers(card.stream),
        lambda body: capture(card.library, card.stream, body),
    )
    loader, drafting = _loaders(asked, machine, config, region)
    decoder, drafter = load_decoder(loader, config), None
    if asked.drafts:
        proposal = load_proposal(drafting) if asked.proposal_rows else None
        decoder = attrs.evolve(decoder, proposal=proposal)
        drafter = DRAFTERS["mtp"](drafting, decoder)
    program = _program(asked, machine, config, decoder, drafter, region)
    _KEEP.append(block)
    warm(program)
    card.wait()
    seconds = time.monotonic() - begun
    say(f"ready in {seconds:.1f} s, {region.used / 1e9:.1f} GB in use")
    return Stage(card, program, config, loader, ceilings, seconds)


def _loaders(
    asked: Asked, machine: Machine, config: TextConfig, region: Region
) -> tuple[RandomLoader, RandomLoader]:
    """Loaders of the decoder and of what drafts for it."""
    share = config.moe.per_token / config.moe.experts if config.moe else 1.0
    text = RandomLoader(
        RandomWeights(machine.library, region.take),
        inventory.text(config),
        recipe(asked.recipe, config),
        share,
        machine.transfers.send,
    )
    mtp, proposal = inventory.mtp(config), inventory.proposal(config, asked.proposal_rows or None)
    return text, attrs.evolve(text, shapes=attrs.evolve(mtp, shapes=mtp.shapes | proposal.shapes))


def _ceilings(card: Card, gemm: CublasLt, spare: Region) -> Ceilings:
    size = min(8 << 30, spare.nbytes // 2)
    made = RandomWeights(card.library, spare.take)
    x, w = (made.values((SIDE, SIDE), "bf16", 1.0) for _ in range(2))
    product = card, gemm, x, w, spare.take((SIDE, SIDE), "bf16")
    rate = gemm_rate(*product)
    return Ceilings(read_rate(card, spare.take((size,), "u8")), rate, sustained_gemm_rate(*product))


def _program(
    asked: Asked,
    machine: Machine,
    config: TextConfig,
    decoder: Decoder,
    drafter: Drafter | None,
    region: Region,
) -> CudaProgram:
    lanes = max(asked.batches)
    longest = max(*asked.contexts, *asked.prompts, *asked.reuse, 0) + ROUNDS + PAGE
    width = -(-longest // PAGE)
    chunk = min(8192, max((*asked.prompts, *asked.reuse), default=1024))
    sizes = Sizes(
        lanes, lanes + 1, lanes * width, longest, chunk, asked.drafts, config.vocab, asked.kv_kind
    )
    kept, lent = rehearse(machine, config, decoder, drafter, sizes)
    if region.used + kept + lent > region.nbytes:
        raise StartupError(
            f"this card lacks {(region.used + kept + lent - region.nbytes) / 2**30:.1f} GiB for that: "
            "ask for a smaller --batch, --context or --prefill"
        )
    scratch = Scratch(region.take((lent,), "u8").ptr, lent)
    return assemble(machine, config, decoder, drafter, sizes, region.take, scratch.take)


_KEEP: list[RawBlock] = []  # as long as the process: addresses do not own memory


def _prefill(stage: Stage, count: int) -> dict[str, Any]:
    ids = tuple(np.random.default_rng(1).integers(0, stage.config.vocab - 1000, count).tolist())
    program, chunk = stage.program, stage.program.geometry.prefill_chunk
    program.run(Bind(0, Sampling()))
    units = [
        Prefill(0, 0, at, ids[at : at + chunk], stage.pages(0), sample=at + chunk >= count)
        for at in range(0, count, chunk)
    ]
    took = [sum(program.run(unit).seconds for unit in units) for _ in range(3)]
    rate = count / statistics.median(took)
    return {
        "tokens": count,
        "tokens_per_second": rate,
        "gemm_fraction": rate * stage.weights.flops / stage.ceilings.gemm,
        "gemm_sustained_fraction": rate * stage.weights.flops / stage.ceilings.sustained,
        "operations_done": 1.0
        if program.drafter
        else operations_done(program.decoder, stage.weights, units),
    }


def operations_done(decoder: Decoder, weights: RandomLoader, units: Sequence[Prefill]) -> float:
    """The share of a prompt's operations that is done: the last layer leaves out what nobody reads."""
    total = sum(len(unit.ids) for unit in units)
    wanted = sum(ending(prefill_step(unit)).rows for unit in units)
    left = _left_out(decoder.layers[-1], weights.share)
    return 1 - left * (total - wanted) / (weights.flops * total)


def _left_out(layer: Layer, share: float) -> float:
    """Operations of a layer for a row that is not wanted."""
    mixer, feed, experts = layer.mixer, layer.feed, []
    few = [mixer.output, *([mixer.query, mixer.gate] if isinstance(mixer, Attention) else [])]
    if isinstance(feed, Dense):
        few += [feed.gate, feed.up, feed.down]
    else:
        few += [feed.router, feed.shared_score, *feed.shared]
        experts = [feed.gate, feed.up, feed.down]
    return sum(2 * w.rows * w.columns for w in few) + share * sum(2 * w.rows * w.columns for w in experts)


def _decode(stage: Stage, program: CudaProgram, batch: int, context: int) -> dict[str, Any]:
    one = pace(program, [stage.pages(lane) for lane in range(batch)], context)
    token_bytes = program.pages.page_bytes / PAGE
    written = 1 / LATE if program.verbs.delta.lagging(batch) else 1.0
    lane = lane_bytes(stage.config, context, token_bytes, written)
    moved = stage.weights.step_bytes(batch) + batch * lane
    return {
        "batch": batch,
        "context": context,
        "tokens_per_second": batch / one.seconds,
        "gb_per_step": moved / 1e9,
        "bandwidth_fraction": moved / one.seconds / stage.ceilings.read,
        **one.figures(),
    }


def lane_bytes(config: TextConfig, context: int, token_bytes: float, written: float = 1.0) -> float:
    """What a step moves for one sequence: recurrent state in and out, keys and values of its context.

    ``written`` is the share of steps that write the state.
    """
    heads = config.layer_kinds.count("linear_attention") * config.value_heads
    return heads * config.key_dim * config.value_dim * 4 * (1 + written) + context * token_bytes
