"""Driving decode rounds for the GPU benchmark, on a machine that launches nothing."""

from __future__ import annotations

import attrs
import pytest

from ninfer.artifact import inventory
from ninfer.bench.gpu import RandomLoader
from ninfer.bench.random_weights import RandomWeights
from ninfer.bench.rounds import ROUNDS, compare, pace, without_drafter
from ninfer.bench.shapes import SHAPES, recipe
from ninfer.engine.device import Bind
from ninfer.model.weights import load_decoder, load_proposal
from ninfer.runtime.arena import Region, Scratch
from ninfer.runtime.cuda_build import IdleLibrary, Machine, NoTransfers, Sizes, assemble
from ninfer.spec.drafter import DRAFTERS


class Card:
    """What is asked of a card's library before anything is launched."""

    arch = "sm_90"

    def supports(self, file):
        return True


@attrs.define
class Watched:
    """A program's door; notes what was submitted, and how many rounds had not been read by then."""

    program: object
    seen: list = attrs.field(factory=list)
    unread: int = 0

    def __getattr__(self, name):
        return getattr(self.program, name)

    def run(self, unit):
        assert isinstance(unit, Bind)
        return self.program.run(unit)

    def start(self, unit):
        self.seen.append((unit.rows, self.unread))
        self.unread += 1
        finish = self.program.start(unit)

        def result():
            self.unread -= 1
            return finish()

        return result


@pytest.fixture
def program():
    """A drafting program of a published shape with two decoder layers of each kind."""
    config = SHAPES["qwen3.6-27b"]()
    config = attrs.evolve(config, layer_kinds=("linear_attention", "full_attention") * 2)
    region, idle = Region(1 << 40, 1 << 50), IdleLibrary(Card())
    loader = RandomLoader(
        RandomWeights(idle, region.take), inventory.text(config), recipe("fp8", config), send=ignore
    )
    heads = inventory.mtp(config).shapes | inventory.proposal(config, 131_072).shapes
    drafting = attrs.evolve(loader, shapes=inventory.Inventory(heads))
    decoder = attrs.evolve(load_decoder(loader, config), proposal=load_proposal(drafting))
    machine = Machine(idle, 132, 227 << 10, None, NoTransfers())
    sizes = Sizes(2, 3, 32, 1024, 1024, 3, config.vocab)
    drafter = DRAFTERS["mtp"](drafting, decoder)
    return assemble(machine, config, decoder, drafter, sizes, region.take, Scratch(1 << 52, 1 << 40).take)


def ignore(target, values):
    pass


TABLES = [tuple(range(16)), tuple(range(16, 32))]


def test_plain_steps_are_submitted_ahead_of_their_results(program):
    watched = Watched(without_drafter(program))
    pace(watched, TABLES, 512)
    assert len(watched.seen) == ROUNDS and watched.unread == 0
    assert [unread for _, unread in watched.seen] == [0] + [1] * (ROUNDS - 1)
    assert {row.draft for rows, _ in watched.seen for row in rows} == {0}


def test_rounds_with_drafts_are_read_and_folded_whole(program):
    watched = Watched(program)
    pace(watched, TABLES, 512, width=3)
    assert {unread for _, unread in watched.seen} == {0}
    assert [row.keep for rows, _ in watched.seen[1:] for row in rows] == [4] * 2 * (ROUNDS - 1)
    assert max(row.frontier + 1 + row.draft for rows, _ in watched.seen for row in rows) == 512


def test_a_comparison_holds_every_width(program):
    found = compare(program, without_drafter(program), TABLES, 512, 3)
    assert [row["width"] for row in found["rounds"]] == [0, 1, 2, 3]
    assert found["rounds"][3]["ratio"] == pytest.approx(
        found["rounds"][3]["milliseconds"] / found["plain_milliseconds"]
    )
