"""Every request that README.md shows is answered as it says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from tests.e2e.server import ROOT, running

pytestmark = pytest.mark.slow
PAGE = (ROOT / "README.md").read_text()
COMMANDS = [
    command
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for command in re.split(r"^(?=curl )", block, flags=re.MULTILINE)
    if command.startswith("curl ")
]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_each_request_of_the_readme_is_answered() -> None:
    with running("--vision") as live:
        said = []
        for command in COMMANDS:
            shell = command.replace("http://127.0.0.1:8080", live.url).replace("curl", "curl -sS", 1)
            done = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=True)
            said.append(json.dumps(json.loads(done.stdout)))
    assert len(said) == 5 and not any('"error": {' in each for each in said)
    assert all("12 + 30 = 42" in each for each in said[:3])
    assert r"{\"city\":\"Paris\"}" in said[3] and "A red circle." in said[4]
