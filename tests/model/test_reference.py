"""Both reference models against float32 results recorded with another implementation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from ninfer.engine.device import Bind, Clear, Prefill, Row
from ninfer.engine.job import Sampling
from ninfer.model.qwen3_5 import block, forward
from ninfer.model.weights import Attention
from ninfer.runtime.program import NumpyProgram
from ninfer.runtime.steps import prefill_step
from tests.drive import Request, generate, logits_of, relative, start, step
from tests.model.conftest import text_goldens

Build = Callable[..., NumpyProgram]


@pytest.mark.slow
def test_last_logits_and_greedy_text_match_every_recorded_prompt(reference: Path, build: Build) -> None:
    program = build()
    for golden in text_goldens(reference).values():
        request = Request(golden.ids)
        start(program, request)
        assert relative(logits_of(program), golden.last_logits) < 1e-5, golden.name
        assert generate(program, Request(golden.ids), len(golden.greedy)) == golden.greedy, golden.name


@pytest.mark.slow
def test_bf16_cache_keeps_logits_close_and_greedy_text_equal(reference: Path, build: Build) -> None:
    program = build(kv_dtype="bf16")
    for golden in text_goldens(reference).values():
        request = Request(golden.ids)
        start(program, request)
        assert relative(logits_of(program), golden.last_logits) < 2.5e-3, golden.name
        assert generate(program, Request(golden.ids), len(golden.greedy)) == golden.greedy, golden.name


@pytest.mark.parametrize("name", ["chat", "tool_result"])
def test_every_layer_has_the_recorded_norm_at_every_position(
    reference: Path, build: Build, name: str
) -> None:
    golden, program = text_goldens(reference)[name], build()
    step = prefill_step(Prefill(0, 0, 0, golden.ids, tuple(range(32))))
    with np.errstate(over="ignore"):
        x = program.verbs.embed(program.decoder.embedding, step)
        for layer, wanted in zip(program.decoder.layers, golden.layer_norms, strict=True):
            x = block(program.verbs, layer, x, step)
            norms = np.linalg.norm(x.reshape(-1, x.shape[-1])[: len(golden.ids)], axis=-1)
            np.testing.assert_allclose(norms, wanted, rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_greedy_text_does_not_depend_on_the_chunk_size(reference: Path, build: Build, chunk: int) -> None:
    golden, program = text_goldens(reference)["sum_think"], build(kv_dtype="bf16")
    assert generate(program, Request(golden.ids), 12, chunk) == golden.greedy[:12]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [7, 64, 1000])
def test_a_long_prompt_gives_the_same_text_in_any_chunks(reference: Path, build: Build, chunk: int) -> None:
    golden, program = text_goldens(reference)["tool_result"], build(kv_dtype="bf16")
    assert generate(program, Request(golden.ids), len(golden.greedy), chunk) == golden.greedy


@pytest.mark.slow
def test_chunks_on_the_tile_grid_give_the_same_bits(reference: Path, build: Build) -> None:
    golden, program = text_goldens(reference)["tool_result"], build(kv_dtype="bf16")
    images = []
    for chunk in (64, 128, 2048):
        start(program, Request(golden.ids), chunk)
        images.append(program.images.block[0].copy())
    assert np.array_equal(images[0], images[1]) and np.array_equal(images[0], images[2])


def test_an_empty_prefill_samples_from_the_saved_hidden_state(reference: Path, build: Build) -> None:
    golden, program = text_goldens(reference)["chat"], build()
    pages = tuple(range(32))
    program.run(Clear(0))
    program.run(Bind(0, Sampling()))
    assert program.run(Prefill(0, 0, 0, golden.ids, pages)).rows == ()
    found = program.run(Prefill(0, 0, len(golden.ids), (), pages, sample=True)).rows[0].tokens
    assert found == golden.greedy[:1]


@pytest.mark.slow
def test_recursive_drafts_equal_the_recorded_ones(reference: Path, build: Build) -> None:
    program = build(spec="mtp", draft_tokens=3)
    for golden in text_goldens(reference).values():
        request = Request(golden.ids)
        start(program, request)
        for recorded in golden.drafts[:6]:
            row = Row(0, 0, request.frontier, request.pages, None, draft=3)
            assert program._propose([row])[0] == recorded.tolist(), golden.name
            step(program, [request])


@pytest.mark.slow
def test_the_drafting_head_proposes_the_recorded_ids(reference: Path, build: Build) -> None:
    if reference.suffix != ".ninfer":
        pytest.skip("checkpoints have no drafting head")
    program = build(spec="mtp", draft_tokens=3, proposal_head=True)
    for golden in text_goldens(reference).values():
        request = Request(golden.ids)
        start(program, request)
        for recorded in golden.extra["proposal_drafts"][:4]:
            row = Row(0, 0, request.frontier, request.pages, None, draft=3)
            assert program._propose([row])[0] == recorded.tolist(), golden.name
            step(program, [request])


@pytest.mark.slow
def test_speculation_does_not_change_greedy_text(reference: Path, build: Build) -> None:
    program = build(spec="mtp", draft_tokens=3, kv_dtype="bf16")
    for golden in text_goldens(reference).values():
        text = generate(program, Request(golden.ids), len(golden.greedy), draft=3)
        assert text == golden.greedy, golden.name


@pytest.mark.slow
def test_a_seed_gives_the_same_text_alone_and_among_others(reference: Path, build: Build) -> None:
    hot = Sampling(temperature=1.0, top_p=0.95, seed=5)
    prompts = [golden.ids for golden in text_goldens(reference).values() if len(golden.ids) < 40]
    alone = build(max_context=256, kv_dtype="bf16")
    crowd = build(max_context=256, kv_dtype="bf16", max_concurrency=8, kv_capacity=8 * 256)
    requests = [
        Request(ids, lane=lane, slot=7 - lane, pages=tuple(range(4 * lane, 4 * lane + 4)), sampling=hot)
        for lane, ids in enumerate((prompts * 2)[:8])
    ]
    for request in requests:
        start(crowd, request)
    for _ in range(12):
        step(crowd, requests)
    for request in requests[:3]:
        single = Request(request.ids, pages=tuple(range(4)), sampling=hot)
        assert list(generate(alone, single, 13)) == request.out
        assert np.array_equal(alone.images.block[0], crowd.images.block[request.slot])


def test_swapping_query_and_gate_rows_is_noticed(reference: Path, build: Build) -> None:
    golden, program = text_goldens(reference)["chat"], build()
    layers = [
        attrs.evolve(layer, mixer=attrs.evolve(layer.mixer, query=layer.mixer.gate, gate=layer.mixer.query))
        if isinstance(layer.mixer, Attention)
        else layer
        for layer in program.decoder.layers
    ]
    program.decoder = attrs.evolve(program.decoder, layers=tuple(layers))
    start(program, Request(golden.ids))
    assert relative(logits_of(program), golden.last_logits) > 1e-2


def test_experts_are_the_recorded_ones_at_every_position(reference: Path, build: Build) -> None:
    golden, program = text_goldens(reference)["chat"], build()
    if "expert_ids" not in golden.extra:
        pytest.skip("no recorded experts")
    step = prefill_step(Prefill(0, 0, 0, golden.ids, tuple(range(32))))
    routes = Watched(program.verbs)
    with np.errstate(over="ignore"):
        forward(routes, program.decoder, step)
    count = len(golden.ids)
    for route, ids, weights in zip(
        routes.seen, golden.extra["expert_ids"], golden.extra["expert_weights"], strict=True
    ):
        assert np.array_equal(route.experts[:count], ids)
        np.testing.assert_allclose(route.weights[count - 1], weights, rtol=1e-4)


class Watched:
    """Verbs that remember what their router chose."""

    def __init__(self, verbs: Any) -> None:
        self.verbs = verbs
        self.seen: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.verbs, name)

    def norm_route(self, *args: Any) -> Any:
        """Route and remember."""
        self.seen.append(self.verbs.norm_route(*args))
        return self.seen[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("kv", "bound"), [("int8", 8e-3), ("fp8", 5e-2), ("nvfp4", 0.1), ("k8v4", 0.1)])
def test_smaller_caches_move_logits_by_their_share(
    reference: Path, build: Build, kv: str, bound: float
) -> None:
    program = build(kv_dtype=kv)
    for name in ("chat", "json", "tool_result"):
        golden = text_goldens(reference)[name]
        start(program, Request(golden.ids))
        assert bound / 50 < relative(logits_of(program), golden.last_logits) < bound, name
