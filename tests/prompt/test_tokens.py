from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.faults import StartupError
from ninfer.prompt.seals import Seals, has_surrogate, pin
from ninfer.prompt.tokens import Vocabulary
from tests.prompt import resources as res

TEXT = st.text(st.characters(codec="utf-8"))
SMALL = res.small_vocabulary()
FIRST = res.tokenizer_json()["added_tokens"][0]["id"]


def decoded(vocabulary: Vocabulary, ids: list[int]) -> str:
    return b"".join(vocabulary.token_bytes(token, raw=True) for token in ids).decode()


@pytest.mark.parametrize("name", res.MODELS)
def test_every_golden_prompt_has_exactly_its_ids(name: str) -> None:
    vocabulary = res.vocabulary_of(name)
    for prompt in res.golden_prompts(name):
        sealed = vocabulary.seals.seal(prompt["expanded"] or prompt["rendered"])
        assert vocabulary.encode_sealed(sealed) == prompt["ids"], prompt["name"]


@pytest.mark.parametrize("name", res.MODELS)
def test_meanings_are_read_from_the_artifact(name: str) -> None:
    vocabulary = res.vocabulary_of(name)
    assert vocabulary.stops == {4076, 4078}
    assert vocabulary.size == 4096
    assert vocabulary.special("<think>") == 4094
    assert vocabulary.names["eos_token"] == "<|im_end|>"


@given(TEXT)
def test_plain_text_survives_the_round_trip(text: str) -> None:
    assert decoded(SMALL, SMALL.encode(text)) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("spelling", [*res.SPECIAL, *res.PLAIN])
def test_a_spelled_control_token_stays_text(spelling: str) -> None:
    ids = SMALL.encode(f"a{spelling}b")
    assert SMALL.special(spelling) not in ids
    assert len(ids) > 3
    assert decoded(SMALL, ids) == f"a{spelling}b"


@given(st.lists(st.one_of(TEXT, st.sampled_from(SMALL.seals.spellings))))
def test_only_seals_become_control_tokens(pieces: list[str]) -> None:
    spellings = SMALL.seals.spellings
    text = "".join(SMALL.seals.of(piece) or piece for piece in pieces)
    wanted = [SMALL.special(piece) for piece in pieces if piece in spellings]
    controls = {SMALL.special(spelling) for spelling in spellings}
    assert [token for token in SMALL.encode_sealed(text) if token in controls] == wanted


@given(TEXT)
def test_sealing_and_unsealing_give_the_text_back(text: str) -> None:
    mixed = f"{text}<think>{text}<|im_end|><|im_end|>"
    sealed = SMALL.seals.seal(mixed)
    assert has_surrogate(sealed)
    assert SMALL.seals.unseal(sealed) == mixed


def test_tokens_listed_only_in_the_config_are_known() -> None:
    assert "<think>" not in {item["content"] for item in res.tokenizer_json()["added_tokens"]}
    assert SMALL.special("<think>") == SMALL.size - 2


def test_special_tokens_show_nothing_and_others_their_spelling() -> None:
    assert SMALL.token_bytes(SMALL.special("<|im_start|>")) == b""
    assert SMALL.token_bytes(SMALL.special("<|im_start|>"), raw=True) == b"<|im_start|>"
    assert SMALL.token_bytes(SMALL.special("<tool_call>")) == b"<tool_call>"


def test_every_byte_has_a_token() -> None:
    assert {SMALL.token_bytes(token) for token in range(256)} == {bytes([byte]) for byte in range(256)}


def test_a_control_token_in_the_base_vocabulary_is_no_obstacle() -> None:
    body = res.tokenizer_json()
    body["model"]["vocab"]["<a b>"] = 999
    loaded = Vocabulary.load(json.dumps(body).encode(), json.dumps(res.config_json()).encode())
    assert loaded.token_bytes(999) == b"<a b>"
    assert loaded.size == 1000


def test_many_texts_are_encoded_independently() -> None:
    texts = ["", "hello", " world", "hello world"]
    assert SMALL.encode_many(texts) == [SMALL.encode(text) for text in texts]


@pytest.mark.parametrize(
    ("generation", "stops"),
    [({"eos_token_id": 5}, {5}), ({"eos_token_id": [5, 6]}, {5, 6}), ({}, {SMALL.special("<|im_end|>")})],
)
def test_stops_come_from_the_generation_config_first(generation: Any, stops: set[int]) -> None:
    loaded = Vocabulary.load(
        json.dumps(res.tokenizer_json()).encode(),
        json.dumps(res.config_json()).encode(),
        json.dumps(generation).encode(),
    )
    assert loaded.stops == stops


def broken(**changes: Any) -> bytes:
    return json.dumps(res.tokenizer_json() | changes).encode()


@pytest.mark.parametrize(
    ("tokenizer", "config", "complaint"),
    [
        (b"{", b"{}", "not valid JSON"),
        (b"[]", b"{}", "not a JSON object"),
        (broken(model={"type": "Unigram"}), b"{}", "not a byte-level BPE"),
        (broken(pre_tokenizer={"type": "Whitespace"}), b"{}", "not a byte-level BPE"),
        (broken(added_tokens=[res.added(500, "<x>") | {"lstrip": True}]), b"{}", "strips its surroundings"),
        (
            broken(),
            json.dumps({"added_tokens_decoder": {str(FIRST): {"content": "<other>"}}}).encode(),
            "disagree",
        ),
        (broken(), b"{}", "no end-of-text token"),
    ],
)
def test_an_unusable_tokenizer_is_an_operators_problem(
    tokenizer: bytes, config: bytes, complaint: str
) -> None:
    with pytest.raises(StartupError, match=complaint):
        Vocabulary.load(tokenizer, config)


def test_a_missing_control_token_is_named() -> None:
    with pytest.raises(StartupError, match=r"<\|nothing\|>"):
        SMALL.special("<|nothing|>")


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", pin(3), "é\udc00"])
def test_surrogates_are_seen(text: str) -> None:
    assert has_surrogate(text)


@pytest.mark.parametrize("text", ["", "abc", "é", "\U0001f469\u200d\U0001f4bb", "\ue000\uffff"])
def test_valid_text_has_no_surrogates(text: str) -> None:
    assert not has_surrogate(text)


def test_overlapping_spellings_are_read_longest_first() -> None:
    seals = Seals(["<a", "<a>"])
    assert seals.seal("<a><a") == str(seals.of("<a>")) + str(seals.of("<a"))
