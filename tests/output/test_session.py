from __future__ import annotations

import codecs
from collections.abc import Callable

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ninfer.engine.job import Finish
from ninfer.output.channels import SPACE, THINK_CLOSE
from ninfer.output.deltas import Piece
from ninfer.output.session import OutputSession
from tests.cost import grows_linearly

STOP = 9_999


@attrs.frozen
class Answer:
    """What a session made of a token sequence."""

    reasoning: str
    content: str
    finish: Finish | None
    stop: str | None
    taken: int  # tokens up to and including the one that stopped
    pieces: tuple[Piece, ...]
    thinking: tuple[bool, ...]


def run(tokens: list[bytes], *, thinking: bool, stops: tuple[str, ...] = (), end: bool = False) -> Answer:
    """Feed tokens (and a stop token, with ``end``) as the engine does."""
    session = OutputSession(tokens, {STOP}, thinking=thinking, stops=stops)
    pieces, flags, finish = [], [], None
    for token in [*range(len(tokens)), *[STOP] * end]:
        verdict = session.take(token)
        pieces.append(verdict.piece)
        flags.append(verdict.thinking)
        if verdict.stop is not None:
            finish = verdict.stop
            break
    taken = len(pieces)
    pieces.append(session.finish())
    return Answer(
        "".join(piece.reasoning for piece in pieces),
        "".join(piece.content for piece in pieces),
        finish,
        session.stop_string,
        taken,
        tuple(pieces),
        tuple(flags),
    )


def tail(text: str, patterns: tuple[str, ...]) -> int:
    """Length of the longest suffix that is a proper prefix of a pattern."""
    longest = max(map(len, patterns), default=1) - 1
    hits = (n for n in range(longest, 0, -1) if any(len(p) > n and text.endswith(p[:n]) for p in patterns))
    return next((n for n in hits if n <= len(text)), 0)


def channels(text: str, thinking: bool, last: bool) -> tuple[str, str, bool]:
    """Split a whole text as the session must by now have split it; the flag says reasoning is open."""
    if not thinking:
        return "", text, False
    before, marker, after = text.partition(THINK_CLOSE)
    if marker:
        return before, after.lstrip(SPACE), False
    return text if last else text[: len(text) - tail(text, (THINK_CLOSE,))], "", True


def expected(
    tokens: list[bytes], thinking: bool, stops: tuple[str, ...]
) -> tuple[str, str, str | None, int]:
    """The same answer, worked out from the whole text again after every token."""
    for taken in range(1, len(tokens) + 2):
        last = taken > len(tokens)
        data = b"".join(tokens[:taken])
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, last)
        reasoning, content, _ = channels(text, thinking, last)
        for channel, is_reasoning in ((reasoning, True), (content, False)):
            hits = [(channel.find(stop), n) for n, stop in enumerate(stops) if stop in channel]
            if hits:
                start, n = min(hits)
                cut = channel[:start]
                return (cut, "", stops[n], taken) if is_reasoning else (reasoning, cut, stops[n], taken)
    return reasoning, content, None, len(tokens)


ALPHABET = st.sampled_from(["a", "b", "<", "/", "think>", "</think>", " ", "\n", "é", "👩", "x"])
TEXT = st.lists(ALPHABET, max_size=14).map("".join)
STOPS = st.lists(
    st.sampled_from(["a", "ab", "ba b", "<", "</", "</think>", "👩", "\n\n", "é</"]), max_size=4
)


@st.composite
def tokens_of_text(draw: st.DrawFn) -> list[bytes]:
    """Any text cut at any bytes into tokens, some of them empty."""
    data = draw(TEXT).encode() + draw(st.sampled_from([b"", b"\xf0\x9f", b"\x80"]))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(tokens_of_text(), st.booleans(), STOPS.map(tuple))
@example([b"</th", b"ink>", b" \n", b" a"], True, ())
@example([b"a<", b"/x"], True, ("a<",))
def test_streams_what_the_whole_text_says(
    tokens: list[bytes], thinking: bool, stops: tuple[str, ...]
) -> None:
    answer = run(tokens, thinking=thinking, stops=stops)
    reasoning, content, stop, taken = expected(tokens, thinking, stops)
    assert (answer.reasoning, answer.content, answer.stop) == (reasoning, content, stop)
    assert answer.finish is (Finish.STOP_STRING if stop and taken <= len(tokens) else None)
    assert answer.taken == min(taken, len(tokens))


@given(tokens_of_text(), st.booleans(), STOPS.map(tuple))
def test_holds_back_nothing_that_is_certain(
    tokens: list[bytes], thinking: bool, stops: tuple[str, ...]
) -> None:
    session = OutputSession(tokens, (), thinking=thinking, stops=stops)
    decoder, text, shown = codecs.getincrementaldecoder("utf-8")("replace"), "", ""
    for token, data in enumerate(tokens):
        verdict = session.take(token)
        text += decoder.decode(data)
        shown += verdict.piece.reasoning + verdict.piece.content
        if verdict.stop is not None:
            return
        reasoning, content, is_open = channels(text, thinking, False)
        assert verdict.thinking is is_open
        current, ended = (reasoning, "") if is_open else (content, reasoning)
        assert shown == ended + current[: len(current) - tail(current, stops)]


@given(tokens_of_text(), st.booleans(), st.sampled_from([(), ("ab",), ("</",), ("\n\n",)]))
def test_one_stop_string_cuts_the_same_text_whatever_the_tokens(
    tokens: list[bytes], thinking: bool, stops: tuple[str, ...]
) -> None:
    whole = run([b"".join(tokens)], thinking=thinking, stops=stops)
    cut = run(tokens, thinking=thinking, stops=stops)
    assert (cut.reasoning, cut.content, cut.stop) == (whole.reasoning, whole.content, whole.stop)


@pytest.mark.parametrize("size", range(1, 28))
def test_no_character_of_a_stop_string_is_ever_sent(size: int) -> None:
    data = b"alpha beta gamma delta"
    answer = run(
        [data[at : at + size] for at in range(0, len(data), size)], thinking=False, stops=("beta gamma",)
    )
    assert (answer.content, answer.stop, answer.finish) == ("alpha ", "beta gamma", Finish.STOP_STRING)


def test_the_withheld_token_is_counted() -> None:
    assert run([b"alpha ", b"beta", b" gamma", b" delta"], thinking=False, stops=("beta gamma",)).taken == 3


def test_a_stop_string_may_span_a_split_character() -> None:
    answer = run([b"x \xf0\x9f", b"\x91", b"\xa9y", b"z"], thinking=False, stops=("👩y",))
    assert (answer.content, answer.stop, answer.taken) == ("x ", "👩y", 3)


def test_a_stop_string_ends_the_reasoning_too() -> None:
    answer = run([b"so EN", b"D</think>", b"x"], thinking=True, stops=("END",))
    assert (answer.reasoning, answer.content, answer.stop) == ("so ", "", "END")
    assert answer.thinking[-1]


def test_of_two_stops_in_one_token_the_earlier_cut_wins_then_the_first_declared() -> None:
    assert run([b"abcd"], thinking=False, stops=("bc", "abcd")).stop == "abcd"
    assert run([b"abcd"], thinking=False, stops=("abc", "ab")).stop == "abc"
    assert run([b"abcd"], thinking=False, stops=("ab", "abc")).stop == "ab"


def test_the_earlier_token_wins_over_the_earlier_cut() -> None:
    assert run([b"abc", b"d"], thinking=False, stops=("abcd", "bc")).stop == "bc"


def test_a_stop_string_does_not_reach_over_the_channel_end() -> None:
    answer = run([b"thought E</think>", b"ND then"], thinking=True, stops=("END",))
    assert (answer.reasoning, answer.content, answer.stop) == ("thought E", "ND then", None)


@pytest.mark.parametrize("cut", range(len(THINK_CLOSE) + 1))
def test_the_close_marker_may_span_tokens(cut: int) -> None:
    marker = THINK_CLOSE.encode()
    answer = run([b"idea\n" + marker[:cut], marker[cut:] + b"\n\n", b" \tanswer \n"], thinking=True)
    assert (answer.reasoning, answer.content) == ("idea\n", "answer \n")


def test_the_token_that_closes_reasoning_is_the_first_outside() -> None:
    assert run([b"a", b"</think>", b"b"], thinking=True).thinking == (True, False, False)


def test_an_answer_without_thinking_keeps_its_markers_and_its_blanks() -> None:
    answer = run([b"\n a</think> b"], thinking=False)
    assert (answer.reasoning, answer.content) == ("", "\n a</think> b")


def test_reasoning_cut_off_by_the_limit_shows_its_held_end() -> None:
    answer = run([b"still thinking </thi"], thinking=True)
    assert (answer.reasoning, answer.content, answer.finish) == ("still thinking </thi", "", None)


def test_a_stop_token_is_shown_by_nobody_and_flushes_what_was_held() -> None:
    answer = run([b"done <", b"/th\xf0\x9f"], thinking=False, stops=("</think>",), end=True)
    assert (answer.content, answer.finish, answer.stop) == ("done </th\ufffd", Finish.STOP_TOKEN, None)


def test_two_reasoning_blocks_are_one_and_text() -> None:
    answer = run([b"a</think>b</think>c"], thinking=True)
    assert (answer.reasoning, answer.content) == ("a", "b</think>c")


STOP_FLOODS = [("</think", True, ()), ("</thi", True, ()), ("ab" * 50, False, ("ab" * 5_000 + "c",))]


@pytest.mark.slow
@pytest.mark.parametrize(("flood", "thinking", "stops"), STOP_FLOODS)
def test_time_grows_with_the_text_alone(flood: str, thinking: bool, stops: tuple[str, ...]) -> None:
    def answer(size: int) -> Callable[[], object]:
        text = (flood * (size // len(flood))).encode()
        tokens = [text[at : at + 32] for at in range(0, len(text), 32)]
        return lambda: run(tokens, thinking=thinking, stops=stops)

    assert grows_linearly(answer, 1 << 17)
