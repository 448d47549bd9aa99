"""Records files as an earlier step leaves them, for tests of the steps that read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schemafill.data_prep.manifest import Manifest, write_output
from schemafill.data_prep.records import json_lines


def sealed(path: Path, rows: list[dict[str, Any]], step: str = "corpora", **settings: Any) -> Path:
    manifest = Manifest(step=step, settings=settings, inputs={}, counts={"written": len(rows)})
    write_output(path, json_lines(rows), manifest)
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def tool(name: str, description: str = "", **properties: dict) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def row(id_: str, request: str, *tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One record: source and group from its id, one call of its first tool without arguments."""
    tools = tools or (tool(f"tool_of_{id_.replace('/', '_')}"),)
    return {
        "id": id_, "source": id_.split("/")[0], "tools": list(tools),
        "messages": [{"role": "user", "content": request}],
        "reference_calls": [{"name": tools[0]["function"]["name"], "arguments": {}}], "group": id_, "meta": {},
    } | more  # fmt: skip
