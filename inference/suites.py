"""Request sets for benchmarks: the built-in ones, records files, and upstream BFCL question files.

Knows file formats, and nothing of models or methods.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemafill.inference.request import UserError
from schemafill.inference.row_files import Place, read_rows
from schemafill.inference.toolcall.schema import parse_tools
from schemafill.inference.toolcall.type_names import openai_function

BUILT_IN = Path(__file__).with_name("suites")


@dataclass(frozen=True, kw_only=True)
class SuiteItem:
    """One request of a suite."""

    id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    """OpenAI form; may be empty (a request that calls nothing)."""
    reference_calls: list[dict[str, Any]] | None = None
    """`{"name", "arguments"}` each; for people, no figure depends on them."""
    meta: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The item as one row of a records file."""
        return {
            "id": self.id,
            "messages": self.messages,
            "tools": self.tools,
            "reference_calls": self.reference_calls,
            "meta": self.meta,
        }


def load_suite(name_or_path: str, limit: int | None = None) -> list[SuiteItem]:
    """The requests of a suite in order, the first `limit` of them.

    `demo` is built in. A path is a records file: JSON lines or one JSON list, `.gz` or plain, rows
    `{"id", "messages", "tools", "reference_calls", "meta"}`. `bfcl:PATH[:START-END][+PATH[:START-END]...]` reads
    upstream BFCL question files; START and END are line numbers, both included.
    """
    if name_or_path.startswith("bfcl:"):
        items = [item for part in name_or_path[len("bfcl:") :].split("+") for item in _read_bfcl(part)]
    else:
        items = _read_records(_suite_file(name_or_path))
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise UserError(f"suite {name_or_path}: two requests have the id {item.id!r}")
        seen.add(item.id)
    return items[:limit]


def _suite_file(name_or_path: str) -> Path:
    built_in = BUILT_IN / f"{name_or_path}.jsonl"
    if re.fullmatch(r"\w+", name_or_path) and built_in.is_file():
        return built_in
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in BUILT_IN.glob("*.jsonl")))
        raise UserError(f"no suite {name_or_path!r}: built in are {known}; else name a records file or bfcl:PATH")
    return path


def _read_records(path: Path) -> list[SuiteItem]:
    items = []
    for place, row in read_rows(path):
        _check_request(place, row, messages=row.get("messages"), tools=row.get("tools"))
        calls, meta = row.get("reference_calls"), row.get("meta")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise UserError(f"{place}: reference_calls must be a list of objects or null")
        if meta is not None and not isinstance(meta, dict):
            raise UserError(f"{place}: meta must be an object")
        items.append(
            SuiteItem(
                id=row["id"], messages=row["messages"], tools=row["tools"], reference_calls=calls, meta=meta or {}
            )
        )
    return items


def _read_bfcl(part: str) -> list[SuiteItem]:
    span = re.fullmatch(r"(.+):(\d+)-(\d+)", part)
    path, start, end = (Path(span[1]), int(span[2]), int(span[3])) if span else (Path(part), 1, None)
    if not path.is_file():
        raise UserError(f"no such BFCL file: {path}")
    if start < 1 or (end is not None and end < start):
        raise UserError(f"bad line range in {part!r}: START-END counts from 1 and END is not before START")
    items, last = [], 0
    for place, row in read_rows(path):
        last = place.line
        if last < start or (end is not None and last > end):
            continue
        turns = row.get("question")
        if not isinstance(turns, list) or len(turns) != 1:
            raise UserError(f"{place}: question must be a list of exactly one turn; rows of several are not read")
        _check_request(place, row, messages=turns[0], tools=row.get("function"))
        tools = [{"type": "function", "function": openai_function(function)} for function in row["function"]]
        items.append(SuiteItem(id=row["id"], messages=turns[0], tools=tools, meta={"file": path.name, "line": last}))
    if end is not None and last < end:
        raise UserError(f"{path} ends at line {last}, before the end of the range {start}-{end}")
    return items


def _check_request(place: Place, row: dict, *, messages: Any, tools: Any) -> None:
    if not isinstance(row.get("id"), str) or not row["id"]:
        raise UserError(f"{place}: id must be a text that is not empty")
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{place}: needs a list of at least one message")
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages):
        raise UserError(f"{place}: every message must be an object with a role")
    try:
        parse_tools(tools)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
