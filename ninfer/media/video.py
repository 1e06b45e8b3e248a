"""Video containers through PyAV, an optional extra.

Owns what the library may open: containers that hold their frames themselves, in codecs that people
send; no playlist, script or protocol, none of which a video needs and each of which names other files.

The one thing a reader would get wrong: frames are chosen by index from the container's own count and
rate before anything is decoded; a container that holds fewer repeats its last.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Any

import attrs
from PIL import Image

from ninfer.media.decode import DecodeLimits, Pulse, bad, too_many

CONTAINERS = ("mov", "matroska", "avi", "mpegts", "mpeg", "ogg", "flv")
CODECS = (
    *("h264", "hevc", "av1", "libdav1d", "vp8", "vp9", "libvpx", "libvpx-vp9", "theora"),
    *("mpeg4", "mpeg1video", "mpeg2video", "h263", "flv", "mjpeg"),
)
EXTRA = "is no animated GIF or WebP, and this server has no video decoder (its [video] extra is missing)"


@attrs.frozen
class Reel:
    """What a container says of its first video stream; ``fps`` is frames a second."""

    width: int
    height: int
    frames: int
    fps: float
    most_pixels: int = 0  # of one decoded frame, whatever the container says


def open_reel(data: bytes, param: str, limits: DecodeLimits) -> Reel:
    """Read a container's header.  Raises ``Refused``."""
    with _opened(data, param, limits.pixels) as container:
        stream = container.streams.video[0]
        fps = float(stream.average_rate or stream.guessed_rate or 0)
        total = stream.frames or int((container.duration or 0) / 1e6 * fps)
        reel = Reel(stream.width, stream.height, total, fps, limits.pixels)
    if min(reel.width, reel.height, total) < 1 or not 0 < fps < 1e6:
        raise bad(param, "does not say how large or how long its video is")
    return _checked(reel, param, limits)


def _checked(reel: Reel, param: str, limits: DecodeLimits) -> Reel:
    """Refuse what would take too long to decode."""
    pixels, size = reel.width * reel.height, f"{reel.width} x {reel.height} pixels"
    if pixels > limits.pixels:
        raise too_many(param, f"has {size}, more than {limits.pixels}")
    if reel.frames > limits.frames or reel.frames * pixels > limits.container_pixels:
        raise too_many(param, f"has {reel.frames} frames of {size}, more than is decoded")
    return reel


def decode_reel(
    data: bytes, reel: Reel, chosen: Set[int], param: str, pulse: Pulse
) -> Iterator[Image.Image]:
    """Yield the chosen frames, in order.  Raises ``Refused``."""
    last = max(chosen)
    with _opened(data, param, reel.most_pixels) as container:
        for index, frame in enumerate(container.decode(container.streams.video[0])):
            pulse()
            if index in chosen:
                yield frame.to_image()
            if index >= last:
                return


@contextmanager
def _opened(data: bytes, param: str, most_pixels: int) -> Iterator[Any]:
    try:
        import av
    except ImportError:
        raise bad(param, EXTRA) from None
    options = {
        "format_whitelist": ",".join(CONTAINERS),
        "protocol_whitelist": "none",
        "codec_whitelist": ",".join(CODECS),
        "max_pixels": str(most_pixels),
    }
    try:
        with av.open(io.BytesIO(data), options=options) as container:
            if not container.streams.video:
                raise bad(param, "holds no video")
            codec = container.streams.video[0].codec_context
            if codec is None or codec.name not in CODECS:
                raise bad(param, "holds a video in a codec that is not decoded here")
            codec.options = {"max_pixels": str(most_pixels)}
            codec.thread_count = 1  # the pool of workers is the bound
            yield container
    except (av.error.FFmpegError, ValueError, OSError, IndexError, MemoryError):
        raise bad(param, "is not a video that can be decoded") from None
