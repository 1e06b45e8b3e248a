"""``ninfer inspect``: what a .ninfer file holds, without loading it.

The one thing a reader would get wrong: it checks every component that it knows, so it fails on a file of
which a server that needs less would still serve the rest.  Weights are read for ``--digest`` alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ninfer.artifact import Artifact

HELP = "Show what a .ninfer file holds: components, configs, formats, sizes."


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a .ninfer entry file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--digest", action="store_true", help="read every weight and add their SHA-256")


def run(args: argparse.Namespace) -> int:
    """Open, check every component that is known, print."""
    from ninfer.artifact import open_artifact
    from ninfer.artifact.digest import weights_digest

    with open_artifact(args.file) as artifact:
        known = [name for name in artifact.components if artifact.knows(name)]
        proposal = artifact.components["text"].proposal
        artifact.require(known + (["proposal"] if proposal is not None else []))
        found = describe(artifact)
        if args.digest:
            found["weights_digest"] = weights_digest(artifact)
    print(json.dumps(found, indent=2) if args.json else as_text(found))
    return 0


def describe(artifact: Artifact) -> dict[str, Any]:
    """Collect what ``inspect`` prints, as JSON values."""
    from ninfer.artifact import TensorObject

    formats: dict[str, dict[str, int]] = {}
    resources = 0
    for item in artifact.manifest.objects.values():
        if not isinstance(item, TensorObject):
            resources += item.bytes
            continue
        row = formats.setdefault(item.format, {"tensors": 0, "elements": 0, "bytes": 0})
        row["tensors"] += 1
        row["elements"] += item.elements
        row["bytes"] += item.bytes
    return {
        "file": str(artifact.path),
        "version": artifact.version,
        "name": artifact.name,
        "architecture": artifact.architecture,
        "size_bytes": artifact.size_bytes,
        "files": [
            {"path": span.name or artifact.path.name, "payload_bytes": span.payload_bytes}
            for span in artifact.manifest.files
        ],
        "metadata": dict(artifact.manifest.metadata),
        "provenance": dict(artifact.manifest.provenance),
        "components": {name: _component(artifact, name) for name in artifact.components},
        "formats": dict(sorted(formats.items())),
        "resource_bytes": resources,
        "parameters": len(artifact.manifest.bindings),
        "uses": len(artifact.uses),
    }


def _component(artifact: Artifact, name: str) -> dict[str, Any]:
    component = artifact.components[name]
    found: dict[str, Any] = {"config": component.config}
    if component.target is not None:
        found["target"] = component.target
    if component.resources:
        found["resources"] = {role: item.bytes for role, item in component.resources.items()}
    if component.proposal is not None:
        rows = component.proposal.rows
        found["proposal"] = {"domain": "full"} if rows is None else {"domain": "indexed", "rows": rows}
    return found


def as_text(found: dict[str, Any]) -> str:
    """Lay the description out for a terminal."""
    lines = [
        f"{found['file']}: {found['name']} ({found['architecture']}), version {found['version']}",
        f"{found['size_bytes']:,} bytes in {len(found['files'])} file(s), "
        f"{found['parameters']} parameters, {found['resource_bytes']:,} bytes of frontend files",
    ]
    for name, row in found["formats"].items():
        bits = row["bytes"] * 8 / row["elements"]
        lines.append(
            f"  {name:20} {row['tensors']:6} tensors {row['elements']:16,} elements "
            f"{row['bytes']:16,} bytes {bits:6.2f} bits each as stored"
        )
    for name, part in found["components"].items():
        lines.append(f"{name}:")
        lines += [f"  {key}: {json.dumps(value)}" for key, value in _rows(part)]
    if "weights_digest" in found:
        lines.append(f"weights digest: {found['weights_digest']}")
    for key in ("provenance", "metadata"):
        lines += [f"{key}.{name}: {json.dumps(value)}" for name, value in found[key].items()]
    if len(found["files"]) > 1:
        lines += [f"{item['path']}: {item['payload_bytes']:,} bytes of payload" for item in found["files"]]
    return "\n".join(lines)


def _rows(part: dict[str, Any]) -> list[tuple[str, Any]]:
    rest = [(key, value) for key, value in part.items() if key != "config"]
    return [*part["config"].items(), *rest]
