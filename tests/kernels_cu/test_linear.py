"""The streaming linear kernel on the CPU emulator, against float32 products of decoded weights."""

from __future__ import annotations

import re
import subprocess

import attrs
import ml_dtypes
import numpy as np
import pytest

from ninfer.artifact import layouts
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.source import load
from ninfer.ops.linear import (
    CHUNKED,
    COUNTERS,
    KERNELS,
    LEAVING,
    Ending,
    Linear,
    Rows,
    warps_of,
)
from ninfer.ops.linear_fit import LAYOUTS, SPANS, chunk_fit
from ninfer.ops.stored import CODES, stored_matrix
from tests.emulator import KINDS, EmulatedLibrary, toolkit, translate

pytestmark = pytest.mark.skipif(toolkit() is None, reason="needs CUDA headers and a host compiler")
BF16 = ml_dtypes.bfloat16
FORMATS = tuple(CODES)


def on_device(array):
    kind = "bf16" if array.dtype == BF16 else KINDS[str(array.dtype)]
    return DeviceArray(array.ctypes.data, array.shape, kind, array)


def take(shape, kind):
    dtype = {"bf16": np.uint16, "f32": np.float32}[kind]
    return DeviceArray((made := np.full(shape, 0xFF, dtype)).ctypes.data, shape, kind, made)


def aligned(data):
    """The same bytes at an address that is a multiple of 256, as on the device."""
    room = np.zeros(data.nbytes + 256, np.uint8)
    at = -room.ctypes.data % 256
    room[at : at + data.nbytes] = data.view(np.uint8).reshape(-1)
    return room[at : at + data.nbytes].view(data.dtype).reshape(data.shape)


def weight(rng, form, rows, columns):
    """A stored matrix and its decoded values."""
    values = rng.standard_normal((rows, columns)).astype(np.float32) / 8
    data = aligned(layouts.encode(values, form))
    if form == "bf16":
        return stored_matrix(on_device(data), form, values.shape), values.astype(BF16).astype(np.float32)
    decoded = layouts.decode_rows(data.data, form, values.shape, 0, rows)
    return stored_matrix(on_device(data), form, values.shape), decoded


def linear(order=0, blocks=3):
    counters = np.zeros(COUNTERS, np.uint32)
    return Linear(EmulatedLibrary(order), blocks, 227 << 10, take, on_device(counters))


def rows_of(rng, rows, columns):
    return aligned(rng.standard_normal((rows, columns)).astype(BF16))


def close(got, want):
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 4e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rows, columns", [(1, 256), (3, 320), (8, 128), (9, 704)])
def test_every_format_multiplies(form, rows, columns):
    rng = np.random.default_rng(rows + columns)
    matrix, values = weight(rng, form, 128, columns)
    x, out = rows_of(rng, rows, columns), np.full((rows, 128), np.nan, np.float32)
    linear()(Rows(on_device(x)), [matrix], [on_device(out)], Ending.STORE_F32)
    close(out, x.astype(np.float32) @ values.T)


@pytest.mark.parametrize("form", FORMATS)
def test_what_a_row_of_x_holds_stays_its_own_affair(form):
    rng = np.random.default_rng(11)
    matrix, values = weight(rng, form, 128, 256)
    x = rng.standard_normal((7, 256)).astype(np.float32)
    x[0] *= 10.0 ** rng.integers(-12, 12, 256)  # no two columns of one size
    x[1, 70] = 3000  # an outlier among its 64 columns
    x[2] = 0
    x[3, 5], x[4, 200] = np.nan, np.inf
    x[5] *= 1e-30
    x = aligned(x.astype(BF16))
    out = np.full((7, 128), 7, np.float32)
    linear()(Rows(on_device(x)), [matrix], [on_device(out)], Ending.STORE_F32)
    for row in (0, 1, 5, 6):
        close(out[row], x[row].astype(np.float32) @ values.T)
    assert (out[2] == 0).all()
    assert not np.isfinite(out[3:5]).any()


@pytest.mark.parametrize("ending", [Ending.STORE_BF16, Ending.ADD_RESIDUAL])
def test_mixed_formats_and_ragged_rows_share_a_launch(ending):
    rng = np.random.default_rng(3)
    made = [
        weight(rng, form, n, 192) for form, n in (("q4_g64_fp16", 40), ("bf16", 5), ("q5_g64_fp16", 24))
    ]
    x = rows_of(rng, 2, 192)
    if ending is Ending.ADD_RESIDUAL:
        made = made[:1]
    kind = BF16 if ending is Ending.STORE_BF16 else np.float32
    outs = [np.full((2, values.shape[0]), np.nan, kind) for _, values in made]
    residual = rng.standard_normal((2, 40)).astype(np.float32)
    added = residual if ending is Ending.ADD_RESIDUAL else None
    linear(blocks=5)(
        Rows(on_device(x)),
        [m for m, _ in made],
        [on_device(out) for out in outs],
        ending,
        on_device(residual) if added is not None else None,
    )
    for (_, values), out in zip(made, outs, strict=True):
        want = x.astype(np.float32) @ values.T
        close(out.astype(np.float32), want if added is None else want + residual)


def test_swiglu_pairs_rows_of_gate_and_up():
    rng = np.random.default_rng(4)
    (gate, gate_values), (up, up_values) = (weight(rng, "q6_g64_fp16", 20, 128) for _ in range(2))
    x, out = rows_of(rng, 3, 128), np.full((3, 20), np.nan, BF16)
    linear()(Rows(on_device(x)), [gate, up], [on_device(out)], Ending.SWIGLU)
    a, b = x.astype(np.float32) @ gate_values.T, x.astype(np.float32) @ up_values.T
    close(out.astype(np.float32), a / (1 + np.exp(-a)) * b)


@pytest.mark.parametrize("form", ["nvfp4", "q5_g64_fp16"])
def test_slices_of_rows_read_their_own_rows(form):
    rng = np.random.default_rng(5)
    matrix, values = weight(rng, form, 256, 256)
    x, out = rows_of(rng, 1, 256), np.full((1, 77), np.nan, np.float32)
    linear()(Rows(on_device(x)), [matrix.take(101, 178)], [on_device(out)], Ending.STORE_F32)
    close(out, x.astype(np.float32) @ values[101:178].T)


def test_slices_of_nvfp4_need_not_begin_where_its_blocks_of_rows_do():
    rng = np.random.default_rng(15)
    made = [weight(rng, "nvfp4", 384, 320) for _ in range(2)]
    spans = (130, 370), (3, 130)
    x, residual = rows_of(rng, 2, 320), rng.standard_normal((2, 240)).astype(np.float32)
    outs = [np.full((2, end - begin), np.nan, np.float32) for begin, end in spans]
    cut = [matrix.take(*span) for (matrix, _), span in zip(made, spans, strict=True)]
    linear()(Rows(on_device(x)), cut, [on_device(out) for out in outs], Ending.STORE_F32)
    for out, (_, values), (begin, end) in zip(outs, made, spans, strict=True):
        close(out, x.astype(np.float32) @ values[begin:end].T)
    added = np.full((2, 240), np.nan, np.float32)
    linear()(
        Rows(on_device(x)), cut[:1], [on_device(added)], Ending.ADD_RESIDUAL, on_device(aligned(residual))
    )
    assert (added == outs[0] + residual).all()


def test_swiglu_pairs_slices_of_nvfp4():
    rng = np.random.default_rng(16)
    (gate, gate_values), (up, up_values) = (weight(rng, "nvfp4", 256, 192) for _ in range(2))
    x, out = rows_of(rng, 3, 192), np.full((3, 101), np.nan, BF16)
    pair = [gate.take(21, 122), up.take(149, 250)]
    linear()(Rows(on_device(x)), pair, [on_device(out)], Ending.SWIGLU)
    a, b = x.astype(np.float32) @ gate_values[21:122].T, x.astype(np.float32) @ up_values[149:250].T
    close(out.astype(np.float32), a / (1 + np.exp(-a)) * b)
    with pytest.raises(ValueError, match="gate and up differ"):
        linear()(
            Rows(on_device(x)), [gate.take(21, 122), up.take(22, 123)], [on_device(out)], Ending.SWIGLU
        )


def run_normed(x, norm, matrix, order=0, blocks=3):
    out = np.full((len(x), matrix.rows), np.nan, np.float32)
    rows = Rows(on_device(np.ascontiguousarray(x)), on_device(norm), 1e-6)
    linear(order, blocks)(rows, [matrix], [on_device(out)], Ending.STORE_F32)
    return out


def test_norm_comes_first_and_a_row_is_the_same_alone_and_among_sixteen():
    rng = np.random.default_rng(6)
    matrix, values = weight(rng, "q4_g64_fp16", 48, 640)
    x = aligned(rng.standard_normal((17, 640)).astype(np.float32) * 3)
    norm = aligned(rng.standard_normal(640).astype(BF16))
    both = run_normed(x, norm, matrix)
    scaled = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * (1 + norm.astype(np.float32))
    close(both, scaled @ values.T)
    for i in (0, 7, 8, 15, 16):
        assert (run_normed(aligned(x[i : i + 1]), norm, matrix, blocks=1) == both[i]).all()
    assert (run_normed(aligned(x[2:9]), norm, matrix, order=2, blocks=2) == both[2:9]).all()


class Normed:
    """A product with a residual, a norm and a product of its rows, of bf16."""

    def __init__(self, columns):
        rng = np.random.default_rng(17)
        self.first, _ = weight(rng, "bf16", columns, 64)
        self.second, self.values = weight(rng, "bf16", 72, columns)
        self.y, self.residual = (
            rows_of(rng, 8, 64),
            rng.standard_normal((8, columns)).astype(np.float32) * 3,
        )
        self.norm = aligned(rng.standard_normal(columns).astype(BF16))

    def run(self, rows, leave=True, order=0, library=EmulatedLibrary, blocks=3):
        """The residual stream, the second product, whether anything was left, and all launched kernels."""
        run = linear(order, blocks)
        run.library = library(order)
        shape, norm = (len(rows), self.second.columns), on_device(self.norm)
        x, out = aligned(np.full(shape, np.nan, np.float32)), np.full((len(rows), 72), np.nan, np.float32)
        residual = on_device(aligned(self.residual[rows]))
        left = run(
            *(Rows(on_device(aligned(self.y[rows]))), [self.first], [on_device(x)], Ending.ADD_RESIDUAL),
            *(residual, norm if leave else None),
        )
        run(Rows(on_device(x), norm, 1e-6, left), [self.second], [on_device(out)], Ending.STORE_F32)
        assert not run.counters.owner.any()
        return x, out, left is not None, {key[1] for key in run.library._kernels}


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize(
    "teams, columns", [(3, 704), (3, 6208), (2, 704), (2, 4160)]
)  # a warp's stretches: 1, 2
def test_what_products_leave_for_a_norm_gives_the_bits_of_every_other_way(
    teams, columns, joint, monkeypatch
):
    monkeypatch.setattr("ninfer.ops.linear_fit.JOINT_TILES", 512 if joint else 0)
    monkeypatch.setattr("ninfer.ops.linear.teams_of", lambda *shape: teams)
    made = Normed(columns)
    x, out, left, kernels = made.run(range(8))
    assert left and kernels == {LEAVING, CHUNKED}
    scaled = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * (1 + made.norm.astype(np.float32))
    close(out, scaled @ made.values.T)
    ways = (
        (range(8), False, 1),
        (range(2, 7), True, 2),
        (range(4), False, 1),
        ([6], True, 0),
        (range(2), True, 1),
        (range(2), False, 0),
    )
    for rows, leave, order in ways:
        again = made.run(rows, leave, order, blocks=2)
        assert (again[0] == x[rows]).all() and (again[1] == out[rows]).all()
        assert again[2] == (leave and len(rows) > 1)
        assert ("scale_rows_by_tiles" in again[3]) == (len(rows) > 4 and not again[2])
    assert (made.run(range(8), order=2, library=Watched)[1] == out).all()


def test_norms_whose_squares_do_not_come_in_fours_are_left_to_the_next_product():
    made = Normed(696)
    _, out, left, kernels = made.run(range(8))
    assert not left and "scale_rows_by_tiles" in kernels
    assert (made.run([3])[1] == out[3]).all()


@pytest.mark.parametrize("rows", [2, 6])
def test_rows_that_have_a_norm_themselves_leave_nothing(rows):
    rng = np.random.default_rng(18)
    matrix, values = weight(rng, "bf16", 128, 64)
    norm, behind = (on_device(aligned(rng.standard_normal(width).astype(BF16))) for width in (64, 128))
    x, residual = (aligned(rng.standard_normal((rows, width)).astype(np.float32)) for width in (64, 128))
    out = np.full((rows, 128), np.nan, np.float32)
    normed, at = Rows(on_device(x), norm, 1e-6), [on_device(out)]
    assert linear()(normed, [matrix], at, Ending.ADD_RESIDUAL, on_device(residual), behind) is None
    scaled = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6)
    close(out, residual + scaled * (1 + norm.owner.astype(np.float32)) @ values.T)


@pytest.mark.parametrize("form", ["bf16", "q8_g32_fp16"])
@pytest.mark.parametrize("shared", [True, False])
def test_split_columns_meet_in_order(form, shared, monkeypatch):
    if not shared:  # as with many tiles: every team takes tiles of its own
        monkeypatch.setattr("ninfer.ops.linear_fit.JOINT_TILES", 0)
    rng = np.random.default_rng(7)
    columns = 11_264  # three parts
    matrix, values = weight(rng, form, 40, columns)
    x = rows_of(rng, 9, columns)
    outs = []
    for order, blocks, rows in ((0, 7, 9), (2, 3, 1)):
        out = np.full((rows, 40), np.nan, np.float32)
        run = linear(order, blocks)
        run(Rows(on_device(aligned(x[:rows]))), [matrix], [on_device(out)], Ending.STORE_F32)
        assert not run.counters.owner.any()
        outs.append(out)
    close(outs[0], x.astype(np.float32) @ values.T)
    assert (outs[0][0] == outs[1][0]).all()


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("columns", [3400, 7000])  # ragged; of one part and of two
def test_chunks_of_x_change_no_bits_whether_they_stay_or_take_turns(joint, columns, monkeypatch):
    monkeypatch.setattr("ninfer.ops.linear_fit.JOINT_TILES", 132 if joint else 0)
    monkeypatch.setattr("ninfer.ops.linear_fit.ROOMY_STAGES", 9)
    monkeypatch.setattr("ninfer.ops.linear_fit.WINDOW", 2)
    rng = np.random.default_rng(9)
    matrix, values = weight(rng, "bf16", 100, columns)
    x = rows_of(rng, 8, columns)
    assert chunk_fit(8, columns, 227 << 10, 3, True).streams
    ways = {
        "at once": lambda *fit: None,
        "stay": lambda *fit: chunk_fit(*fit[:-1], False),
        "take turns": lambda *fit: chunk_fit(*fit[:-1], not joint),
    }
    outs = {}
    for order, (way, plan) in enumerate(ways.items()):
        for rows, blocks in ((8, 2 if way == "stay" else 3), (1, 7)):
            monkeypatch.setattr("ninfer.ops.linear.chunk_fit", plan)
            out = np.full((rows, 100), np.nan, np.float32)
            run = linear(order, blocks)
            run(Rows(on_device(aligned(x[:rows]))), [matrix], [on_device(out)], Ending.STORE_F32)
            assert not run.counters.owner.any()
            outs[way, rows] = out
    close(outs["at once", 8], x.astype(np.float32) @ values.T)
    for out in outs.values():
        assert (out == outs["at once", 8][: len(out)]).all()


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("form", CODES)
def test_a_card_with_little_shared_memory_has_two_teams_and_the_same_bits_in_any_batch(
    form, joint, monkeypatch
):
    monkeypatch.setattr("ninfer.ops.linear_fit.JOINT_TILES", 132 if joint else 0)
    rng = np.random.default_rng(8)
    columns = 6272  # two parts
    matrix, values = weight(rng, form, 128, columns)
    x, outs = rows_of(rng, 7, columns), []
    for order, rows in ((0, 7), (2, 3), (1, 1)):
        run, out = linear(order), np.full((rows, 128), np.nan, np.float32)
        run.shared_limit = 99 << 10
        run(Rows(on_device(aligned(x[:rows]))), [matrix], [on_device(out)], Ending.STORE_F32)
        outs.append(out)
        assert all(("TEAMS", 2) in kernel for kernel in run.library._kernels)
    close(outs[0], x.astype(np.float32) @ values.T)
    assert all((out == outs[0][: len(out)]).all() for out in outs)


class Watched(EmulatedLibrary):
    """Kernels in the form that a race checker can follow."""

    def get(self, file, name, **defines):
        return super().get(file, name, WATCHED=1, **defines)


@pytest.mark.parametrize("rows", [640, 2144])  # tiles that all teams share, and tiles of their own
@pytest.mark.parametrize("form", ["bf16", "q4_g64_fp16"])
def test_stages_come_round_and_the_form_that_is_watched_has_the_same_bits(form, rows):
    rng = np.random.default_rng(9)
    matrix, values = weight(rng, form, rows, 128)
    x, outs = rows_of(rng, 2, 128), []
    for order, library in ((0, EmulatedLibrary), (2, EmulatedLibrary), (1, Watched)):
        run, out = linear(order, blocks=1), np.full((2, rows), np.nan, np.float32)
        run.library = library(order)
        run(Rows(on_device(x)), [matrix], [on_device(out)], Ending.STORE_F32)
        outs.append(out)
    close(outs[0], x.astype(np.float32) @ values.T)
    assert all((out == outs[0]).all() for out in outs)


def test_the_host_knows_which_formats_each_kernel_has():
    line = r"bounds__\((\w+), 1\) (\w+)\(const __grid_constant__ Call call\) \{ "
    line += r"stream<(\w+), \w*AT_ONCE, (.+?)>"
    codes = {form.split("_")[0].upper(): code for form, code in CODES.items()}
    written = {
        name: (threads, apart, forms)
        for threads, name, apart, forms in re.findall(line, load("linear.cu").text)
    }
    assert {
        name: {codes[form] for form in forms.split(", ")} for name, (*_, forms) in written.items()
    } == KERNELS
    for name, (threads, apart, _) in written.items():
        warps = {("THREADS", "false"): SPANS + 1, ("FINISHING", "true"): SPANS + 2}[threads, apart]
        assert warps_of(name) == warps


def test_the_host_knows_what_each_format_takes_of_a_block():
    code = translate("linear.cu")
    for form, layout in LAYOUTS.items():
        columns, stage, pad, _, scales = attrs.astuple(layout)
        for name, size in (("COLUMNS", columns), ("STAGE", stage), ("X_PAD", pad), ("X_SCALES", scales)):
            code += f'static_assert(Layout<{form}>::{name} == {size}, "{name} of format {form}");\n'
    command = ["g++", "-fsyntax-only", "-std=c++17", "-w", f"-I{toolkit()}", "-x", "c++", "-"]
    done = subprocess.run(command, input=code, text=True, capture_output=True, check=False)
    assert not done.returncode, done.stderr


def test_columns_that_fit_no_block_are_refused():
    rng = np.random.default_rng(8)
    matrix, _ = weight(rng, "q4_g64_fp16", 16, 5120)
    x, out, run = rows_of(rng, 1, 5120), np.zeros((1, 16), np.float32), linear()
    run.shared_limit = 40 << 10
    with pytest.raises(ValueError, match="do not fit"):
        run(Rows(on_device(x)), [matrix], [on_device(out)], Ending.STORE_F32)
