"""Whole verbs of the NumPy backend: conventions that a single formula does not show."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from ninfer.engine.device import Prefill
from ninfer.model.weights import Attention, Decoder, Delta
from ninfer.ops.numpy_weights import joined, multiply, rows_of
from ninfer.ops.verbs import Array, Step
from ninfer.runtime.program import NumpyProgram
from ninfer.runtime.steps import prefill_step
from tests.toy import DENSE, SPARSE, toy_program

RANDOM = np.random.default_rng(12)
IDS = (3, 14, 15, 9, 26)


@pytest.fixture
def program() -> NumpyProgram:
    return toy_program()


@pytest.fixture
def step() -> Step:
    return prefill_step(Prefill(0, 0, 0, IDS, tuple(range(16))))


def mixed(program: NumpyProgram, w: Delta, step: Step) -> Array:
    x = program.verbs.embed(program.decoder.embedding, step)
    q, k, v, z, a, b = program.verbs.norm_project(x, w.norm, (w.query, w.key, w.value, w.z, w.a, w.b))
    return program.verbs.delta_rule(
        (q, k, v), z, a, b, w.convolution, w.a_log, w.dt_bias, w.inner_norm, 0, step
    )


def first(decoder: Decoder, kind: type) -> Attention | Delta:
    return next(layer.mixer for layer in decoder.layers if isinstance(layer.mixer, kind))


def test_the_inner_norm_of_the_delta_net_multiplies_by_w_alone(program: NumpyProgram, step: Step) -> None:
    w = first(program.decoder, Delta)
    assert isinstance(w, Delta)
    once = mixed(program, w, step)
    program.images.clear(0)
    assert not mixed(program, attrs.evolve(w, inner_norm=np.zeros_like(w.inner_norm)), step).any()
    program.images.clear(0)
    twice = mixed(program, attrs.evolve(w, inner_norm=2 * w.inner_norm), step)
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-6)


def test_the_text_norm_with_zero_weight_only_rescales(program: NumpyProgram) -> None:
    x = RANDOM.standard_normal((1, 64, 64)).astype(np.float32)
    found = program.verbs.final_norm(x, np.zeros(64, np.float32))
    wanted = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_features_replace_the_embeddings_of_their_rows(program: NumpyProgram, step: Step) -> None:
    features = RANDOM.standard_normal((2, 64)).astype(np.float32)
    plain = program.verbs.embed(program.decoder.embedding, step)[0]
    seen = program.verbs.embed(
        program.decoder.embedding, attrs.evolve(step, embeds=(np.array([1, 3]), features))
    )[0]
    assert np.array_equal(seen[[1, 3]], features)
    assert np.array_equal(seen[[0, 2, 4]], plain[[0, 2, 4]])
    assert not seen[5:].any()


def test_hidden_states_move_one_row_down_and_the_slot_fills_the_first(
    program: NumpyProgram, step: Step
) -> None:
    verbs = program.verbs
    hidden = verbs.embed(program.decoder.embedding, step)
    verbs.slots.hidden[0] = 7
    moved = verbs.previous_hidden(hidden, step)[0]
    assert (moved[0] == 7).all() and np.array_equal(moved[1:5], hidden[0, :4])
    verbs.keep_hidden(hidden, step)
    assert np.array_equal(verbs.slot_hidden(step)[0, 0], hidden[0, 4])
    assert np.array_equal(verbs.last_rows(hidden, step)[0, 0], hidden[0, 4])


def test_best_prefers_the_lower_index_and_maps_ids(program: NumpyProgram) -> None:
    logits = np.array([[1, 3, 3], [2, 2, 2]], np.float32)
    assert program.verbs.best(logits, None).tolist() == [1, 0]
    assert program.verbs.best(logits, np.array([40, 50, 60], np.int32)).tolist() == [50, 40]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1,), (0, 2), (1, 2)])
def test_weights_multiply_alike_side_by_side_and_apart(order: tuple[int, ...]) -> None:
    matrices = [RANDOM.standard_normal((rows, 32)).astype(np.float32) for rows in (8, 24, 4)]
    weights = joined(matrices)
    x = RANDOM.standard_normal((3, 1, 32)).astype(np.float32)
    found = multiply(x, [weights[i] for i in order])
    for y, i in zip(found, order, strict=True):
        np.testing.assert_allclose(y, x @ matrices[i].T, rtol=2e-5, atol=1e-5)
    assert np.array_equal(rows_of(weights[1], np.array([5, 0])), matrices[1][[5, 0]])


@pytest.mark.parametrize("tile", [1, 64])
@pytest.mark.parametrize("shape", [(1544, 256), (256, 768), (96, 64), (7, 40)])
def test_a_tile_has_the_same_bits_in_any_company(shape: tuple[int, int], tile: int) -> None:
    """The promise on which batch invariance rests, on this machine's BLAS."""
    (weight,) = joined([RANDOM.standard_normal(shape).astype(np.float32)])
    x = RANDOM.standard_normal((9, tile, shape[1])).astype(np.float32)
    (whole,) = multiply(x, (weight,))
    for part in (slice(0, 1), slice(4, 5), slice(3, 9)):
        assert np.array_equal(multiply(np.ascontiguousarray(x[part]), (weight,))[0], whole[part])


@pytest.mark.parametrize("config", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_padding_rows_stay_zero_through_every_layer(config: dict[str, object]) -> None:
    from ninfer.model.qwen3_5 import block

    program = toy_program(config)
    step = prefill_step(Prefill(0, 0, 0, IDS, tuple(range(16))))
    x = program.verbs.embed(program.decoder.embedding, step)
    for layer in program.decoder.layers:
        x = block(program.verbs, layer, x, step)
        assert not x[0, len(IDS) :].any()
