"""Every KV format serves, costs the bytes it should, and stays within its stated distance."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.commands.serve import KV_DTYPES
from ninfer.runtime.kvformat import KV_FORMATS
from tests.whole.kit import ask, inline, model

# Bytes of one token in one attention layer of one KV head of 256 elements, keys and values.
TOKEN_BYTES = {"bf16": 1024, "int8": 528, "fp8": 516, "nvfp4": 288, "k8v4": 402}
LAYERS = 2  # of the bundled model; the MTP layer adds one


@pytest.mark.parametrize("name", KV_DTYPES)
async def test_each_format_answers_over_http(autojump_clock: Any, name: str) -> None:
    async with model(kv_dtype=name) as world:
        question = {"role": "user", "content": "What is the capital of France?"}
        body = {"messages": [question], "max_tokens": 40}
        first, again = await ask(world, body), await ask(world, body)
        assert "Paris" in first["choices"][0]["message"]["content"]
        assert first["choices"][0]["message"] == again["choices"][0]["message"]
        page = world.device.geometry.page_bytes
        assert page == 64 * LAYERS * TOKEN_BYTES[name]
        assert (await world.scrape())["ninfer_device_kv_capacity_pages"] == 8


@pytest.mark.parametrize("name", KV_DTYPES)
def test_a_token_costs_what_the_table_says(name: str) -> None:
    assert KV_FORMATS[name].token_bytes(1, 256) == TOKEN_BYTES[name]


def test_the_draft_layer_keeps_its_own_cache() -> None:
    plain, drafting = (inline(**more)[0].geometry for more in ({}, {"spec": "mtp", "draft_tokens": 1}))
    assert drafting.page_bytes * LAYERS == plain.page_bytes * (LAYERS + 1)
