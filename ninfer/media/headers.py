"""What a picture or animation declares of itself, read from its bytes without decoding anything.

Owns four small readers (PNG, JPEG, WebP, GIF) and the EXIF orientation.  Promises that every loop is
bounded, that nothing larger than a few bytes is copied, and that what cannot be read is ``Malformed``.

The one thing a reader would get wrong: a GIF frame may reach beyond the declared screen, and decoders
then enlarge the picture; the size told here includes every frame that will be decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal

import attrs

Format = Literal["PNG", "JPEG", "WEBP", "GIF"]
MAX_SCANS = 100  # of a JPEG: each costs a pass over the whole picture, however few bytes it has
MAX_BLOCKS = 300_000  # chunks, segments or data blocks walked in one file
MAX_ENTRIES = 1_000  # of an EXIF directory
_QUICK, _USUAL = 0.02, 0.1  # seconds: shorter delays than the first are shown as the second
_SIZED = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
_BARE = {0x01, *range(0xD0, 0xD9)}  # JPEG markers without a length


class Malformed(ValueError):
    """The bytes are no PNG, JPEG, WebP or GIF, or their header is damaged."""


class TooLong(ValueError):
    """The animation has more frames than may be looked at."""


@attrs.frozen
class Sketch:
    """A file's own account of itself.

    ``width`` and ``height`` are pixels as stored, ``orientation`` the EXIF value 1..8, ``delays`` the
    seconds each frame of an animation is shown (one entry for a still picture).
    """

    format: Format
    width: int
    height: int
    orientation: int = 1
    delays: tuple[float, ...] = (_USUAL,)


def sniff(data: bytes) -> Format | None:
    """Tell the format by its first bytes; None if it is none of ours."""
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "PNG"
    if data[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    return "GIF" if data[:6] in (b"GIF87a", b"GIF89a") else None


def sketch(data: bytes, frames: int = 1) -> Sketch:
    """Read a header, with the delays of at most ``frames`` frames; 1 reads a still picture.

    Raises ``Malformed``, and ``TooLong`` for an animation with more frames than asked for.
    """
    reader = {"PNG": _png, "JPEG": _jpeg, "WEBP": _webp, "GIF": _gif}.get(sniff(data) or "")
    if reader is None:
        raise Malformed("no known picture format")
    try:
        found = reader(data, frames)
    except (struct.error, IndexError) as problem:
        raise Malformed("the header is cut short") from problem
    if not found.width or not found.height:
        raise Malformed("the picture has no pixels")
    return found


# PNG


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, start, stop) of each chunk, its length field and checksum included."""
    at = 8
    for _ in range(MAX_BLOCKS):
        if at + 12 > len(data):
            return
        (length,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 8], at, at + 12 + length
        at += 12 + length
    raise Malformed("too many chunks")


def _png(data: bytes, frames: int) -> Sketch:
    width, height = struct.unpack_from(">II", data, 16)
    if data[12:16] != b"IHDR" or width >= 1 << 31 or height >= 1 << 31:
        raise Malformed("a PNG begins with its header")
    exif = next(
        (slice(start + 8, stop - 4) for kind, start, stop in png_chunks(data) if kind == b"eXIf"), None
    )
    return Sketch("PNG", width, height, 1 if exif is None else orientation(data[exif][:65536]))


# JPEG


def _jpeg(data: bytes, frames: int) -> Sketch:
    if data.count(b"\xff\xda") > MAX_SCANS:
        raise Malformed("too many scans")
    turned = 1
    for marker, start, stop in jpeg_segments(data):
        if marker in _SIZED:
            height, width = struct.unpack_from(">HH", data, start + 1)
            return Sketch("JPEG", width, height, turned)
        if marker == 0xE1 and data[start : start + 6] == b"Exif\0\0" and turned == 1:
            turned = orientation(data[start + 6 : stop])
    raise Malformed("a JPEG without a frame")


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, stop) of the contents of each segment up to the first scan's header."""
    at = 2
    for _ in range(MAX_BLOCKS):
        if data[at] != 0xFF:
            raise Malformed("a marker is missing")
        marker = data[at + 1]
        if marker == 0xFF:  # fill
            at += 1
        elif marker in _BARE:
            at += 2
        else:
            (length,) = struct.unpack_from(">H", data, at + 2)
            yield marker, at + 4, at + 2 + length
            if marker == 0xDA or length < 2:
                return
            at += 2 + length


# WebP


def _webp(data: bytes, frames: int) -> Sketch:
    size: tuple[int, int] | None = None
    turned, delays = 1, []
    for kind, start, stop in _riff(data):
        if kind == b"EXIF":
            raw = data[start : min(stop, start + 65536)]
            turned = orientation(raw.removeprefix(b"Exif\0\0"))
        elif kind == b"ANMF":
            delays.append(_shown(int.from_bytes(data[start + 12 : start + 15], "little") / 1000))
            if frames > 1 and len(delays) > frames:
                raise TooLong("too many frames")
        elif kind in _WEBP_SIZES and size is None:
            size = _WEBP_SIZES[kind](data, start)
    if size is None:
        raise Malformed("a WebP without a picture")
    return Sketch("WEBP", *size, turned, tuple(delays[:frames]) or (_USUAL,))


def _riff(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    at = 12
    for _ in range(MAX_BLOCKS):
        if at + 8 > len(data):
            return
        (length,) = struct.unpack_from("<I", data, at + 4)
        yield data[at : at + 4], at + 8, at + 8 + length
        at += 8 + length + length % 2
    raise Malformed("too many chunks")


def _extended(data: bytes, at: int) -> tuple[int, int]:
    raw = data[at : at + 10]
    return int.from_bytes(raw[4:7], "little") + 1, int.from_bytes(raw[7:10], "little") + 1


def _lossy(data: bytes, at: int) -> tuple[int, int]:
    if data[at + 3 : at + 6] != b"\x9d\x01\x2a":
        raise Malformed("a lossy WebP without its start code")
    width, height = struct.unpack_from("<HH", data, at + 6)
    return width & 0x3FFF, height & 0x3FFF


def _lossless(data: bytes, at: int) -> tuple[int, int]:
    if data[at] != 0x2F:
        raise Malformed("a lossless WebP without its signature")
    (bits,) = struct.unpack_from("<I", data, at + 1)
    return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1


_WEBP_SIZES = {b"VP8X": _extended, b"VP8 ": _lossy, b"VP8L": _lossless}


# GIF


def _gif(data: bytes, frames: int) -> Sketch:
    width, height = struct.unpack_from("<HH", data, 6)
    delays: list[float] = []
    at, delay, blocks = 13 + _table(data[10]), 0.0, 0
    while at < len(data) and data[at] != 0x3B and len(delays) < frames + 1:
        if data[at] == 0x2C:
            left, top, across, down = struct.unpack_from("<HHHH", data, at + 1)
            width, height = max(width, left + across), max(height, top + down)
            delays.append(_shown(delay))
            if len(delays) == frames == 1:
                break  # a still picture is its first frame
            delay, at = 0.0, at + 11 + _table(data[at + 9])
        elif data[at] == 0x21:
            if data[at + 1] == 0xF9 and data[at + 2] == 4:
                delay = struct.unpack_from("<H", data, at + 4)[0] / 100
            at += 2
        else:
            break  # what follows is no GIF; decoders stop here too
        at, passed = _past(data, at, MAX_BLOCKS - blocks)
        blocks += passed
    if len(delays) > frames:
        raise TooLong("too many frames")
    if not delays:
        raise Malformed("a GIF without a frame")
    return Sketch("GIF", width, height, 1, tuple(delays))


def _table(flags: int) -> int:
    """Bytes of the colour table that follows these flags."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _past(data: bytes, at: int, most: int) -> tuple[int, int]:
    """Skip data blocks to their end; returns the place behind it and how many were skipped."""
    for passed in range(most):
        if at >= len(data) or not data[at]:
            return at + 1, passed + 1
        at += 1 + data[at]
    raise Malformed("too many data blocks")


def _shown(seconds: float) -> float:
    """Seconds that a frame is shown: unsaid or absurdly short delays count as viewers count them."""
    return seconds if seconds >= _QUICK else _USUAL


# EXIF


def orientation(tiff: bytes) -> int:
    """Read the orientation of an EXIF block, 1..8; anything odd means 1, upright."""
    order: Literal[">", "<"] = ">" if tiff[:2] == b"MM" else "<"
    try:
        magic, at = struct.unpack_from(f"{order}HI", tiff, 2)
        (count,) = struct.unpack_from(f"{order}H", tiff, at)
        if magic != 42 or tiff[:2] not in (b"MM", b"II"):
            return 1
        for entry in range(min(count, MAX_ENTRIES)):
            tag, kind, many, value = struct.unpack_from(f"{order}HHIH", tiff, at + 2 + 12 * entry)
            if tag == 0x0112:
                return int(value) if kind == 3 and many == 1 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1
