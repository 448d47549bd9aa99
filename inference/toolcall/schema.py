"""A tool list as a catalogue of typed slots that a drafter can ask about.

Knows JSON Schema as far as it helps to guess a value: names, types, choices, defaults, nesting. It validates nothing,
and nothing odd inside a schema is an error: the target decides what is written, the schema only helps.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from urllib.parse import unquote

from schemafill.inference.request import UserError

MAX_ALTERNATIVES = 256
"""Most combinations of anyOf/oneOf branches that one node keeps."""
MAX_NESTING = 48
"""How deep anyOf/oneOf may stand directly inside each other before the rest is ignored."""

TYPE_NAMES = {
    "object": "object", "dict": "object", "hashmap": "object", "null": "null",
    "array": "array", "list": "array", "tuple": "array", "arraylist": "array",
    "string": "string", "str": "string", "char": "string", "boolean": "boolean", "bool": "boolean",
    "number": "number", "float": "number", "double": "number",
    "integer": "integer", "int": "integer", "long": "integer",
}  # fmt: skip
COMPOSITION_KEYS = {"$ref", "allOf", "anyOf", "oneOf", "$defs", "definitions"}
LIST_TYPE = re.compile(r"(?:list|tuple|array|arraylist)[(\[<](\w+)[)\]>]", re.IGNORECASE)

Fragments = tuple[dict, ...]
"""Schema objects that hold together, references and branches already followed."""


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
        parameters = _Document(root).node([(root,)])
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


class SchemaNode:
    """What is known about one value: everything that $ref, allOf, anyOf and oneOf say, merged.

    Facts are worked out when first asked for and kept. A schema that refers to itself gives the same node object again,
    so recursion costs nothing. Nodes are read only and belong to their tool.
    """

    def __init__(self, document: _Document, sources: list[tuple]) -> None:
        self._document = document
        self._sources = sources

    @cached_property
    def _alternatives(self) -> list[tuple[Fragments, frozenset[str]]]:
        return [(fragments, _types_of(fragments)) for fragments in self._document.expand(self._sources)]

    @cached_property
    def types(self) -> tuple[str, ...]:
        """JSON type names that the value may have, sorted; empty when anything goes."""
        types = [types for _, types in self._alternatives]
        return tuple(sorted(frozenset().union(*types))) if all(types) else ()

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """JSON spellings that enum and const list, over all alternatives; a branch for null adds `null` to them."""
        listed = [_listed(fragments) for fragments, _ in self._alternatives]
        nulls = [["null"] if types == {"null"} and any(listed) else [] for _, types in self._alternatives]
        return tuple(dict.fromkeys(text for own, null in zip(listed, nulls, strict=True) for text in own or null))

    @cached_property
    def const(self) -> str | None:
        """JSON spelling of the only value that every alternative allows."""
        is_constant = all(any("const" in part for part in fragments) for fragments, _ in self._alternatives)
        return self.choices[0] if is_constant and len(self.choices) == 1 else None

    @cached_property
    def default(self) -> str | None:
        """JSON spelling of the default: `null` where the default is null, None where there is none."""
        return next((_spelling(part["default"]) for part in self._fragments() if "default" in part), None)

    @cached_property
    def format(self) -> str | None:
        """The format keyword, such as `date` or `email`."""
        return self._first_text("format") or None

    @cached_property
    def description(self) -> str:
        """The outermost description; empty where there is none."""
        return self._first_text("description")

    @cached_property
    def properties(self) -> dict[str, SchemaNode]:
        """The known keys of an object in the order of the schema, over all alternatives."""
        names = [name for part in self._fragments("object") for name in _properties(part) if isinstance(name, str)]
        children = {name: self._child("object", _property_reader(name)) for name in dict.fromkeys(names)}
        return {name: child for name, child in children.items() if child is not None}

    @cached_property
    def required(self) -> frozenset[str]:
        """Keys that every alternative which can be an object requires."""
        names = [
            frozenset(name for part in fragments for name in _list(part, "required") if isinstance(name, str))
            for fragments, types in self._alternatives
            if not types or "object" in types
        ]
        return frozenset.intersection(*names) if names else frozenset()

    @cached_property
    def items(self) -> SchemaNode | None:
        """What is said about the elements of an array (after the prefix, if there is one); None: nothing."""
        return self._child("array", self._document.element_schemas)

    @cached_property
    def prefix_items(self) -> tuple[SchemaNode, ...]:
        """The elements that a tuple-like array describes place by place."""
        length = max((len(_prefix(part)) for part in self._fragments("array")), default=0)
        places = (self._child("array", lambda part, at=at: _prefix(part)[at : at + 1]) for at in range(length))
        return tuple(place for place in places if place is not None)

    @cached_property
    def additional(self) -> SchemaNode | None:
        """What is said about the values under free keys of a map; None: nothing."""
        schemas = [(schema,) for part in self._fragments("object") for schema in _map_schemas(part)]
        return self._document.node(schemas) if schemas else None

    def members(self) -> list[tuple[str, SchemaNode]]:
        """Steps to the known parts of an object: its properties, and `{}` for a free key."""
        return [*self.properties.items()] + ([("{}", self.additional)] if self.additional is not None else [])

    def elements(self) -> list[tuple[str, SchemaNode]]:
        """Steps to the parts of an array: `[0]`, `[1]` … of a tuple, `[]` for any other element."""
        steps = [(f"[{at}]", place) for at, place in enumerate(self.prefix_items)]
        if self.items is not None:
            steps.append(("[]", self.items))
        elif "array" in self.types and not steps and not self.choices:
            steps.append(("[]", self._document.node([()])))
        return steps

    def _fragments(self, type_name: str = "") -> Iterator[dict]:
        """The schema objects of all alternatives, or of those that can have a type."""
        for fragments, types in self._alternatives:
            if not type_name or not types or type_name in types:
                yield from fragments

    def _first_text(self, key: str) -> str:
        return next((part[key] for part in self._fragments() if isinstance(part.get(key), str) and part[key]), "")

    def _child(self, type_name: str, pick: Callable[[dict], list]) -> SchemaNode | None:
        """Node of the schemas that `pick` finds: they hold together within an alternative."""
        sources = [
            conjunction
            for fragments, types in self._alternatives
            if not types or type_name in types
            if (conjunction := tuple(raw for part in fragments for raw in pick(part)))
        ]
        possible = [conjunction for conjunction in sources if False not in conjunction]
        return self._document.node(possible) if possible else None


class _Document:
    """One tool's parameters: follows references within them and hands out one node for the same schemas."""

    def __init__(self, root: object) -> None:
        self.root = root
        self._nodes: dict[tuple, SchemaNode] = {}
        self._named_elements: dict[str, dict] = {}

    def node(self, sources: list[tuple]) -> SchemaNode:
        """The node of some alternatives, each a conjunction of schemas that are parts of this document."""
        sources = [tuple(map(self._target, conjunction)) for conjunction in sources]
        by_identity = {tuple(dict.fromkeys(map(id, conjunction))): conjunction for conjunction in sources}
        return self._nodes.setdefault(tuple(by_identity), SchemaNode(self, list(by_identity.values())))

    def expand(self, sources: list[tuple]) -> list[Fragments]:
        """Alternatives of plain schema objects, all references and branches followed; at least one."""
        seen: dict[int, list[Fragments]] = {}
        found = [fragments for conjunction in sources for fragments in self._combine(conjunction, seen, 0)]
        return _distinct(found)[:MAX_ALTERNATIVES] or [()]

    def _combine(self, conjunction: tuple, seen: dict[int, list[Fragments]], depth: int) -> list[Fragments]:
        """Alternatives of schemas that hold together. A false schema has none."""
        fragments: dict[int, dict] = {}
        groups = []
        pending = list(reversed(conjunction))
        while pending:
            raw = pending.pop()
            if raw is False:
                return []
            if not isinstance(raw, dict) or id(raw) in fragments:
                continue
            fragments[id(raw)] = raw
            pending.extend(reversed([self._resolve(raw.get("$ref")), *_list(raw, "allOf")]))
            groups += [_list(raw, "anyOf"), _list(raw, "oneOf")]
        base = tuple(part for part in fragments.values() if part.keys() - COMPOSITION_KEYS)
        alternatives = [base]
        for group in groups:
            options = _distinct([option for raw in group for option in self._options(raw, seen, depth + 1)])
            if options and len(alternatives) * len(options) <= MAX_ALTERNATIVES:
                alternatives = [chosen + option for chosen in alternatives for option in options]
            elif options:  # too many to multiply: side by side, which keeps their names
                alternatives = (alternatives + [base + option for option in options])[:MAX_ALTERNATIVES]
        return _distinct(alternatives)

    def _options(self, raw: object, seen: dict[int, list[Fragments]], depth: int) -> list[Fragments]:
        """Alternatives of one branch, worked out once; inside itself a branch adds nothing."""
        raw = self._target(raw)
        if id(raw) not in seen and depth <= MAX_NESTING:
            seen[id(raw)] = []
            seen[id(raw)] = self._combine((raw,), seen, depth)
        return seen.get(id(raw), [])

    def _target(self, raw: object) -> object:
        """What a schema that is nothing but a reference refers to; any other schema itself."""
        for _ in range(MAX_NESTING):
            if not isinstance(raw, dict) or raw.keys() != {"$ref"}:
                break
            raw = self._resolve(raw["$ref"])
        return raw

    def _resolve(self, reference: object) -> object:
        """The schema that a JSON pointer such as `#/$defs/a~1b/anyOf/0` names; None where there is none."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return None
        here = self.root
        for step in unquote(reference).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(here, list) and step.isdecimal() and int(step) < len(here):
                here = here[int(step)]
            else:
                here = here.get(step) if isinstance(here, dict) else None
        return here

    def element_schemas(self, part: dict) -> list:
        """Schemas of an array's elements; a type such as `list(str)` names one, too."""
        raw = part.get("additionalItems" if isinstance(part.get("items"), list) else "items")
        if isinstance(raw, dict) or raw is True:
            return [raw]
        match = LIST_TYPE.fullmatch(part["type"]) if isinstance(part.get("type"), str) else None
        return [self._named_elements.setdefault(match[1], {"type": match[1]})] if match else []


def _types_of(fragments: Fragments) -> frozenset[str]:
    """Types that a conjunction declares, or else those that its other keywords speak of; empty: anything."""
    declared = [types for part in fragments if (types := _declared_types(part))]
    if declared:
        types = reduce(_common_types, declared)
    elif listed := _listed(fragments):
        types = frozenset(map(_type_of_spelling, listed))
    elif any(part.get("properties") or part.get("required") or _map_schemas(part) for part in fragments):
        types = frozenset({"object"})
    elif any(part.get("items") or part.get("prefixItems") for part in fragments):
        types = frozenset({"array"})
    else:
        return frozenset()
    return types | {"null"} if any(part.get("nullable") is True for part in fragments) else types


def _declared_types(part: dict) -> frozenset[str]:
    listed = part["type"] if isinstance(part.get("type"), list) else [part.get("type")]
    names = [name.lower() if isinstance(name, str) else "any" for name in listed]
    if "any" in names or "" in names:
        return frozenset()
    found = {"array" if LIST_TYPE.fullmatch(name) else TYPE_NAMES.get(name) for name in names}
    return frozenset(found - {None})


def _common_types(first: frozenset[str], second: frozenset[str]) -> frozenset[str]:
    """Types in both; where schemas contradict each other the outer one is believed."""
    if {"integer", "number"} <= first | second:  # every integer is a number
        first, second = ({*types, "integer"} if "number" in types else types for types in (first, second))
    return frozenset(first & second) or frozenset(first)


def _type_of_spelling(spelling: str) -> str:
    names = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
    return names.get(spelling[0]) or ("integer" if spelling.lstrip("-").isdecimal() else "number")


def _listed(fragments: Fragments) -> list[str]:
    """Spellings of the values that a conjunction allows by name; empty where it names none."""
    allowed: list[str] = []
    for part in fragments:
        values = [part["const"]] if "const" in part else _list(part, "enum")
        spellings = [spelling for value in values if (spelling := _spelling(value)) is not None]
        common = set(allowed) & set(spellings)
        allowed = [spelling for spelling in allowed if spelling in common] if common else allowed or spellings
    return allowed


def _map_schemas(part: dict) -> list[dict]:
    """Schemas of values under free keys; `true` and `{}` say nothing and are left out."""
    patterns = part.get("patternProperties")
    schemas = [*(patterns.values() if isinstance(patterns, dict) else ()), part.get("additionalProperties")]
    return [schema for schema in schemas if isinstance(schema, dict) and schema]


def _properties(part: dict) -> dict:
    listed = part.get("properties")
    return listed if isinstance(listed, dict) else {}


def _property_reader(name: str) -> Callable[[dict], list]:
    return lambda part: [_properties(part)[name]] if name in _properties(part) else []


def _prefix(part: dict) -> list:
    return _list(part, "prefixItems") or _list(part, "items")


def _list(part: dict, key: str) -> list:
    value = part.get(key)
    return value if isinstance(value, list) else []


def _distinct(alternatives: list[Fragments]) -> list[Fragments]:
    """The alternatives without repetition, each without a schema object twice."""
    by_identity = [{id(part): part for part in fragments} for fragments in alternatives]
    return [tuple(parts.values()) for parts in {tuple(parts): parts for parts in by_identity}.values()]


def _spelling(value: object) -> str | None:
    """A value as JSON text; None for what JSON or UTF-8 cannot carry."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return None
    return text
