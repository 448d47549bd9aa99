"""A tool list as a catalogue of typed slots that a drafter can ask about.

It validates nothing, and nothing odd inside a schema is an error: the target decides what is written, the schema only
helps. What a schema says about one value stands in `schema_node`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from schemafill.inference.request import UserError
from schemafill.inference.toolcall.schema_node import SchemaDocument, SchemaNode


@dataclass(frozen=True)
class Tool:
    """One tool. `raw` is the client's own object, `parameters` the node of its arguments."""

    name: str
    description: str
    parameters: SchemaNode
    raw: dict


@dataclass(frozen=True)
class Catalog:
    """The tools of a request in the client's order. `raw` is the list as the client gave it."""

    tools: tuple[Tool, ...]
    raw: list

    @cached_property
    def _by_name(self) -> dict[str, Tool]:
        return {tool.name: tool for tool in self.tools}

    def get(self, name: str) -> Tool | None:
        """The tool of exactly this name."""
        return self._by_name.get(name)


@dataclass(frozen=True)
class Slot:
    """A place where a value stands that is no container with known parts.

    steps: property names, `[]` any element, `[0]` the element there, `{}` any free key. types: what the place itself
    takes, without an object or array whose parts are slots of their own; empty: anything.
    """

    steps: tuple[str, ...]
    node: SchemaNode
    is_required: bool
    types: tuple[str, ...]


def parse_tools(tools: list) -> Catalog:
    """The catalogue of tools in OpenAI form or as bare functions; only a faulty list, object or name is an error."""
    if not isinstance(tools, list):
        raise UserError(f"tools must be a list, got {type(tools).__name__}")
    parsed: dict[str, Tool] = {}
    for number, raw in enumerate(tools):
        function = raw.get("function", raw) if isinstance(raw, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise UserError(f"tools[{number}] must be an object that gives its function a name")
        if name in parsed:
            raise UserError(f"tools[{number}] has the name {name!r}, which an earlier tool has already")
        description = function.get("description")
        root = function.get("parameters")
        parameters = SchemaDocument(root).node([(root,)])
        parsed[name] = Tool(name, description if isinstance(description, str) else "", parameters, raw)
    return Catalog(tuple(parsed.values()), tools)


def iter_slots(tool: Tool, max_depth: int = 64, limit: int = 2000) -> Iterator[Slot]:
    """The slots of a tool's arguments, shallow ones first, at most `max_depth` steps deep.

    At most `limit` places are listed, fewer where each has a great many parts, so that a schema which refers to itself
    many times over ends soon.
    """
    places = deque([((), tool.parameters, False)])
    num_listed = num_parts = 0
    while places and num_parts < 20 * limit:
        steps, node, is_required = places.popleft()
        members, elements = node.members(), node.elements()
        own_types = set(node.types) - ({"object"} if members else set()) - ({"array"} if elements else set())
        if steps and (own_types or not node.types):
            yield Slot(steps, node, is_required, tuple(sorted(own_types)))
        num_parts += len(members) + len(elements)
        if len(steps) < max_depth:
            parts = [(step, part, step in node.required) for step, part in members]
            parts += [(step, part, False) for step, part in elements]
            places.extend(((*steps, step), part, needed) for step, part, needed in parts[: limit - num_listed])
            num_listed += min(len(parts), limit - num_listed)
