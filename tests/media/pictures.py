"""Pictures and animations for tests: drawn shapes, every format and colour form we take, by name."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from ninfer.media.decode import DecodeLimits
from ninfer.media.patches import Patches, preprocess
from ninfer.media.plan import Kind, make_plan
from ninfer.media.resize import Geometry

SMALL = Geometry(low=4096, high=262_144, video_low=4096, video_high=262_144, most_frames=64)


def build(
    data: bytes, kind: Kind = "image", g: Geometry = SMALL, limits: DecodeLimits | None = None
) -> Patches:
    """Plan and preprocess in one go."""
    plan = make_plan(kind, data, "p", g, limits or DecodeLimits())
    return preprocess(plan, data, "p", lambda: None)


def scene(width: int = 96, height: int = 64, seed: int = 0) -> Image.Image:
    """A smooth picture without symmetry, with a few shapes."""
    rng = np.random.default_rng(seed)
    noise = Image.fromarray(rng.integers(0, 256, (4, 6, 3), dtype=np.uint8))
    picture = noise.resize((width, height), Image.Resampling.BICUBIC)
    ImageDraw.Draw(picture).ellipse((4, 6, width // 3, height // 2), fill=(250, 20, 20))
    return picture


def clear(picture: Image.Image) -> Image.Image:
    """The picture with a gradient of transparency."""
    alpha = Image.linear_gradient("L").resize(picture.size)
    out = picture.convert("RGBA")
    out.putalpha(alpha)
    return out


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    """Encode a picture."""
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def animated(
    kind: str, frames: list[Image.Image], milliseconds: int | list[int] = 500, **options: Any
) -> bytes:
    """Encode an animation."""
    more = {"save_all": True, "append_images": frames[1:], "duration": milliseconds, **options}
    return saved(frames[0], kind, **more)


def deep_grey(width: int = 96, height: int = 64) -> Image.Image:
    """A 16-bit grey ramp."""
    ramp = np.linspace(0, 65535, width * height).reshape(height, width)
    return Image.fromarray(ramp.astype(np.uint16))


def interlaced(picture: Image.Image) -> bytes:
    """An Adam7 PNG of an RGB picture, written by hand: the library writes none."""
    import zlib

    pixels, raw = np.asarray(picture), b""
    passes = [
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ]
    for left, top, across, down in passes:
        part = pixels[top::down, left::across]
        raw += b"".join(b"\0" + line.tobytes() for line in part if line.size)
    header = struct.pack(">IIBBBBB", picture.width, picture.height, 8, 2, 0, 0, 1)
    return png(("IHDR", header), ("IDAT", zlib.compress(raw)), ("IEND", b""))


def png(*chunks: tuple[str, bytes]) -> bytes:
    """A PNG of the given chunks."""
    import zlib

    out = b"\x89PNG\r\n\x1a\n"
    for kind, body in chunks:
        tagged = kind.encode() + body
        out += struct.pack(">I", len(body)) + tagged + struct.pack(">I", zlib.crc32(tagged))
    return out


def exif(orientation: int) -> bytes:
    """An EXIF block with one entry."""
    return (
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0) + b"\0" * 4
    )


STILL: dict[str, Callable[[], bytes]] = {
    "png": lambda: saved(scene(), "PNG"),
    "png-alpha": lambda: saved(clear(scene()), "PNG"),
    "png-1": lambda: saved(scene().convert("1"), "PNG"),
    "png-grey": lambda: saved(scene().convert("L"), "PNG"),
    "png-grey-alpha": lambda: saved(clear(scene()).convert("LA"), "PNG"),
    "png-16": lambda: saved(deep_grey(), "PNG"),
    "png-palette": lambda: saved(scene().quantize(64), "PNG"),
    "png-palette-clear": lambda: saved(scene().quantize(64), "PNG", transparency=3),
    "png-interlaced": lambda: interlaced(scene()),
    "jpeg": lambda: saved(scene(), "JPEG", quality=90),
    "jpeg-progressive": lambda: saved(scene(), "JPEG", progressive=True),
    "jpeg-grey": lambda: saved(scene().convert("L"), "JPEG"),
    "jpeg-cmyk": lambda: saved(scene().convert("CMYK"), "JPEG"),
    "jpeg-turned": lambda: saved(scene(), "JPEG", exif=exif(6)),
    "webp": lambda: saved(scene(), "WEBP", quality=80),
    "webp-lossless": lambda: saved(scene(), "WEBP", lossless=True),
    "webp-alpha": lambda: saved(clear(scene()), "WEBP", lossless=True),
    "gif": lambda: saved(scene(), "GIF"),
    "gif-clear": lambda: saved(scene().quantize(64), "GIF", transparency=3),
    "gif-animated": lambda: animated("GIF", [scene(seed=n) for n in range(6)]),
    "webp-animated": lambda: animated("WEBP", [scene(seed=n) for n in range(6)], lossless=True),
}
MOVING = ("gif", "gif-animated", "webp-animated", "webp", "gif-clear")
