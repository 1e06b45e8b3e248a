"""The upload benchmark's file, without a card."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact.files import MappedFile
from ninfer.bench import upload as bench
from ninfer.bench.upload import Stored, random_file
from ninfer.faults import StartupError
from ninfer.runtime.cuda_weights import upload
from tests.runtime.test_cuda_weights import Host, seen, take


def test_the_file_is_cut_into_objects_without_a_gap_and_arrives_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "LAYER", (5000, 300, 20))
    monkeypatch.setattr(bench, "BLOCK", 4096)
    with random_file(20_000, tmp_path) as path:
        file = MappedFile(path)
        objects = Stored(file).objects()
        placed = upload(Stored(file), objects, take, Host(), lambda text: None)
        assert [item.offset for item in objects] == np.cumsum(
            [0, *(i.bytes for i in objects[:-1])]
        ).tolist()
        arrived = b"".join(seen(placed[item.id].ptr, item.bytes) for item in objects)
        assert arrived == path.read_bytes() and len(arrived) == 20_000
        file.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_hold_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no file of"), random_file(1 << 20, tmp_path / "absent"):
        raise AssertionError("a file was written nowhere")


def test_a_report_names_the_rates() -> None:
    found = {
        "card": "Paper GPU",
        "gb": 4.3,
        "folder": "/tmp",
        "pinned_gb_per_second": 50.0,
        "gb_per_second": [40.0, 41.0],
        "fraction": 0.81,
    }
    assert "40.0, 41.0 GB/s, 0.81 of it" in bench.as_text(found)
