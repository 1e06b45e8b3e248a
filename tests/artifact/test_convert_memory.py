"""The converter's memory: bounded by one tensor, not by the checkpoint."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.artifact.hf import SIDE_FILES, hf_config, hf_shapes

VOCAB = 200_000
SCRIPT = """
import resource, sys
from pathlib import Path
import ninfer.artifact.convert.run as run
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run.convert(run.Options(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], proposal_rows=1000))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def sparse_checkpoint(path: Path) -> int:
    """A checkpoint of zeros that takes no disk; returns the bytes of its largest tensor."""
    config = hf_config()
    text = config["text_config"]
    text |= {"hidden_size": 256, "vocab_size": VOCAB, "intermediate_size": 65_536}
    shapes = {name: shape for name, shape in hf_shapes(config).items() if "visual" not in name}
    del config["vision_config"]
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for name, data in SIDE_FILES.items():
        (path / name).write_bytes(data)
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    with open(path / "model.safetensors", "wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + at)
    return max(2 * math.prod(shape) for shape in shapes.values())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bf16", "q8"])
def test_memory_stays_near_one_tensor(tmp_path: Path, recipe: str) -> None:
    largest = sparse_checkpoint(tmp_path / "hf")
    assert (tmp_path / "hf" / "model.safetensors").stat().st_size > 4 * largest
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "hf"), str(tmp_path / "m.ninfer"), recipe]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown = int(done.stdout) << 10
    assert grown < 2 * largest + (64 << 20)
