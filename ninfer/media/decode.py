"""Bytes to RGB pictures, with every size read and refused before a pixel is decoded.

Owns the list of formats and the colour rules: EXIF orientation is applied, transparency is laid on
white, 16-bit grey keeps its high byte, everything becomes 8-bit RGB.  Decoders are opened by class, so
that none of the library's other formats, global limits or warnings has a part in it.

The one thing a reader would get wrong: a decoder may fail in many ways (OSError, SyntaxError,
struct.error, ...); all of them mean one thing to the client, ``invalid_media``.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator, Set

import attrs
import numpy as np
from PIL import GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from ninfer.faults import Refused, invalid
from ninfer.media.headers import Format, Malformed, Sketch, TooLong, jpeg_segments, png_chunks, sketch

BROKEN: tuple[type[Exception], ...] = (
    *(OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, KeyError, IndexError),
    *(TypeError, AttributeError, OverflowError, RuntimeError, Image.DecompressionBombError, MemoryError),
)
_OPEN: dict[Format, Callable[[io.BytesIO], Image.Image]] = {
    "PNG": PngImagePlugin.PngImageFile,
    "JPEG": JpegImagePlugin.JpegImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "GIF": GifImagePlugin.GifImageFile,
}
_PNG_PARTS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_JPEG_NOTES = {0xFE, 0xE1, *range(0xE2, 0xEE), 0xEF}  # comments and application data but JFIF and Adobe
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that exchange the sides

Pulse = Callable[[], None]
"""Called now and then by long work on a worker thread; raises to end it."""


@attrs.frozen
class DecodeLimits:
    """What one item may cost.  Counts are pixels of the source."""

    pixels: int = 64_000_000  # of one picture, or of one frame
    video_pixels: int = 500_000_000  # of all frames that must be decoded of an animation
    frames: int = 20_000  # in a video or animation, sampled or not
    container_pixels: int = 20_000_000_000  # of all frames that must be decoded of a video container


def measure(data: bytes, param: str, limits: DecodeLimits, frames: int = 1) -> Sketch:
    """Read the header of a picture, or of an animation up to ``frames`` frames.  Raises ``Refused``."""
    try:
        found = sketch(data, frames)
    except TooLong:
        raise too_many(param, f"has more than {frames} frames") from None
    except Malformed:
        raise bad(param, "is not a PNG, JPEG, WebP or GIF picture") from None
    size = f"{found.width} x {found.height} pixels"
    if found.width * found.height > limits.pixels:
        raise too_many(param, f"has {size}, more than {limits.pixels}")
    if len(found.delays) * found.width * found.height > limits.video_pixels:
        raise too_many(param, f"has {len(found.delays)} frames of {size}, more than is decoded")
    return found


def decode_picture(data: bytes, of: Sketch, param: str) -> Image.Image:
    """Decode the (first) picture to upright RGB.  Raises ``Refused``."""
    try:
        picture = _loaded(_opened(data, of), of)
        turn = _TURNS.get(of.orientation)
        return rgb(picture if turn is None else picture.transpose(turn))
    except BROKEN:
        raise bad(param, "is a damaged picture") from None


def decode_frames(
    data: bytes, of: Sketch, chosen: Set[int], param: str, pulse: Pulse
) -> Iterator[Image.Image]:
    """Yield the chosen frames of an animated GIF or WebP as RGB, in order.  Raises ``Refused``."""
    try:
        picture = _opened(data, of)
        for index in range(max(chosen) + 1):
            pulse()
            picture.seek(index)
            if index in chosen:
                yield rgb(_loaded(picture, of))
    except BROKEN:
        raise bad(param, "is a damaged animation") from None


def _opened(data: bytes, of: Sketch) -> Image.Image:
    if of.format == "PNG":
        data = _essential(data, ((kind in _PNG_PARTS, a, b) for kind, a, b in png_chunks(data)), 8)
    elif of.format == "JPEG":
        data = _essential(data, ((m not in _JPEG_NOTES, a - 4, b) for m, a, b in jpeg_segments(data)), 2)
    picture = _OPEN[of.format](io.BytesIO(data))
    if of.format == "WEBP" and picture.size != (of.width, of.height):
        raise Malformed("two headers of one file disagree")
    return picture


def _essential(data: bytes, parts: Iterator[tuple[bool, int, int]], start: int) -> bytes:
    """Keep the first ``start`` bytes, the parts that bear pixels, and what follows the last part.

    Texts, profiles and notes may inflate a thousandfold, and nothing here reads them.
    """
    view = memoryview(data)
    kept, end = [view[:start]], start
    for wanted, begin, end in parts:
        if wanted:
            kept.append(view[begin:end])
    return b"".join([*kept, view[end:]])


def _loaded(picture: Image.Image, of: Sketch) -> Image.Image:
    picture.load()
    if picture.size != (of.width, of.height):
        raise Malformed("the picture is not of the size it declared")
    return picture


def rgb(picture: Image.Image) -> Image.Image:
    """Return 8-bit RGB; what is transparent becomes white."""
    clear = picture.info.get("transparency")
    if picture.mode == "RGB" and not isinstance(clear, tuple):
        return picture
    if picture.mode.startswith("I"):
        return _from_deep_grey(picture, clear)
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or clear is not None:
        layer = picture.convert("RGBA")
        paper = Image.new("RGB", layer.size, (255, 255, 255))
        paper.paste(layer, mask=layer.getchannel("A"))
        return paper
    return picture.convert("RGB")


def _from_deep_grey(picture: Image.Image, transparency: object) -> Image.Image:
    deep = np.asarray(picture)
    grey = (deep >> 8).astype(np.uint8)
    if isinstance(transparency, int):
        grey[deep == transparency] = 255
    return Image.fromarray(grey).convert("RGB")


def bad(param: str, what: str) -> Refused:
    """Build the refusal of bytes that are no usable medium."""
    return invalid(f"{param} {what}", param=param, code="invalid_media")


def too_many(param: str, what: str) -> Refused:
    """Build the refusal of a medium over the pixel or frame budget."""
    return invalid(f"{param} {what}", param=param, code="media_budget_exceeded")
