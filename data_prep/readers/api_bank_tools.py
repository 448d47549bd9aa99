"""API-Bank's tool definitions: where a folder keeps them, and a tool of theirs as a function with JSON-Schema types.

    tool_schemas.json    {"apis": {name: {"description", "input_parameters", ...}}, "lv3_apis": {...}}
    all_apis.csv         upstream's own table, older than the dialogues: read only where the file above is not there

The two sections of `tool_schemas.json` hold different tools of the same name and are never merged; dialogues belong to
the first.
"""

from __future__ import annotations

import ast
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemafill.inference.request import UserError
from schemafill.inference.row_files import parse_json, read_text

SCHEMAS, TABLE, SECTION = "tool_schemas.json", "all_apis.csv", "apis"
CLASS_COLUMN, SOURCE_COLUMN = "类名", "api_info"


def dialogue_tools(folder: Path) -> dict[str, dict[str, Any]]:
    """The tools that dialogues may call by name, from the folder or the nearest one above it that defines them.

    UserError where none does: dialogues name their tools and do not define them.
    """
    folders = [folder, *folder.resolve().parents]
    for place in folders:
        if _is_there(place / SCHEMAS):
            return _schema_tools(place / SCHEMAS)
    for place in folders:
        for table in (place / TABLE, place / "data" / TABLE):
            if _is_there(table):
                return _table_tools(table)
    raise UserError(f"no {SCHEMAS} (nor {TABLE}) in {folder} or above it: API-Bank's dialogues need one")


def api_function(name: str, definition: dict[str, Any]) -> dict[str, Any]:
    """A tool as `{"name", "description", "parameters"}` out of API-Bank's `{parameter: {"type", "description"}}`.

    Nothing says which parameters are required, so all are; where the definition does say so, those that it names.
    """
    given = definition.get("input_parameters", definition.get("parameters"))
    about = {one: said if isinstance(said, dict) else {} for one, said in given.items()} if _is_object(given) else {}
    properties = {one: {key: value for key, value in said.items() if key != "required"} for one, said in about.items()}
    says_so = any("required" in said for said in about.values())
    required = [one for one, said in about.items() if said.get("required") is True] if says_so else list(about)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": definition.get("description"), "parameters": parameters}


def found_functions(output: Any) -> Iterator[dict[str, Any]]:
    """The tools that a result of `ToolSearcher` returns: one object, or a list of them."""
    for entry in output if isinstance(output, list) else [output]:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and entry["name"]:
            yield api_function(entry["name"], entry)


def _schema_tools(path: Path) -> dict[str, dict[str, Any]]:
    try:
        schemas = parse_json(read_text(path))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    section = schemas.get(SECTION) if _is_object(schemas) else None
    if not _is_object(section) or not all(_is_object(one) for one in section.values()):
        raise UserError(f"{path} has no section {SECTION!r} of tool definitions")
    return {name: api_function(name, definition) for name, definition in section.items()}


def _table_tools(path: Path) -> dict[str, dict[str, Any]]:
    tools: dict[str, dict[str, Any]] = {}
    for row in _table_rows(path):
        name, definition = row.get(CLASS_COLUMN), _assigned_literals(row.get(SOURCE_COLUMN) or "")
        if name and "description" in definition:
            tools.setdefault(name, api_function(name, definition))
    if not tools:
        raise UserError(f"{path} has no definition in its columns {CLASS_COLUMN} and {SOURCE_COLUMN}")
    return tools


def _table_rows(path: Path) -> list[dict[str, str]]:
    try:
        return list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except csv.Error as error:
        raise UserError(f"{path}: {error}") from None


def _assigned_literals(source: str) -> dict[str, Any]:
    """What Python text assigns to names, literals only; nothing where it is no Python. It is read, not run."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    assigned = {}
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                assigned[statement.targets[0].id] = ast.literal_eval(statement.value)
            except (ValueError, TypeError, RecursionError, MemoryError):
                continue
    return assigned


def _is_there(path: Path) -> bool:
    return path.is_file() or path.with_name(path.name + ".gz").is_file()


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)
