"""Cache formats: exact byte counts, and how far a value may move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.model.config import read_text_config
from ninfer.runtime.kvformat import KV_FORMATS, rotation
from ninfer.runtime.state import new_pages
from tests.toy import DENSE

BYTES = {"fp32": 2048, "bf16": 1024, "int8": 528, "fp8": 516, "nvfp4": 288, "k8v4": 402}
ERROR = {"fp32": 0.0, "bf16": 2**-8, "int8": 8e-3, "fp8": 4e-2, "nvfp4": 0.13, "k8v4": 0.13}

formats = pytest.mark.parametrize("name", sorted(KV_FORMATS))


@formats
def test_bytes_of_a_token_head_are_exact(name: str) -> None:
    form = KV_FORMATS[name]
    assert form.token_bytes(1, 256) == BYTES[name]
    for codec in (form.key, form.value):
        assert codec.encode(np.ones((3, 256), np.float32)).shape == (3, codec.row_bytes(256))


@formats
def test_page_bytes_are_those_of_its_tokens(name: str) -> None:
    config = read_text_config(DENSE)
    pages = new_pages(config, 2, KV_FORMATS[name], 3, 64)
    assert pages.page_bytes == 64 * 2 * KV_FORMATS[name].token_bytes(config.kv_heads, config.head_dim)


@formats
def test_values_come_back_within_the_format(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((40, 256)).astype(np.float32)
    for codec in (KV_FORMATS[name].key, KV_FORMATS[name].value):
        back = codec.decode(codec.encode(x))
        assert back.dtype == np.float32
        assert np.linalg.norm(back - x) <= ERROR[name] * np.linalg.norm(x)


@formats
def test_zero_and_huge_rows_stay_finite(name: str) -> None:
    for codec in (KV_FORMATS[name].key, KV_FORMATS[name].value):
        assert not codec.decode(codec.encode(np.zeros((2, 256), np.float32))).any()
        huge = codec.decode(codec.encode(np.full((2, 256), 3e4, np.float32)))
        assert np.isfinite(huge).all()


@formats
@settings(max_examples=10, deadline=None)
@given(scale=st.floats(0.02, 300), seed=st.integers(0, 99))
def test_the_worst_element_moves_by_a_step_of_the_largest(name: str, scale: float, seed: int) -> None:
    x = (np.random.default_rng(seed).standard_normal((4, 256)) * scale).astype(np.float32)
    for codec in (KV_FORMATS[name].key, KV_FORMATS[name].value):
        moved = np.abs(codec.decode(codec.encode(x)) - x).max(axis=1)
        assert (moved <= 0.6 * np.abs(x).max(axis=1)).all()


@formats
def test_rows_are_coded_independently(name: str) -> None:
    x = np.random.default_rng(5).standard_normal((8, 256)).astype(np.float32)
    for codec in (KV_FORMATS[name].key, KV_FORMATS[name].value):
        whole = codec.encode(x)
        for row in range(8):
            assert np.array_equal(codec.encode(x[row : row + 1])[0], whole[row])


def test_rotation_is_orthogonal() -> None:
    matrix = rotation(256).astype(np.float64)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(256), atol=1e-5)


def test_a_head_that_cannot_be_rotated_is_refused() -> None:
    with pytest.raises(ValueError, match="power of 2"):
        rotation(96)
