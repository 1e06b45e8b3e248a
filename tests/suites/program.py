"""Whole bundled models through the CUDA program: text, bits, drafts, memory."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from ninfer.artifact.reader import Artifact, open_artifact
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
    Row,
    Settle,
)
from ninfer.engine.job import Sampling
from ninfer.model.weights import load_decoder, load_proposal
from ninfer.ops.cuda_state import EDGE_BYTES
from ninfer.runtime.build import build_numpy
from ninfer.runtime.cuda_build import Sizes, assemble, rehearse, reset
from ninfer.runtime.cuda_program import CudaProgram
from ninfer.settings import EngineOptions
from ninfer.spec.drafter import DRAFTERS
from tests.drive import Request, generate, start, step
from tests.suites.bed import Bed, only_on_a_card
from tests.suites.loader import StoredLoader

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"
HOT = Sampling(temperature=1.0, top_p=0.95, presence=0.4, frequency=0.2, seed=77)
models = pytest.mark.parametrize("name", ["tiny-qwen3_5", "tiny-qwen3_5_moe"])


def sizes_of(options: EngineOptions, vocab: int) -> Sizes:
    lanes = options.max_concurrency
    pages = -(-options.max_context // 64) * lanes
    return Sizes(
        lanes,
        2 * lanes,
        pages,
        options.max_context,
        options.prefill_chunk,
        options.draft_tokens,
        vocab,
        options.kv_dtype,
    )


def open_model(name: str) -> Artifact:
    return open_artifact(FIXTURES / f"{name}.ninfer")


def program_of(bed: Bed, name: str, **options: Any) -> CudaProgram:
    """Load a bundled model; pages start out poisoned."""
    chosen = attrs.evolve(EngineOptions(), **{"max_context": 512, "prefill_chunk": 512, **options})
    artifact = open_model(name)
    config, loader = artifact.text_config, StoredLoader(artifact, bed.to)
    decoder = load_decoder(loader, config)
    if chosen.proposal_head:
        decoder = attrs.evolve(decoder, proposal=load_proposal(loader))
    drafter = DRAFTERS[chosen.spec](loader, decoder) if chosen.spec else None
    program = assemble(
        bed.machine, config, decoder, drafter, sizes_of(chosen, config.vocab), bed.take, bed.take
    )
    reset(program)
    program.transfers.fill(program.pages.data, 0xFF)
    return program


def image(bed: Bed, program: CudaProgram, slot: int = 0) -> Any:
    program.export(slot, ())  # which brings it up
    return bed.back(program.images.image(slot))


def prompt(count: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(5, 3000, count).tolist())


@models
def test_products_know_the_norm_behind_them(bed: Bed, name: str) -> None:
    program = program_of(bed, name)
    layers, known = program.decoder.layers, program.verbs.followers
    assert len(known) == (0 if name.endswith("moe") else 2 * len(layers) - 1)
    for layer, behind in itertools.pairwise(layers):
        if known:
            assert known[layer.mixer.output.data.codes] is layer.feed.norm
            assert known[layer.feed.down.data.codes] is behind.mixer.norm


@models
@pytest.mark.slow
def test_greedy_text_is_that_of_the_numpy_backend(bed: Bed, name: str) -> None:
    numpy = build_numpy(open_model(name), attrs.evolve(EngineOptions(), max_context=512), lambda text: None)
    cuda = program_of(bed, name)
    count = 24 if bed.real else 3
    for ids in (prompt(70, 1), prompt(7, 2))[: 2 if bed.real else 1]:
        requests = [Request(ids, pages=tuple(range(8))) for _ in range(2)]
        texts = [
            generate(program, request, count)
            for program, request in zip((numpy, cuda), requests, strict=True)
        ]
        hidden = bed.back(cuda.images.image(0)).reshape(-1)[cuda.images.hidden_offset :]
        got = hidden.view(np.uint16)[:256].astype(np.uint32) << 16
        if texts[0] == texts[1]:
            want = numpy.verbs.slots.hidden[0]
            assert np.linalg.norm(got.view(np.float32) - want) <= 3e-2 * np.linalg.norm(want)
        assert texts[0][:3] == texts[1][:3]


@models
@pytest.mark.slow
def test_a_request_gets_the_same_bits_alone_in_a_batch_and_with_drafts(bed: Bed, name: str) -> None:
    only_on_a_card(bed, name.endswith("moe"))
    ids, pages, count = prompt(21, 3), tuple(range(8)), 24 if bed.real else 5
    plain = program_of(bed, name, spec="mtp", draft_tokens=3)
    drafted = program_of(bed, name, spec="mtp", draft_tokens=3)
    one, two = Request(ids, pages=pages), Request(ids, pages=pages)
    generate(drafted, two, count, draft=3)
    drafted.run(Settle(0, 0, two.keep or 0))
    generate(plain, one, len(two.out))
    assert one.out == two.out and one.frontier == two.frontier
    assert (image(bed, plain) == image(bed, drafted)).all()
    lanes = 8 if bed.real else 3
    crowd = program_of(bed, name, max_concurrency=lanes, spec="mtp", draft_tokens=3)
    requests = [
        Request(
            ids if lane == 1 else prompt(9 + lane, lane), lane=lane, slot=2 * lanes - 1 - lane,
            pages=tuple(range(8 * lane, 8 * lane + 8)), sampling=Sampling() if lane == 1 else HOT,
        )
        for lane in range(lanes)
    ]  # fmt: skip
    for request in requests:
        start(crowd, request)
    while len(requests[1].out) < len(one.out):
        step(crowd, requests)
    assert requests[1].out == one.out
    assert (image(bed, crowd, 2 * lanes - 2) == image(bed, plain)).all()


@pytest.mark.slow
def test_hot_requests_draw_the_same_tokens_in_any_company(bed: Bed) -> None:
    only_on_a_card(bed, True)
    alone = program_of(bed, "tiny-qwen3_5")
    single = Request(prompt(30, 4), pages=tuple(range(8)), sampling=HOT)
    generate(alone, single, 40)
    crowd = program_of(bed, "tiny-qwen3_5", max_concurrency=8)
    requests = [
        Request(single.ids if lane == 6 else prompt(12 + lane, lane), lane=lane, slot=lane,
                pages=tuple(range(8 * lane, 8 * lane + 8)), sampling=HOT)
        for lane in range(8)
    ]  # fmt: skip
    for request in requests:
        start(crowd, request)
    while len(requests[6].out) < 40:
        step(crowd, requests)
    assert requests[6].out == single.out


@pytest.mark.slow
def test_rows_of_different_draft_widths_share_a_round(bed: Bed) -> None:
    only_on_a_card(bed, True)
    program = program_of(bed, "tiny-qwen3_5", max_concurrency=3, spec="mtp", draft_tokens=3)
    lone = program_of(bed, "tiny-qwen3_5", spec="mtp", draft_tokens=3)
    requests = [
        Request(prompt(6 + lane, lane), lane=lane, slot=lane, pages=tuple(range(8 * lane, 8 * lane + 8)))
        for lane in range(3)
    ]
    for request in requests:
        start(program, request)
    rows = tuple(
        Row(r.lane, r.slot, r.frontier, r.pages, None, draft=draft)
        for r, draft in zip(requests, (1, 0, 3), strict=True)
    )
    results = program.run(Decode(rows)).rows
    assert [row.drafted for row in results] == [1, 0, 3]
    for lane, draft in ((0, 1), (1, 0), (2, 3)):
        single = Request(prompt(6 + lane, lane), pages=tuple(range(8)))
        start(lone, single)
        row = Row(0, 0, single.frontier, single.pages, None, draft=draft)
        assert lone.run(Decode((row,))).rows[0].tokens == results[lane].tokens


@pytest.mark.slow
def test_images_and_pages_move_whole(bed: Bed) -> None:
    program = program_of(bed, "tiny-qwen3_5", max_context=192)
    ids = prompt(70, 5)
    first = Request(ids, pages=(0, 1, 2))
    start(program, first)
    run = program.run
    for unit in (CopyImage(0, 1), CopyPage(0, 2), HostSave(7, 0, (0, 1)), Clear(0), Bind(0, Sampling())):
        run(unit)
    assert not image(bed, program).any()
    before = image(bed, program, 1)
    token = first.out[0]
    want = run(Decode((Row(0, 1, 70, (2, 1), token),))).rows[0].tokens
    for page in (0, 1, 2):
        program.transfers.fill(program.pages.page(page), 0xFF)
    run(HostLoad(7, 0, (2, 0)))
    assert (image(bed, program, 0) == before).all()
    assert run(Decode((Row(0, 0, 70, (2, 0), token),))).rows[0].tokens == want
    run(HostLoad(7, None, (1,), skip=1))
    run(HostDrop(7))
    assert run(Prefill(0, 1, 71, (), (2, 1), sample=True)).rows[0].tokens == want


@models
@pytest.mark.slow
def test_rehearsed_sizes_are_enough_and_no_more(bed: Bed, name: str) -> None:
    only_on_a_card(bed, name.endswith("moe"))
    from ninfer.kernels_cu.arrays import DeviceArray
    from ninfer.runtime.arena import Region, Scratch

    artifact = open_model(name)
    config, loader = artifact.text_config, StoredLoader(artifact, bed.to)
    decoder = load_decoder(loader, config)
    drafter = DRAFTERS["mtp"](loader, decoder)
    options = attrs.evolve(
        EngineOptions(), max_context=128, prefill_chunk=64, draft_tokens=2, max_concurrency=2
    )
    sizes = sizes_of(options, config.vocab)
    kept, lent = rehearse(bed.machine, config, decoder, drafter, sizes)
    room = bed.take((kept + lent + 512,), "u8")
    region = Region(room.ptr, kept)
    scratch = Scratch(-(-(room.ptr + kept) // 256) * 256, lent)
    program = assemble(bed.machine, config, decoder, drafter, sizes, region.take, scratch.take)
    assert region.used == kept and isinstance(room, DeviceArray)
    reset(program)
    requests = [
        Request(prompt(40, lane), lane=lane, slot=lane, pages=(2 * lane, 2 * lane + 1)) for lane in range(2)
    ]
    for request in requests:
        start(program, request)
    step(program, requests, draft=2)
    assert scratch.lent == 0 and scratch.peak <= lent


@models
@pytest.mark.slow
def test_another_program_goes_on_from_exported_state(bed: Bed, name: str) -> None:
    only_on_a_card(bed, name.endswith("moe"))
    ids, pages = prompt(70, 5), (0, 1)
    one, two = (program_of(bed, name, max_context=192, spec="mtp", draft_tokens=2) for _ in range(2))
    first = Request(ids, pages=pages)
    start(one, first)
    one.run(HostSave(1, 0, ()))
    one.run(HostSave(2, None, (2, *pages)))
    state, kv = bytes(one.export(0, ())), bytes(one.export(None, pages))
    assert (len(state), len(kv)) == (one.geometry.image_bytes, 2 * one.geometry.page_bytes)
    assert (bytes(one.export_host(1, 0, 0)), bytes(one.export_host(2, 1, 2))) == (state, kv)
    two.room(7, 0)[:] = state
    two.room(8, 2)[:] = kv
    assert (bytes(two.export_host(7, 0, 0)), bytes(two.export_host(8, 0, 2))) == (state, kv)
    for unit in (
        Bind(0, Sampling()),
        HostLoad(7, 1, ()),
        HostLoad(8, None, (2, 0)),
        HostDrop(7),
        HostDrop(8),
    ):
        two.run(unit)
    body = two.images.image_bytes - EDGE_BYTES
    assert (image(bed, two, 1)[0, :body] == image(bed, one)[0, :body]).all()
    assert (two.edges[1] == one.edges[0]).all()
    places = ((one, 0, pages), (two, 1, (2, 0)))
    texts = []
    for program, slot, table in places:
        (row,) = program.run(Decode((Row(0, slot, 70, table, first.out[0], draft=2),))).rows
        keep = len(row.tokens)
        (more,) = program.run(Decode((Row(0, slot, 70 + keep, table, None, keep=keep),))).rows
        texts.append(row.tokens + more.tokens)
    assert texts[0] == texts[1]


def test_signatures_keep_cards_formats_and_backends_apart(bed: Bed) -> None:
    from ninfer.ops.cuda_state import ImagePool, PagePool, Shape, image_bytes, page_bytes
    from ninfer.runtime.cuda_build import signature_of

    shape = Shape(1024, 4, 2, 4, 8, 1e-6)

    def named(arch: str = "sm_90a", kind: str = "bf16", layers: int = 4, drafter: Any = None) -> str:
        images = ImagePool(bed.take((2, image_bytes(shape, 3)), "u8"), shape, 3)
        pool = PagePool(bed.take((2, page_bytes(kind, layers, 2)), "u8"), kind, layers, 2)
        return signature_of(arch, images, pool, drafter)

    kinds = [named(kind=kind) for kind in ("bf16", "int8", "fp8", "nvfp4", "k8v4")]
    all_of_them = [*kinds, named(arch="sm_80"), named(layers=5), named(drafter=bed)]
    assert len(set(all_of_them)) == len(all_of_them)
    assert all(one.startswith("cuda ") for one in all_of_them)
    options = attrs.evolve(EngineOptions(), max_context=64)
    assert build_numpy(open_model("tiny-qwen3_5"), options, lambda text: None).signature.startswith(
        "numpy "
    )


@models
@pytest.mark.parametrize("rows", [2, 5, 9])
@pytest.mark.slow
def test_the_tail_of_a_prompt_ends_in_the_bits_of_as_many_steps(bed: Bed, name: str, rows: int) -> None:
    only_on_a_card(bed, name.endswith("moe") or rows == 9)
    ids, pages = prompt(62 + rows, 6), (0, 1)
    tailed, stepped = (program_of(bed, name, max_context=192, spec="mtp", draft_tokens=2) for _ in range(2))
    for program in (tailed, stepped):
        for unit in (Clear(0), Bind(0, Sampling()), Prefill(0, 0, 0, ids[:62], pages)):
            program.run(unit)
    (found,) = tailed.run(Prefill(0, 0, 62, ids[62:], pages, sample=True, tail=True)).rows
    for at, token in enumerate(ids[62:], 62):
        (last,) = stepped.run(Decode((Row(0, 0, at, pages, token),))).rows
    assert found.tokens == last.tokens
    assert (image(bed, tailed) == image(bed, stepped)).all()
    kept = [bed.back(program.pages.data)[:2] for program in (tailed, stepped)]
    assert (kept[0] == kept[1]).all()
