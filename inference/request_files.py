"""Requests that people keep in files: a list of tools, a list of messages. Faults are told before a model loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schemafill.inference.request import UserError
from schemafill.inference.toolcall.schema import parse_tools


def read_tools(path: Path) -> list[dict[str, Any]]:
    """The tools of a file, checked before a model is loaded."""
    tools = _read_list(path, "tools")
    try:
        parse_tools(tools)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return tools


def read_messages(path: Path) -> list[dict[str, Any]]:
    """The messages of a file, each with a role."""
    messages = _read_list(path, "messages")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message.get("role"), str):
            raise UserError(f"{path}: message {number} has no role")
    return messages


def _read_list(path: Path, what: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError as well
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise UserError(f"{path}: must be a list of {what}, each a JSON object")
    if not value:
        raise UserError(f"{path}: the list of {what} is empty")
    return value
