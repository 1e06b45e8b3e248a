"""The coverage page tells the truth: every test it names exists, every row names one."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "protocol-coverage.md").read_text()
NAMED = sorted(set(re.findall(r"`([a-z0-9_/]+\.py)::(\w+)`", PAGE)))
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith("|---")]


@cache
def defined_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


@pytest.mark.parametrize("path, name", NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert name in defined_in(path)


def test_every_row_names_what_shows_it() -> None:
    rows = [row for row in ROWS if row != "| what holds | shown by |"]
    assert len(rows) > 90
    assert not [row for row in rows if not re.search(r"\| (`[^`]+::\w+`|room `\w+`) \|$", row)]
