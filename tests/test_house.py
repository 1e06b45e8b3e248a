"""The house laws: who may import whom, how big things may be, what the product may never hold."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sizes import functions, kernels, p90

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ninfer"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LEAVES = {"faults", "settings"}
# Which rooms a room may import.  Values that travel (job, device door, deltas) live in the room
# that defines them; ``TYPES`` below are modules of plain values that any room may import.
MAY_IMPORT: dict[str, set[str]] = {
    "http": set(),
    "output": {"prompt"},
    "media": {"prompt"},
    "prompt": {"media"},
    "engine": {"prompt"},
    "protocols": {"http", "prompt", "output", "engine"},
    "kernels_cu": set(),
    "artifact": set(),
    "ops": {"kernels_cu", "artifact"},
    "model": {"ops", "artifact"},
    "spec": {"ops", "model"},
    "runtime": {"engine", "spec", "model", "ops", "kernels_cu", "artifact", "prompt"},
    "observe": {"engine", "output"},
}
TYPES = {"prompt.conversation", "prompt.prepared", "output.deltas", "engine.job", "model.config"}
CUPY_MODULES = {"ops", "kernels_cu", "runtime", "bench"}
NO_ARRAYS = ("engine", "output", "protocols", "http")
# The engine decides without waiting; these few wait, hand over, or keep files.
WAITING = {"admission", "channel", "context_store", "loop", "parking", "persist"}
PURE = ("output", "spec", "http.wire", "prompt.conversation", "observe.interval", "runtime.arrears")
CLOCKS_AND_FILES = {
    "anyio",
    "trio",
    "asyncio",
    "threading",
    "socket",
    "time",
    "random",
    "os",
    "io",
    "pathlib",
}
# Absolute paths of somebody's machine, and registry hosts; spelled so that this file passes itself.
ELSEWHERE = (r"/home/[a-z]", r"/wor[k]/", r"pypi[.]org", r"registry[.]npmjs")
FORBIDDEN = {"torch", "transformers", "fastapi", "pydantic", "starlette", "uvicorn"}


def imported(path: Path) -> Iterator[tuple[str, bool]]:
    """(module, at top level) for every import in a file."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, id(node) in top


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@pytest.mark.parametrize("path", SOURCES, ids=dotted)
def test_no_room_trespasses(path: Path) -> None:
    here = dotted(path)
    room = here.split(".")[0]
    for name, _ in imported(path):
        head, _, rest = name.partition(".")
        assert head not in FORBIDDEN, f"{here} imports {name}"
        target = rest.split(".")[0]
        if head != "ninfer" or not target or target == room or room not in MAY_IMPORT:
            continue
        assert target in MAY_IMPORT[room] | LEAVES or rest in TYPES, f"{here} imports {name}"


@pytest.mark.parametrize("path", SOURCES, ids=dotted)
def test_cupy_is_imported_late_and_only_where_it_belongs(path: Path) -> None:
    for name, top in imported(path):
        if name.split(".")[0] in {"cupy", "cupyx", "cupy_backends"}:
            assert dotted(path).split(".")[0] in CUPY_MODULES, f"{dotted(path)} imports {name}"
            assert not top, f"{dotted(path)} imports {name} at import time"


@pytest.mark.parametrize("path", SOURCES, ids=dotted)
def test_pure_rooms_hold_no_arrays_and_do_not_wait(path: Path) -> None:
    names = {name.split(".")[0] for name, _ in imported(path)}
    if dotted(path).startswith(NO_ARRAYS):
        assert "numpy" not in names
    room, _, rest = dotted(path).partition(".")
    if dotted(path).startswith(PURE) or (room == "engine" and rest not in WAITING):
        assert not names & CLOCKS_AND_FILES


def test_files_and_functions_keep_their_size() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCES}
    too_long = {str(path): lines for path, lines in lengths.items() if lines > 500}
    assert not too_long
    assert p90(list(lengths.values())) <= 350
    found = [row for path in SOURCES for row in functions(path)]
    assert statistics.median(lines for _, lines, _ in found) <= 8
    assert p90([lines for _, lines, _ in found]) <= 30
    assert not {name: lines for name, lines, _ in found if lines > 60}
    assert not {name: deep for name, _, deep in found if deep > 4}


def test_kernels_keep_their_size() -> None:
    found = [row for path in sorted(PACKAGE.rglob("*.cu*")) for row in kernels(path)]
    assert not {name: lines for name, lines in found if lines > 120}


def test_public_functions_and_classes_have_docstrings() -> None:
    missing = []
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree):
            missing.append(str(path))
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                public = not node.name.startswith("_")
                if public and not ast.get_docstring(node):
                    missing.append(f"{path}:{node.name}")
    assert not missing


def test_broad_except_only_in_the_two_supervisors() -> None:
    allowed = {"http/connection.py", "engine/loop.py"}
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in SOURCES
        if re.search(r"noqa: BLE001", path.read_text())
    }
    assert found <= allowed


def test_help_and_cli_import_nothing_heavy() -> None:
    code = "import sys, ninfer.cli; print(sorted(m for m in sys.modules if '.' not in m))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "cupy", "trio", "anyio", "tokenizers", "jinja2", "PIL"} & set(eval(out.stdout))


def test_repository_speaks_of_the_product_alone() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    bad = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in {".ninfer", ".npz", ".png", ".gz"} or not path.is_file():
            continue
        if re.search("|".join(ELSEWHERE), path.read_text(errors="replace")):
            bad.append(name)
    assert not bad


def test_no_tracked_file_is_over_16_mib() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert not [str(path) for path in names if path.is_file() and path.stat().st_size > 16 << 20]


def test_every_suite_runs_whole_on_the_emulator_and_on_a_card() -> None:
    suites = {path.stem: set(_tests_of(path)) for path in sorted((ROOT / "tests/suites").glob("*.py"))}
    for folder in ("kernels_cu", "device"):
        run: set[str] = set()
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py")):
            taken = re.findall(r"from tests\.suites\.(\w+) import \*", path.read_text())
            found = [*_tests_of(path), *(name for suite in taken for name in suites[suite])]
            twice = {name for name in found if found.count(name) > 1}
            assert not twice, f"{path.name} runs one of each alone: {twice}"
            run.update(taken)
        left_out = {suite for suite, tests in suites.items() if tests} - run
        assert not left_out, f"tests/{folder} runs no {left_out}"


def _tests_of(path: Path) -> list[str]:
    return re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.M)
