from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ninfer.output.finder import Finder

WORD = st.text("ab", min_size=1, max_size=5)
CHUNKS = st.lists(st.text("abc", max_size=6), max_size=12)


def pending(seen: str, patterns: list[str]) -> int:
    """Length of the longest suffix of ``seen`` that some pattern begins with, short of the whole."""
    sizes = range(max(map(len, patterns)) - 1, 0, -1)
    return next(
        (n for n in sizes if n <= len(seen) and any(p[:n] == seen[-n:] and len(p) > n for p in patterns)), 0
    )


@given(CHUNKS, st.lists(WORD, min_size=1, max_size=4))
def test_holds_exactly_the_longest_suffix_that_may_become_a_match(
    chunks: list[str], patterns: list[str]
) -> None:
    finder, shown, seen = Finder(patterns), "", ""
    for chunk in chunks:
        found = finder.feed(chunk)
        seen += chunk
        shown += found.text
        hits = [(seen.find(p), n) for n, p in enumerate(patterns) if p in seen]
        if found.match is not None or hits:
            assert found.match is not None
            start, order = min(hits)
            assert (shown, found.match) == (seen[:start], order)
            assert shown + patterns[order] + found.rest == seen
            return
        assert len(finder.held) == pending(seen, patterns)
        assert shown + finder.held == seen


@given(CHUNKS, WORD)
def test_one_pattern_is_found_wherever_the_text_is_cut(chunks: list[str], pattern: str) -> None:
    whole = "".join(chunks)
    finder, shown = Finder([pattern]), ""
    for chunk in chunks:
        found = finder.feed(chunk)
        shown += found.text
        if found.match is not None:
            assert shown == whole[: whole.index(pattern)]
            return
    assert pattern not in whole
    assert shown + finder.held == whole
