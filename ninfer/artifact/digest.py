"""One number for all weights of an artifact, independent of how they are stored.

The one thing a reader would get wrong: it is taken over decoded values, so two files with the same
codes in different containers agree, and a re-quantised file does not.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ninfer.artifact.reader import Artifact


def weights_digest(artifact: Artifact) -> str:
    """SHA-256 over every parameter: its name, shape and decoded little-endian values, by name."""
    total = hashlib.sha256()
    for name in sorted(artifact.parameters()):
        values = artifact.decode(name)
        total.update(f"{name} {list(values.shape)} {values.dtype.name}\n".encode())
        total.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return total.hexdigest()
