"""The meaning of every unit, held on a random model whose pages start out poisoned."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from ninfer.engine.device import (
    Bind,
    Clear,
    CopyImage,
    CopyPage,
    Decode,
    HostDrop,
    HostLoad,
    HostSave,
    Prefill,
    Remember,
    Row,
    Settle,
)
from ninfer.engine.job import Sampling
from ninfer.faults import Broken
from ninfer.runtime.arrears import MOST
from ninfer.runtime.program import NumpyProgram
from tests.drive import Request, generate, relative, start, step
from tests.toy import DENSE, KNOWN, SPARSE, parameter, toy_program

PROMPT = (5, 7, 11, 2, 80, 33, 21, 9, 14, 3) * 7
HOT = Sampling(temperature=1.0, top_p=0.95, presence=0.4, frequency=0.2, seed=77)

families = pytest.mark.parametrize("config", [DENSE, SPARSE], ids=["dense", "sparse"])


def program_of(config: dict[str, Any] = DENSE, **options: Any) -> NumpyProgram:
    program = toy_program(config, **options)
    program.pages.values[:] = np.nan  # memory that nobody wrote must never matter
    return program


def image(program: NumpyProgram, slot: int = 0) -> np.ndarray[Any, Any]:
    return program.images.block[slot].copy()


def cached(program: NumpyProgram, pages: tuple[int, ...], tokens: int) -> np.ndarray[Any, Any]:
    """Keys and values of the first tokens, in order."""
    size = program.geometry.page_tokens
    values = program.pages.values[list(pages)].transpose(1, 2, 3, 0, 4, 5)
    flat = values.reshape(*values.shape[:3], len(pages) * size, -1)[:, :, :, :tokens]
    return np.nan_to_num(flat.copy())


# Rows do not see each other


@families
@pytest.mark.parametrize("sampling", [Sampling(), HOT], ids=["greedy", "hot"])
def test_a_request_gets_the_same_bits_alone_and_among_eight(
    config: dict[str, Any], sampling: Sampling
) -> None:
    alone = program_of(config)
    single = Request(PROMPT[:37], pages=tuple(range(16)), sampling=sampling)
    generate(alone, single, 12)

    crowd = program_of(config, max_concurrency=8, kv_capacity=8 * 256)
    requests = [
        Request(
            PROMPT[:37] if lane == 5 else PROMPT[lane : 20 + 3 * lane],
            lane=lane,
            slot=15 - lane,
            pages=tuple(range(16 * lane, 16 * lane + 16)),
            sampling=sampling if lane == 5 else attrs.evolve(HOT, seed=lane),
        )
        for lane in range(8)
    ]
    for request in requests:
        start(crowd, request)
    while len(requests[5].out) < 12:
        step(crowd, requests)
    assert requests[5].out == single.out
    assert np.array_equal(image(crowd, 10), image(alone, 0))
    assert np.array_equal(cached(crowd, requests[5].pages, 48), cached(alone, single.pages, 48))


@families
def test_scattered_pages_change_nothing(config: dict[str, Any]) -> None:
    found = []
    for pages in (tuple(range(16)), (9, 3, 14, 0, 5, 7, 1, 11, 2, 4, 6, 8, 10, 12, 13, 15)):
        program = program_of(config)
        request = Request(PROMPT, pages=pages)
        generate(program, request, 10)
        found.append((request.out, image(program).tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [8, 64, 256])
def test_page_size_changes_nothing(size: int) -> None:
    small = Request(PROMPT, pages=tuple(range(16)))
    other = Request(PROMPT, pages=tuple(range(256 // size)))
    generate(program_of(), small, 8)
    generate(program_of(page_tokens=size), other, 8)
    assert small.out == other.out


# Prefill and decode


@families
def test_prefill_equals_stepping(config: dict[str, Any]) -> None:
    whole, steps = program_of(config, kv_dtype="fp32"), program_of(config, kv_dtype="fp32")
    pages = tuple(range(16))
    start(whole, Request(PROMPT, pages=pages))
    start(steps, Request(PROMPT[:1], pages=pages))
    for index, token in enumerate(PROMPT[1:], 1):
        steps.run(Decode((Row(0, 0, index, pages, token),)))
    assert relative(image(whole), image(steps)) < 1e-5
    assert relative(cached(whole, pages, len(PROMPT)), cached(steps, pages, len(PROMPT))) < 1e-5


@families
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
def test_convolution_history_and_state_cross_chunk_edges(config: dict[str, Any], chunk: int) -> None:
    whole, pieces = program_of(config), program_of(config)
    start(whole, Request(PROMPT, pages=tuple(range(16))))
    start(pieces, Request(PROMPT, pages=tuple(range(16))), chunk)
    assert relative(image(pieces), image(whole)) < 2e-3  # bf16 cache entries may round apart


@families
def test_a_token_given_equals_the_token_the_lane_remembers(config: dict[str, Any]) -> None:
    first, second = program_of(config), program_of(config)
    request, replay = (Request(PROMPT, pages=tuple(range(16))) for _ in range(2))
    generate(first, request, 6)
    start(second, replay)
    for index, token in enumerate(request.out[:-1], len(PROMPT)):
        second.run(Decode((Row(0, 0, index, replay.pages, token),)))
    assert np.array_equal(image(first), image(second))


def test_decoding_without_a_pending_token_is_a_broken_invariant() -> None:
    program = program_of()
    program.run(Bind(0, Sampling()))
    with pytest.raises(Broken):
        program.run(Decode((Row(0, 0, 0, (0,), None),)))


@pytest.mark.parametrize("frontier", [len(PROMPT) - 1, len(PROMPT) + 1])
def test_units_must_continue_where_the_slot_stands(frontier: int) -> None:
    program = program_of()
    request = Request(PROMPT, pages=tuple(range(16)))
    start(program, request)
    with pytest.raises(Broken, match="stands at 70"):
        program.run(Decode((Row(0, 0, frontier, request.pages, 5),)))
    with pytest.raises(Broken, match="stands at 70"):
        program.run(Prefill(0, 0, frontier, (1, 2), request.pages))


# Speculation


@families
def test_speculation_gives_the_same_greedy_text_and_the_same_bits(config: dict[str, Any]) -> None:
    plain, drafted = (program_of(config, spec="mtp", draft_tokens=3) for _ in range(2))
    one, two = (Request(PROMPT, pages=tuple(range(16))) for _ in range(2))
    generate(drafted, two, 24, draft=3)
    drafted.run(Settle(0, 0, two.keep or 0))
    generate(plain, one, len(two.out))
    plain.run(Remember(0, 0, one.pages))
    assert one.out == two.out
    assert one.frontier == two.frontier
    assert np.array_equal(image(plain), image(drafted))
    assert np.array_equal(plain.images.edges, drafted.images.edges)
    count = one.frontier
    assert np.array_equal(cached(plain, one.pages, count), cached(drafted, two.pages, count))


@families
@pytest.mark.parametrize("keep", [1, 2, 3, 4])
def test_verify_and_fold_equals_that_many_steps(config: dict[str, Any], keep: int) -> None:
    """Drafts that are all right, kept in part: fold is decode, bit for bit."""
    text = Request(PROMPT, pages=tuple(range(16)))
    generate(program_of(config), text, 8)
    program, steps = program_of(config, spec="mtp", draft_tokens=3), program_of(config)
    program.drafter = Knowing(tuple(text.out[1:4]))
    for each in (program, steps):
        start(each, Request(PROMPT, pages=text.pages))
    found = program.run(Decode((Row(0, 0, len(PROMPT), text.pages, None, draft=3),))).rows[0]
    assert found.tokens == tuple(text.out[1:5])
    before = image(program)
    program.run(Settle(0, 0, keep))
    assert not np.array_equal(before, image(program))
    for i in range(keep):
        steps.run(Decode((Row(0, 0, len(PROMPT) + i, text.pages, text.out[i]),)))
    assert np.array_equal(image(program), image(steps))


@attrs.define(eq=False)
class Knowing:
    """A drafter that proposes given tokens."""

    tokens: tuple[int, ...]
    at: int = 0

    def follow(self, verbs: Any, hidden: Any, step: Any) -> None:
        """Needs nothing."""

    def remember(self, verbs: Any, previous: Any, step: Any) -> None:
        """Needs nothing."""

    def begin(self, verbs: Any, step: Any) -> tuple[Any, Any]:
        """Propose the first token."""
        self.at = 0
        return self.go_on(verbs, np.zeros((1, 1)), step)

    def go_on(self, verbs: Any, state: Any, step: Any) -> tuple[Any, Any]:
        """Propose the next token."""
        self.at += 1
        return np.full(len(state), self.tokens[self.at - 1]), state


# What the drafter is told late


READERS: dict[str, Any] = {
    "asked": lambda pages: Remember(0, 0, pages),
    "copied": lambda pages: CopyImage(0, 1),
    "saved": lambda pages: HostSave(1, 0, pages[:7]),
    "fed": lambda pages: Prefill(0, 0, len(PROMPT) + 19, (5, 6), pages),
    "drafts": lambda pages: Decode((Row(0, 0, len(PROMPT) + 19, pages, None, draft=2),)),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_whatever_reads_the_state_finds_what_drafts_are_made_from(reader: Any) -> None:
    pages, count = tuple(range(16)), len(PROMPT) + 19
    late, prompt = (program_of(spec="mtp", draft_tokens=3) for _ in range(2))
    one, all_at_once = Request(PROMPT, pages=pages), Request(PROMPT, pages=pages)
    generate(late, one, 20)
    start(prompt, all_at_once)
    for token in all_at_once.out + one.out[1:19]:  # a prompt's piece is followed at once
        prompt.run(Prefill(0, 0, all_at_once.frontier, (token,), pages))
        all_at_once.frontier += 1
    mtp = cached(prompt, pages, count)[-1]
    assert not np.allclose(cached(late, pages, count)[-1], mtp, atol=0.05)
    late.run(reader(pages))
    assert np.allclose(cached(late, pages, count)[-1], mtp, atol=0.05)


@pytest.mark.parametrize("unit", [Bind(0, Sampling()), Clear(0), CopyImage(1, 0)])
def test_a_slot_that_is_overwritten_owes_nothing(unit: Any) -> None:
    program, pages = program_of(spec="mtp", draft_tokens=3), tuple(range(16))
    request = Request(PROMPT, pages=pages)
    generate(program, request, 20)
    program.run(unit)
    before = cached(program, pages, request.frontier).copy()
    for reader in (Remember(0, 0, pages), CopyImage(0, 1), HostSave(1, 0, pages[:2])):
        program.run(reader)
    assert np.array_equal(before, cached(program, pages, request.frontier))


def test_what_is_told_late_is_bounded() -> None:
    program, pages = program_of(spec="mtp", draft_tokens=3), tuple(range(16))
    request = Request(PROMPT, pages=pages)
    start(program, request)
    longest = 0
    for _ in range(150):
        step(program, [request])
        longest = max([longest, *(len(one.hidden) for one in program._arrears.values())])
    assert longest == MOST - 1


def test_verification_leaves_the_state_alone_until_settled() -> None:
    program = program_of(spec="mtp", draft_tokens=3)
    request = Request(PROMPT, pages=tuple(range(16)))
    start(program, request)
    before = image(program)
    program.run(Decode((Row(0, 0, len(PROMPT), request.pages, None, draft=3),)))
    assert np.array_equal(before, image(program))


def test_a_rejected_suffix_leaves_no_trace() -> None:
    program, clean = (program_of(spec="mtp", draft_tokens=3) for _ in range(2))
    program.drafter = Wrong()
    pages = tuple(range(16))
    for each in (program, clean):
        start(each, Request(PROMPT, pages=pages))
    found = program.run(Decode((Row(0, 0, len(PROMPT), pages, None, draft=3),))).rows[0]
    assert found.drafted == 3 and len(found.tokens) == 1
    program.run(Settle(0, 0, 1))
    assert clean.run(Decode((Row(0, 0, len(PROMPT), pages, None),))).rows[0].tokens == found.tokens
    assert np.array_equal(image(program), image(clean))


class Wrong(Knowing):
    """A drafter that proposes what the target would never say."""

    def __init__(self) -> None:
        super().__init__((KNOWN + 1, KNOWN + 1, KNOWN + 1))


def test_rows_of_different_widths_share_a_round() -> None:
    program = program_of(spec="mtp", draft_tokens=3, max_concurrency=3, kv_capacity=3 * 256)
    lone = program_of(spec="mtp", draft_tokens=3)
    requests = [
        Request(PROMPT[lane:], lane=lane, slot=lane, pages=tuple(range(16 * lane, 16 * lane + 16)))
        for lane in range(3)
    ]
    for request in requests:
        start(program, request)
    rows = tuple(
        Row(r.lane, r.slot, r.frontier, r.pages, None, draft=draft)
        for r, draft in zip(requests, (3, 0, 1), strict=True)
    )
    results = program.run(Decode(rows)).rows
    assert [row.drafted for row in results] == [3, 0, 1]
    for lane, draft in ((0, 3), (1, 0), (2, 1)):
        single = Request(PROMPT[lane:], pages=tuple(range(16)))
        start(lone, single)
        row = Row(0, 0, single.frontier, single.pages, None, draft=draft)
        assert lone.run(Decode((row,))).rows[0].tokens == results[lane].tokens


def test_the_proposal_head_drafts_only_what_it_holds() -> None:
    program = program_of(spec="mtp", draft_tokens=3, proposal_head=True)
    ids = set(parameter("proposal/token_ids", (48,)).tolist())
    seen: list[int] = []
    start(program, Request(PROMPT, pages=tuple(range(16))))
    drafts = program._propose([Row(0, 0, len(PROMPT), tuple(range(16)), None, draft=3)])
    seen += drafts[0]
    assert len(seen) == 3 and set(seen) <= ids


@families
def test_drafts_after_prefill_equal_drafts_after_stepping(config: dict[str, Any]) -> None:
    """The MTP cache is the same whichever way the prompt went in."""
    row = Row(0, 0, len(PROMPT), tuple(range(16)), PROMPT[0], draft=3)
    found = []
    for chunk in (len(PROMPT), 64, 13, 1):
        program = program_of(config, spec="mtp", draft_tokens=3, kv_dtype="fp32")
        start(program, Request(PROMPT, pages=row.pages), chunk)
        found.append((program._propose([row]), cached(program, row.pages, len(PROMPT))[-1, ..., 1:, :]))
    for drafts, entries in found[1:]:
        assert drafts == found[0][0]
        assert relative(entries, found[0][1]) < 1e-5


def test_nothing_goes_on_before_a_verification_is_settled() -> None:
    program = program_of(spec="mtp", draft_tokens=2)
    request = Request(PROMPT, pages=tuple(range(16)))
    start(program, request)
    row = Row(0, 0, len(PROMPT), request.pages, None, draft=2)
    program.run(Decode((row,)))
    with pytest.raises(Broken, match="to settle"):
        program.run(Decode((row,)))
    with pytest.raises(Broken):
        program.run(Settle(0, 0, 4))


# Sampling and penalties


def test_settling_to_fewer_tokens_takes_their_counts_back() -> None:
    hot = attrs.evolve(HOT, temperature=0.0)
    text = Request(PROMPT, pages=tuple(range(16)), sampling=hot)
    generate(program_of(), text, 8)
    program = program_of(spec="mtp", draft_tokens=3)
    program.drafter = Knowing(tuple(text.out[1:4]))
    start(program, Request(PROMPT, pages=text.pages, sampling=hot))
    first = program.run(Decode((Row(0, 0, len(PROMPT), text.pages, None, draft=3),))).rows[0]
    assert first.tokens == tuple(text.out[1:5])
    row = Row(0, 0, len(PROMPT) + 2, text.pages, None, keep=2)
    assert program.run(Decode((row,))).rows[0].tokens == (text.out[3],)


def test_penalty_counts_of_a_rebound_lane_are_those_of_the_tokens_given() -> None:
    text = Request(PROMPT, pages=tuple(range(16)), sampling=HOT)
    generate(program_of(), text, 10)
    program = program_of()
    start(program, Request(PROMPT, pages=text.pages, sampling=HOT))
    for index, token in enumerate(text.out[:-2], len(PROMPT)):
        program.run(Decode((Row(0, 0, index, text.pages, token),)))
    program.run(Bind(0, HOT, generated=tuple(text.out[:-1])))
    row = Row(0, 0, len(PROMPT) + 8, text.pages, text.out[-2])
    assert program.run(Decode((row,))).rows[0].tokens == (text.out[-1],)


def test_ids_the_tokenizer_does_not_know_are_never_chosen() -> None:
    head = parameter("text/output_head", (96, 64)).copy()
    head[KNOWN:] *= 1000  # would win every time, one way or the other
    program = toy_program(changed={"text/output_head": head})
    assert program.geometry.vocab == KNOWN
    for seed in range(3):
        sampling = attrs.evolve(HOT, seed=seed, temperature=5.0)
        request = Request(PROMPT, pages=tuple(range(16)), sampling=sampling)
        assert max(generate(program, request, 20)) < KNOWN


@pytest.mark.parametrize("draft", [0, 2])
def test_a_row_that_is_not_finite_fails_alone(draft: int) -> None:
    table = parameter("text/token_embedding", (96, 64)).copy()
    table[89] = np.nan
    program = toy_program(
        changed={"text/token_embedding": table},
        max_concurrency=2,
        kv_capacity=512,
        spec="mtp",
        draft_tokens=2,
    )
    pages = tuple(range(16)), tuple(range(16, 32))
    for lane in (0, 1):
        start(program, Request(PROMPT, lane=lane, slot=lane, pages=pages[lane]))
    sick = Row(0, 0, len(PROMPT), pages[0], 89, draft=draft)
    well = Row(1, 1, len(PROMPT), pages[1], None, draft=draft)
    rows = program.run(Decode((sick, well))).rows
    assert rows[0].tokens == (-1,)
    assert rows[1].tokens[0] >= 0


# Moving state


def test_copies_and_host_memory_carry_a_request_to_other_slots_and_pages() -> None:
    straight, moved = program_of(), program_of(max_concurrency=2, kv_capacity=512)
    plain = Request(PROMPT, pages=tuple(range(16)))
    generate(straight, plain, 12)

    request = Request(PROMPT, pages=tuple(range(16)))
    generate(moved, request, 6)
    used = -(-request.frontier // 16)
    moved.run(HostSave(7, 0, request.pages[:used]))
    moved.pages.values[:] = np.nan
    moved.pages.codes[:] = 255
    moved.run(Clear(0))
    targets = tuple(range(31, 31 - used, -1))
    moved.run(HostLoad(7, 2, targets))
    moved.run(HostDrop(7))
    moved.run(CopyImage(2, 3))
    moved.run(CopyPage(targets[-1], 1))
    request.slot, request.lane = 3, 1
    request.pages = (*targets[:-1], 1, *range(2, 12))
    moved.run(Bind(1, Sampling(), generated=tuple(request.out)))
    row = Row(1, 3, request.frontier, request.pages, request.out[-1])
    request.out += moved.run(Decode((row,))).rows[0].tokens
    request.frontier += 1
    while len(request.out) < 12:
        step(moved, [request])
    assert request.out == plain.out


def test_pages_that_are_still_shared_are_not_loaded() -> None:
    program = program_of()
    start(program, Request(PROMPT, pages=tuple(range(16))))
    program.run(HostSave(1, None, (0, 1, 2)))
    kept = program.pages.values[0].copy()
    program.pages.values[0] = 5
    program.run(HostLoad(1, None, (8, 9), skip=1))
    assert (program.pages.values[0] == 5).all()
    assert np.array_equal(program.pages.values[8], program.pages.values[1])
    assert not np.array_equal(program.pages.values[8], kept)


def test_an_image_that_was_not_saved_cannot_be_loaded() -> None:
    program = program_of()
    program.run(HostSave(1, None, (0,)))
    with pytest.raises(Broken):
        program.run(HostLoad(1, 0, ()))


def test_a_cleared_slot_starts_from_nothing() -> None:
    program, fresh = program_of(), program_of()
    generate(program, Request(PROMPT, pages=tuple(range(16))), 5)
    again, first = (Request(PROMPT[:20], pages=tuple(range(16))) for _ in range(2))
    assert generate(program, again, 5) == generate(fresh, first, 5)


def test_prefill_without_sample_says_nothing() -> None:
    program = program_of()
    program.run(Clear(0))
    program.run(Bind(0, Sampling()))
    assert program.run(Prefill(0, 0, 0, PROMPT, tuple(range(16)))).rows == ()
