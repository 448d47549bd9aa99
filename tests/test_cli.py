"""What the commands print, hand on and write."""

import io
import json
import sys
from pathlib import Path

import pytest
from command_lines import generate_args, run_module, write_tools
from fake_engine import FakeEngine, completion, install

from schemafill.inference import cli
from schemafill.inference.request import UnfinishedCall


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    return install(monkeypatch, FakeEngine())


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    return write_tools(tmp_path / "tools.json")


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


def test_bench_then_report_make_their_files(engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "run"
    options = ["--suite", "demo", "--methods", "ar,fast", "--limit", "2"]
    options += ["--prefix-cache", "on", "--temperature", "0.5"]
    assert cli.main(["bench", "--target", "toy", *options, "--out", str(out)]) == 0
    assert "3.00x" in capsys.readouterr().out
    assert json.loads((out / "summary.json").read_text())["prefix_cache"] is True
    assert json.loads((out / "summary.json").read_text())["temperature"] == 0.5
    assert cli.main(["report", str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'report.html'}\n"
    assert (out / "report.html").stat().st_size > 10_000


def test_fetch_target_prints_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from schemafill.inference import fetch

    sources: list[str | None] = []

    def fetch_target(name: str, folder: Path | None = None, source: str | None = None) -> Path:
        sources.append(source)
        return (folder or Path("/default")) / name

    monkeypatch.setattr(fetch, "fetch_target", fetch_target)
    assert cli.main(["fetch-target", "embedded", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'embedded'}\n"
    assert cli.main(["fetch-target", "embedded", "--source", "gguf:/some/file.gguf"]) == 0
    assert capsys.readouterr().out == "/default/embedded\n"
    assert sources == [None, "gguf:/some/file.gguf"]


def test_help_is_0_and_imports_nothing_heavy() -> None:
    done = run_module(
        code="import sys; from schemafill.inference.cli import main; code = main(['generate', '--help']); "
        "print(code, [m for m in ('torch', 'transformers', 'matplotlib', 'jinja2', 'tqdm') if m in sys.modules])"
    )
    assert done.returncode == 0
    assert "--max-new-tokens" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 []"
