"""Pictures and clips to the patch rows that the vision tower reads.

A row is one patch in (channel, time, y, x) order; rows go block by block of merged patches, so that the
rows of one output token stand together.  Values are x / 127.5 - 1 in float32 arithmetic, kept as bf16.

The one thing a reader would get wrong: a still picture fills both time slots of its patches.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import attrs
import ml_dtypes
import numpy as np
import numpy.typing as npt
from PIL import Image

from ninfer.media.decode import DecodeLimits, Pixels, animation, animation_size, bad, decode_picture
from ninfer.media.resize import Geometry, Unfit, picture_size, run_seconds, sampled_frames, video_size
from ninfer.media.video import read_video

Rows = npt.NDArray[np.float32]


@attrs.frozen(eq=False)
class Patches:
    """A preprocessed item, immutable.

    ``rows`` (patches, channels * temporal * patch * patch) bf16; ``grid`` (t, h, w) in patches;
    ``seconds`` the mean time of each temporal run of a video.
    """

    rows: npt.NDArray[ml_dtypes.bfloat16]
    grid: tuple[int, int, int]
    seconds: tuple[float, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it holds in memory."""
        return int(self.rows.nbytes)


def media_key(kind: Literal["image", "video"], data: bytes) -> bytes:
    """Identify an item by its source bytes and modality."""
    return hashlib.sha256(kind.encode() + b"\0" + data).digest()


def preprocess(
    kind: Literal["image", "video"], data: bytes, param: str, g: Geometry, limits: DecodeLimits
) -> Patches:
    """Decode, resize and cut one item; runs on a worker thread.  Raises ``Refused``."""
    try:
        return _picture(data, param, g, limits) if kind == "image" else _video(data, param, g, limits)
    except Unfit as problem:
        raise bad(param, f"does not fit: {problem}") from None


def _picture(data: bytes, param: str, g: Geometry, limits: DecodeLimits) -> Patches:
    picture = decode_picture(data, param, limits)
    height, width = picture_size(picture.height, picture.width, g)
    frame = _resized(picture, height, width)
    return _freeze(cut(np.stack([frame] * g.temporal), g), (1, height // g.patch, width // g.patch), ())


def _video(data: bytes, param: str, g: Geometry, limits: DecodeLimits) -> Patches:
    frames, seconds = _sampled(data, param, g, limits)
    height, width = video_size(len(frames), frames[0].height, frames[0].width, g)
    pixels = [_resized(frame, height, width) for frame in frames]
    pixels += [pixels[-1]] * (-len(pixels) % g.temporal)
    grid = (len(pixels) // g.temporal, height // g.patch, width // g.patch)
    return _freeze(cut(np.stack(pixels), g), grid, run_seconds(seconds, g.temporal))


def _sampled(
    data: bytes, param: str, g: Geometry, limits: DecodeLimits
) -> tuple[list[Image.Image], list[float]]:
    moving = animation(data, param, limits)
    if moving is None:
        return read_video(data, param, g, limits)
    count, fps, _, _ = animation_size(data, param, limits) or (0, 0.0, 0, 0)
    chosen = set(sampled_frames(count, fps, g))
    kept = [shown for index, shown in enumerate(moving) if index in chosen]
    return [frame for frame, _ in kept], [second for _, second in kept]


def _resized(picture: Image.Image, height: int, width: int) -> Pixels:
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(picture, np.uint8)


def cut(frames: npt.NDArray[np.uint8], g: Geometry) -> Rows:
    """Cut frames (T, H, W, 3) into patch rows in merge-block order, normalised.  -> (patches, values)."""
    t, h, w = frames.shape[0] // g.temporal, frames.shape[1] // g.patch, frames.shape[2] // g.patch
    m, p = g.merge, g.patch
    blocks = frames.reshape(t, g.temporal, h // m, m, p, w // m, m, p, 3)
    ordered = blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(t * h * w, -1)
    return _TABLE[ordered]


# x / 127.5 - 1 as the processors compute it: rescale by 1/255, then (x - 0.5) / 0.5, in float32.
_TABLE: Rows = ((np.arange(256, dtype=np.float32) * np.float32(1 / 255)) - np.float32(0.5)) / np.float32(
    0.5
)


def _freeze(rows: Rows, grid: tuple[int, int, int], seconds: tuple[float, ...]) -> Patches:
    kept = rows.astype(ml_dtypes.bfloat16)
    kept.setflags(write=False)
    return Patches(kept, grid, seconds)
