"""Everything that serving asks of a card, once and briefly: what a memory or race checker watches.

``scripts/device_sanitize.sh`` runs this module.  The one thing a reader would get wrong: it is no test of
values; it demands only that a sequence says the same alone and in company.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ninfer.engine.device import (
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
from ninfer.ops.linear import Ending, Rows
from ninfer.ops.stored import CODES
from tests.device.tolerance import LINEAR_TC
from tests.drive import Request, generate, start, step
from tests.model.conftest import media_goldens
from tests.model.test_vision import fill
from tests.suites.bed import Bed
from tests.suites.program import FIXTURES, HOT, prompt
from tests.suites.vision import program_with_eyes

pytestmark = pytest.mark.cuda
LANES, DRAFTS, WIDTH, CHUNK = 3, 2, 6, 80


def seat(lane: int, ids: tuple[int, ...], hot: bool = False) -> Request:
    pages = tuple(range(WIDTH * lane, WIDTH * (lane + 1)))
    return Request(ids, lane=lane, slot=lane, pages=pages, **({"sampling": HOT} if hot else {}))


def live(bed: Bed, name: str, kind: str) -> Any:
    """Build a program of three lanes with drafts and a tower."""
    sizes = {"max_context": 64 * WIDTH, "prefill_chunk": CHUNK, "max_concurrency": LANES}
    return program_with_eyes(bed, name, kv_dtype=kind, spec="mtp", draft_tokens=DRAFTS, **sizes)


def short_life(program: Any) -> None:
    """Prompts, rounds with and without drafts, a batch of three, copies, host memory."""
    ids = prompt(100, 1)
    alone = generate(program, seat(0, ids), 4, chunk=CHUNK)
    crowd = [seat(0, ids), seat(1, prompt(21, 2), hot=True), seat(2, prompt(9, 3))]
    for one in crowd:
        start(program, one, chunk=CHUNK)
    step(program, crowd)
    step(program, crowd, draft=DRAFTS)
    step(program, crowd, draft=1)
    for one in crowd:
        program.run(Settle(one.lane, one.slot, one.keep or 0))
    assert tuple(crowd[0].out[:4]) == alone[: len(crowd[0].out)]
    move(program, crowd[0])


def move(program: Any, one: Request) -> None:
    """Copy a sequence about and go on from the copy."""
    run, used = program.run, one.frontier // 64 + 1
    row = Row(0, one.slot, one.frontier, one.pages, one.out[-1])
    run(HostSave(7, one.slot, one.pages[:used]))
    run(CopyImage(one.slot, 4))
    want = run(Decode((row,))).rows[0].tokens
    run(CopyPage(one.pages[0], one.pages[-1]))
    run(Clear(one.slot))
    run(HostLoad(7, one.slot, one.pages[:used]))
    run(HostDrop(7))
    assert run(Decode((row,))).rows[0].tokens == want
    run(Prefill(0, one.slot, one.frontier + 1, (), one.pages, sample=True))


@pytest.mark.parametrize("kind", ["bf16", "int8", "fp8", "nvfp4", "k8v4"])
@pytest.mark.parametrize("name", ["tiny-qwen3_5", "tiny-qwen3_5_moe"])
def test_life(bed: Bed, name: str, kind: str) -> None:
    program = live(bed, name, kind)
    short_life(program)
    if kind == "bf16":
        golden = next(iter(media_goldens(FIXTURES / f"{name}.ninfer").values()))
        fill(program, golden, CHUNK)


@pytest.mark.parametrize("form", CODES)
def test_every_weight_format(form: str) -> None:
    from tests.device.test_linear import product, rows_of, weight

    matrix, values = weight(form, 256, 512)
    for rows, wide in ((1, False), (9, False), (70, True)):
        x = rows_of(rows, 512)
        want = x.astype("float32") @ values.T
        LINEAR_TC.check(product(x, matrix, wide=wide), want)


def test_norms_of_the_weight_format_whose_products_prepare_them() -> None:
    from tests.device.test_linear import test_what_products_leave_for_a_norm_changes_no_bits as check

    check(256, 512)


@pytest.mark.parametrize("form", CODES)
def test_rings_come_round(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.device.card import BF16, bench
    from tests.device.test_linear import product, rows_of, weight

    card = bench()
    monkeypatch.setattr(card.products.linear, "blocks", 4)  # many tiles a team
    for outputs, columns in ((256, 1536), (4352, 256), (128, 6400)):
        matrix, values = weight(form, outputs, columns)
        x = rows_of(2, columns)
        LINEAR_TC.check(product(x, matrix), x.astype("float32") @ values.T)
    norm, out = np.zeros(6400, BF16), card.empty((2, 128), "f32")
    card.products(Rows(card.to(x.astype("float32")), card.to(norm)), [matrix], [out], Ending.STORE_F32)
    assert np.isfinite(card.back(out)).all()
