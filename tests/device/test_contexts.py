"""``ninfer serve --context-dir`` on the card: a restarted server knows what it knew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.device.card import kernel_pack
from tests.e2e.server import running
from tests.e2e.test_contexts import ask

pytestmark = pytest.mark.cuda


def test_a_restarted_server_on_the_card_knows_what_it_knew(tmp_path: Path) -> None:
    pack = kernel_pack()
    options = ["--backend", "cuda", *(["--kernels", str(pack)] if pack else [])]
    options += ["--context-dir", str(tmp_path), "--max-context", "1024"]
    with running(*options) as first:
        text, known = ask(first)
    assert known == 0 and list(tmp_path.glob("*.context"))
    with running(*options) as second:
        again, known = ask(second)
        assert again == text and known > 20
        assert not [line for line in second.log if "WARNING" in line]
    for path in tmp_path.glob("*.context"):
        path.write_bytes(path.read_bytes()[:-7] + b"damaged")
    with running(*options) as third:
        assert ask(third) == (text, 0)
    assert any("is ignored: its checksum does not match" in line for line in third.log)
