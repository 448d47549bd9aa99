"""Commands for the tests of the command line, in this process and in one of their own."""

import json
import subprocess
import sys
from pathlib import Path

TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}


def write_tools(path: Path) -> Path:
    """A tools file with the one tool that the fake engine calls."""
    path.write_text(json.dumps([TOOL]))
    return path


def generate_args(tools: Path, *more: str) -> list[str]:
    return ["generate", "--target", "toy", "--tools", str(tools), "--request", "ping it", *more]


def run_module(*argv: str, code: str = "") -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "schemafill.inference.cli", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)
