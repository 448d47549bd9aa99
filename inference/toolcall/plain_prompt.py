"""The plain-text prompt for targets that call tools best without their chat template: tools, request, instruction.

Tools are written as short signatures instead of raw JSON Schema. That is a third of the prompt less to read, and small
models do not echo schema keywords as arguments. Nothing that a schema says about a value is left out; what the short
form cannot express is printed as JSON.
"""

from __future__ import annotations

import json

from schemafill.inference.request import UserError
from schemafill.inference.toolcall.schema import Catalog, Tool

EXPRESSED = {
    "type", "description", "properties", "required", "items", "enum", "default", "title", "additionalProperties",
    "optional", "format",
}  # fmt: skip
INSTRUCTION = (
    'Answer with one JSON object {"tool_calls": [{"name": ..., "arguments": {...}}, ...]} with one entry for every '
    'call that the request needs. "arguments" is an object: its keys are the argument names listed under the tool.'
)
ROLE_TITLES = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool result"}


def render_plain(messages: list[dict], catalog: Catalog) -> str:
    """The prompt for normalised messages (`toolcall.prompt.normalise_messages`) and a catalogue."""
    tools = "\n\n".join(describe_tool(tool) for tool in catalog.tools)
    head = f"Tools:\n\n{tools}\n\n" if catalog.tools else ""
    return f"{head}{_conversation(messages)}\n\n{INSTRUCTION}\n\nAnswer:\n"


def describe_tool(tool: Tool) -> str:
    """A tool's signature: its name and description, then one line an argument."""
    function = tool.raw.get("function", tool.raw)
    schema = function.get("parameters")
    title = f"{tool.name}: {tool.description}".rstrip(": ")
    if not schema:
        return title
    if not _is_expressed(schema, is_argument=False) or schema.get("type", "object") not in ("object", "dict"):
        return f"{title}\nparameters: {_json(schema)}"
    return "\n".join([title, *_argument_lines(schema, "- ")])


def _argument_lines(schema: dict, bullet: str) -> list[str]:
    lines = []
    required = schema.get("required") or []
    for name, part in (schema.get("properties") or {}).items():
        facts = [_type_text(part)]
        facts += [] if name in required else ["optional"]
        facts += [f"default {_json(part['default'])}"] if "default" in part else []
        facts += [f"format {part['format']}"] if "format" in part else []
        description = part.get("description")
        lines.append(f"{bullet}{name} ({', '.join(facts)}){': ' + description if description else ''}")
        inner = part
        while inner.get("type") == "array" and isinstance(inner.get("items"), dict):
            inner = inner["items"]
        if inner.get("properties"):
            lines += _argument_lines(inner, "  " + bullet)
    return lines


def _type_text(part: dict) -> str:
    kind = part.get("type", "any")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    if kind == "array" and isinstance(part.get("items"), dict):
        kind = f"array of {_type_text(part['items'])}"
    return f"{kind}, one of {_json(part['enum'])}" if "enum" in part else kind


def _is_expressed(schema: object, *, is_argument: bool = True) -> bool:
    """Whether the short form says all that the schema says. is_argument: it has a name, and so a line of its own."""
    if not isinstance(schema, dict) or not set(schema) <= EXPRESSED:
        return False
    kind, properties = schema.get("type", "any"), schema.get("properties") or {}
    names = kind if isinstance(kind, list) else [kind]
    has_known_forms = (
        all(isinstance(name, str) for name in names)
        and isinstance(properties, dict)
        and isinstance(schema.get("required") or [], list)
        and isinstance(schema.get("additionalProperties", False), bool)
        and all(isinstance(schema.get(key) or "", str) for key in ("description", "format"))
    )
    if not has_known_forms or ("items" in schema and kind != "array"):
        return False
    if not is_argument and (schema.keys() & {"default", "format"} or schema.get("description")):
        return False  # an element has no line to say it on
    return all(map(_is_expressed, properties.values())) and (
        "items" not in schema or _is_expressed(schema["items"], is_argument=False)
    )


def _conversation(messages: list[dict]) -> str:
    if len(messages) == 1 and messages[0]["role"] == "user":
        return f"User request: {messages[0]['content']}"
    if not messages:
        raise UserError("messages are empty: there is no request to answer")
    return "Conversation:\n" + "\n".join(f"{ROLE_TITLES[m['role']]}: {_message_text(m)}" for m in messages)


def _message_text(message: dict) -> str:
    calls = [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.get("tool_calls") or []
    ]
    said = message.get("content") or ""
    return said if not calls else f"{said} {_json({'tool_calls': calls})}".strip()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
