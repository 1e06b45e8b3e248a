"""``ninfer inspect`` and ``ninfer convert`` as a user meets them: output, exit codes, faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer.cli import main
from tests.artifact.hf import hf_config, hf_tensors, write_hf
from tests.artifact.synthetic import write_tiny


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "hf", hf_tensors(hf_config()), hf_config())


def test_inspect_shows_components_formats_and_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny(tmp_path / "m.ninfer")
    assert main(["inspect", str(tmp_path / "m.ninfer")]) == 0
    text = capsys.readouterr().out
    size = (tmp_path / "m.ninfer").stat().st_size
    assert f"tiny (Qwen3_5ForCausalLM), version 3\n{size:,} bytes in 1 file(s)" in text
    for words in ("q8_g32_fp16", " bits each", "text:", "vision:", "mtp:", "hidden_size: 64"):
        assert words in text


def test_inspect_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(tmp_path / "m.ninfer", max_file_bytes=100_000)
    assert main(["inspect", "--json", str(tmp_path / "m.ninfer")]) == 0
    found = json.loads(capsys.readouterr().out)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert found["size_bytes"] == sum(sizes)
    assert len(found["files"]) == len(sizes)
    assert found["components"]["text"]["proposal"] == {"domain": "indexed", "rows": 32}
    assert found["formats"]["int32"] == {"tensors": 1, "elements": 32, "bytes": 128}


def test_inspect_adds_a_digest_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digests = set()
    for limit in (100_000, 10**9):
        write_tiny(tmp_path / "m.ninfer", max_file_bytes=limit)
        assert main(["inspect", "--json", "--digest", str(tmp_path / "m.ninfer")]) == 0
        digests.add(json.loads(capsys.readouterr().out)["weights_digest"])
    assert len(digests) == 1


def test_inspect_shows_components_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.artifact.handmade import assemble, take_apart

    write_tiny(tmp_path / "m.ninfer")
    root, payload = take_apart(tmp_path / "m.ninfer")
    root["components"]["decision"] = {"config": {"size": 3}}
    (tmp_path / "m.ninfer").write_bytes(assemble(root, payload))
    assert main(["inspect", str(tmp_path / "m.ninfer")]) == 0
    assert "decision:\n  size: 3" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["absent", "text", "cut", "incomplete"])
def test_inspect_answers_a_bad_file_with_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    path = tmp_path / "m.ninfer"
    if damage == "text":
        path.write_text("hello")
    elif damage in ("cut", "incomplete"):
        write_tiny(path, max_file_bytes=100_000)
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:-1])
        else:
            (tmp_path / "m.ninfer.part-0002").unlink()
    assert main(["inspect", str(path)]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith(f"ninfer: {path}")
    assert out.err.count("\n") == 1


def test_convert_says_what_it_wrote(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "m.ninfer"
    options = ["--recipe", "groupwise", "--name", "little", "--proposal-head", "16"]
    assert main(["convert", str(checkpoint), str(target), *options]) == 0
    out = capsys.readouterr()
    assert out.out.startswith(f"{target}: little, ")
    assert "components: text, mtp, vision" in out.out
    assert "stored in 8 bits: vision/layers/0/attention/query: q4_g64_fp16 needs columns in 64s" in out.out
    assert out.err == ""  # no bar without a terminal
    assert main(["inspect", str(target)]) == 0


def test_convert_splits_at_a_limit(tmp_path: Path, checkpoint: Path) -> None:
    target = tmp_path / "m.ninfer"
    options = ["--recipe", "q8", "--max-file-bytes", "100000"]
    assert main(["convert", str(checkpoint), str(target), *options]) == 0
    assert max(path.stat().st_size for path in tmp_path.glob("m.ninfer*")) <= 100_000
    assert main(["inspect", str(target)]) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--proposal-ids", "x"], "needs --proposal-head"),
        (["--proposal-head", "1000"], "1 to 128 rows"),
        (["--max-file-bytes", "5000"], "can't be written"),
        (["--name", ""], "nonempty"),
    ],
)
def test_convert_refuses_bad_options_with_exit_2(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["convert", str(checkpoint), str(tmp_path / "m.ninfer"), "--recipe", "q8", *options]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.glob("*m.ninfer*"))


@pytest.mark.parametrize("target", ["absent/m.ninfer", "."])
def test_convert_explains_a_target_that_can_not_be_written(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    assert main(["convert", str(checkpoint), str(tmp_path / target), "--recipe", "q8"]) == 2
    assert "can't be written" in capsys.readouterr().err


def test_the_progress_bar_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    from ninfer.commands.convert import progress_bar

    draw = progress_bar()
    for done in (0, 1, 500, 501, 1000):
        draw(done, 1000)
    err = capsys.readouterr().err
    assert err.endswith("100%\n")
    assert err.count("\r") == 3  # 0, 50 and 100 percent; one line a percent


def test_help_names_the_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    from ninfer.artifact.convert.recipes import RECIPES
    from ninfer.commands.convert import RECIPES as OFFERED

    assert tuple(RECIPES) == OFFERED
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in RECIPES)
