"""Published shapes on cards of every kind: no launch asks for more shared memory than a block may have."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ninfer.artifact import inventory
from ninfer.bench.gpu import RandomLoader
from ninfer.bench.random_weights import RandomWeights
from ninfer.bench.shapes import SHAPES, recipe
from ninfer.commands.bench_gpu import RECIPES
from ninfer.engine.device import Prefill
from ninfer.kernels_cu import source
from ninfer.model.weights import load_decoder
from ninfer.runtime import cuda_build
from ninfer.runtime.arena import Region, Scratch
from ninfer.runtime.cuda_build import IdleLibrary, Machine, NoTransfers, Sizes, rehearse
from ninfer.spec.drafter import DRAFTERS

# Multiprocessors and KiB of shared memory of a block: A100, RTX 3090, RTX 4090, H200, B200, RTX 5090.
CARDS = {
    "sm_80": (108, 163),
    "sm_86": (82, 99),
    "sm_89": (128, 99),
    "sm_90": (132, 227),
    "sm_100": (148, 227),
    "sm_120": (170, 99),
}


@attrs.frozen
class Card:
    """What a launcher may ask of a card."""

    arch: str

    def supports(self, file: str) -> bool:
        """Whether there is code of ``file``."""
        return bool({self.arch, f"{self.arch}a"} & set(source.load(file).architectures))


def loaders(name: str, form: str) -> tuple[Any, Any, Any]:
    """A shape, its decoder and its drafter at addresses that are made up."""
    config = SHAPES[name]()
    made: Any = RandomWeights(IdleLibrary(None), Region(1 << 40, 1 << 50).take)
    loader = RandomLoader(made, inventory.text(config), recipe(form, config))
    decoder = load_decoder(loader, config)
    return config, decoder, DRAFTERS["mtp"](attrs.evolve(loader, shapes=inventory.mtp(config)), decoder)


@pytest.mark.parametrize("arch", CARDS)
@pytest.mark.parametrize("form", RECIPES)
@pytest.mark.parametrize("name", SHAPES)
def test_every_launch_fits(monkeypatch: pytest.MonkeyPatch, arch: str, form: str, name: str) -> None:
    asked = [0]
    monkeypatch.setattr(IdleLibrary, "launch", lambda *_, shared=0, **__: asked.append(shared))
    multiprocessors, kib = CARDS[arch]
    machine = Machine(Card(arch), multiprocessors, kib << 10, cuda_build._no_product, NoTransfers())  # type: ignore[arg-type]
    config, decoder, drafter = loaders(name, form)
    sizes = Sizes(lanes=8, slots=16, pages=1024, context=8192, chunk=1024, drafts=5, vocab=config.vocab)
    kept, scratch = rehearse(machine, config, decoder, drafter, sizes)
    assert kept and scratch and len(asked) > 100
    assert max(asked) <= kib << 10


@pytest.mark.parametrize("arch", CARDS)
def test_notes_have_room_only_where_slots_may_lag(arch: str) -> None:
    multiprocessors, kib = CARDS[arch]
    idle: Any = IdleLibrary(Card(arch))
    machine = Machine(idle, multiprocessors, kib << 10, cuda_build._no_product, NoTransfers())
    config, decoder, _ = loaders("qwen3.6-27b", "q8")
    for lanes in (2, 8):
        sizes = Sizes(lanes, 16, 1024, 8192, 1024, 0, config.vocab)
        take = Region(1 << 40, 1 << 50).take, Scratch(1 << 41, 1 << 50).take
        delta = cuda_build.assemble(machine, config, decoder, None, sizes, *take).verbs.delta
        assert (delta.notes is not None) == delta.lagging(lanes) == (lanes == 8 and kib == 227)


@pytest.mark.parametrize("kind", ["bf16", "int8", "nvfp4"])
def test_the_last_piece_of_the_longest_prompt_was_rehearsed(kind: str) -> None:
    context, chunk = 262_144, 1024
    machine: Any = Machine(Card("sm_90"), 132, 227 << 10, cuda_build._no_product, NoTransfers())  # type: ignore[arg-type]
    config, decoder, _ = loaders("qwen3.6-27b", "q8")
    sizes = Sizes(1, 2, context // 64, context, chunk, 0, config.vocab, kv_kind=kind)
    kept, lent = rehearse(machine, config, decoder, None, sizes)
    idle = attrs.evolve(machine, library=IdleLibrary(machine.library))
    take = Region(1 << 40, kept).take, Scratch(1 << 41, lent).take
    program = cuda_build.assemble(idle, config, decoder, None, sizes, *take)
    pages = tuple(range(context // 64))
    for start in (0, 100_000, context - chunk - 1):
        program.run(Prefill(0, 0, start, (5,) * chunk, pages, sample=True))
