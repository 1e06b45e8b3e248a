"""Whatever bytes a header has: a valid read or one clear fault, never another exception, nothing huge."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.artifact import ArtifactError, open_artifact
from ninfer.artifact.digest import weights_digest
from tests.artifact.handmade import assemble, old_model, small_root
from tests.artifact.synthetic import choose_format, configs, plan_of, random_weights, write_artifact

TINY = {"tiny": configs()}


def probe(path: Path) -> str:
    """Open and use everything that can be used; what happened, in a word."""
    try:
        with open_artifact(path, models=TINY) as artifact:
            for role in ("tokenizer.json", "chat_template.jinja"):
                if artifact.has_resource(role):
                    artifact.resource(role)
            for component in artifact.components:
                artifact.require([component])
            weights_digest(artifact)
    except ArtifactError as fault:
        assert fault.member
        assert fault.expected
        return "refused"
    return "read"


def versions(tmp_path: Path) -> dict[int, bytes]:
    """The header and payload of one small model in each version."""
    weights = random_weights(TINY["tiny"])
    write_artifact(tmp_path / "3.ninfer", plan_of(TINY["tiny"], weights))
    found = {3: (tmp_path / "3.ninfer").read_bytes()}
    for version in (1, 2):
        built = old_model(TINY["tiny"], weights, choose_format)
        found[version] = assemble(built.out.root(version, "tiny"), bytes(built.out.payload), version)
    return found


@pytest.mark.parametrize("version", [1, 2, 3])
def test_flipped_header_bits_never_surprise(tmp_path: Path, version: int) -> None:
    data = versions(tmp_path)[version]
    used = 32 + int.from_bytes(data[8:16], "little")
    rng, path = random.Random(version), tmp_path / "f.ninfer"
    seen = set()
    for _ in range(80):
        found = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 3))):
            found[rng.randrange(used)] ^= 1 << rng.randrange(8)
        path.write_bytes(found)
        seen.add(probe(path))
    assert "refused" in seen


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
trees = st.recursive(
    leaves, lambda kids: st.lists(kids, max_size=4) | st.dictionaries(st.text(max_size=6), kids)
)


def paths_of(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON tree."""
    items = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [here, *(path for key, item in items for path in paths_of(item, (*here, key)))]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_place_never_surprises(tmp_path: Path, data: st.DataObject) -> None:
    root, payload = small_root()
    where = data.draw(st.sampled_from(paths_of(root)[1:]))
    place: Any = root
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = data.draw(trees)
    try:
        text = json.dumps(root).encode()
    except ValueError:
        return
    (tmp_path / "f.ninfer").write_bytes(assemble(text, payload))
    probe(tmp_path / "f.ninfer")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.binary(max_size=200), version=st.integers(1, 3))
def test_any_header_text_never_surprises(tmp_path: Path, text: bytes, version: int) -> None:
    (tmp_path / "f.ninfer").write_bytes(assemble(text, b"", version))
    assert probe(tmp_path / "f.ninfer") == "refused"


def config_places() -> list[tuple[str, str]]:
    return [(name, key) for name, config in configs(sparse=True).items() for key in config]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.sampled_from(config_places()), value=trees)
def test_any_value_in_a_config_never_surprises(tmp_path: Path, where: tuple[str, str], value: Any) -> None:
    root, payload = small_root()
    parts = configs(sparse=True)
    parts[where[0]][where[1]] = value
    root["components"] = {name: {"config": config} for name, config in parts.items()}
    (tmp_path / "f.ninfer").write_bytes(assemble(root, payload))
    probe(tmp_path / "f.ninfer")


HUGE: dict[str, tuple[tuple[Any, ...], Any]] = {
    "json_bytes": ((), None),
    "tensor bytes": (("objects", 1, "bytes"), 2**62),
    "tensor shape": (("objects", 1, "shape"), [2**31, 2**31]),
    "payload": (("files", 0, "payload_bytes"), 2**62),
    "range": (("bindings", "extra/part", "parts", 0, "range"), [0, 2**63]),
    "experts": (
        ("components", "text", "config"),
        {**configs(sparse=True)["text"], "num_experts": 2**31 - 1},
    ),
    "proposal rows": (("components", "text", "proposal"), {"domain": "indexed", "rows": 2**63}),
}


@pytest.mark.parametrize(("where", "value"), HUGE.values(), ids=HUGE.keys())
def test_huge_claims_cost_no_memory(tmp_path: Path, where: tuple[Any, ...], value: Any) -> None:
    root, payload = small_root()
    place: Any = root
    for step in where[:-1]:
        place = place[step]
    if where:
        place[where[-1]] = value
    found = bytearray(assemble(root, payload))
    if not where:
        found[8:16] = (2**62).to_bytes(8, "little")
    (tmp_path / "f.ninfer").write_bytes(found)
    probe(tmp_path / "f.ninfer")
    tracemalloc.start()
    assert probe(tmp_path / "f.ninfer") == "refused"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000
