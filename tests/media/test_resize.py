"""Sizes and samples against the family's processors, written down again from their description."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ninfer.faults import StartupError
from ninfer.media.resize import (
    Geometry,
    Unfit,
    picture_size,
    read_geometry,
    run_seconds,
    sampled_frames,
    video_size,
)

REAL = Geometry()
TINY = Geometry(low=4096, high=262_144, video_low=4096, video_high=262_144, most_frames=64)
SIDES = st.integers(1, 9000)


def described(frames: int, depth: int, height: float, width: float, low: int, high: int) -> tuple[int, int]:
    """The rule in floating point: round, then scale the original sides if the volume is out of bounds."""
    near = [round(side / 32) * 32 for side in (height, width)]
    if depth * near[0] * near[1] > high:
        beta = math.sqrt(frames * height * width / high)
        near = [max(32, math.floor(side / beta / 32) * 32) for side in (height, width)]
    elif depth * near[0] * near[1] < low:
        beta = math.sqrt(low / (frames * height * width))
        near = [math.ceil(side * beta / 32) * 32 for side in (height, width)]
    return near[0], near[1]


@given(SIDES, SIDES, st.sampled_from([REAL, TINY]))
@example(10, 500, TINY)
@example(48, 48, REAL)
@example(80, 112, TINY)
def test_pictures_become_the_size_described(height: int, width: int, g: Geometry) -> None:
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(Unfit):
            picture_size(height, width, g)
        return
    found = picture_size(height, width, g)
    assert found == described(1, 1, height, width, g.low, g.high)
    assert not found[0] % 32 and not found[1] % 32 and min(found) >= 32
    assert found[0] * found[1] >= g.low
    assert found[0] // 16 * (found[1] // 16) >= g.least_patches


@given(st.integers(2, 768), SIDES, SIDES, st.sampled_from([REAL, TINY]))
@example(5, 20, 30, TINY)
def test_videos_become_the_size_described(frames: int, height: int, width: int, g: Geometry) -> None:
    scale = max(1.0, 32 / height, 32 / width)
    tall, wide = (int(height * scale), int(width * scale)) if scale > 1 else (height, width)
    if max(tall, wide) > 200 * min(tall, wide):
        with pytest.raises(Unfit):
            video_size(frames, height, width, g)
        return
    depth = round(frames / 2) * 2
    found = video_size(frames, height, width, g)
    assert found == described(frames, depth, tall, wide, g.video_low, g.video_high)


@given(st.integers(1, 20_000), st.floats(0.1, 240), st.sampled_from([REAL, TINY]))
def test_frames_are_spread_evenly_at_two_a_second(total: int, fps: float, g: Geometry) -> None:
    found = sampled_frames(total, fps, g)
    count = min(max(int(total / fps * 2), 4), g.most_frames, total)
    assert found == np.linspace(0, total - 1, count).round().astype(int).tolist()
    assert len(set(found)) == count and found[0] == 0 and (count == 1 or found[-1] == total - 1)


def test_a_run_is_told_by_the_mean_time_of_its_ends() -> None:
    assert run_seconds([0.0, 0.5, 1.0, 1.5], 2) == (0.25, 1.25)
    assert run_seconds([0.0, 0.5, 1.0], 2) == (0.25, 1.0)
    assert run_seconds([0.0], 2) == (0.0,)


CONFIG = {"size": {"shortest_edge": 4096, "longest_edge": 262144}}


@pytest.mark.parametrize(
    "change",
    [
        b"not json",
        b"[]",
        json.dumps({"size": {}}).encode(),
        json.dumps({**CONFIG, "patch_size": "x"}).encode(),
        json.dumps({**CONFIG, "patch_size": 0}).encode(),
        json.dumps({**CONFIG, "image_mean": [0.4] * 3}).encode(),
    ],
)
def test_a_broken_processor_config_is_the_operators_to_mend(change: bytes) -> None:
    with pytest.raises(StartupError):
        read_geometry(change, json.dumps(CONFIG).encode())
