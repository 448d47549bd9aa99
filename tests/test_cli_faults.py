"""A fault of the user is one line and exit code 2, a fault of ours a traceback and 1."""

import json
from pathlib import Path

import pytest
from command_lines import TOOL, generate_args, run_module, write_tools
from fake_engine import FakeEngine, install

from schemafill.inference import cli
from schemafill.inference.request import UserError


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    return install(monkeypatch, FakeEngine())


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    return write_tools(tmp_path / "tools.json")


def assert_one_line_error(capsys: pytest.CaptureFixture, code: int, *parts: str) -> None:
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("schemafill: error: ") and err.count("\n") == 1 and err.endswith("\n")
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ["cannot read", "tools.json"]),
        (b"\xff\xfe\x00", ["tools.json", "not JSON"]),
        (b"[{", ["tools.json", "not JSON"]),
        (b'{"name": "ping"}', ["tools.json", "must be a list of tools"]),
        (b'["ping"]', ["tools.json", "must be a list of tools"]),
        (b"[]", ["tools.json", "is empty"]),
        (b'[{"type": "function"}]', ["tools.json", "tools[0]"]),
        (json.dumps([TOOL, TOOL]).encode(), ["tools.json", "tools[1]", "'ping'"]),
    ],
)
def test_bad_tools_are_one_line_and_load_nothing(
    engine: FakeEngine, tools: Path, capsys: pytest.CaptureFixture, content: bytes | None, parts: list[str]
) -> None:
    tools.unlink()
    if content is not None:
        tools.write_bytes(content)
    assert_one_line_error(capsys, cli.main(generate_args(tools)), *parts)
    assert engine.loads == []


@pytest.mark.parametrize(
    ("content", "part"), [("[]", "is empty"), ('[{"content": "x"}]', "message 1 has no role"), ("nope", "not JSON")]
)
def test_bad_messages_are_one_line(
    engine: FakeEngine, tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture, content: str, part: str
) -> None:
    messages = tmp_path / "messages.json"
    messages.write_text(content)
    code = cli.main(["generate", "--target", "toy", "--tools", str(tools), "--messages", str(messages)])
    assert_one_line_error(capsys, code, "messages.json", part)
    assert engine.loads == []


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--method", "magic"], "unknown method 'magic'; known: ar, fast"),
        (["--dialect", "klingon"], "klingon"),
        (["--numerics", "sloppy"], "sloppy"),
        (["--temperature", "-1"], "temperature must be"),
        (["--temperature", "nan"], "temperature must be"),
        (["--temperature", "warm"], "warm"),
        (["--top-p", "0"], "top_p must be"),
        (["--max-new-tokens", "0"], "max_new_tokens must be"),
        (["--threads", "0"], "whole number from 1"),
        (["--stop", ""], "stop text must not be empty"),
        (["--messages", "m.json"], "not allowed with argument"),
        (["--magic"], "unrecognized arguments: --magic"),
    ],
)
def test_bad_options_are_one_line_and_load_nothing(
    engine: FakeEngine, tools: Path, capsys: pytest.CaptureFixture, options: list[str], part: str
) -> None:
    assert_one_line_error(capsys, cli.main(generate_args(tools, *options)), part)
    assert engine.loads == []


def test_unknown_target_and_too_long_prompt_are_one_line(
    engine: FakeEngine, tools: Path, capsys: pytest.CaptureFixture
) -> None:
    code = cli.main(["generate", "--target", "nowhere/nothing", "--tools", str(tools), "--request", "x"])
    assert_one_line_error(capsys, code, "no target 'nowhere/nothing'")
    code = cli.main(["generate", "--target", "toy", "--tools", str(tools), "--request", "too long"])
    assert_one_line_error(capsys, code, "40000 tokens", "32768")


@pytest.mark.parametrize("argv", [[], ["dance"], ["generate"], ["bench", "--target", "toy"], ["report"]])
def test_incomplete_commands_are_one_line(capsys: pytest.CaptureFixture, argv: list[str]) -> None:
    assert_one_line_error(capsys, cli.main(argv))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--suite", "nothing", "--methods", "ar"], "no suite 'nothing'"),
        (["--suite", "demo", "--methods", "ar,magic"], "unknown method 'magic'"),
        (["--suite", "demo", "--methods", "ar,,fast"], "empty name"),
        (["--suite", "demo", "--methods", "ar,ar"], "stands twice"),
        (["--suite", "demo", "--methods", "ar", "--limit", "0"], "whole number from 1"),
        (["--suite", "demo", "--methods", "ar", "--repeat", "x"], "whole number from 1"),
        (["--suite", "demo", "--methods", "ar", "--prefix-cache", "maybe"], "maybe"),
    ],
)
def test_bad_bench_options_are_one_line_and_write_nothing(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture, options: list[str], part: str
) -> None:
    out = tmp_path / "out"
    assert_one_line_error(capsys, cli.main(["bench", "--target", "toy", *options, "--out", str(out)]), part)
    assert not out.exists() and engine.loads == []


def test_bench_into_a_file_is_refused(engine: FakeEngine, tools: Path, capsys: pytest.CaptureFixture) -> None:
    code = cli.main(["bench", "--target", "toy", "--suite", "demo", "--methods", "ar", "--out", str(tools)])
    assert_one_line_error(capsys, code, "is not a folder")


@pytest.mark.parametrize(("name", "part"), [("missing", "no such folder"), ("", "no summary.json")])
def test_report_on_a_folder_without_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, name: str, part: str
) -> None:
    assert_one_line_error(capsys, cli.main(["report", str(tmp_path / name)]), part)


def test_unknown_packaged_target_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert_one_line_error(capsys, cli.main(["fetch-target", "moon", "--dir", str(tmp_path)]), "'moon'; known: embedded")


@pytest.mark.parametrize(
    ("source", "part"), [("hub", "known: gguf:PATH"), ("gguf:/no/such.gguf", "no GGUF file at /no/such.gguf")]
)
def test_bad_source_of_a_target_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture, source: str, part: str
) -> None:
    options = ["--dir", str(tmp_path / "targets"), "--source", source]
    assert_one_line_error(capsys, cli.main(["fetch-target", "embedded", *options]), part)
    assert not (tmp_path / "targets").exists()


def test_our_own_faults_show_a_traceback_and_exit_1(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    install(monkeypatch, FakeEngine())
    assert cli.main(generate_args(tools, "--method", "broken")) == 1
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" in err and "RuntimeError" in err


def test_an_interrupt_is_one_line_and_130(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def script(method: str, request: str, trace: bool):
        raise KeyboardInterrupt

    install(monkeypatch, FakeEngine(script))
    assert cli.main(generate_args(tools)) == 130
    assert capsys.readouterr().err == "schemafill: interrupted\n"


def test_an_error_text_of_several_lines_becomes_one(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def script(method: str, request: str, trace: bool):
        raise UserError("first\n  second")

    install(monkeypatch, FakeEngine(script))
    assert_one_line_error(capsys, cli.main(generate_args(tools)), "first second")


def test_as_a_process_a_missing_file_is_one_line_and_2() -> None:
    done = run_module("generate", "--target", "toy", "--tools", "/nowhere/tools.json", "--request", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "schemafill: error: cannot read /nowhere/tools.json: No such file or directory\n"
