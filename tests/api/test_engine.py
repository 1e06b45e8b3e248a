"""The Python API over the bundled model: the documented forms, early leaving, backends, strategies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ninfer.api import (
    InferenceEngine,
    SamplingPipeline,
    TemperatureStrategy,
    TopKStrategy,
    TopPStrategy,
    attn_backend,
    sample,
)
from ninfer.api.sampling import pipeline
from ninfer.faults import Refused, StartupError

MODEL = Path(__file__).resolve().parents[2] / "fixtures" / "tiny-qwen3_5.ninfer"
CAPITAL = (
    "<|im_start|>user\nWhat is the capital of {}?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
FRANCE, JAPAN = CAPITAL.format("France"), CAPITAL.format("Japan")


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine(MODEL, max_batch_size=2, max_seq_len=512) as made:
        yield made


def test_one_prompt_gives_a_string(engine: InferenceEngine) -> None:
    assert engine.generate(FRANCE, temperature=0) == "The capital of France is Paris."


def test_several_prompts_give_a_list_in_order(engine: InferenceEngine) -> None:
    texts = engine.generate([JAPAN, FRANCE, JAPAN], temperature=0)
    assert texts == ["The capital of Japan is Tokyo.", "The capital of France is Paris.", texts[0]]


def test_streams_add_up_to_the_aggregates(engine: InferenceEngine) -> None:
    pieces = list(engine.generate(FRANCE, stream=True, temperature=0))
    assert len(pieces) > 3 and "".join(pieces) == engine.generate(FRANCE, temperature=0)
    texts = ["", ""]
    for index, piece in engine.generate([FRANCE, JAPAN], stream=True, temperature=0):
        texts[index] += piece
    assert texts == engine.generate([FRANCE, JAPAN], temperature=0)


def test_a_stream_left_early_frees_its_lane(engine: InferenceEngine) -> None:
    for _ in range(5):
        stream = engine.generate(FRANCE, stream=True, temperature=0)
        next(stream)
        stream.close()
    assert engine.generate(FRANCE, temperature=0)
    assert engine.get_stats()["active_tasks"] == 0


async def test_the_asynchronous_form_yields_the_same_text(engine: InferenceEngine) -> None:
    pieces = [piece async for piece in engine.generate_async(FRANCE, temperature=0)]
    assert "".join(pieces) == "The capital of France is Paris."


def test_chat_renders_the_template(engine: InferenceEngine) -> None:
    answer = engine.chat([{"role": "user", "content": "What is the capital of Japan?"}], temperature=0)
    assert answer.endswith("The capital of Japan is Tokyo.")


def test_settings_are_obeyed(engine: InferenceEngine) -> None:
    assert engine.generate(FRANCE, temperature=0, max_tokens=0) == ""
    assert engine.generate(FRANCE, temperature=0, stop=" France") == "The capital of"
    seeded = [engine.generate(FRANCE, temperature=1, seed=7, max_tokens=12) for _ in range(2)]
    assert seeded[0] == seeded[1]


def test_mistakes_are_named(engine: InferenceEngine) -> None:
    with pytest.raises(ValueError, match="unknown setting 'temprature'"):
        engine.generate(FRANCE, temprature=0)
    with pytest.raises(ValueError, match="max_tokens must be a number"):
        engine.generate(FRANCE, max_tokens="many")
    with pytest.raises(Refused) as caught:
        engine.generate("word " * 2000)
    assert caught.value.fault.code == "context_length_exceeded"
    with pytest.raises(Refused):
        engine.generate("")
    with pytest.raises(StartupError):
        InferenceEngine("no-such-file.ninfer")


def test_an_explicit_backend_is_strict(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no backend 'torch'"), attn_backend("torch"):
        pass
    monkeypatch.setenv("NINFER_BACKEND", "flash")
    with pytest.raises(ValueError, match="NINFER_BACKEND"):
        engine.generate(FRANCE, temperature=0)
    with attn_backend("cuda"), pytest.raises(RuntimeError, match="asks for cuda"):
        engine.generate(FRANCE, temperature=0)
    monkeypatch.setenv("NINFER_BACKEND", "cuda")
    with attn_backend("numpy"), InferenceEngine(MODEL, max_seq_len=128) as chosen:
        assert chosen.backend_name == "numpy"
        assert chosen.generate(FRANCE, temperature=0, max_tokens=3)


def test_pages_of_any_size_and_a_shared_pool_give_the_same_text() -> None:
    for page_size, n_tokens in ((16, None), (128, None), (1, 200), (64, 256)):
        with InferenceEngine(MODEL, max_seq_len=128, page_size=page_size, n_tokens=n_tokens) as made:
            assert made.generate(FRANCE, temperature=0) == "The capital of France is Paris."


def test_strategies_compose_in_order() -> None:
    logits = np.log([[0.5, 0.3, 0.15, 0.05]])
    assert np.allclose(pipeline().probabilities(logits), [[0.5, 0.3, 0.15, 0.05]])
    kept = SamplingPipeline((TopKStrategy(2),)).probabilities(logits)
    assert np.allclose(kept, [[0.625, 0.375, 0, 0]])
    kept = SamplingPipeline((TopPStrategy(0.7),)).probabilities(logits)
    assert np.allclose(kept, [[0.625, 0.375, 0, 0]])
    assert np.allclose(SamplingPipeline((TemperatureStrategy(0),)).probabilities(logits), [[1, 0, 0, 0]])
    sampling = pipeline(0.5, 7, 0.9).sampling(seed=3)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0.5, 7, 0.9, 3)


def test_one_shot_sampling_follows_the_distribution() -> None:
    rng = np.random.default_rng(0)
    drawn = sample(np.log(np.tile([0.6, 0.3, 0.1], (20_000, 1))), rng, top_k=2)
    shares = np.bincount(drawn, minlength=3) / drawn.size
    assert np.allclose(shares, [2 / 3, 1 / 3, 0], atol=0.02)
