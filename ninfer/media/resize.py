"""How large a picture becomes before it is cut into patches, and which frames of a video are taken.

Pure arithmetic on the numbers of the artifact's processor configs.  The one thing a reader would get
wrong: sides (and frame pairs) are rounded half to even, but the over-large and over-small cases scale
the *original* sides and then floor or ceil.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from ninfer.faults import StartupError

MAX_ASPECT = 200


class Unfit(ValueError):
    """The picture or video cannot be brought into the processor's bounds; the text says why."""


@attrs.frozen
class Geometry:
    """What an artifact's processor configs say.  Pixels are counts, sides are pixels.

    ``low``/``high`` bound a picture's pixels; for videos they bound frames x height x width.
    """

    patch: int = 16
    temporal: int = 2
    merge: int = 2
    low: int = 65_536
    high: int = 16_777_216
    video_low: int = 4_096
    video_high: int = 25_165_824
    fps: float = 2.0
    least_frames: int = 4
    most_frames: int = 768

    @property
    def factor(self) -> int:
        """Every side is a multiple of this."""
        return self.patch * self.merge

    @property
    def values(self) -> int:
        """Values of one patch row."""
        return 3 * self.temporal * self.patch**2

    @property
    def least_patches(self) -> int:
        """Patches that every picture has, however small."""
        return max(self.merge**2, self.low // self.patch**2)


def read_geometry(image: bytes, video: bytes) -> Geometry:
    """Read preprocessor_config.json and video_preprocessor_config.json.  Raises ``StartupError``."""
    picture, clip = (
        _config(image, "preprocessor_config.json"),
        _config(video, "video_preprocessor_config.json"),
    )
    base = Geometry()
    try:
        found = Geometry(
            patch=int(picture.get("patch_size", base.patch)),
            temporal=int(picture.get("temporal_patch_size", base.temporal)),
            merge=int(picture.get("merge_size", base.merge)),
            low=int(picture["size"]["shortest_edge"]),
            high=int(picture["size"]["longest_edge"]),
            video_low=int(clip["size"]["shortest_edge"]),
            video_high=int(clip["size"]["longest_edge"]),
            fps=float(clip.get("fps", base.fps)),
            least_frames=int(clip.get("min_frames", base.least_frames)),
            most_frames=int(clip.get("max_frames", base.most_frames)),
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise StartupError(f"the artifact's processor config lacks or misstates {problem}") from None
    if min(attrs.astuple(found)) <= 0:
        raise StartupError("the artifact's processor config has a size that is not positive")
    return found


def _config(raw: bytes, name: str) -> Mapping[str, Any]:
    try:
        loaded = json.loads(raw)
    except ValueError:
        raise StartupError(f"the artifact's {name} is not JSON") from None
    if not isinstance(loaded, dict):
        raise StartupError(f"the artifact's {name} is not an object")
    mean, std = loaded.get("image_mean", [0.5] * 3), loaded.get("image_std", [0.5] * 3)
    if mean != [0.5] * 3 or std != [0.5] * 3:
        raise StartupError(f"the artifact's {name} asks for a normalisation other than x / 127.5 - 1")
    return loaded


def picture_size(height: int, width: int, g: Geometry) -> tuple[int, int]:
    """Return the height and width to resize a picture to.  Raises ``Unfit``."""
    _check_aspect(height, width)
    return _fit(height, width, height * width, 1, g.low, g.high, g.factor)


def video_size(frames: int, height: int, width: int, g: Geometry) -> tuple[int, int]:
    """Return the height and width to resize every frame to.  Raises ``Unfit``."""
    if min(height, width) < g.factor:
        scale = max(g.factor / height, g.factor / width)
        height, width = int(height * scale), int(width * scale)
    _check_aspect(height, width)
    frames = max(frames, g.temporal)
    depth = round(frames / g.temporal) * g.temporal
    return _fit(height, width, frames * height * width, depth, g.video_low, g.video_high, g.factor)


def _fit(
    height: int, width: int, volume: int, depth: int, low: int, high: int, factor: int
) -> tuple[int, int]:
    h, w = (round(side / factor) * factor for side in (height, width))  # 0 for a sliver: then it grows
    if depth * h * w > high:
        shrink = math.sqrt(volume / high)
        h, w = (max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width))
    elif depth * h * w < low:
        grow = math.sqrt(low / volume)
        h, w = (math.ceil(side * grow / factor) * factor for side in (height, width))
    return h, w


def _check_aspect(height: int, width: int) -> None:
    if max(height, width) / min(height, width) > MAX_ASPECT:
        raise Unfit(f"one side is more than {MAX_ASPECT} times the other")


def sampled_frames(total: int, fps: float, g: Geometry) -> list[int]:
    """Choose frame indices at about ``g.fps`` a second, evenly from first to last."""
    wanted = int(total / fps * g.fps) if fps > 0 else g.least_frames
    wanted = min(max(wanted, g.least_frames), g.most_frames, total)
    return [int(index) for index in np.linspace(0, total - 1, wanted).round()]


def run_seconds(times: list[float], temporal: int) -> tuple[float, ...]:
    """Return the mean time of the first and last frame of each temporal run, in seconds."""
    padded = times + [times[-1]] * (-len(times) % temporal)
    return tuple((padded[i] + padded[i + temporal - 1]) / 2 for i in range(0, len(padded), temporal))
