"""Video containers through PyAV, an optional extra.

The one thing a reader would get wrong: frames are chosen by index from the container's own count and
rate before anything is decoded, and only the chosen ones are kept.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image

from ninfer.faults import invalid
from ninfer.media.decode import DecodeLimits, animation_size, bad, too_many
from ninfer.media.resize import Geometry, sampled_frames

Frames = tuple[list[Image.Image], list[float]]


# Containers that hold frames themselves; playlists and scripts, which name other files, are not among
# them, and no protocol may be opened by any of them.
_OPTIONS = {"format_whitelist": "mov,matroska,avi,mpegts,mpeg,ogg,flv", "protocol_whitelist": "none"}


def measure_video(data: bytes, param: str, g: Geometry, limits: DecodeLimits) -> tuple[int, int, int]:
    """Return (sampled frames, height, width) from the header alone.  Raises ``Refused``."""
    size = animation_size(data, param, limits)
    if size is not None:
        count, fps, height, width = size
        return len(sampled_frames(count, fps, g)), height, width
    with _opened(data, param) as container:
        indices, _ = _chosen(container, param, g, limits)
        stream = container.streams.video[0]
        return len(indices), stream.height, stream.width


def read_video(data: bytes, param: str, g: Geometry, limits: DecodeLimits) -> Frames:
    """Return the sampled frames and their seconds.  Raises ``Refused``."""
    with _opened(data, param) as container:
        indices, fps = _chosen(container, param, g, limits)
        kept = list(_kept(container, indices))
    if not kept:
        raise bad(param, "holds no frames")
    kept += [kept[-1]] * (len(indices) - len(kept))
    return kept, [index / fps for index in indices]


@contextmanager
def _opened(data: bytes, param: str) -> Iterator[Any]:
    try:
        import av
    except ImportError:
        message = "is no animated GIF or WebP, and this server has no video decoder"
        raise bad(param, f"{message} (install the [video] extra)") from None
    try:
        with av.open(io.BytesIO(data), options=_OPTIONS) as container:
            if not container.streams.video:
                raise bad(param, "holds no video")
            yield container
    except (av.error.FFmpegError, ValueError, OSError, IndexError):
        raise bad(param, "is not a video that can be decoded") from None


def _chosen(container: Any, param: str, g: Geometry, limits: DecodeLimits) -> tuple[list[int], float]:
    stream = container.streams.video[0]
    if stream.width * stream.height > limits.pixels:
        raise too_many(param, stream.width, stream.height, limits.pixels)
    fps = float(stream.average_rate or 0)
    total = stream.frames or int(float(container.duration or 0) / 1e6 * fps)
    if not 0 < total <= limits.frames or fps <= 0:
        raise invalid(f"{param} has {total} frames", param=param, code="media_budget_exceeded")
    indices = sampled_frames(total, fps, g)
    if len(indices) * stream.width * stream.height > limits.video_pixels:
        raise too_many(param, stream.width, stream.height, limits.video_pixels)
    return indices, fps


def _kept(container: Any, indices: list[int]) -> Iterator[Image.Image]:
    chosen = set(indices)
    for index, frame in enumerate(container.decode(container.streams.video[0])):
        if index in chosen:
            yield frame.to_image()
        if index >= indices[-1]:
            return
