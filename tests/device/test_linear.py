"""Products on a GPU against float32 products of the decoded weights."""

from __future__ import annotations

import functools
import zlib

import numpy as np
import pytest

from ninfer.artifact import layouts
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.gemm import FEW_ROWS, trying
from ninfer.ops.gemm_swiglu import FILE as SWIGLU
from ninfer.ops.linear import Ending, Rows
from ninfer.ops.stored import CODES, stored_matrix
from ninfer.runtime.cuda_transfers import CupyTransfers
from tests.device.card import BF16, bench
from tests.device.tolerance import BF16_REDUCTION, LINEAR_TC

pytestmark = pytest.mark.cuda
# columns of the 27B and 35B decoders with few rows, then many rows of few columns
SHAPES = [
    (512, 5120),
    (640, 6144),
    (256, 17408),
    (384, 4096),
    (256, 2048),
    (128, 16384),
    (5120, 640),
    (9088, 256),
    (2176, 6400),
]


@functools.lru_cache(maxsize=4)
def weight(form, rows, columns, seed=0):
    rng = np.random.default_rng([zlib.crc32(form.encode()), rows, columns, seed])
    values = rng.standard_normal((rows, columns), np.float32) / 8
    data = layouts.encode(values, form)
    device = bench().to(data.view(np.uint8))
    if form == "bf16":
        return stored_matrix(device, form, values.shape), values.astype(BF16).astype(np.float32)
    return stored_matrix(device, form, values.shape), layouts.decode_rows(
        data.data, form, values.shape, 0, rows
    )


def rows_of(rows, columns, seed=1):
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32).astype(BF16)


def product(x, matrix, ending=Ending.STORE_F32, wide=False, residual=None):
    b = bench()
    kind = "f32" if ending in (Ending.STORE_F32, Ending.ADD_RESIDUAL) else "bf16"
    out = b.empty((len(x), matrix.rows), kind)
    added = b.to(residual) if residual is not None else None
    b.products(Rows(b.to(x)), [matrix], [out], ending, added, wide=wide)
    return b.back(out)


@pytest.mark.parametrize("form", CODES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_multiply_and_keep_their_bits_in_any_batch(form, shape):
    matrix, values = weight(form, *shape)
    x = rows_of(16, shape[1])
    want = x.astype(np.float32) @ values.T
    whole = product(x, matrix)
    LINEAR_TC.check(whole, want)
    for begin, end in ((0, 1), (15, 16), (3, 7), (0, 8), (5, 16)):
        assert (product(x[begin:end], matrix) == whole[begin:end]).all(), (begin, end)


@pytest.mark.parametrize("form", CODES)
def test_repeats_give_the_same_bits(form):
    matrix, _ = weight(form, 512, 17408)
    x = rows_of(2, 17408)
    first = product(x, matrix)
    assert all((product(x, matrix) == first).all() for _ in range(20))


@pytest.mark.parametrize("form", CODES)
def test_fused_norm_and_swiglu(form):
    b = bench()
    matrix, values = weight(form, 1024, 5120)
    gate, up = matrix.take(0, 512), matrix.take(512, 1024)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((9, 5120), np.float32) * 4
    norm = (rng.standard_normal(5120) / 4).astype(BF16)
    n = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * (1 + norm.astype(np.float32))
    left, right = n @ values[:512].T, n @ values[512:].T
    want = left / (1 + np.exp(-left)) * right
    found = []
    for rows in (1, 2, 9):
        out = b.empty((rows, 512), "bf16")
        b.products(Rows(b.to(x[:rows]), b.to(norm), 1e-6), [gate, up], [out], Ending.SWIGLU)
        found.append(b.back(out))
        LINEAR_TC.check(found[-1], want[:rows])
    assert (found[0][0] == found[2][0]).all() and (found[1] == found[2][:2]).all()
    out = b.empty((9, 512), "bf16")
    b.products(Rows(b.to(x), b.to(norm), 1e-6), [gate, up], [out], Ending.SWIGLU, wide=True)
    assert np.linalg.norm(b.back(out).astype(np.float32) - want) <= 1.2e-2 * np.linalg.norm(want)


@pytest.mark.parametrize("columns, outputs", [(5120, 2176), (5120, 16400), (256, 512)])
def test_what_products_leave_for_a_norm_changes_no_bits(columns, outputs):
    b = bench()
    (first, _), (second, values) = weight("bf16", columns, 640), weight("bf16", outputs, columns)
    y, residual = rows_of(8, 640), np.random.default_rng(4).standard_normal((8, columns), np.float32) * 3
    weights = (np.random.default_rng(5).standard_normal(columns) / 4).astype(BF16)
    norm = b.to(weights)

    def run(begin, end, leave):
        x, out = b.empty((end - begin, columns), "f32"), b.empty((end - begin, outputs), "f32")
        added, known = b.to(residual[begin:end]), norm if leave else None
        rows = Rows(b.to(y[begin:end]))
        left = b.products(rows, [first], [x], Ending.ADD_RESIDUAL, added, next_norm=known)
        b.products(Rows(x, norm, 1e-6, left), [second], [out], Ending.STORE_F32)
        assert (left is not None) == (leave and end - begin > 1)
        return b.back(x), b.back(out)

    x, whole = run(0, 8, True)
    n = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * (1 + weights.astype(np.float32))
    LINEAR_TC.check(whole, n @ values.T)
    for begin, end, leave in ((0, 8, 0), (0, 1, 0), (7, 8, 1), (2, 4, 1), (0, 2, 0), (1, 5, 0), (3, 8, 1)):
        assert (run(begin, end, leave)[1] == whole[begin:end]).all(), (begin, end, leave)


def test_mixed_formats_share_a_launch_and_residuals_add():
    b = bench()
    made = [
        weight(form, n, 5120) for form, n in (("q4_g64_fp16", 4096), ("q5_g64_fp16", 1024), ("bf16", 96))
    ]
    x = rows_of(3, 5120)
    outs = [b.empty((3, values.shape[0]), "bf16") for _, values in made]
    b.products(Rows(b.to(x)), [matrix for matrix, _ in made], outs, Ending.STORE_BF16)
    for (_, values), out in zip(made, outs, strict=True):
        BF16_REDUCTION.check(b.back(out), x.astype(np.float32) @ values.T)
    matrix, values = weight("q5_g64_fp16", 5120, 6144)
    x, residual = rows_of(2, 6144), np.random.default_rng(3).standard_normal((2, 5120), np.float32)
    LINEAR_TC.check(
        product(x, matrix, Ending.ADD_RESIDUAL, residual=residual),
        x.astype(np.float32) @ values.T + residual,
    )


@pytest.mark.parametrize("form", ["bf16", "q4_g64_fp16", "q6_g64_fp16", "nvfp4", "fp8_e4m3fn_row_bf16"])
@pytest.mark.parametrize("shape", [(1024, 5120), (48, 5120), (2048, 2048)], ids=str)
def test_wide_products_keep_a_rows_bits_in_any_chunk(form, shape):
    if form == "nvfp4" and shape[0] % 128:
        pytest.skip("nvfp4 needs 128 rows")
    matrix, values = weight(form, *shape)
    x = rows_of(1500, shape[1])
    whole = product(x, matrix, wide=True)
    want = x.astype(np.float32) @ values.astype(BF16).astype(np.float32).T
    LINEAR_TC.check(whole, want)
    for begin, end in ((0, 1), (0, 64), (64, 65), (128, 1152), (1100, 1500), (1499, 1500)):
        assert (product(x[begin:end], matrix, wide=True) == whole[begin:end]).all(), (begin, end)


@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize("shape", [(1024, 5120), (48, 5120), (2048, 6144)], ids=str)
def test_algorithms_chosen_by_trial_keep_the_bits_of_the_pinned_one(shape, kind):
    b = bench()
    matrix, _ = weight("bf16", *shape)
    x, ending = rows_of(1500, shape[1]), Ending.STORE_BF16 if kind == "bf16" else Ending.STORE_F32
    whole = product(x, matrix, ending, wide=True)
    before = len(b.gemm._chosen)
    with trying(b.gemm, CupyTransfers(b.card.stream)):
        for rows in (1, 64, 100, 200, 500, 1000):
            assert (product(x[:rows], matrix, ending, wide=True) == whole[:rows]).all(), rows
    assert len(b.gemm._chosen) == before + len(FEW_ROWS)
    for begin, end in ((0, 1), (7, 71), (64, 192), (300, 800), (0, 1500)):
        assert (product(x[begin:end], matrix, ending, wide=True) == whole[begin:end]).all(), (begin, end)


@pytest.mark.parametrize("form", ["bf16", "nvfp4"])
def test_swiglu_in_one_launch_keeps_the_bits_of_two(form):
    b = bench()
    if not b.library.supports(SWIGLU):
        pytest.skip("the card has no such kernel")
    both, _ = weight(form, 4352, 5120)
    gate, up = both.take(0, 2176), both.take(2176, 4352)
    x = rows_of(1280, 5120)

    def run(begin, end):
        out = b.empty((end - begin, 2176), "bf16")
        b.products(Rows(b.to(x[begin:end])), [gate, up], [out], Ending.SWIGLU, wide=True)
        return b.back(out).view(np.uint16)

    b.products.fused._chosen.pop((4352, 5120), None)
    apart = run(0, 1280)
    b.products.fused._chosen[4352, 5120] = True
    for begin, end in ((0, 1280), (1, 1025), (0, 64), (100, 1270)):
        assert (run(begin, end) == apart[begin:end]).all(), (begin, end)
    b.products.fused._chosen.clear()
    with trying(b.gemm, CupyTransfers(b.card.stream)):
        assert (run(0, 1280) == apart).all()
    assert b.products.fused._chosen == {(4352, 5120): True}


@pytest.mark.parametrize("form, columns", [("bf16", 33), ("fp8_e4m3fn_row_bf16", 52), ("q5_g64_fp16", 70)])
def test_odd_shapes(form, columns):
    matrix, values = weight(form, 11, columns)
    x = rows_of(3, columns)
    LINEAR_TC.check(product(x, matrix), x.astype(np.float32) @ values.T)


@pytest.mark.parametrize("form", CODES)
def test_embedding_rows(form):
    b = bench()
    table, values = weight(form, 1024, 5120)
    ids = np.array([0, 1023, 7], np.int32)
    x = b.products.embed(table, b.to(ids))
    assert (b.back(x) == values[ids]).all()
    features = rows_of(1, 5120)
    b.products.replace_rows(x, b.to(np.array([1], np.int32)), b.to(features))
    assert (b.back(x)[1] == features[0].astype(np.float32)).all()


def test_captured_products_replay():
    from ninfer.runtime.graphs import capture

    b = bench()
    matrix, values = weight("q4_g64_fp16", 1024, 5120)
    x, out = b.to(rows_of(4, 5120)), b.empty((4, 1024), "f32")

    def body() -> None:
        b.products(Rows(x), [matrix], [out], Ending.STORE_F32)

    body()
    b.card.wait()
    graph = capture(b.card.library, b.card.stream, body)
    fresh = rows_of(4, 5120, seed=9)
    b.card.write(x, fresh)
    b.card.fill(out, 0xFF)
    graph.replay()
    LINEAR_TC.check(b.back(out), fresh.astype(np.float32) @ values.T)
    assert isinstance(out, DeviceArray) and graph.launches == 1
