"""Pictures and clips to the patch rows that the vision tower reads.

A row is one patch in (channel, time, y, x) order; rows go block by block of merged patches, so that the
rows of one output token stand together.  Values stay the bytes they are: half of what bf16 would take,
and exactly the same numbers once the tower has scaled them to x / 127.5 - 1.  Frames are resized and cut
as they are decoded: beside the rows, one frame is in memory at a time.

The one thing a reader would get wrong: a still picture fills all time slots of its patches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
from PIL import Image

from ninfer.media.decode import Pulse, bad, decode_frames, decode_picture
from ninfer.media.headers import Sketch
from ninfer.media.plan import Kind, Plan
from ninfer.media.resize import Geometry
from ninfer.media.video import decode_reel

Rows = npt.NDArray[np.uint8]


@attrs.frozen(eq=False)
class Patches:
    """A preprocessed item, immutable.

    ``rows`` (patches, channels * temporal * patch * patch) uint8; ``grid`` (t, h, w) in patches;
    ``seconds`` the mean time of each temporal run of a video.
    """

    rows: Rows
    grid: tuple[int, int, int]
    seconds: tuple[float, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it holds in memory."""
        return int(self.rows.nbytes)


def media_key(kind: Kind, data: bytes) -> bytes:
    """Identify an item by its source bytes and modality."""
    digest = hashlib.sha256(kind.encode() + b"\0")
    digest.update(data)
    return digest.digest()


def preprocess(plan: Plan, data: bytes, param: str, pulse: Pulse) -> Patches:
    """Decode, resize and cut one item as planned; runs on a worker thread.  Raises ``Refused``."""
    g, (times, height, width) = plan.geometry, plan.grid
    rows = np.empty((plan.patches, g.values), np.uint8)
    runs = rows.reshape(times, height * width, 3, g.temporal, g.patch * g.patch)
    taken = 0
    for picture in _pictures(plan, data, param, pulse):
        pulse()
        time, slot = divmod(taken, g.temporal)
        cut(_resized(picture, plan), g, runs[time, :, :, slot:])  # the last frame fills its run
        taken += 1
    if not taken:
        raise bad(param, "holds no frames")
    runs[-(-taken // g.temporal) :] = runs[(taken - 1) // g.temporal, :, :, -1:]  # what was promised
    rows.setflags(write=False)
    return Patches(rows, plan.grid, plan.seconds)


def _pictures(plan: Plan, data: bytes, param: str, pulse: Pulse) -> Iterator[Image.Image]:
    """Yield the frames that are taken, or fewer if a container holds less than it says."""
    if not isinstance(plan.source, Sketch):
        yield from decode_reel(data, plan.source, frozenset(plan.frames), param, pulse)
    elif plan.kind == "video":
        yield from decode_frames(data, plan.source, frozenset(plan.frames), param, pulse)
    else:
        yield decode_picture(data, plan.source, param)


def _resized(picture: Image.Image, plan: Plan) -> Image.Image:
    if picture.size == (plan.width, plan.height):
        return picture
    return picture.resize((plan.width, plan.height), Image.Resampling.BICUBIC)


def cut(picture: Image.Image, g: Geometry, rows: Rows) -> None:
    """Cut an RGB picture into ``rows`` (patches, 3, slots, patch * patch), in merge-block order.

    Every time slot receives the same.  Works in strips one block high, which stay in the processor's
    cache, and moves whole patch lines.
    """
    side, m, p = g.factor, g.merge, g.patch
    across, slots = picture.width // side, rows.shape[2]
    line = _LINES.get(p, np.dtype(f"V{p}"))
    out = rows.reshape(-1, across, m, m, 3, slots, p * p).view(line)
    for strip, blocks in enumerate(out):
        box = (0, strip * side, picture.width, (strip + 1) * side)
        planar = np.frombuffer(picture.crop(box).tobytes("raw", "RGB;L"), line)
        lines = planar.reshape(m, p, 3, across, m).transpose(3, 0, 4, 2, 1)
        blocks[...] = lines[:, :, :, :, None]


_LINES: dict[int, np.dtype[Any]] = {16: np.dtype(np.complex128)}  # moved in one piece, never computed with
