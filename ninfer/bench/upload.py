"""`ninfer bench gpu --upload GIB`: a file of that size onto the card, the way a start reads weights.

Owns a file of random bytes, written before and removed afterwards, so it lies in the page cache: what a
second start of a server finds.  Promises the same objects, mapping and copies as a start.

The one thing a reader would get wrong: the rate that it is compared with is that of copies out of pinned
memory alone, measured in the same run; a disk is no part of either.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ninfer.artifact.files import MappedFile
from ninfer.artifact.manifest import TensorObject
from ninfer.faults import Broken, StartupError
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.runtime.arena import RawBlock, Region
from ninfer.runtime.cuda_card import Card, open_card
from ninfer.runtime.cuda_weights import PinnedUpload, upload, weight_bytes

# Bytes of a layer's matrices and norms, as official groupwise 27B artifacts have them.
LAYER = (120 << 20, 72 << 20, 56 << 20, 20 << 20, 10 << 20, 10 << 10, 10 << 10, 1 << 10)
BLOCK = 64 << 20
REPEATS = 3


@attrs.frozen
class Stored:
    """A file whose bytes are objects; implements what ``upload`` reads of an artifact."""

    file: MappedFile

    def objects(self) -> list[TensorObject]:
        """Cut the file into objects."""
        found: list[TensorObject] = []
        sizes, at = itertools.cycle(LAYER), 0
        while size := min(next(sizes), self.file.size - at):
            found.append(TensorObject(f"o{len(found)}", (size,), "u8", "row_major", at, size))
            at += size
        return found

    def has(self, name: str) -> bool:
        """There are no parameters."""
        return False

    def parameter(self, name: str) -> Any:
        """There are none."""
        raise NotImplementedError(name)

    def decode(self, name: str) -> Any:
        """There are none."""
        raise NotImplementedError(name)

    def raw(self, tensor: TensorObject) -> memoryview:
        """The bytes of an object."""
        return self.file.view[tensor.offset : tensor.offset + tensor.bytes]


def measure(gib: int, folder: Path | None, pack: Path | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Write a file, copy it to the card some times, and compare.  Raises StartupError."""
    card = open_card(pack=pack)
    with random_file(gib << 30, folder) as path:
        file = MappedFile(path)
        stored = Stored(file)
        objects = stored.objects()
        block = RawBlock.allocate(weight_bytes(objects) + 256, "the benchmark")
        pinned = pinned_rate(card, block)
        rates = [file.size / _seconds(card, stored, objects, block, say) for _ in range(REPEATS)]
        file.close()
    return {
        "card": card.name,
        "gb": (gib << 30) / 1e9,
        "folder": str(path.parent),
        "pinned_gb_per_second": pinned / 1e9,
        "gb_per_second": [rate / 1e9 for rate in rates],
        "fraction": statistics.median(rates) / pinned,
    }


@contextmanager
def random_file(nbytes: int, folder: Path | None) -> Iterator[Path]:
    """Write a file of random bytes and remove it in the end.  Raises StartupError."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="ninfer-bench-") as file:
            block = np.random.default_rng(1).integers(0, 256, BLOCK, np.uint8)
            for begin in range(0, nbytes, BLOCK):
                file.write(block[: nbytes - begin].data)
            file.flush()
            yield Path(file.name)
    except OSError as problem:
        raise StartupError(f"no file of {nbytes >> 30} GiB can be written ({problem.strerror})") from None


def pinned_rate(card: Card, block: RawBlock) -> float:
    """Bytes a second of copies out of pinned memory."""
    import cupy
    from cupy.cuda import runtime

    size = min(1 << 30, block.nbytes)
    memory = cupy.cuda.PinnedMemory(size)
    took = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        runtime.memcpyAsync(block.ptr, memory.ptr, size, 1, card.stream.ptr)
        card.wait()
        took.append(time.perf_counter() - begun)
    return size / statistics.median(took)


def _seconds(
    card: Card, stored: Stored, objects: list[TensorObject], block: RawBlock, say: Callable[[str], None]
) -> float:
    copies = PinnedUpload(card.stream)
    region = Region(block.ptr, block.nbytes)
    begun = time.perf_counter()
    placed = upload(stored, objects, region.take, copies, say)
    seconds = time.perf_counter() - begun
    copies.close()
    _check(card, stored, objects[-1], placed[objects[-1].id])
    return seconds


def _check(card: Card, stored: Stored, item: TensorObject, placed: DeviceArray) -> None:
    found = card.read(placed, np.empty(item.bytes, np.uint8))
    if found.tobytes() != stored.raw(item).tobytes():
        raise Broken(f"{item.id} arrived damaged")


def as_text(found: dict[str, Any]) -> str:
    """Write a few lines for people."""
    rates = ", ".join(f"{rate:.1f}" for rate in found["gb_per_second"])
    return (
        f"{found['card']}: {found['gb']:.1f} GB from {found['folder']}\n"
        f"  pinned copies {found['pinned_gb_per_second']:.1f} GB/s; a file {rates} GB/s, "
        f"{found['fraction']:.2f} of it"
    )
