import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_engine import FakeEngine, completion, install

from schemafill.inference import cli
from schemafill.inference.request import UnfinishedCall, UserError

TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    return install(monkeypatch, FakeEngine())


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([TOOL]))
    return path


def generate_args(tools: Path, *more: str) -> list[str]:
    return ["generate", "--target", "toy", "--tools", str(tools), "--request", "ping it", *more]


def assert_one_line_error(capsys: pytest.CaptureFixture, code: int, *parts: str) -> None:
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("schemafill: error: ") and err.count("\n") == 1 and err.endswith("\n")
    for part in parts:
        assert part in err


def test_generate_prints_exactly_one_object(engine: FakeEngine, tools: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(generate_args(tools)) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "tool_calls": [{"id": "call_1", "name": "ping", "arguments": '{"host":  "örtchen"}'}],
        "content": None,
        "finish_reason": "tool_calls",
    }
    assert "örtchen" in out
    assert err == ""


def test_generate_hands_every_option_on(engine: FakeEngine, tools: Path) -> None:
    options = [
        "--head", "none", "--device", "cuda:1", "--dtype", "float16", "--threads", "3", "--numerics", "fast",
        "--dialect", "hermes", "--trust-remote-code", "--method", "fast", "--temperature", "0.5", "--top-p", "0.9",
        "--top-k", "40", "--seed", "11", "--max-new-tokens", "77", "--stop", "END", "--stop", "\n\n",
    ]  # fmt: skip
    assert cli.main(generate_args(tools, *options)) == 0
    [(target, settings)] = engine.loads
    assert target == "toy"
    assert settings.pop("progress") is sys.stderr.isatty()
    assert settings == {
        "head": "none", "device": "cuda:1", "dtype": "float16", "threads": 3, "numerics": "fast", "dialect": "hermes",
        "trust_remote_code": True,
    }  # fmt: skip
    assert engine.requests == [("fast", "ping it")]
    [sampling] = engine.samplings
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 40, 11)
    assert (sampling.max_new_tokens, sampling.stop) == (77, ("END", "\n\n"))


def test_generate_takes_messages(engine: FakeEngine, tools: Path, tmp_path: Path) -> None:
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "system", "content": "s"}, {"role": "user", "content": "from a file"}]))
    assert cli.main(["generate", "--target", "toy", "--tools", str(tools), "--messages", str(messages)]) == 0
    assert engine.requests == [("schemafill", "from a file")]


def test_reasoning_and_an_unfinished_call_are_printed_when_there(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def script(method: str, request: str, trace: bool):
        done = completion()
        done.reasoning, done.unfinished, done.finish_reason = "hm", UnfinishedCall("ping", '{"ho'), "length"
        return done

    install(monkeypatch, FakeEngine(script))
    assert cli.main(generate_args(tools)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["reasoning"], printed["finish_reason"]) == ("hm", "length")
    assert printed["unfinished"] == {"name": "ping", "arguments": '{"ho'}


def test_stream_prints_deltas_and_the_whole_object_last(
    engine: FakeEngine, tools: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(generate_args(tools, "--stream")) == 0
    *deltas, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert deltas == [
        {"kind": "call", "index": 0, "text": "ping"},
        {"kind": "arguments", "index": 0, "text": '{"host":  "örtchen"}'},
    ]
    assert last["tool_calls"][0]["arguments"] == "".join(one["text"] for one in deltas if one["kind"] == "arguments")


def test_stats_go_to_stderr(engine: FakeEngine, tools: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(generate_args(tools, "--stats", "--method", "fast")) == 0
    out, err = capsys.readouterr()
    assert "stats" not in json.loads(out)
    assert (json.loads(err)["tokens"], json.loads(err)["verify_calls"]) == (6, 2)


def test_output_stays_json_where_the_terminal_cannot_show_it(
    engine: FakeEngine, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert cli.main(generate_args(tools)) == 0
    printed = json.loads(stdout.buffer.getvalue())
    assert printed["tool_calls"][0]["arguments"] == '{"host":  "örtchen"}'


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


def test_bench_then_report_make_their_files(engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "run"
    options = [
        "--suite",
        "demo",
        "--methods",
        "ar,fast",
        "--limit",
        "2",
        "--prefix-cache",
        "on",
        "--temperature",
        "0.5",
    ]
    assert cli.main(["bench", "--target", "toy", *options, "--out", str(out)]) == 0
    assert "3.00x" in capsys.readouterr().out
    assert json.loads((out / "summary.json").read_text())["prefix_cache"] is True
    assert json.loads((out / "summary.json").read_text())["temperature"] == 0.5
    assert cli.main(["report", str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'report.html'}\n"
    assert (out / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(("name", "part"), [("missing", "no such folder"), ("", "no summary.json")])
def test_report_on_a_folder_without_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, name: str, part: str
) -> None:
    assert_one_line_error(capsys, cli.main(["report", str(tmp_path / name)]), part)


def test_fetch_target_prints_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from schemafill.inference import fetch

    def fetch_target(name: str, folder: Path | None = None) -> Path:
        if name != "embedded":
            raise UserError(f"unknown target {name!r}")
        return (folder or Path("/default")) / name

    monkeypatch.setattr(fetch, "fetch_target", fetch_target)
    assert cli.main(["fetch-target", "embedded", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'embedded'}\n"
    assert_one_line_error(capsys, cli.main(["fetch-target", "moon"]), "unknown target 'moon'")


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


def run_module(*argv: str, code: str = "") -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "schemafill.inference.cli", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_as_a_process_a_missing_file_is_one_line_and_2() -> None:
    done = run_module("generate", "--target", "toy", "--tools", "/nowhere/tools.json", "--request", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "schemafill: error: cannot read /nowhere/tools.json: No such file or directory\n"


def test_help_is_0_and_imports_nothing_heavy() -> None:
    done = run_module(
        code="import sys; from schemafill.inference.cli import main; code = main(['generate', '--help']); "
        "print(code, [m for m in ('torch', 'transformers', 'matplotlib', 'jinja2', 'tqdm') if m in sys.modules])"
    )
    assert done.returncode == 0
    assert "--max-new-tokens" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 []"
