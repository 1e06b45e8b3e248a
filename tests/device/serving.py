"""Servers on the card for tests over HTTP, and their twins on the NumPy backend.

``NINFER_TEST_BACKEND=numpy`` puts the NumPy backend in the card's place, which rehearses the tests
themselves on a machine without one.  The one thing a reader would get wrong: without a pack of kernels
(``NINFER_TEST_KERNELS``) the first server compiles them, which takes minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from tests.device.card import kernel_pack
from tests.e2e.server import MODEL, Live, running

BACKEND = os.environ.get("NINFER_TEST_BACKEND", "cuda")
MODELS = {"dense": MODEL, "sparse": MODEL.with_name("tiny-qwen3_5_moe.ninfer")}


@attrs.frozen
class Pair:
    """The same model with the same options on the card and on the CPU."""

    card: Live
    cpu: Live


def card_options() -> list[str]:
    """Options that put a server on the card with the tests' kernels."""
    pack = kernel_pack()
    return ["--backend", BACKEND, *(["--kernels", str(pack)] if pack else [])]


@contextmanager
def on_card(*options: str, model: Path = MODEL, module: str = "ninfer", code: int = 0) -> Iterator[Live]:
    """Run a server on the card."""
    with running(*card_options(), *options, model=model, module=module, code=code) as live:
        yield live


@contextmanager
def pair(*options: str, model: Path = MODEL) -> Iterator[Pair]:
    """Run two servers."""
    with ExitStack() as stack:
        card = stack.enter_context(on_card(*options, model=model))
        cpu = stack.enter_context(running("--backend", "numpy", *options, model=model))
        yield Pair(card, cpu)
