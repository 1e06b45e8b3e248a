"""State as bytes: what one program gives out, another takes back, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.engine.device import HostLoad, HostSave
from ninfer.runtime.kvformat import KV_FORMATS
from tests.drive import Request, start
from tests.toy import DENSE, SPARSE, toy_program

PROMPT = (5, 7, 11, 2, 80, 33, 21, 9, 14, 3) * 5


@pytest.mark.parametrize("config", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("hosted", [False, True])
def test_another_program_goes_on_from_the_bytes(config, hosted):
    one, two = (toy_program(config, spec="mtp", draft_tokens=2) for _ in range(2))
    start(one, Request(PROMPT, pages=tuple(range(16))))
    pages = tuple(range(4))
    if hosted:
        one.run(HostSave(1, 0, ()))
        one.run(HostSave(2, None, (9, *pages)))
        image, kv = one.export_host(1, 0, 0), one.export_host(2, 1, 4)
    else:
        image, kv = one.export(0, ()), one.export(None, pages)
    assert (len(image), len(kv)) == (one.geometry.image_bytes, 4 * one.geometry.page_bytes)
    two.room(7, 0)[:] = image
    two.room(8, 4)[:] = kv
    assert (bytes(two.export_host(7, 0, 0)), bytes(two.export_host(8, 0, 4))) == (image, kv)
    two.run(HostLoad(7, 1, ()))
    two.run(HostLoad(8, None, (10, 11, 12, 13)))
    assert np.array_equal(one.images.block[0], two.images.block[1])
    assert np.array_equal(one.images.edges[0], two.images.edges[1])
    assert two.images.frontiers[1] == len(PROMPT)
    assert np.array_equal(one.pages.codes[:4], two.pages.codes[10:14])
    assert np.array_equal(one.pages.values[:4], two.pages.values[10:14])


@pytest.mark.parametrize("pages", [0, 1, 3])
@pytest.mark.parametrize("change", [-1, 1])
def test_bytes_of_another_size_are_refused(pages, change):
    program = toy_program()
    room = program.room(1, pages)
    assert len(room) == pages * program.geometry.page_bytes or program.geometry.image_bytes
    with pytest.raises(ValueError, match="different structures"):
        room[:] = bytes(len(room) + change)


def test_a_signature_tells_apart_whatever_changes_the_bytes():
    changes = [{"kv_dtype": name} for name in KV_FORMATS]
    changes += [{"page_tokens": 32}, {"spec": "mtp", "draft_tokens": 2}]
    signatures = [toy_program(**change).signature for change in changes]
    assert len(set(signatures)) == len(signatures)
    assert toy_program(max_concurrency=4, kv_capacity=999).signature == toy_program().signature
