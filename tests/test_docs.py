"""The pages tell the truth: links lead somewhere, and every dependency says why it is here."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = subprocess.run(
    ["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split("\0")[:-1]


def links(page: str) -> Iterator[tuple[Path, str]]:
    """(file, anchor) of every relative link on a page."""
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield ((ROOT / page).parent / path if path else ROOT / page), anchor


def anchors(page: Path) -> set[str]:
    """The names that headings get on the web."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_somewhere(page: str) -> None:
    dead = [
        str(path)
        for path, anchor in links(page)
        if not path.exists() or (anchor and anchor not in anchors(path))
    ]
    assert not dead


def test_readme_leads_to_every_page() -> None:
    reached = {path.resolve() for path, _ in links("README.md")}
    assert {ROOT / page for page in PAGES if page.startswith("docs/")} <= reached


def test_tour_shows_every_room() -> None:
    reached = {path.resolve() for path, _ in links("docs/tour.md")}
    rooms = {path.parent for path in (ROOT / "ninfer").glob("*/__init__.py")}
    assert rooms <= reached


def test_every_dependency_says_why_it_is_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in asked}  # type: ignore[index]
    page = (ROOT / "docs" / "dependencies.md").read_text().lower().replace("_", "-")
    rows = " ".join(line for line in page.splitlines() if line.startswith("|"))
    assert not {name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", rows)}
