"""A start on a card that others have filled: one sentence and exit code 2.

The one thing a reader would get wrong: nothing else can use the card meanwhile, so this module is not for a
run in parallel.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.device.serving import card_options
from tests.e2e.server import MODEL, ROOT

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("left", [100 << 20, 2 << 30], ids=["no context", "no room"])
def test_a_full_card_is_told_in_one_sentence(left: int) -> None:
    import cupy

    held = cupy.cuda.Memory(cupy.cuda.runtime.memGetInfo()[0] - left)
    try:
        wide = ("--max-concurrency", "8", "--kv-capacity", "65536", "--prefill-chunk", "8192")
        command = [sys.executable, "-m", "ninfer", "serve", str(MODEL), "--port", "0"]
        done = subprocess.run(
            [*command, *card_options(), *wide, "--device-state-slots", "4096"],
            capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
        )  # fmt: skip
    finally:
        del held
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("ninfer: ")]
    assert len(said) == 1 and re.search("out of memory|lacks|has no [0-9.]+ GiB", said[0]), done.stderr
    assert "Traceback" not in done.stderr
