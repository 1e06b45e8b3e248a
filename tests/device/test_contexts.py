"""``ninfer serve --context-dir`` on the card: a restarted server knows what it knew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.device.card import kernel_pack
from tests.e2e.server import Live, running
from tests.e2e.speak import ask, asked

pytestmark = pytest.mark.cuda
QUESTION = "Tell me a long story about a fox, please, and about everybody whom it met on its way home."


def told(live: Live) -> tuple[str, int]:
    """What it said, and how much of the prompt it knew."""
    status, answer = ask(live, "chat", asked("chat", QUESTION, 20))
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    known: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return (message.get("reasoning_content") or "") + (message["content"] or ""), known


def test_a_restarted_server_on_the_card_knows_what_it_knew(tmp_path: Path) -> None:
    pack = kernel_pack()
    options = ["--backend", "cuda", *(["--kernels", str(pack)] if pack else [])]
    options += ["--context-dir", str(tmp_path), "--max-context", "1024"]
    with running(*options) as first:
        text, known = told(first)
    assert known == 0 and list(tmp_path.glob("*.context"))
    with running(*options) as second:
        again, known = told(second)
        assert again == text and known > 20
        assert not [line for line in second.log if "WARNING" in line]
    for path in tmp_path.glob("*.context"):
        path.write_bytes(path.read_bytes()[:-7] + b"damaged")
    with running(*options) as third:
        assert told(third) == (text, 0)
    assert any("is ignored: its checksum does not match" in line for line in third.log)
