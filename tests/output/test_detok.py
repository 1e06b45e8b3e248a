from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.output.detok import Detokenizer

BYTES = [bytes([byte]) for byte in range(256)]


def pieces(data: bytes) -> list[str]:
    """Decode one byte a token; the last entry is what ``finish`` gave."""
    detok = Detokenizer(BYTES)
    return [*(detok.take(byte) for byte in data), detok.finish()]


@pytest.mark.parametrize("character", ["é", "猫", "👩", "\U0010ffff"])
def test_a_character_comes_whole_with_its_last_byte(character: str) -> None:
    data = character.encode()
    assert pieces(data) == [""] * (len(data) - 1) + [character, ""]


def test_a_character_over_two_tokens_streams_once() -> None:
    detok = Detokenizer([b"\xf0\x9f", b"\x91\xa9", "\u200d".encode(), "💻".encode()])
    assert [detok.take(token) for token in range(4)] == ["", "👩", "\u200d", "💻"]
    assert detok.finish() == ""


def test_a_lone_continuation_byte_is_one_replacement() -> None:
    assert pieces(b"a\x80b") == ["a", "\ufffd", "b", ""]


@pytest.mark.parametrize("data", [b"\xf0", b"\xf0\x9f", b"\xf0\x9f\x91", b"\xe7\x8c", b"\xc3"])
def test_a_partial_character_at_the_end_is_one_replacement(data: bytes) -> None:
    assert pieces(b"a" + data) == ["a", *[""] * len(data), "\ufffd"]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\xf0\x80\x80", "\ufffd\ufffd\ufffd"),  # overlong: no byte of it begins a character
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),  # a surrogate
        (b"\xf0\x9f\x91x", "\ufffdx"),  # one maximal subpart
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),  # beyond U+10FFFF
        (b"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "\ufffd\ufffd\ufffd\ufffdA"),  # Unicode, table 3-8
    ],
)
def test_invalid_bytes_are_replaced_by_maximal_subpart(data: bytes, shown: str) -> None:
    assert "".join(pieces(data)) == shown


@given(st.binary(max_size=40), st.data())
def test_any_cut_decodes_like_the_whole(data: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=6)))
    table = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    detok = Detokenizer(table)
    assert "".join(detok.take(n) for n in range(len(table))) + detok.finish() == data.decode(
        errors="replace"
    )
