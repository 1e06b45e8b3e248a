"""One number for all weights of an artifact, independent of how they are stored; another for its file.

The one thing a reader would get wrong: it is taken over decoded values, so two files with the same
codes in different containers agree, and a re-quantised file does not.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from ninfer.artifact.reader import Artifact

SAMPLES, SAMPLE_BYTES = 64, 65_536


def weights_digest(artifact: Artifact) -> str:
    """SHA-256 over every parameter: its name, shape and decoded little-endian values, by name."""
    total = hashlib.sha256()
    for name in sorted(artifact.parameters()):
        values = artifact.decode(name)
        total.update(f"{name} {list(values.shape)} {values.dtype.name}\n".encode())
        total.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def file_identity(path: Path) -> str:
    """Tell a weights file from any other at once: its size, its time of change, and samples of its bytes.

    A file that was copied with another time of change counts as another one.
    """
    total, seen = hashlib.sha256(), path.stat()
    total.update(f"{seen.st_size} {seen.st_mtime_ns}\n".encode())
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(seen.st_size * number // SAMPLES)
            total.update(file.read(SAMPLE_BYTES))
    return total.hexdigest()
