"""When two tool definitions are the same one: canonical JSON, hashed.

A key does not depend on the order of keys, on whether the tool is wrapped in `{"type": "function", ...}`, on how its
corpus spells type names, or on how "takes no parameters" is written.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from schemafill.inference.toolcall.type_names import openai_function

Tool = dict[str, Any]


def canonical_json(value: Any) -> str:
    """One spelling for equal values: keys sorted, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def content_hash(value: Any) -> str:
    """sha256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def tool_name(tool: Tool) -> str:
    return tool.get("function", tool)["name"]


def definition_key(tool: Tool) -> str:
    """Equal for tools of equal name, description and parameters."""
    function = openai_function(tool.get("function", tool))
    return content_hash([function["name"], function.get("description") or "", _parameters(function)])


def interface_key(tool: Tool) -> str:
    """Equal for tools that take the same under the same name, whatever is said of them, in whichever language."""
    function = openai_function(tool.get("function", tool))
    return content_hash([function["name"], _shape(_parameters(function))])


def _shape(schema: Any) -> Any:
    """Of a schema what decides which JSON fits it, without the values that it lists or explains."""
    if not isinstance(schema, dict):
        return None
    properties, required = schema.get("properties"), schema.get("required")
    return {
        "type": schema.get("type"),
        "properties": {name: _shape(one) for name, one in properties.items()} if isinstance(properties, dict) else {},
        "items": _shape(schema.get("items")),
        "required": sorted(map(str, required)) if isinstance(required, list) else [],
    }


def _parameters(function: dict[str, Any]) -> Any:
    parameters = function.get("parameters")
    if isinstance(parameters, dict) and parameters.keys() <= {"type", "properties", "required"}:
        is_empty = not parameters.get("properties") and not parameters.get("required")
        return {} if is_empty else parameters
    return parameters or {}
