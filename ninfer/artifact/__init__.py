"""The .ninfer container: read v1, v2, v3; write v3; convert from Hugging Face checkpoints.

``open_artifact`` is the door; ``layouts`` and ``formats`` are the codecs behind it.
"""

from ninfer.artifact.errors import ArtifactError
from ninfer.artifact.manifest import Component, Parameter, Part, Proposal, TensorObject
from ninfer.artifact.reader import Artifact, merge_parts, open_artifact

__all__ = [
    "Artifact",
    "ArtifactError",
    "Component",
    "Parameter",
    "Part",
    "Proposal",
    "TensorObject",
    "merge_parts",
    "open_artifact",
]
