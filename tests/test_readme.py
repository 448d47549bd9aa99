"""The README's commands and code run as printed. `make demo` and `make test` are CI's own business."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    shell = [body for kind, body in BLOCKS if kind == "bash"]
    return [line for body in shell for line in body.splitlines() if line.startswith("schemafill ")]


def test_make_targets_exist():
    targets = re.findall(r"^make (\w+)", "\n".join(body for kind, body in BLOCKS if kind == "bash"), re.MULTILINE)
    assert targets
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def test_the_tree_names_every_file_and_no_other():
    tree = next(body for kind, body in BLOCKS if not kind and "inference/  " in body)
    named = {Path(name).name for name in re.findall(r"[\w/]+\.py", tree)}
    files = [path for stage in ("inference", "data_prep", "training") for path in (ROOT / stage).rglob("*.py")]
    there = {path.name for path in files if path.parent.name != "readers" and path.name != "__init__.py"}
    assert named == there


def test_figures_are_filled_in():
    figures = README.split("<!-- figures: start -->")[1].split("<!-- figures: end -->")[0]
    assert "schemafill bench" in figures or "make demo" in figures


@pytest.mark.real
def test_commands_run_as_printed(tmp_path):
    for command in commands():
        line = command.replace("runs/readme", str(tmp_path / "run"))
        arguments = [sys.executable, "-m", "schemafill.inference.cli", *_split(line)[1:]]
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr[-2000:])
        if " generate " in command:
            assert json.loads(done.stdout)["tool_calls"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert all(method["agreement"] == 1.0 for method in summary["methods"].values())


@pytest.mark.real
def test_python_runs_as_printed(capsys):
    code = next(body for kind, body in BLOCKS if kind == "python")
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "ToolCall(" in printed and "tool_calls" in printed


def _split(line: str) -> list[str]:
    import shlex

    return shlex.split(line, comments=True)
