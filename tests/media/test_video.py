"""Video containers through the optional extra, and what happens without it."""

from __future__ import annotations

import errno
import io
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from PIL import Image

from ninfer.faults import Refused
from ninfer.media.decode import DecodeLimits
from ninfer.media.plan import make_plan
from ninfer.media.video import EXTRA
from tests.media.pictures import SMALL, build

COLOURS = [(220, 30, 30), (30, 200, 30), (30, 30, 220), (230, 230, 30), (30, 220, 220)]


def refusal(data: bytes, limits: DecodeLimits | None = None) -> tuple[str | None, str]:
    with pytest.raises(Refused) as caught:
        build(data, "video", limits=limits)
    assert caught.value.fault.param == "p"
    return caught.value.fault.code, caught.value.fault.message


def test_without_the_extra_a_container_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    code, message = refusal(b"\0\0\0\x18ftypisom" + bytes(400))
    assert code == "invalid_media" and message == f"p {EXTRA}" and "[video]" in message


def film(
    container: str, codec: str, frames: int = 20, rate: int = 4, size: tuple[int, int] = (96, 64)
) -> bytes:
    """A film that shows each colour for a second; every second frame within it is a little darker."""
    av = pytest.importorskip("av")
    out = io.BytesIO()
    with av.open(out, "w", format=container) as target:
        stream = target.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        if codec != "mjpeg":
            stream.bit_rate = 2_000_000
        for n in range(frames):
            colour = np.array(COLOURS[n // rate % len(COLOURS)])
            picture = Image.new("RGB", size, tuple(int(value) for value in colour - 20 * (n % 2)))
            target.mux(stream.encode(av.VideoFrame.from_image(picture)))
        target.mux(stream.encode())
    return out.getvalue()


FILMS = [
    *(
        ("mp4", "libx264"),
        ("mp4", "mpeg4"),
        ("mov", "libx264"),
        ("matroska", "libx264"),
        ("webm", "libvpx-vp9"),
    ),
    *(("webm", "libvpx"), ("avi", "mpeg4"), ("avi", "mjpeg"), ("mpegts", "mpeg2video"), ("mp4", "libx265")),
]


def means(rows: Any, grid: tuple[int, int, int]) -> Any:
    """The mean colour of each frame."""
    cells = rows.reshape(grid[0], grid[1] * grid[2], 3, 2, 256).astype(float)
    return cells.mean(axis=(1, 4)).transpose(0, 2, 1).reshape(-1, 3)


@pytest.mark.parametrize(("container", "codec"), FILMS, ids="-".join)
def test_a_film_is_sampled_twice_a_second(container: str, codec: str) -> None:
    rate = 25 if codec == "mpeg2video" else 4  # a rate that the codec knows
    data = film(container, codec, frames=5 * rate, rate=rate)
    patches = build(data, "video")
    assert patches.grid == (5, 4, 6) and len(patches.seconds) == 5
    assert patches.seconds[0] == pytest.approx(0.26, abs=0.03)
    assert patches.seconds[-1] == pytest.approx(4.5, abs=0.2)
    wanted = np.repeat(COLOURS, 2, axis=0) - 10
    assert np.abs(means(patches.rows, patches.grid) - wanted).max() < 30


def test_frames_are_taken_by_index_at_exact_times() -> None:
    plan = make_plan("video", film("mp4", "libx264", frames=8, rate=2), "p", SMALL, DecodeLimits())
    assert plan.frames == tuple(range(8))
    assert plan.seconds == (0.25, 1.25, 2.25, 3.25)


def test_a_film_cut_short_is_refused_or_repeats_its_last_frame() -> None:
    data = film("matroska", "libx264", frames=40)
    whole, fine = build(data, "video"), 0
    for part in range(32):
        try:
            patches = build(data[: len(data) * part // 32], "video")
        except Refused as refused:
            assert refused.fault.code == "invalid_media"
        else:
            fine += patches.grid[1:] == whole.grid[1:]
    assert fine < 32


def test_damaged_films_are_refused_or_played() -> None:
    chance = np.random.default_rng(8)
    for container, codec in FILMS[:6]:
        data = film(container, codec)
        for _ in range(25):
            bad = np.frombuffer(data, np.uint8).copy()
            bad[chance.integers(0, len(bad), 12)] ^= chance.integers(1, 255, 12, dtype=np.uint8)
            try:
                build(bad.tobytes(), "video")
            except Refused as refused:
                assert refused.fault.code in ("invalid_media", "media_budget_exceeded")


def test_budgets_hold_before_anything_is_decoded() -> None:
    data = film("mp4", "libx264")
    for limits in (
        DecodeLimits(pixels=96 * 64 - 1),
        DecodeLimits(frames=19),
        DecodeLimits(container_pixels=20 * 96 * 64 - 1),
    ):
        assert refusal(data, limits)[0] == "media_budget_exceeded"


def test_a_frame_larger_than_its_container_says_is_not_decoded() -> None:
    """The container is made to lie; the codec is held to the same pixel budget."""
    data = film("avi", "mjpeg", size=(512, 512))
    small = (96).to_bytes(4, "little") * 2
    assert data.count((512).to_bytes(4, "little") * 2) >= 2
    lying = data.replace((512).to_bytes(4, "little") * 2, small)
    assert refusal(lying, DecodeLimits(pixels=100 * 100))[0] == "invalid_media"


@pytest.mark.parametrize(
    ("container", "codec"), [("matroska", "ffv1"), ("avi", "huffyuv"), ("matroska", "jpeg2000")]
)
def test_codecs_that_nobody_sends_are_not_opened(container: str, codec: str) -> None:
    av = pytest.importorskip("av")
    out = io.BytesIO()
    with av.open(out, "w", format=container) as target:
        stream = target.add_stream(codec, rate=4)
        stream.width, stream.height = 96, 64
        stream.pix_fmt = {"huffyuv": "rgb24", "jpeg2000": "rgb24"}.get(codec, "yuv420p")
        for _ in range(8):
            target.mux(stream.encode(av.VideoFrame.from_image(Image.new("RGB", (96, 64)))))
        target.mux(stream.encode())
    assert refusal(out.getvalue())[0] == "invalid_media"


def test_sound_alone_is_no_video() -> None:
    av = pytest.importorskip("av")
    out = io.BytesIO()
    with av.open(out, "w", format="matroska") as target:
        stream = target.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        target.mux(stream.encode(frame))
    assert refusal(out.getvalue())[0] == "invalid_media"


@attrs.frozen
class Bait:
    """A pipe and a port that nobody must open."""

    path: Path
    port: int


@contextmanager
def bait(folder: Path) -> Iterator[Bait]:
    """Lay them out; afterwards the pipe has no reader and the port no caller."""
    path = folder / "secret.mp4"
    os.mkfifo(path)
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(0.05)
        yield Bait(path, door.getsockname()[1])
        with pytest.raises(OSError) as nobody:  # opening for writing fails while nobody reads
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        assert nobody.value.errno == errno.ENXIO
        with pytest.raises(TimeoutError):
            door.accept()


def scripts(source: str) -> list[str]:
    """Files that are no video but name one."""
    return [
        f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{source}\n#EXT-X-ENDLIST\n",
        f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{source}\n",
        f'#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="{source}"\n#EXTINF:1,\na.ts\n#EXT-X-ENDLIST\n',
        f'#EXTM3U\n#EXT-X-MAP:URI="{source}"\n#EXTINF:1,\n{source}\n#EXT-X-ENDLIST\n',
        f"ffconcat version 1.0\nfile '{source}'\n",
        f"file '{source}'\n",
        f"concat:{source}|{source}\n",
        f"subfile,,start,0,end,0,,:{source}\n",
        f'<?xml version="1.0"?><MPD type="static"><Period><AdaptationSet><Representation id="1">'
        f"<BaseURL>{source}</BaseURL></Representation></AdaptationSet></Period></MPD>",
        f'<smil><body><video src="{source}"/></body></smil>',
        f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nm=video 5004 RTP/AVP 96\na=control:{source}\n",
        f"[playlist]\nFile1={source}\nNumberOfEntries=1\n",
        f"[Reference]\nRef1={source}\n",
        f"RTSPtext\r\nrtsp://{source}\r\n",
        f'<asx version="3.0"><entry><ref href="{source}"/></entry></asx>',
        f"# Imagemagick\n{source}",
        f"; generated\nmovie={source}[out0]\n",
    ]


def test_playlists_and_scripts_open_nothing(tmp_path: Path) -> None:
    pytest.importorskip("av")
    with bait(tmp_path) as laid:
        for source in (str(laid.path), f"file://{laid.path}", f"http://127.0.0.1:{laid.port}/a.ts"):
            for text in scripts(source):
                for dressed in (
                    text.encode(),
                    text.encode() + bytes(2048),
                    b"\xef\xbb\xbf" + text.encode(),
                ):
                    assert refusal(dressed)[0] == "invalid_media"


def test_references_inside_a_container_open_nothing(tmp_path: Path) -> None:
    """A QuickTime file may say that its samples lie in another file."""
    data = film("mov", "libx264", frames=8)
    with bait(tmp_path) as laid:
        for url in (str(laid.path), f"file://{laid.path}", f"http://127.0.0.1:{laid.port}/"):
            own = b"\0\0\0\x0curl \0\0\0\1"  # "the samples are in this file"
            assert own in data
            for kind in (b"url ", b"alis"):
                name = url.encode() + b"\0"
                other = (12 + len(name)).to_bytes(4, "big") + kind + bytes(4) + name
                try:
                    build(_grown(data, own, other), "video")
                except Refused as refused:
                    assert refused.fault.code == "invalid_media"


def _grown(data: bytes, old: bytes, new: bytes) -> bytes:
    """Replace a box and make every box around it larger by as much."""
    out, at = bytearray(data), data.index(old)
    for kind in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        head = data.rindex(kind, 0, at) - 4
        out[head : head + 4] = (int.from_bytes(out[head : head + 4], "big") + len(new) - len(old)).to_bytes(
            4, "big"
        )
    out[at : at + len(old)] = new
    return bytes(out)
