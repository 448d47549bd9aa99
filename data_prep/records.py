"""A record: one decision point of a public corpus, in one form for all of them, and the files that hold records.

A decision is an assistant turn that makes at least one tool call. The record holds what the model sees before it; the
calls of the corpus are kept apart, for statistics only. Knows no corpus and no model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from schemafill.inference.request import UserError
from schemafill.inference.row_files import Place, read_rows, refuse
from schemafill.inference.toolcall.schema import parse_tools

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One decision point."""

    id: str
    """Unique over all corpora: `corpus/file/row` and, where a row has several decisions, `/turn`."""
    source: str
    """The corpus: bfcl, glaive, api-bank, toolace, toolalpaca."""
    messages: list[dict[str, Any]]
    """OpenAI form, everything before the decision; calls of earlier turns are `tool_calls` with arguments as text."""
    tools: list[dict[str, Any]]
    """OpenAI form, names byte for byte as upstream has them, types as JSON Schema names them."""
    reference_calls: list[dict[str, Any]] | None = None
    """`{"name", "arguments"}` each, arguments an object in the corpus's order; None where the corpus gives none."""
    group: str
    """Records of one group belong into the same split: a conversation, or a set of tools."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Where it comes from (`file`, `row`, `turn`) and what only this corpus says (`category`, `flags`)."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A row or a turn of a corpus that gave no record."""

    file: str
    row: int
    """Line of a line file, element of a list file, from 1."""
    reason: str
    """One word of `REASONS` of the reader's corpus."""
    turn: int | None = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_records(path: Path, on_bad: Callable[[Place, str], object] = refuse) -> Iterator[Record]:
    """The records of a file. on_bad: told of each row that is none, with the reason; if it returns, it is left out."""
    seen: set[str] = set()
    for place, row in read_rows(path, on_bad):
        try:
            record = record_of(row)
        except ValueError as error:  # UserError of parse_tools as well
            on_bad(place, str(error))
            continue
        if record.id in seen:
            on_bad(place, f"id {record.id!r} stands twice")
            continue
        seen.add(record.id)
        yield record


def record_of(row: dict[str, Any]) -> Record:
    """The record that a row of a records file holds. ValueError names what is wrong with it."""
    if not isinstance(row.get("id"), str) or not row["id"]:
        raise ValueError("id must be a text that is not empty")
    messages, calls, meta = row.get("messages"), row.get("reference_calls"), row.get("meta")
    if not isinstance(messages, list) or not messages:
        raise ValueError("needs a list of at least one message")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise ValueError(f"every message must be an object with a role, one of {', '.join(ROLES)}")
        if not _is_object_list(message.get("tool_calls")):
            raise ValueError("tool_calls of a message must be a list of objects or null")
    if not _is_object_list(calls):
        raise ValueError("reference_calls must be a list of objects or null")
    if not all(isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict) for call in calls or ()):
        raise ValueError("every reference call needs a name, a text, and arguments, an object")
    if meta is not None and not isinstance(meta, dict):
        raise ValueError("meta must be an object")
    group = row["id"] if row.get("group") in (None, "") else str(row["group"])  # 0 is a group
    parse_tools(row.get("tools"))
    return Record(
        id=row["id"], source=str(row.get("source") or "unknown"), messages=messages, tools=row["tools"],
        reference_calls=calls, group=group, meta=meta or {},
    )  # fmt: skip


def _is_object_list(value: Any) -> bool:
    return value is None or isinstance(value, list) and all(isinstance(one, dict) for one in value)


def json_line(value: dict[str, Any]) -> str:
    """One row of a file: letters as they are, U+2028 and the like too, since only a newline ends a row."""
    return json.dumps(value, ensure_ascii=False) + "\n"


def json_lines(rows: Iterable[dict[str, Any]]) -> bytes:
    """Rows of a file; half a surrogate pair, which some corpora hold as an escape, stays an escape."""
    lines = []
    for row in rows:
        try:
            lines.append(json_line(row).encode())
        except UnicodeEncodeError:
            lines.append((json.dumps(row) + "\n").encode())
    return b"".join(lines)


def require_files(*paths: Path) -> None:
    """Raise UserError for the first of the input files that is not there."""
    for path in paths:
        if not os.path.isfile(path):  # unlike Path.is_file, no error where a folder on the way may not be entered
            raise UserError(f"no such file: {path}")
