"""Request sets for benchmarks: the built-in ones, records files, and upstream BFCL question files.

Knows file formats, and nothing of models or methods.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemafill.inference.request import UserError
from schemafill.inference.toolcall.schema import parse_tools

BUILT_IN = Path(__file__).with_name("suites")

# Type names as corpora write them (BFCL, Java, JavaScript) -> JSON Schema; None: nothing is said about the type.
TYPES = {
    "object": "object", "dict": "object", "HashMap": "object",
    "number": "number", "float": "number", "double": "number",
    "integer": "integer", "int": "integer", "long": "integer",
    "boolean": "boolean", "bool": "boolean", "Boolean": "boolean",
    "string": "string", "str": "string", "String": "string", "char": "string",
    "array": "array", "list": "array", "tuple": "array", "Array": "array", "ArrayList": "array",
    "null": "null", "any": None, "": None,
}  # fmt: skip
STRING_LISTS = ("list(str)", "List[str]")

# Where a schema holds further schemas: by name, one, or several.
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
INNER_SCHEMAS = ("items", "prefixItems", "additionalProperties", "not", "anyOf", "oneOf", "allOf")


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
    for place, row in _rows(path):
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
    for place, row in _rows(path):
        last = place.line
        if last < start or (end is not None and last > end):
            continue
        turns = row.get("question")
        if not isinstance(turns, list) or len(turns) != 1:
            raise UserError(f"{place}: question must be a list of exactly one turn; rows of several are not read")
        _check_request(place, row, messages=turns[0], tools=row.get("function"))
        tools = [{"type": "function", "function": _openai_function(function)} for function in row["function"]]
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


def _openai_function(function: dict) -> dict:
    """The function with JSON Schema's own type names; every other field as upstream has it."""
    parameters = function.get("parameters")
    return {**function, "parameters": _json_schema(parameters)} if isinstance(parameters, dict) else dict(function)


def _json_schema(schema: Any) -> Any:
    """`schema` with type names mapped at every depth.

    Only the value of a schema's own `type` is a type name: a parameter may itself be called `type`.
    """
    if isinstance(schema, list):
        return [_json_schema(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    mapped: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type":
            mapped |= _json_type(value)
        elif key in NAMED_SCHEMAS and isinstance(value, dict):
            mapped[key] = {name: _json_schema(inner) for name, inner in value.items()}
        elif key in INNER_SCHEMAS:
            mapped[key] = _json_schema(value)
        else:
            mapped[key] = value
    return mapped


def _json_type(name: Any) -> dict[str, Any]:
    """What a `type` entry becomes; an unknown name says nothing, so the parameter stays without a type."""
    if isinstance(name, list):
        known = [TYPES[one] for one in name if isinstance(one, str) and TYPES.get(one)]
        return {"type": known} if len(known) == len(name) else {}
    if name in STRING_LISTS:
        return {"type": "array", "items": {"type": "string"}}
    known = TYPES.get(name) if isinstance(name, str) else None
    return {"type": known} if known else {}


@dataclass(frozen=True)
class Place:
    """Where a row stands, for messages: `file:line`."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def _rows(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The rows of a file with their places; a list file counts its elements.

    Only a newline ends a line: U+2028 and U+0085 are text, so `str.splitlines` would cut rows in two.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if text.lstrip().startswith("["):
        numbered = enumerate(_parsed(path, text), start=1)
    else:
        lines = enumerate(text.split("\n"), start=1)
        numbered = ((line, _parsed(Place(path, line), one)) for line, one in lines if one.strip())
    num_rows = 0
    for line, row in numbered:
        if not isinstance(row, dict):
            raise UserError(f"{Place(path, line)}: a row must be a JSON object")
        num_rows += 1
        yield Place(path, line), row
    if not num_rows:
        raise UserError(f"{path} holds no rows")


def _parsed(place: Path | Place, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON: {error}") from None
