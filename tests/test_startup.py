"""Options from argv, YAML and the environment: precedence, ranges, and refusals that say what to do."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from ninfer.cli import build_parser, main
from ninfer.commands import serve
from ninfer.faults import StartupError
from ninfer.settings import ResponseStoreLimits
from ninfer.spec.drafter import DRAFTERS
from ninfer.startup import ServeOptions, read_options


def options(*argv: str) -> ServeOptions:
    return read_options(build_parser().parse_args(["serve", *argv]))


@pytest.fixture
def config(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write(text: str) -> str:
        path = tmp_path / "serve.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_defaults_are_the_documented_ones() -> None:
    found = options("m.ninfer")
    assert (found.host, found.port, found.log_level, found.stats_interval) == (
        "127.0.0.1",
        8080,
        "info",
        5.0,
    )
    engine = found.engine
    assert (engine.max_context, engine.max_concurrency, engine.max_pending) == (8192, 1, 16)
    assert (engine.pending_timeout, engine.prefill_chunk) == (30.0, 1024)
    assert found.wire.body_bytes == 384 << 20 and found.defaults.max_tokens == 8192


def test_the_response_store_has_its_two_limits() -> None:
    assert options("m.ninfer").responses == ResponseStoreLimits(1_024, 256 << 20)
    found = options("m.ninfer", "--response-store-max-records", "2", "--response-store-max-mib", "3")
    assert found.responses == ResponseStoreLimits(2, 3 << 20)


def test_a_flag_beats_the_file_and_the_file_beats_the_default(config) -> None:  # type: ignore[no-untyped-def]
    path = config("server:\n  port: 9000\n  max_context: 512\n  cors: true\n  temperature: 0.5\n")
    found = options("m.ninfer", "--config", path, "--port", "9001")
    assert (found.port, found.engine.max_context, found.cors) == (9001, 512, True)
    assert found.sampling.temperature == 0.5


def test_the_file_may_name_the_artifact_and_spell_options_either_way(config) -> None:  # type: ignore[no-untyped-def]
    found = options("--config", config("server:\n  artifact: a.ninfer\n  max-concurrency: 4\n"))
    assert (found.artifact, found.engine.max_concurrency) == (Path("a.ninfer"), 4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("server:\n  prot: 1\n", "did you mean 'port'"),
        ("server:\n  port: many\n", "is not a number"),
        ("server:\n  port: 99999\n", "at most 65535"),
        ("server:\n  port: [1]\n", "must be a single value"),
        ("server:\n  cors: 1\n", "must be true or false"),
        ("server:\n  log_level: loud\n", "is not one of"),
        ("server:\n  config: other.yaml\n", "unknown option"),
        ("server:\n  log_level: true\n", "must be a single value"),
        ("server:\n  max_contxt: 1\n", "did you mean 'max-context'"),
        ("server:\n  requestlog_jsonl: x\n", "did you mean 'request-log-jsonl'"),
        ("server:\n  port: 1\nlogging: {}\n", "unknown section 'logging'"),
        ("port: 1\n", "`server:` section"),
        ("[1, 2]\n", "`server:` section"),
        ("server: {", "not valid YAML"),
        ("", "`server:` section"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(config, text: str, complaint: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StartupError) as caught:
        options("m.ninfer", "--config", config(text))
    assert complaint in str(caught.value)


def test_a_bare_off_in_yaml_is_the_word(config) -> None:  # type: ignore[no-untyped-def]
    found = options("m", "--config", config("server:\n  log_level: off\n  media_url_policy: off\n"))
    assert (found.log_level, found.media.policy) == ("off", "off")


@pytest.mark.parametrize(
    "argv",
    [
        ("--seed", "9223372036854775808"),
        ("--port", "70000"),
        ("--max-concurrency", "9"),
        ("--max-concurrency", "0"),
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--top-k", "21"),
        ("--seed", "x"),
        ("--log-level", "loud"),
        ("--dialect", "klingon"),
    ],
)
def test_a_flag_out_of_range_is_a_usage_error(
    argv: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        options("m.ninfer", *argv)
    assert caught.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_the_key_comes_from_flag_file_or_environment_and_is_never_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["ninfer", "serve", "m", "--api-key", "hush-hush"])
    found = options("m", "--api-key", "hush-hush")
    assert found.api_key == "hush-hush"
    assert "hush-hush" not in " ".join(found.argv) and "<redacted>" in found.argv
    assert "hush-hush" not in repr(found)
    (tmp_path / "key").write_text("from-file\n")
    assert options("m", "--api-key-file", str(tmp_path / "key")).api_key == "from-file"
    monkeypatch.setenv("NINFER_API_KEY", "from-env")
    assert options("m").api_key == "from-env"
    assert options("m", "--api-key", "flag").api_key == "flag"


def test_what_cannot_start_is_one_sentence_and_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.ninfer").write_bytes(b"not a model")
    (tmp_path / "empty.ninfer").write_bytes(b"")
    cases = [
        ["serve"],
        ["serve", str(tmp_path / "absent.ninfer"), "--port", "0"],
        ["serve", str(tmp_path / "bad.ninfer"), "--port", "0"],
        ["serve", str(tmp_path / "empty.ninfer"), "--port", "0"],
        ["serve", str(tmp_path), "--port", "0"],
        ["serve", "m.ninfer", "--config", str(tmp_path / "absent.yaml")],
        ["serve", "m.ninfer", "--api-key-file", str(tmp_path / "absent")],
        ["serve", "m.ninfer", "--api-key", ""],
        ["run", str(tmp_path / "bad.ninfer"), "--prompt", "x"],
        ["run", "m.ninfer", "--messages", str(tmp_path / "absent.json")],
    ]
    for argv in cases:
        assert main(argv) == 2, argv
        error = capsys.readouterr().err
        assert error.startswith("ninfer: ") and "Traceback" not in error, argv
        assert len(error.splitlines()) == 1, error


@pytest.mark.parametrize(
    "argv",
    [
        ("--context-disk-mib", "5"),
        ("--context-dir", "x", "--no-prefix-reuse"),
        ("--context-dir", "x", "--host-context-mib", "0"),
    ],
)
def test_contexts_on_disk_need_a_folder_and_something_to_keep(argv: tuple[str, ...]) -> None:
    with pytest.raises(StartupError, match="--context-d"):
        options("m", *argv)


def test_drafts_are_a_number_or_left_to_measurement() -> None:
    fixed = options("m", "--spec", "mtp", "--draft-tokens", "3").engine
    chosen = options("m", "--spec", "mtp", "--draft-tokens", "auto").engine
    assert (fixed.draft_tokens, fixed.draft_auto) == (3, False)
    assert (chosen.draft_tokens, chosen.draft_auto) == (5, True)


# The option table

DEFAULTS = {
    "host": lambda o: o.host,
    "port": lambda o: o.port,
    "dialect": lambda o: o.dialect,
    "max-request-mib": lambda o: o.wire.body_bytes >> 20,
    "max-connections": lambda o: o.wire.connections,
    "drain-seconds": lambda o: o.patience.drain,
    "backend": lambda o: o.backend,
    "max-context": lambda o: o.engine.max_context,
    "max-concurrency": lambda o: o.engine.max_concurrency,
    "prefill-chunk": lambda o: o.engine.prefill_chunk,
    "kv-dtype": lambda o: o.engine.kv_dtype,
    "context-disk-mib": lambda o: o.contexts.bytes >> 20,
    "max-pending-requests": lambda o: o.engine.max_pending,
    "device-patience-seconds": lambda o: o.engine.waits.work,
    "pending-timeout-ms": lambda o: o.engine.pending_timeout * 1000,
    "default-max-tokens": lambda o: o.defaults.max_tokens,
    "response-store-max-records": lambda o: o.responses.records,
    "response-store-max-mib": lambda o: o.responses.bytes >> 20,
    "media-url-policy": lambda o: o.media.policy,
    "media-cache-mib": lambda o: o.media.cache_bytes >> 20,
    "media-live-mib": lambda o: o.media.live_bytes >> 20,
    "media-preprocess-threads": lambda o: o.media.threads,
    "log-level": lambda o: o.log_level,
    "log-stats-interval-ms": lambda o: o.stats_interval * 1000,
}


def actions() -> dict[str, argparse.Action]:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    return {max(a.option_strings, key=len)[2:]: a for a in parser._actions if a.option_strings}


@pytest.mark.parametrize("name", DEFAULTS)
def test_help_names_the_default_that_holds(name: str) -> None:
    shown = re.search(r"\(default ([^\s)]+)\)", str(actions()[name].help))
    value = DEFAULTS[name](options("m"))
    assert shown and shown[1] == (f"{value:g}" if isinstance(value, (int, float)) else value)


def test_every_option_says_what_it_is_when_left_out() -> None:
    switches = {name for name, action in actions().items() if action.nargs == 0}
    silent = {name for name, action in actions().items() if "default" not in str(action.help)}
    assert silent - switches == {"config", "api-key-file", "draft-tokens"}


@pytest.mark.parametrize("name", sorted(set(actions()) - {"help", "config"}))
def test_every_option_can_stand_in_the_file(name: str, config, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    action = actions()[name]
    file = tmp_path / "costs.json"
    file.write_text('{"transfer_seconds": 1}')
    if action.nargs == 0:
        value = "true"
    elif action.choices:
        value = str(list(action.choices)[-1])
    else:
        value = str(file) if not action.type else "2" if name == "max-concurrency" else "1"
    need = {"draft-tokens": "  spec: mtp\n", "spec": "  draft-tokens: 1\n"}
    need["lm-head-draft"] = need["draft-tokens"] + need["spec"]
    need["context-disk-mib"] = "  context-dir: contexts\n"
    text = f"server:\n  {name}: {value}\n{need.get(name, '')}"
    assert options("m", "--config", config(text)) != options("m")


def test_every_drafter_can_be_chosen() -> None:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    (action,) = (action for action in parser._actions if action.dest == "spec")
    assert set(action.choices or ()) == set(DRAFTERS)
