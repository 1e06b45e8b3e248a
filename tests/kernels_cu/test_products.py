"""Routes of a product, embedding and widening, on the CPU emulator with a GEMM of NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.cuda_state import Shape
from ninfer.ops.linear import Ending, Rows
from ninfer.ops.on_cuda import CudaVerbs
from ninfer.ops.products import Products, bands, joined
from ninfer.ops.verbs import Weight
from tests.emulator import toolkit
from tests.emulator.memory import gemm, seen, take
from tests.kernels_cu.test_linear import BF16, FORMATS, aligned, close, linear, on_device, rows_of, weight

pytestmark = pytest.mark.skipif(toolkit() is None, reason="needs CUDA headers and a host compiler")


def products():
    return Products(linear(), gemm)


@pytest.mark.parametrize("form", FORMATS)
def test_embedding_and_widening_agree_with_the_codec(form):
    rng = np.random.default_rng(1)
    table, values = weight(rng, form, 128, 192)
    ids = np.array([5, 127, 0, 5], np.int32)
    run = products()
    assert (seen(run.embed(table, on_device(ids))) == values[ids]).all()
    assert (seen(run.widen(table)) == values.astype(BF16)).all()
    assert (seen(run.widen(table.take(64, 96))) == values[64:96].astype(BF16)).all()


def test_unknown_id_gives_nan():
    table, _ = weight(np.random.default_rng(1), "bf16", 8, 16)
    assert np.isnan(seen(products().embed(table, on_device(np.array([8, -1], np.int32))))).all()


def test_verbs_hand_what_a_product_left_to_the_norm_it_was_left_for_and_to_no_other():
    rng = np.random.default_rng(6)
    made = [weight(rng, "bf16", rows, columns)[0] for rows, columns in ((128, 64), (40, 128), (40, 128))]
    output, gate, up = (Weight(m.rows, m.columns, m.format, m) for m in made)
    norms = [on_device(aligned(rng.standard_normal(128).astype(BF16))) for _ in range(2)]
    y, x = on_device(rows_of(rng, 5, 64)), aligned(rng.standard_normal((5, 128)).astype(np.float32))

    def run(norm, between=False, **known):
        parts = dict.fromkeys(("attention", "delta", "experts", "sampler"))
        verbs = CudaVerbs(Shape(128, 1, 1, 1, 1, 1e-6), take, products(), **parts, **known)
        added = verbs.project_add(y, output, on_device(x))
        if between:
            verbs.project_add(y, output, on_device(x))
        out = verbs.norm_swiglu(added, norm, gate, up)
        return seen(out).copy(), "scale_rows_by_tiles" in {
            key[1] for key in verbs.products.linear.library._kernels
        }

    followers = {output.data.codes: norms[0]}
    left, plain = run(norms[0], followers=followers), run(norms[0])
    assert not left[1] and plain[1] and (left[0] == plain[0]).all()
    other = run(norms[1], followers=followers)
    assert other[1] and (other[0] == run(norms[1])[0]).all()
    assert run(norms[0], between=True, followers=followers)[1]


@pytest.mark.parametrize("form, columns", [("bf16", 33), ("fp8_e4m3fn_row_bf16", 52), ("q5_g64_fp16", 70)])
@pytest.mark.parametrize(
    "ending", [Ending.STORE_BF16, Ending.STORE_F32, Ending.ADD_RESIDUAL, Ending.SWIGLU]
)
def test_odd_shapes_take_the_plain_kernels(form, columns, ending):
    rng = np.random.default_rng(columns)
    (a, a_values), (b, b_values) = weight(rng, form, 11, columns), weight(rng, form, 11, columns)
    x = aligned(rng.standard_normal((2, columns)).astype(np.float32))
    norm = aligned(rng.standard_normal(columns).astype(BF16))
    residual = aligned(rng.standard_normal((2, 11)).astype(np.float32))
    out = np.full((2, 11), np.nan, BF16 if ending in (Ending.STORE_BF16, Ending.SWIGLU) else np.float32)
    matrices = [a, b] if ending is Ending.SWIGLU else [a]
    added = on_device(residual) if ending is Ending.ADD_RESIDUAL else None
    products()(Rows(on_device(x), on_device(norm), 1e-6), matrices, [on_device(out)], ending, added)
    n = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * (1 + norm.astype(np.float32))
    want = n @ a_values.T
    if ending is Ending.SWIGLU:
        want = want / (1 + np.exp(-want)) * (n @ b_values.T)
    got = out.astype(np.float32) - (residual if ending is Ending.ADD_RESIDUAL else 0)
    assert np.linalg.norm(got - want) <= 8e-3 * np.linalg.norm(want)


def test_swiglu_of_slices_that_begin_at_different_places_of_a_block():
    rng = np.random.default_rng(4)
    both, values = weight(rng, "nvfp4", 384, 192)
    gate, up = both.take(0, 192), both.take(192, 384)
    x, out = aligned(rng.standard_normal((3, 192)).astype(BF16)), np.full((3, 192), np.nan, BF16)
    products()(Rows(on_device(x)), [gate, up], [on_device(out)], Ending.SWIGLU)
    a, b = x.astype(np.float32) @ values[:192].T, x.astype(np.float32) @ values[192:].T
    want = a / (1 + np.exp(-a)) * b
    assert np.linalg.norm(out.astype(np.float32) - want) <= 8e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("form", ["bf16", "q6_g64_fp16", "nvfp4"])
@pytest.mark.parametrize("split", [True, False])
def test_wide_swiglu_joins_neighbours(form, split):
    rng = np.random.default_rng(9)
    both, values = weight(rng, form, 256, 128)
    gate, up = both.take(0, 128), both.take(128, 256)
    if split:
        up, up_values = weight(rng, form, 128, 128)
    else:
        up_values = values[128:]
        assert joined(gate, up) is not None and joined(up, gate) is None
    x, out = rows_of(rng, 20, 128), np.full((20, 128), np.nan, BF16)
    products()(Rows(on_device(x)), [gate, up], [on_device(out)], Ending.SWIGLU, wide=True)
    a, b = x.astype(np.float32) @ values[:128].T, x.astype(np.float32) @ up_values.T
    assert np.linalg.norm(out.astype(np.float32) - a / (1 + np.exp(-a)) * b) <= 8e-3 * np.linalg.norm(out)


def test_wide_products_with_neighbours_are_one():
    rng = np.random.default_rng(11)
    whole, values = weight(rng, "q5_g64_fp16", 256, 128)
    other, other_values = weight(rng, "bf16", 24, 128)
    a, b, c = whole.take(0, 64), whole.take(64, 192), whole.take(192, 256)
    assert [count for _, count in bands([a, b, c])] == [3]
    assert [count for _, count in bands([a, other, b, c])] == [1, 1, 2]  # the first is never with the third
    assert [count for _, count in bands([a, b, other])] == [2, 1]
    run, x = products(), rows_of(rng, 20, 128)
    outs = run.places(20, [a, b, other], wide=True)
    assert [out.stride for out in outs] == [192, 192, 24]  # rows begin on 128 bytes
    run(Rows(on_device(x)), [a, b, other], outs, Ending.STORE_BF16, wide=True)
    beside = DeviceArray(outs[0].ptr, (20, 192), "bf16")
    for out, rows in ((beside, values[:192]), (outs[2], other_values)):
        close(seen(out).astype(np.float32), x.astype(np.float32) @ rows.T)
    narrow = [whole.take(0, 64), whole.take(64, 72)]
    outs = run.places(20, narrow, wide=True)
    assert [out.stride for out in outs] == [128, 128]
    run(Rows(on_device(x)), narrow, outs, Ending.STORE_BF16, wide=True)
    close(seen(outs[1]).astype(np.float32), x.astype(np.float32) @ values[64:72].T)
    with pytest.raises(ValueError):
        run(Rows(on_device(x)), [a, b], run.places(20, [a, b]), Ending.STORE_BF16, wide=True)


def test_wide_product_adds_the_residual():
    rng = np.random.default_rng(10)
    matrix, values = weight(rng, "q4_g64_fp16", 64, 128)
    x, residual = rows_of(rng, 18, 128), rng.standard_normal((18, 64)).astype(np.float32)
    out = np.full((18, 64), np.nan, np.float32)
    products()(
        Rows(on_device(x)), [matrix], [on_device(out)], Ending.ADD_RESIDUAL, on_device(residual), wide=True
    )
    close(out, x.astype(np.float32) @ values.T + residual)


def test_replacing_rows_touches_only_those():
    x, features = np.zeros((3, 9), np.float32), np.ones((1, 9), ml_dtypes.bfloat16)
    products().replace_rows(on_device(x), on_device(np.array([1], np.int32)), on_device(features))
    assert x.sum(axis=1).tolist() == [0, 9, 0]
