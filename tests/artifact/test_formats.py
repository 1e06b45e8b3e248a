"""The arithmetic of every numeric format: all codes, the encoder's exact bits, illegal bits refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ninfer.artifact import formats
from ninfer.artifact.formats import GROUPED, Corrupt, Grouped, Unencodable

F32 = npt.NDArray[np.float32]
GROUPED_FORMATS = list(GROUPED.values())
SUBNORMAL = np.float16(2.0**-24)


def grouped_reference(values: F32, form: Grouped) -> tuple[list[int], int]:
    """One group by the written rules, one scalar at a time: codes and scale bits."""
    amax = np.float32(max(abs(np.float32(v)) for v in values))
    with np.errstate(under="ignore"):
        scale = np.float16(np.float32(amax / np.float32(form.high)))
    if amax > 0 and scale == 0:
        scale = SUBNORMAL
    if scale == 0:
        return [0] * len(values), 0
    inverse = np.float32(np.float32(1) / np.float32(scale))
    codes = [int(np.rint(np.float32(np.float32(v) * inverse))) for v in values]
    return [max(form.low, min(form.high, code)) for code in codes], int(scale.view(np.uint16))


finite = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-4e5, max_value=4e5)


@pytest.mark.parametrize("form", GROUPED_FORMATS, ids=lambda form: form.name)
@given(data=st.data())
def test_grouped_encoder_gives_the_reference_bits(form: Grouped, data: st.DataObject) -> None:
    values = data.draw(hnp.arrays(np.float32, form.group, elements=finite))
    codes, scales = formats.encode_grouped(values[None], form)
    expected, bits = grouped_reference(values, form)
    assert codes[0, : form.group].tolist() == expected
    assert int(scales.view(np.uint16)[0, 0]) == bits


@pytest.mark.parametrize("form", GROUPED_FORMATS, ids=lambda form: form.name)
@given(scale=st.integers(1, 0x7BFF))
def test_every_code_decodes_to_scale_times_code_exactly(form: Grouped, scale: int) -> None:
    lanes = np.resize(np.arange(form.low, form.high + 1), 256 // form.group * form.group).astype(np.int8)
    scales = np.full((1, len(lanes) // form.group), scale, np.uint16).view(np.float16)
    decoded = formats.decode_grouped(lanes[None], scales, form)
    assert decoded[0].tolist() == [float(scales[0, 0]) * int(code) for code in lanes]


@pytest.mark.parametrize("form", GROUPED_FORMATS, ids=lambda form: form.name)
@given(data=st.data())
def test_decoded_values_encode_to_the_same_values(form: Grouped, data: st.DataObject) -> None:
    values = data.draw(hnp.arrays(np.float32, (2, 128), elements=st.floats(-8, 8, width=32)))
    once = formats.decode_grouped(*formats.encode_grouped(values, form), form)
    twice = formats.decode_grouped(*formats.encode_grouped(once, form), form)
    assert np.abs(once - twice).max() <= np.abs(values).max() * 2**-8


@pytest.mark.parametrize("form", GROUPED_FORMATS, ids=lambda form: form.name)
def test_error_is_at_most_half_a_step(form: Grouped) -> None:
    values = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
    codes, scales = formats.encode_grouped(values, form)
    step = np.repeat(scales.astype(np.float32), form.group, axis=1)
    assert (
        np.abs(formats.decode_grouped(codes, scales, form) - values) <= 0.5005 * step + 0.001 * step
    ).all()


@pytest.mark.parametrize("form", GROUPED_FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("amax", [1e-38, 1e-30, 2.0**-25, 2.0**-26])
def test_tiny_group_gets_the_smallest_scale_not_zero(form: Grouped, amax: float) -> None:
    values = np.zeros((1, 128), np.float32)
    values[0, 3] = amax
    _, scales = formats.encode_grouped(values, form)
    assert scales.view(np.uint16)[0, 0] == 1
    assert not scales[0, 1:].any()


@pytest.mark.parametrize("form", GROUPED_FORMATS, ids=lambda form: form.name)
def test_zero_group_has_zero_scale_and_codes(form: Grouped) -> None:
    codes, scales = formats.encode_grouped(np.zeros((3, 130), np.float32), form)
    assert codes.shape == (3, 256)
    assert not codes.any()
    assert not scales.view(np.uint16).any()


@pytest.mark.parametrize("form", GROUPED_FORMATS, ids=lambda form: form.name)
def test_halves_round_to_even(form: Grouped) -> None:
    values = np.zeros((1, form.group), np.float32)
    values[0, :6] = [form.high, 0.5, 1.5, 2.5, -0.5, -1.5]
    codes, scales = formats.encode_grouped(values, form)
    assert scales[0, 0] == 1
    assert codes[0, :6].tolist() == [form.high, 0, 2, 2, 0, -2]


def test_values_are_multiplied_by_the_reciprocal_not_divided() -> None:
    """Values halfway between codes, where the two can round apart; the product's bits are normative."""
    form, rng = GROUPED["q8_g32_fp16"], np.random.default_rng(5)
    values = rng.uniform(1, 2, (512, 32)).astype(np.float32)
    _, scales = formats.encode_grouped(values, form)
    wide = scales[:, :1].astype(np.float32)
    values[:, 1:] = (np.arange(31, dtype=np.float32) + np.float32(0.5)) * wide
    values[:, 0] = np.float32(form.high) * wide[:, 0]
    codes, scales = formats.encode_grouped(values, form)
    assert (scales[:, :1] == wide).all()
    assert (codes[:, :32] == np.rint(values * (np.float32(1) / wide))).all()
    assert (codes[:, :32] != np.rint(values / wide)).any()


@pytest.mark.parametrize("form", GROUPED_FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -1e8])
def test_values_without_a_code_are_refused(form: Grouped, bad: float) -> None:
    values = np.ones((1, 128), np.float32)
    values[0, 7] = bad
    with pytest.raises(Unencodable):
        formats.encode_grouped(values, form)


@pytest.mark.parametrize("form", GROUPED_FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("bits", [0x8000, 0x8001, 0xBC00, 0x7C00, 0x7E00, 0xFC00, 0xFFFF])
def test_illegal_scale_bits_are_refused(form: Grouped, bits: int) -> None:
    scales = np.full((1, 128 // form.group), bits, np.uint16).view(np.float16)
    with pytest.raises(Corrupt, match="scale"):
        formats.decode_grouped(np.zeros((1, 128), np.int8), scales, form)


def test_the_symmetric_format_has_no_lowest_code() -> None:
    form = GROUPED["q8_g32_fp16"]
    codes = np.zeros((1, 128), np.int8)
    codes[0, 100] = -128
    with pytest.raises(Corrupt, match="code below -127"):
        formats.decode_grouped(codes, np.ones((1, 4), np.float16), form)


# nvfp4


def test_all_sixteen_fp4_codes_have_their_values() -> None:
    codes = np.arange(16, dtype=np.uint8)[None]
    one = np.array([[0x38]], np.uint8)  # 1.0 in e4m3
    decoded = formats.decode_nvfp4(codes, one, np.float32(1))
    assert decoded[0].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert np.signbit(decoded[0, 8])


def test_the_matrix_divisor_divides() -> None:
    codes = np.full((1, 16), 7, np.uint8)
    scale = np.array([[0x40]], np.uint8)  # 2.0
    assert (formats.decode_nvfp4(codes, scale, np.float32(4)) == 6 * 2 / 4).all()


@given(hnp.arrays(np.float32, (4, 32), elements=st.floats(-100, 100, width=32)))
def test_fp4_round_trip_stays_within_half_a_step(values: F32) -> None:
    divisor = formats.nvfp4_divisor(float(np.abs(values).max()))
    codes, scales = formats.encode_nvfp4(values, divisor)
    decoded = formats.decode_nvfp4(codes, scales, divisor)
    wide = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64) / float(divisor)
    # the widest gap between codes is 2, and a scale rounded down by 1/16 clips 6 to 5.65
    assert (np.abs(decoded - values) <= np.repeat(wide, 16, axis=1) * 1.01 + 1e-30).all()


@given(st.integers(0, 0x7E))
def test_every_fp4_scale_survives(bits: int) -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), (1, 1))
    decoded = formats.decode_nvfp4(codes, np.array([[bits]], np.uint8), np.float32(1))
    again, scales = formats.encode_nvfp4(decoded, np.float32(1))
    assert (formats.decode_nvfp4(again, scales, np.float32(1)) == decoded).all()


@pytest.mark.parametrize("bits", [0x7F, 0x80, 0xB8, 0xFF])
def test_illegal_fp4_scales_are_refused(bits: int) -> None:
    with pytest.raises(Corrupt, match="scale"):
        formats.decode_nvfp4(np.zeros((1, 16), np.uint8), np.array([[bits]], np.uint8), np.float32(1))


@pytest.mark.parametrize("divisor", [0.0, -1.0, np.inf, np.nan])
def test_illegal_fp4_divisors_are_refused(divisor: float) -> None:
    with pytest.raises(Corrupt, match="divisor"):
        formats.decode_nvfp4(np.zeros((1, 16), np.uint8), np.zeros((1, 1), np.uint8), np.float32(divisor))


@pytest.mark.parametrize("amax", [0.0, 1e-45, 1e-38, 1.0, 3e38])
def test_fp4_divisor_is_positive_and_finite_for_any_matrix(amax: float) -> None:
    divisor = formats.nvfp4_divisor(amax)
    assert 0 < divisor < np.inf


# fp8 rows


@given(st.integers(0, 255).filter(lambda bits: bits & 0x7F != 0x7F))
def test_every_fp8_code_decodes_to_its_value_times_the_row_scale(bits: int) -> None:
    code = np.array([[bits]], np.uint8)
    scale = np.array([3.0], ml_dtypes.bfloat16).view(np.uint16)
    value = float(code.view(ml_dtypes.float8_e4m3fn)[0, 0])
    assert formats.decode_fp8_row(code, scale)[0, 0] == value * 3


@given(hnp.arrays(np.float32, (3, 40), elements=st.floats(-1e4, 1e4, width=32)))
def test_fp8_rows_round_trip_within_their_precision(values: F32) -> None:
    decoded = formats.decode_fp8_row(*formats.encode_fp8_row(values))
    amax = np.abs(values).max(axis=1, keepdims=True)
    assert (np.abs(decoded - values) <= np.abs(values) * 2**-4 + amax * 2**-16 + 1e-37).all()


@pytest.mark.parametrize("bits", [0x7F, 0xFF])
def test_fp8_not_a_number_is_refused(bits: int) -> None:
    with pytest.raises(Corrupt, match="not a number"):
        formats.decode_fp8_row(np.array([[bits]], np.uint8), np.array([0x3F80], np.uint16))


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0])
def test_fp8_row_scale_must_be_finite(bits: int) -> None:
    with pytest.raises(Corrupt, match="row scale"):
        formats.decode_fp8_row(np.zeros((1, 1), np.uint8), np.array([bits], np.uint16))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_fp8_and_fp4_refuse_what_is_not_finite(bad: float) -> None:
    values = np.full((1, 16), bad, np.float32)
    with pytest.raises(Unencodable):
        formats.encode_fp8_row(values)
    with pytest.raises(Unencodable):
        formats.encode_nvfp4(values, np.float32(1))
    with pytest.raises(Unencodable):
        formats.nvfp4_divisor(bad)
