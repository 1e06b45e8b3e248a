"""The size law: how long functions, files and kernels may be, measured from source.

Run as a script it prints the report; ``test_house.py`` asserts the limits.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef, source: list[str]) -> int:
    """Code lines of a function: docstring, blank and comment lines do not count."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return 0
    first, last = body[0].lineno, node.end_lineno or node.lineno
    lines = (line.strip() for line in source[first - 1 : last])
    return sum(1 for line in lines if line and not line.startswith("#"))


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Deepest block nesting below ``node``; an ``elif`` is not one deeper."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.Lambda)):
            continue
        is_elif = isinstance(child, ast.If) and isinstance(node, ast.If) and node.orelse == [child]
        step = 1 if isinstance(child, BLOCKS) and not is_elif else 0
        deepest = max(deepest, nesting(child, depth + step))
    return deepest


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, lines, nesting) of every function in a Python file."""
    text = path.read_text()
    source = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, FUNCTIONS):
            yield f"{path}:{node.name}", body_lines(node, source), nesting(node)


def kernels(path: Path) -> Iterator[tuple[str, int]]:
    """(name, lines) of every ``__global__`` function in a CUDA file, by brace matching."""
    text = path.read_text()
    for match in re.finditer(r"__global__[^{;]*?(\w+)\s*\([^{;]*\)\s*\{", text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        body = (line.strip() for line in text[match.end() : end].splitlines())
        yield f"{path}:{match.group(1)}", sum(1 for line in body if line and not line.startswith("//"))


def p90(values: list[int]) -> int:
    """The 90th percentile by nearest rank."""
    return sorted(values)[max(0, -(-len(values) * 9 // 10) - 1)]


def report(root: Path) -> str:
    """A few lines with medians, 90th percentiles and the longest of each kind."""
    files = {str(path): len(path.read_text().splitlines()) for path in sorted(root.rglob("*.py"))}
    found = [row for path in sorted(root.rglob("*.py")) for row in functions(path)]
    lengths = [lines for _, lines, _ in found]
    rows = [
        f"files     {len(files)}  med {statistics.median(files.values())}  p90 {p90(list(files.values()))}",
        f"functions {len(found)}  median {statistics.median(lengths)}  p90 {p90(lengths)}",
        "longest files:",
        *(f"  {files[name]:5} {name}" for name in sorted(files, key=files.__getitem__)[:-6:-1]),
        "longest functions:",
        *(f"  {lines:5} {name}" for name, lines, _ in sorted(found, key=lambda r: -r[1])[:5]),
        "deepest functions:",
        *(f"  {deep:5} {name}" for name, _, deep in sorted(found, key=lambda r: -r[2])[:5]),
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    print(report(Path(sys.argv[1] if len(sys.argv) > 1 else "ninfer")))
