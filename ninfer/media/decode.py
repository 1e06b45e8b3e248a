"""Bytes to pictures and frames, with every size read and refused before a pixel is decoded.

Owns the list of formats and the colour rules: EXIF orientation is applied, transparency is laid on
white, 16-bit grey keeps its high byte, everything becomes 8-bit RGB.

The one thing a reader would get wrong: a decoder may fail in many ways (OSError, SyntaxError,
struct.error, ...); all of them mean one thing to the client, ``invalid_media``.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, ImageSequence

from ninfer.faults import Refused, invalid

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
BROKEN: tuple[type[Exception], ...] = (
    *(OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, KeyError, IndexError),
    *(TypeError, AttributeError, OverflowError, RuntimeError, Image.DecompressionBombError),
)

Pixels = npt.NDArray[np.uint8]


@attrs.frozen
class DecodeLimits:
    """What one item may cost.  Counts are pixels of the source."""

    pixels: int = 64_000_000  # of one picture, or of one frame
    video_pixels: int = 1_000_000_000  # of all sampled frames
    frames: int = 20_000  # in a video or animation, sampled or not


@attrs.frozen
class Clip:
    """Frames of a video and the second at which each is shown."""

    frames: tuple[Pixels, ...]
    seconds: tuple[float, ...]


def open_picture(data: bytes, param: str, limits: DecodeLimits) -> Image.Image:
    """Read the header of a picture.  Raises ``Refused`` before anything is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library's own size warning; ours is a refusal
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except BROKEN:
        raise bad(param, "is not a PNG, JPEG, WebP or GIF picture") from None
    if picture.width * picture.height > limits.pixels:
        raise too_many(param, picture.width, picture.height, limits.pixels)
    return picture


def decode_picture(data: bytes, param: str, limits: DecodeLimits) -> Image.Image:
    """Decode the (first) picture to RGB.  Raises ``Refused``."""
    picture = open_picture(data, param, limits)
    try:
        picture.load()
        return _rgb(ImageOps.exif_transpose(picture) or picture)
    except BROKEN:
        raise bad(param, "is a damaged picture") from None


def animation_size(data: bytes, param: str, limits: DecodeLimits) -> tuple[int, float, int, int] | None:
    """Return (frames, frames a second, height, width) of an animated GIF or WebP; None if it is none."""
    picture = _animated(data, param, limits)
    if picture is None:
        return None
    try:
        spans = [_shown(frame) for frame in ImageSequence.Iterator(picture)]
    except BROKEN:
        raise bad(param, "is a damaged animation") from None
    return len(spans), len(spans) / sum(spans), picture.height, picture.width


def animation(data: bytes, param: str, limits: DecodeLimits) -> Iterator[tuple[Image.Image, float]] | None:
    """Yield (frame, second) of an animated GIF or WebP; None if it is no such file."""
    picture = _animated(data, param, limits)
    return None if picture is None else _frames(picture, param)


def _animated(data: bytes, param: str, limits: DecodeLimits) -> Image.Image | None:
    try:
        picture = open_picture(data, param, limits)
    except Refused as refused:
        if refused.fault.code == "media_budget_exceeded":
            raise
        return None
    count = getattr(picture, "n_frames", 1)
    over = count > limits.frames or count * picture.width * picture.height > limits.video_pixels
    if over:
        message = f"{param} has {count} frames of {picture.width} x {picture.height}, more than is decoded"
        raise invalid(message, param=param, code="media_budget_exceeded")
    return picture


def _frames(picture: Image.Image, param: str) -> Iterator[tuple[Image.Image, float]]:
    now = 0.0
    try:
        for frame in ImageSequence.Iterator(picture):
            yield _rgb(frame.copy()), now
            now += _shown(frame)
    except BROKEN:
        raise bad(param, "is a damaged animation") from None


def _shown(frame: Image.Image) -> float:
    """Seconds for which a frame is shown; unsaid or absurdly short spans count as browsers count them."""
    milliseconds = frame.info.get("duration") or 0
    return (milliseconds if milliseconds >= 20 else 100) / 1000


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):
        grey = np.asarray(picture).astype(np.int64)
        high = grey >> 8 if grey.max(initial=0) > 255 else grey
        return Image.fromarray(high.clip(0, 255).astype(np.uint8)).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("RGB")
    return picture.convert("RGB")


def bad(param: str, what: str) -> Refused:
    """Build the refusal of bytes that are no usable medium."""
    return invalid(f"{param} {what}", param=param, code="invalid_media")


def too_many(param: str, width: int, height: int, limit: int) -> Refused:
    """Build the refusal of a picture over the pixel budget."""
    message = f"{param} has {width} x {height} pixels, more than {limit}"
    return invalid(message, param=param, code="media_budget_exceeded")
