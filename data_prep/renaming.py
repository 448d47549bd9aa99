"""Other names for the tools and parameters of a record, the same ones wherever the record uses them.

A parameter's name gets one new name for the whole record, at every depth of every schema. Places that follow: keys of
`properties` and names in `required` and its relatives, `$ref` pointers through `properties`, keys of objects in `enum`,
`const`, `default` and `examples`, calls of earlier turns, reference calls, `name` of tool messages. Tool names are also
replaced in texts: descriptions, messages, text values of arguments. Parameter names are also replaced in what a tool
says of itself and of its parameters: its own ones, and of other tools those that are no everyday words. A name that is
an everyday word (`search`) is replaced in a text only in quotes, since without them it may be no mention.

Left as they are: keys of free-form objects, the pattern in `patternProperties`, names of tools that are called and not
declared, the name of a tool that an `enum`, `const` or `default` lists as a value, and parameter names in messages, in
dotted paths and where they are also values, listed by a schema or given in a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from schemafill.data_prep.json_values import keys_in, leaves_in
from schemafill.data_prep.name_styles import (
    PARAMETER_PREFIXES,
    PARAMETER_STYLES,
    TOOL_PREFIXES,
    TOOL_STYLES,
    NameMaker,
)
from schemafill.data_prep.record_calls import called_names, calls_of, read_arguments
from schemafill.data_prep.records import Record
from schemafill.data_prep.schema_names import SchemaRenamer, listed_texts, map_values, property_names
from schemafill.data_prep.tool_definitions import tool_name
from schemafill.inference.toolcall.schema import parse_tools

_LOOKS_LIKE_A_NAME = re.compile(r"\S*(?:[_.\-\d]|[a-z][A-Z])\S*")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class Renaming:
    """Old name -> new name; both maps are one to one, and no new name is an old one."""

    tools: dict[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)

    def apply(self, record: Record) -> Record:
        """The record under its new names; the given one is not changed."""
        return _Renamed(self, record).record()


def plan_renaming(record: Record, rng: Random) -> Renaming:
    """New names for every tool and every declared parameter of a record."""
    schemas = [tool.get("function", tool).get("parameters") for tool in record.tools]
    listed = {text for schema in schemas for text in listed_texts(schema)}
    tools = [name for name in map(tool_name, record.tools) if name not in listed]
    properties = list(dict.fromkeys(name for schema in schemas for name in property_names(schema)))
    keys = keys_in([read_arguments(call.get("arguments")) for call in calls_of(record)])
    taken = {*map(tool_name, record.tools), *properties, *called_names(record), *keys}
    make_tool = NameMaker(rng, TOOL_STYLES, TOOL_PREFIXES, taken).make
    make_property = NameMaker(rng, PARAMETER_STYLES, PARAMETER_PREFIXES, taken).make
    return Renaming({name: make_tool(name) for name in tools}, {name: make_property(name) for name in properties})


class _Renamed:
    """One record under a renaming."""

    def __init__(self, renaming: Renaming, record: Record) -> None:
        self._tools, self._properties = renaming.tools, renaming.properties
        self._record = record
        self._parameters = {tool.name: tool.parameters for tool in parse_tools(record.tools).tools}
        self._mention = _mention_of(self._tools)
        self._given = {leaf for call in calls_of(record) for leaf in leaves_in(read_arguments(call.get("arguments")))
                       if isinstance(leaf, str)}  # fmt: skip

    def record(self) -> Record:
        calls = self._record.reference_calls
        return replace(
            self._record,
            messages=[self._message(message) for message in self._record.messages],
            tools=[self._tool(tool) for tool in self._record.tools],
            reference_calls=None if calls is None else [self._call(call) for call in calls],
        )

    def _text(self, text: str) -> str:
        return self._mention.sub(lambda match: self._tools[match[0]], text) if self._mention else text

    def _name(self, name: Any) -> Any:
        return self._tools.get(name, name) if isinstance(name, str) else name

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        """A call with its name and its arguments renamed, which may be an object or JSON text."""
        renamed = call | {"name": self._name(call.get("name"))}
        values = read_arguments(call.get("arguments"))
        if values is not None:  # what spells no object stays as it is written
            node = self._parameters.get(call["name"]) if isinstance(call.get("name"), str) else None
            values = map_values(node, values, self._properties, self._text)
            is_text = isinstance(call["arguments"], str)
            renamed["arguments"] = json.dumps(values, ensure_ascii=False) if is_text else values
        return renamed

    def _tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        function = tool.get("function", tool)
        renamed = function | {"name": self._name(function["name"])}
        in_text = self._prose_of(function.get("parameters"))
        if isinstance(function.get("description"), str):
            renamed["description"] = in_text(function["description"])
        if "parameters" in function:
            renamed["parameters"] = SchemaRenamer(function["parameters"], self._properties, in_text).renamed()
        return tool | {"function": renamed} if "function" in tool else renamed

    def _prose_of(self, schema: Any) -> Callable[[str], str]:
        """What becomes of the descriptions of a tool with these parameters."""
        own, values = set(property_names(schema)), self._given | set(listed_texts(schema))
        names = {
            old: new for old, new in self._properties.items()
            if old not in values and _LETTER.search(old) and (old in own or _LOOKS_LIKE_A_NAME.fullmatch(old))
        } | self._tools  # fmt: skip
        mention = _mention_of(names)
        return lambda text: mention.sub(lambda match: names[match[0]], text) if mention else text

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        renamed = dict(message)
        if "content" in message:
            renamed["content"] = self._content(message["content"])
        if isinstance(message.get("tool_calls"), list):
            renamed["tool_calls"] = [self._tool_call(call) for call in message["tool_calls"]]
        if message["role"] == "tool" and "name" in message:
            renamed["name"] = self._name(message["name"])
        return renamed

    def _tool_call(self, call: Any) -> Any:
        is_whole = isinstance(call, dict) and isinstance(call.get("function"), dict)
        return call | {"function": self._call(call["function"])} if is_whole else call

    def _content(self, content: Any) -> Any:
        if isinstance(content, list):
            return [
                part | {"text": self._text(part["text"])}
                if isinstance(part, dict) and isinstance(part.get("text"), str) else part
                for part in content
            ]  # fmt: skip
        return self._text(content) if isinstance(content, str) else content


def _mention_of(names: dict[str, str]) -> re.Pattern[str] | None:
    """Finds the old tool names in texts, the longest first; None where there are none."""
    patterns = []
    for name in sorted(names, key=len, reverse=True):
        if _LOOKS_LIKE_A_NAME.fullmatch(name):
            patterns.append(rf"(?<![\w.\-/]){re.escape(name)}(?![\w\-/]|\.\w)")
        else:
            patterns.append(rf"(?<=[`'\"]){re.escape(name)}(?=[`'\"])")
    return re.compile("|".join(patterns)) if patterns else None
