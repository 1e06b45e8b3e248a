"""The memory plan of a card, with addresses and no card."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from ninfer.artifact.reader import open_artifact
from ninfer.faults import StartupError
from ninfer.model.weights import load_decoder
from ninfer.ops.cuda_state import page_bytes
from ninfer.runtime import build, cuda_open
from ninfer.runtime.build import choose_backend, page_count
from ninfer.runtime.cuda_build import IdleLibrary, Machine, NoTransfers
from ninfer.runtime.cuda_card import nearest
from ninfer.runtime.cuda_open import Extras, plan_memory, sizes_of
from ninfer.runtime.cuda_weights import StoredWeights, objects_of, upload
from ninfer.settings import EngineOptions
from tests.runtime.test_cuda_weights import Host, take

MODEL = Path(__file__).resolve().parents[2] / "fixtures" / "tiny-qwen3_5.ninfer"
OPTIONS = EngineOptions(max_context=1024, max_concurrency=2, prefill_chunk=256)


@attrs.frozen
class Card:
    """So many bytes free."""

    free: int

    def free_bytes(self) -> int:
        return self.free


@attrs.frozen
class Real:
    """What an idle library repeats."""

    arch: str = "sm_90"

    def supports(self, file: str) -> bool:
        return False


MACHINE = Machine(IdleLibrary(Real()), 132, 227 << 10, lambda *a, **b: None, NoTransfers())


@pytest.fixture(scope="module")
def loaded():
    with open_artifact(MODEL) as artifact:
        names = list(artifact.inventory("text").names())
        placed = upload(artifact, objects_of(artifact, names), take, Host(), lambda text: None)
        loader = StoredWeights(artifact, placed, take, Host())
        return artifact.text_config, load_decoder(loader, artifact.text_config), None, None


def planned(loaded, options, free):
    return plan_memory(Card(free), MACHINE, options, loaded, 1000)


def test_pool_follows_the_capacity_between_one_context_and_all_lanes_full(loaded):
    asked = {
        n: sizes_of(attrs.evolve(OPTIONS, kv_capacity=n), loaded[0], 1000, False).pages
        for n in (1, 1500, 9000)
    }
    assert asked == {1: 16, 1500: 24, 9000: 32}


def test_auto_takes_what_is_left_beyond_a_gibibyte_and_no_more_than_all_lanes_need(loaded):
    auto = attrs.evolve(OPTIONS, kv_auto=True)
    _, least = planned(loaded, OPTIONS, 1 << 40)
    config = loaded[0]
    step = page_bytes("bf16", config.layer_kinds.count("full_attention"), config.kv_heads)
    tight = least.kept + least.scratch + (1 << 30) + 5 * step
    sizes, plan = planned(loaded, auto, tight)
    assert sizes.pages == plan.pages == 16 + 5
    assert plan.kept + plan.scratch + (1 << 30) <= tight
    assert planned(loaded, auto, least.kept + least.scratch + least.headroom)[0].pages == 16
    assert planned(loaded, auto, 1 << 40)[0].pages == 32


def test_a_card_too_small_is_refused_with_the_numbers(loaded):
    with pytest.raises(StartupError, match=r"lacks [0-9.]+ GiB.*--max-context"):
        planned(loaded, OPTIONS, 100 << 20)


def test_unsupported_cache_formats_are_refused(loaded):
    with pytest.raises(StartupError, match="kv-dtype fp32"):
        planned(loaded, attrs.evolve(OPTIONS, kv_dtype="fp32"), 1 << 40)


def test_numpy_sizes_an_automatic_pool_for_all_lanes():
    assert page_count(attrs.evolve(OPTIONS, kv_auto=True)) == 32


@pytest.mark.parametrize("asked", [{"kv_auto": True}, {"kv_capacity": 1 << 20}])
def test_numpy_takes_no_page_beyond_what_the_model_was_made_for(asked):
    options = attrs.evolve(OPTIONS, max_context=1 << 20, **asked)
    with open_artifact(MODEL) as artifact:
        geometry = build.build_numpy(artifact, options, lambda text: None).geometry
    made_for = 8192
    assert geometry.max_context == made_for
    assert geometry.pages * geometry.page_tokens == options.max_concurrency * made_for


def test_auto_takes_the_card_only_where_there_is_one(monkeypatch):
    for here in (True, False):
        monkeypatch.setattr(cuda_open, "cuda_is_here", lambda here=here: here)
        assert choose_backend("auto") is (build.build_on_card if here else build.build_numpy)
    assert choose_backend("cuda") is build.build_on_card
    with pytest.raises(StartupError, match="no backend"):
        choose_backend("tpu")


def test_gathered_weights_share_blocks(monkeypatch):
    taken = []

    @attrs.frozen
    class Block:
        ptr: int
        nbytes: int

    def allocate(nbytes, what):
        taken.append(nbytes)
        return Block(len(taken) << 32, nbytes)

    monkeypatch.setattr(cuda_open.RawBlock, "allocate", allocate)
    extras = Extras()
    first, second = extras.take((1000,), "u8"), extras.take((1 << 20,), "u8")
    assert second.ptr == first.ptr + 1024 and taken == [cuda_open.EXTRA_BYTES]
    extras.take((1 << 28,), "u8")
    assert taken[1] == 1 << 28


@pytest.mark.parametrize(
    "capability, arch",
    [((9, 0), "sm_90"), ((8, 7), "sm_86"), ((12, 1), "sm_120"), ((7, 5), None), ((11, 0), None)],
)
def test_newer_cards_of_a_family_run_its_code(capability, arch):
    assert nearest(*capability) == arch


def test_a_unit_can_always_hold_what_closes_a_reasoning_block(loaded):
    chunks = {
        (n, context): sizes_of(
            attrs.evolve(OPTIONS, prefill_chunk=n, max_context=context), loaded[0], 1000, False
        ).chunk
        for n, context in ((1, 512), (100, 512), (1024, 512), (1, 16))
    }
    assert chunks == {(1, 512): 64, (100, 512): 100, (1024, 512): 512, (1, 16): 16}
