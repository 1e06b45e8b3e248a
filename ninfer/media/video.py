"""Video containers through PyAV, an optional extra.

The one thing a reader would get wrong: frames are chosen by index from the container's own count and
rate before anything is decoded, and only the chosen ones are kept.
"""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from ninfer.faults import Refused, invalid
from ninfer.media.decode import DecodeLimits, bad, too_many
from ninfer.media.resize import Geometry, sampled_frames

Frames = tuple[list[Image.Image], list[float]]


def read_video(data: bytes, param: str, g: Geometry, limits: DecodeLimits) -> Frames:
    """Return the sampled frames and their seconds.  Raises ``Refused``."""
    try:
        import av
    except ImportError:
        message = "is no animated GIF or WebP, and this server has no video decoder"
        raise bad(param, f"{message} (install the [video] extra)") from None
    try:
        with av.open(io.BytesIO(data), options={"protocol_whitelist": ""}) as container:
            return _frames(container, param, g, limits)
    except Refused:
        raise
    except (av.error.FFmpegError, ValueError, OSError, IndexError):
        raise bad(param, "is not a video that can be decoded") from None


def _frames(container: Any, param: str, g: Geometry, limits: DecodeLimits) -> Frames:
    stream = container.streams.video[0]
    if stream.width * stream.height > limits.pixels:
        raise too_many(param, stream.width, stream.height, limits.pixels)
    fps = float(stream.average_rate or 0)
    total = stream.frames or int(float(container.duration or 0) / 1e6 * fps)
    if not 0 < total <= limits.frames or fps <= 0:
        raise invalid(f"{param} has {total} frames", param=param, code="media_budget_exceeded")
    wanted = sampled_frames(total, fps, g)
    if len(wanted) * stream.width * stream.height > limits.video_pixels:
        raise too_many(param, stream.width, stream.height, limits.video_pixels)
    kept: list[Image.Image] = []
    chosen = set(wanted)
    for index, frame in enumerate(container.decode(stream)):
        if index in chosen:
            kept.append(frame.to_image())
        if index >= wanted[-1]:
            break
    if not kept:
        raise bad(param, "holds no frames")
    kept += [kept[-1]] * (len(wanted) - len(kept))
    return kept, [index / fps for index in wanted]
