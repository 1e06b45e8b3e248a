"""One clear fault for each thing that can be wrong with a header, its text or its head."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninfer.artifact import ArtifactError, open_artifact
from ninfer.faults import StartupError
from tests.artifact.handmade import MAGIC, Root, assemble, small_root, write_edited

Edit = Callable[[Root], Any]


def fault_of(path: Path) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        open_artifact(path)
    assert isinstance(caught.value, StartupError)
    assert caught.value.file == path
    assert "\n" not in str(caught.value)
    return caught.value


def _set(*path: Any, to: Any) -> Edit:
    def edit(root: Root) -> None:
        place: Any = root
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return edit


def _drop(*path: Any) -> Edit:
    def edit(root: Root) -> None:
        place: Any = root
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return edit


def _swap_objects(root: Root) -> None:
    root["objects"][1:] = reversed(root["objects"][1:])


def _repeat_use(root: Root) -> None:
    root["uses"].append(dict(root["uses"][0]))


BAD_VALUES: list[Any] = [None, True, -1, 1.0, 2**64, "1", [], {}]

# (edit, member that is named, words of the message)
FAULTS: dict[str, tuple[Edit, str, str]] = {
    # root
    "root lacks components": (_drop("components"), "root", "components"),
    "root lacks objects": (_drop("objects"), "root", "objects"),
    "root lacks bindings": (_drop("bindings"), "root", "bindings"),
    "root lacks uses": (_drop("uses"), "root", "uses"),
    "root lacks files": (_drop("files"), "root", "files"),
    "root has another member": (_set("extra", to=1), "root", "unknown member 'extra'"),
    "name is empty": (_set("metadata", "name", to=""), "metadata.name", "nonempty"),
    "name is a number": (_set("metadata", "name", to=3), "metadata.name", "nonempty"),
    "metadata is no object": (_set("metadata", to=[]), "metadata", "an object"),
    "provenance is no object": (_set("provenance", to="x"), "provenance", "an object"),
    # files
    "no files": (_set("files", to=[]), "files", "at least 1"),
    "entry has a path": (_set("files", 0, "path", to="a"), "files[0].path", "null"),
    "entry payload one byte long": (
        _set("files", 0, "payload_bytes", to=1),
        "files[0].payload_bytes",
        "is 1 in",
    ),
    "empty file": (_set("files", 0, "payload_bytes", to=0), "files[0].payload_bytes", "from 1"),
    "file with another member": (_set("files", 0, "sha", to=""), "files[0]", "unknown member 'sha'"),
    # objects
    "no objects": (_set("objects", to=[]), "objects", "at least 1"),
    "object without kind": (_drop("objects", 1, "kind"), "objects[1]", "kind"),
    "object of another kind": (
        _set("objects", 1, "kind", to="blob"),
        "objects[1].kind",
        "tensor or resource",
    ),
    "object without offset": (_drop("objects", 1, "offset"), "objects[1]", "offset"),
    "object with another member": (_set("objects", 1, "crc", to=0), "objects[1]", "unknown member 'crc'"),
    "resource with a shape": (_set("objects", 0, "shape", to=[2]), "objects[0]", "unknown member 'shape'"),
    "resource encoded otherwise": (
        _set("objects", 0, "encoding", to="gzip"),
        "objects[0].encoding",
        "raw_bytes",
    ),
    "repeated id": (_set("objects", 1, "id", to="r"), "objects[1]", "repeats id 'r'"),
    "empty id": (_set("objects", 1, "id", to=""), "objects[1].id", "nonempty"),
    "id with NUL": (_set("objects", 1, "id", to="a\0b"), "objects[1].id", "control"),
    "id with half a surrogate pair": (_set("objects", 1, "id", to="\ud800"), "objects[1].id", "control"),
    "objects out of order": (_swap_objects, "objects[2]", "in order and apart"),
    "objects overlap": (_set("objects", 0, "bytes", to=257), "objects[1]", "in order and apart"),
    "tensor misaligned": (_set("objects", 1, "offset", to=300), "objects[1].offset", "multiple of 256"),
    "tensor one byte short": (_set("objects", 1, "bytes", to=2111), "objects[1].bytes", "the size of q8"),
    "tensor one byte long": (_set("objects", 2, "bytes", to=5), "objects[2].bytes", "the size of fp32"),
    "tensor past the payload": (_set("objects", 2, "offset", to=2**40), "objects[2]", "within the payload"),
    "rank 17": (_set("objects", 2, "shape", to=[1] * 17), "objects[2].shape", "rank"),
    "zero dimension": (_set("objects", 1, "shape", to=[0, 64]), "objects[1].shape[0]", "from 1"),
    "2^64 elements": (
        _set("objects", 1, "shape", to=[2**33, 2**33]),
        "objects[1].shape",
        "fewer than 2^64",
    ),
    # components
    "no text": (_drop("components", "text"), "components", "text component"),
    "component without config": (_drop("components", "text", "config"), "components.text", "config"),
    "component with another member": (
        _set("components", "text", "x", to=1),
        "components.text",
        "unknown member 'x'",
    ),
    "no architecture": (
        _set("components", "text", "config", to={}),
        "components.text.config",
        "architectures",
    ),
    "architecture is no list": (
        _set("components", "text", "config", "architectures", to="Q"),
        "components.text.config.architectures",
        "an array",
    ),
    "target unknown": (
        _set("components", "extra", "target", to="y"),
        "components.extra.target",
        "another comp",
    ),
    "target is itself": (
        _set("components", "extra", "target", to="extra"),
        "components.extra.target",
        "another",
    ),
    "resource role on a tensor": (
        _set("components", "text", "resources", "tokenizer.json", to="w"),
        "components.text.resources.tokenizer.json",
        "id of a resource",
    ),
    "resource role on nothing": (
        _set("components", "text", "resources", "tokenizer.json", to="?"),
        "components.text.resources.tokenizer.json",
        "id of a resource",
    ),
    "proposal not on text": (
        _set("components", "extra", "proposal", to={"domain": "full"}),
        "components.extra.proposal",
        "text component only",
    ),
    "proposal of another domain": (
        _set("components", "text", "proposal", to={"domain": "half"}),
        "components.text.proposal.domain",
        "full or indexed",
    ),
    "indexed proposal without rows": (
        _set("components", "text", "proposal", to={"domain": "indexed"}),
        "components.text.proposal",
        "rows",
    ),
    "full proposal with rows": (
        _set("components", "text", "proposal", to={"domain": "full", "rows": 3}),
        "components.text.proposal",
        "unknown member 'rows'",
    ),
    # bindings
    "binding to nothing": (
        _set("bindings", "extra/w", to={"object": "?"}),
        "bindings.extra/w.object",
        "id of a",
    ),
    "binding to a resource": (
        _set("bindings", "extra/w", to={"object": "r"}),
        "bindings.extra/w.object",
        "id of",
    ),
    "binding of both kinds": (
        _set("bindings", "extra/w", to={"object": "w", "parts": []}),
        "bindings.extra/w",
        "unknown member 'parts'",
    ),
    "binding without parts": (
        _set("bindings", "extra/w", to={"parts": []}),
        "bindings.extra/w.parts",
        "at least 1",
    ),
    "binding to nothing at all": (_set("bindings", "extra/w", to={}), "bindings.extra/w", "parts"),
    "range in bytes, past the elements": (
        _set("bindings", "extra/part", "parts", 0, "range", to=[0, 513]),
        "bindings.extra/part.parts[0].range",
        "end <= 512",
    ),
    "empty range": (
        _set("bindings", "extra/part", "parts", 0, "range", to=[5, 5]),
        "bindings.extra/part.parts[0].range",
        "begin < end",
    ),
    "range of three": (
        _set("bindings", "extra/part", "parts", 0, "range", to=[0, 1, 2]),
        "bindings.extra/part.parts[0].range",
        "[begin, end)",
    ),
    # uses
    "repeated use": (_repeat_use, "uses[1]", "repeats 'extra/w'"),
    "unknown policy": (
        _set("uses", 0, "activation_policy", to="A2"),
        "uses[0].activation_policy",
        "AllowA8",
    ),
    "use of an unbound parameter": (
        _set("uses", 0, "parameter", to="x"),
        "uses[0].parameter",
        "bound parameter",
    ),
    "divisor is no scalar": (
        _set("uses", 0, "auxiliaries", "activation_input_divisor", to={"object": "w"}),
        "uses[0].auxiliaries.activation_input_divisor",
        "fp32 scalar",
    ),
    "divisor on nothing": (
        _set("uses", 0, "auxiliaries", "activation_input_divisor", to={"object": "?"}),
        "uses[0].auxiliaries.activation_input_divisor.object",
        "id of a tensor",
    ),
}


@pytest.mark.parametrize(("edit", "member", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_header_fault_names_its_member(tmp_path: Path, edit: Edit, member: str, words: str) -> None:
    fault = fault_of(write_edited(tmp_path / "a.ninfer", edit))
    assert fault.member == member
    assert words in str(fault)


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
@pytest.mark.parametrize(
    "path",
    [
        ("objects", 1, "offset"),
        ("objects", 1, "bytes"),
        ("files", 0, "payload_bytes"),
        ("objects", 1, "shape", 0),
    ],
    ids=lambda path: str(path[-1]),
)
def test_anything_but_an_unsigned_integer_is_refused(
    tmp_path: Path, path: tuple[Any, ...], value: Any
) -> None:
    assert "an integer from" in str(fault_of(write_edited(tmp_path / "a.ninfer", _set(*path, to=value))))


@pytest.mark.parametrize("name", [None, 3, "", "a/b", "a\\b", "a\0b", ".", "..", "a.ninfer", "b.part-0001"])
def test_continuation_names_are_plain_siblings_each_once(tmp_path: Path, name: Any) -> None:
    def edit(root: Root) -> None:
        root["files"] += [{"path": "b.part-0001", "payload_bytes": 8}, {"path": name, "payload_bytes": 8}]

    assert fault_of(write_edited(tmp_path / "a.ninfer", edit)).member == "files[2].path"


TEXTS: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", "does not parse"),
    "not UTF-8": (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
    "with a byte order mark": (b"\xef\xbb\xbf{}", "does not parse"),
    "two values": (b"{} {}", "does not parse"),
    "an array": (b"[]", "an object"),
    "a duplicate at the root": (b'{"uses": [], "uses": []}', "duplicate member 'uses'"),
    "a duplicate deep inside": (b'{"uses": [{"a": {"b": 1, "b": 1}}]}', "duplicate member 'b'"),
    "too deep": (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    "too deep objects": (b'{"a":' * 100_000, "nested too deeply"),
    "NaN": (b'{"a": NaN}', "NaN"),
    "infinity": (b'{"a": -Infinity}', "Infinity"),
    "a number out of range": (b'{"a": 1e999}', "out of range"),
    "an enormous integer": (b'{"a": ' + b"9" * 100_000 + b"}", "more than 64 bits"),
    "blanks only": (b"    ", "does not parse"),
    "a NUL": (b"{}\0", "does not parse"),
}


@pytest.mark.parametrize(("text", "words"), TEXTS.values(), ids=TEXTS.keys())
def test_header_text_fault_is_clear(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "a.ninfer").write_bytes(assemble(text, b""))
    assert words in str(fault_of(tmp_path / "a.ninfer"))


HEADS: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "magic", "a .ninfer file"),
    "text": (b"hello", "magic", "a .ninfer file"),
    "magic cut short": (MAGIC, "version", "missing"),
    "version 0": (MAGIC + b"\0" * 100, "version", "1, 2 or 3"),
    "version 4": (MAGIC + b"\4" + b"\0" * 100, "version", "is 4"),
    "a continuation file": (b"NINPRT\0\3" + b"\0" * 5000, "magic", "continuation file"),
    "another format": (b"GGUF" + b"\0" * 100, "magic", "a .ninfer file"),
    "head cut short": (MAGIC + b"\3" + b"\1", "file", "a head of 32 bytes"),
    "old head cut short": (MAGIC + b"\1" + b"\1", "file", "a head of 16 bytes"),
    "no JSON": (MAGIC + b"\3" + bytes(24 + 5000), "json_bytes", "is 0"),
    "JSON longer than the file": (
        MAGIC + b"\3" + (5000).to_bytes(8, "little") + bytes(4000),
        "json_bytes",
        "5000",
    ),
    "JSON of 2^64 - 1 bytes": (MAGIC + b"\3" + b"\xff" * 8 + bytes(4000), "json_bytes", "1 to"),
    "no room for the padding": (
        MAGIC + b"\3" + (2).to_bytes(8, "little") + bytes(16) + b"{}",
        "file",
        "4096",
    ),
    "dirt in the padding": (assemble(b"{}", b"")[:-1] + b"x", "padding", "zeros"),
}


@pytest.mark.parametrize(("data", "member", "words"), HEADS.values(), ids=HEADS.keys())
def test_head_fault_names_its_field(tmp_path: Path, data: bytes, member: str, words: str) -> None:
    (tmp_path / "a.ninfer").write_bytes(data)
    fault = fault_of(tmp_path / "a.ninfer")
    assert fault.member == member
    assert words in str(fault)


def test_a_file_cut_or_grown_anywhere_is_refused(tmp_path: Path) -> None:
    root, payload = small_root()
    data = assemble(root, payload)
    for size in [*range(0, len(data), 97), len(data) - 1]:
        (tmp_path / "a.ninfer").write_bytes(data[:size])
        fault_of(tmp_path / "a.ninfer")
    (tmp_path / "a.ninfer").write_bytes(data + b"\0")
    fault_of(tmp_path / "a.ninfer")


def test_absent_directories_and_pipes_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("absent", "pipe", "."):
        assert "can't be read" in str(fault_of(tmp_path / name))
