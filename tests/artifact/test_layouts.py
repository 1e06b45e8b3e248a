"""Where every bit lies: known sizes, independent bit readers, and row slices that look at nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.artifact import layouts
from ninfer.artifact.formats import DIRECT, FP8_ROW, GROUPED, NAMES, NVFP4, Corrupt
from ninfer.artifact.layouts import (
    LAYOUT_OF,
    Unsupported,
    decode_elements,
    decode_rows,
    encode,
    encoded_bytes,
)

QUANTISED = [*GROUPED, NVFP4, FP8_ROW]


def rows_of(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("form", "shape", "size"),
    [
        ("q5_g64_fp16", (2, 130), 528),
        ("q4_g64_fp16", (7168, 5120), 19_496_960),
        ("q5_g64_fp16", (7168, 5120), 24_084_480),
        ("nvfp4", (14336, 5120), 41_287_684),
        ("fp8_e4m3fn_row_bf16", (14336, 5120), 73_428_992),
        ("bf16", (3, 5), 30),
        ("fp32", (), 4),
        ("int32", (7,), 28),
    ],
)
def test_known_sizes(form: str, shape: tuple[int, ...], size: int) -> None:
    assert encoded_bytes(form, LAYOUT_OF[form], shape) == size


@pytest.mark.parametrize("form", list(GROUPED))
def test_each_lane_lies_in_its_own_bits(form: str) -> None:
    """Reads the planes bit by bit, by the written description, and compares with the encoder's codes."""
    kind, rows, columns = GROUPED[form], 3, 200
    values = rows_of(3, (rows, columns))
    codes, scales = layouts.formats.encode_grouped(values, kind)
    data, groups = encode(values, form), 256 // kind.group
    high_bytes = {5: 8, 6: 16}.get(kind.bits, 0)
    high_at = -(-rows * groups * 32 // 256) * 256
    scale_at = high_at + -(-rows * groups * high_bytes // 256) * 256
    for index in range(rows * groups):
        row, group = divmod(index, groups)
        for lane in range(kind.group):
            code = 0
            if kind.bits == 8:
                code = int(data[index * 32 + lane])
            else:
                code = int(data[index * 32 + lane // 2]) >> (4 * (lane % 2)) & 15
            for bit in range(kind.bits - 4 if high_bytes else 0):
                t = lane * (kind.bits - 4) + bit
                code |= (int(data[high_at + index * high_bytes + t // 8]) >> (t % 8) & 1) << (4 + bit)
            code -= (code >> (kind.bits - 1)) << kind.bits
            assert code == codes[row, group * kind.group + lane]
        found = data[scale_at + 2 * index : scale_at + 2 * index + 2].view("<f2")[0]
        assert found == scales[row, group]


@pytest.mark.parametrize("form", list(GROUPED))
def test_padding_holds_zero_codes_and_true_scales(form: str) -> None:
    kind = GROUPED[form]
    values = np.ones((2, 130), np.float32)
    _, scales = layouts.formats.encode_grouped(values, kind)
    used = -(-130 // kind.group)
    assert (scales[:, :used] > 0).all()
    assert not scales[:, used:].any()
    whole = decode_rows(memoryview(encode(values, form)), form, (2, 130), 0, 2)
    assert whole.shape == (2, 130)


@pytest.mark.parametrize("shape", [(128, 64), (256, 128), (384, 192)])
def test_fp4_scales_follow_the_128_by_4_tile_order(shape: tuple[int, int]) -> None:
    rows, columns = shape
    offsets = layouts.nvfp4_scale_offsets(range(rows), columns)
    for n in range(0, rows, 7):
        for g in range(columns // 16):
            tile = (n // 128) * (columns // 64) + g // 4
            assert offsets[n, g] == tile * 512 + (n % 32) * 16 + ((n % 128) // 32) * 4 + g % 4
    assert sorted(offsets.reshape(-1).tolist()) == list(range(rows * columns // 16))


@pytest.mark.parametrize("shape", [(128, 64), (256, 128)])
def test_fp4_object_holds_codes_scales_and_divisor(shape: tuple[int, int]) -> None:
    rows, columns = shape
    values = rows_of(7, shape)
    data = encode(values, NVFP4)
    divisor = data[-4:].view("<f4")[0]
    codes, scales = layouts.formats.encode_nvfp4(values, divisor)
    n, k = rows - 3, columns - 5
    byte = int(data[(n * columns + k) // 2])
    assert (byte >> 4 * (k % 2)) & 15 == codes[n, k]
    at = rows * columns // 2 + layouts.nvfp4_scale_offsets(range(n, n + 1), columns)[0, k // 16]
    assert data[at] == scales[n, k // 16]


def test_fp8_rows_lie_before_their_scales() -> None:
    values = rows_of(9, (3, 100))
    data = encode(values, FP8_ROW)
    codes, scales = layouts.formats.encode_fp8_row(values)
    assert (data[:300].reshape(3, 100) == codes).all()
    assert not data[300:512].any()
    assert (data[512:].view("<u2") == scales).all()


def spoil_other_rows(stored: np.ndarray, form: str, shape: tuple[int, int], keep: range) -> np.ndarray:
    """Set every bit of every row that is not kept; what both share (a divisor) stays."""
    spoiled, place = stored.copy(), layouts.planes(form, shape)
    others = np.array([row for row in range(shape[0]) if row not in keep], np.int64)
    for index, (at, width) in enumerate(zip(place.offsets, place.row_bytes, strict=True)):
        bytes_of = np.arange(shape[0] * width).reshape(shape[0], width)
        if form == NVFP4 and index == 1:
            bytes_of = layouts.nvfp4_scale_offsets(range(shape[0]), shape[1])
        spoiled[at + bytes_of[others]] = 0xFF
    return spoiled


@pytest.mark.parametrize("form", QUANTISED)
@given(data=st.data())
def test_row_slices_equal_the_whole_and_read_no_other_row(form: str, data: st.DataObject) -> None:
    shape = (256, 128)
    stored = encode(rows_of(11, shape), form)
    whole = decode_rows(memoryview(stored), form, shape, 0, 256)
    begin = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(begin + 1, 256))
    spoiled = spoil_other_rows(stored, form, shape, range(begin, end))
    assert (decode_rows(memoryview(spoiled), form, shape, begin, end) == whole[begin:end]).all()


@pytest.mark.parametrize("form", NAMES)
@given(data=st.data())
def test_element_ranges_equal_slices_of_the_flat_whole(form: str, data: st.DataObject) -> None:
    shape = (128, 64)
    values = (rows_of(13, shape) * 100).astype(np.int32 if form == "int32" else np.float32)
    stored = memoryview(encode(values, form))
    begin = data.draw(st.integers(0, 128 * 64 - 1))
    end = data.draw(st.integers(begin + 1, 128 * 64))
    whole = decode_elements(stored, form, LAYOUT_OF[form], shape, 0, 128 * 64)
    part = decode_elements(stored, form, LAYOUT_OF[form], shape, begin, end)
    assert part.dtype == (np.int32 if form == "int32" else np.float32)
    assert (part == whole[begin:end]).all()


@pytest.mark.parametrize("form", QUANTISED)
def test_block_by_block_equals_all_at_once(form: str) -> None:
    values = rows_of(17, (256, 192))
    divisor = layouts.formats.nvfp4_divisor(float(np.abs(values).max()))
    encoder = layouts.Encoder(form, values.shape, divisor)
    for begin in (0, 100, 101, 200):
        end = {0: 100, 100: 101, 101: 200, 200: 256}[begin]
        encoder.put(begin, values[begin:end])
    assert (encoder.data == encode(values, form)).all()


@pytest.mark.parametrize("form", QUANTISED)
def test_leading_axes_are_more_rows(form: str) -> None:
    values = rows_of(19, (2, 128, 64))
    assert (encode(values, form) == encode(values.reshape(256, 64), form)).all()
    assert encoded_bytes(form, LAYOUT_OF[form], (2, 128, 64)) == encoded_bytes(
        form, LAYOUT_OF[form], (256, 64)
    )


@pytest.mark.parametrize("form", list(DIRECT))
def test_direct_formats_are_little_endian_in_order(form: str) -> None:
    values = np.array([[1, -2, 3], [4, 5, 100]], np.int32 if form == "int32" else np.float32)
    expected = {"bf16": "803f00c04040" + "8040a040c842", "fp32": values.tobytes().hex()}
    assert encode(values, form).tobytes().hex() == expected.get(form, values.tobytes().hex())


@pytest.mark.parametrize(
    ("form", "layout", "shape"),
    [
        ("q3_g64_fp16", "row_split_k128_v1", (2, 64)),
        ("q4_g64_fp16", "contiguous_le_v1", (2, 64)),
        ("bf16", "row_split_k128_v1", (2, 64)),
        ("q4_g64_fp16", "row_split_k128_v1", (64,)),
        ("q8_g32_fp16", "row_split_k128_v1", ()),
        ("nvfp4", "block_scale_k16_m128x4_v1", (127, 64)),
        ("nvfp4", "block_scale_k16_m128x4_v1", (128, 32)),
        ("fp8_e4m3fn_row_bf16", "row_scale_v1", (64,)),
    ],
)
def test_unknown_pairs_and_shapes_are_named(form: str, layout: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(Unsupported):
        encoded_bytes(form, layout, shape)


@pytest.mark.parametrize("form", NAMES)
def test_data_of_another_length_is_refused(form: str) -> None:
    size = encoded_bytes(form, LAYOUT_OF[form], (128, 64))
    for wrong in (0, size - 1, size + 1):
        with pytest.raises(Corrupt):
            decode_elements(memoryview(bytes(wrong)), form, LAYOUT_OF[form], (128, 64), 0, 1)
