"""What an item will become, from its header alone: the size it is resized to, the frames that are taken.

The plan is what memory is reserved for, and it is followed when the item is built; a file that turns out
to be something else than it declared is refused, not accommodated.

The one thing a reader would get wrong: EXIF may turn a picture on its side; the plan turns it too.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Literal

import attrs

from ninfer.media.decode import SIDEWAYS, DecodeLimits, bad, measure
from ninfer.media.headers import Sketch, sniff
from ninfer.media.resize import Geometry, Unfit, picture_size, run_seconds, sampled_frames, video_size
from ninfer.media.video import Reel, open_reel

Kind = Literal["image", "video"]


@attrs.frozen
class Plan:
    """``source`` describes the file; ``height`` and ``width`` are pixels after resizing.

    ``frames`` are indices of the frames taken (a picture: 0), ``seconds`` the mean time of each temporal
    run of a video.
    """

    kind: Kind
    source: Sketch | Reel
    height: int
    width: int
    frames: tuple[int, ...]
    seconds: tuple[float, ...]
    geometry: Geometry

    @property
    def grid(self) -> tuple[int, int, int]:
        """Patches in time, height and width."""
        g = self.geometry
        runs = -(-len(self.frames) // g.temporal)
        return runs, self.height // g.patch, self.width // g.patch

    @property
    def patches(self) -> int:
        """All patches of the item."""
        time, height, width = self.grid
        return time * height * width

    @property
    def nbytes(self) -> int:
        """Bytes of the prepared payload."""
        return self.patches * self.geometry.values

    @property
    def source_pixels(self) -> int:
        """Pixels that are decoded at one time."""
        return self.source.width * self.source.height


def make_plan(kind: Kind, data: bytes, param: str, g: Geometry, limits: DecodeLimits) -> Plan:
    """Plan an item.  Raises ``Refused`` for what cannot be read, does not fit or is too large."""
    try:
        if kind == "image":
            return _picture(data, param, g, limits)
        return _video(data, param, g, limits)
    except Unfit as problem:
        raise bad(param, f"does not fit: {problem}") from None


def _picture(data: bytes, param: str, g: Geometry, limits: DecodeLimits) -> Plan:
    source = measure(data, param, limits)
    height, width = source.height, source.width
    if source.orientation in SIDEWAYS:
        height, width = width, height
    return Plan("image", source, *picture_size(height, width, g), (0,), (), g)


def _video(data: bytes, param: str, g: Geometry, limits: DecodeLimits) -> Plan:
    source: Sketch | Reel
    if sniff(data) in ("GIF", "WEBP"):
        source = measure(data, param, limits, limits.frames)
        shown_at = [0.0, *accumulate(source.delays)]
        frames = sampled_frames(len(source.delays), len(source.delays) / shown_at[-1], g)
        times = [shown_at[index] for index in frames]
    else:
        source = open_reel(data, param, limits)
        frames = sampled_frames(source.frames, source.fps, g)
        times = [index / source.fps for index in frames]
    size = video_size(len(frames), source.height, source.width, g)
    return Plan("video", source, *size, tuple(frames), run_seconds(times, g.temporal), g)
