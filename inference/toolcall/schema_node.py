"""What a JSON Schema says about one value, wherever in the document it says it.

Knows references and branches ($ref, allOf, anyOf, oneOf) and merges what they say. Odd or wrong parts say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from urllib.parse import unquote

from schemafill.inference.toolcall.schema_fragments import (
    LIST_TYPE,
    Fragments,
    list_of,
    listed_values,
    map_schemas,
    prefix_of,
    properties_of,
    property_reader,
    spelling_of,
    types_of,
)

MAX_ALTERNATIVES = 256
"""Most combinations of anyOf/oneOf branches that one node keeps; half as many for each level that they stand deeper."""
MAX_NESTING = 48
"""How deep anyOf/oneOf may stand directly inside each other before the rest is ignored."""


class SchemaNode:
    """What is known about one value: everything that $ref, allOf, anyOf and oneOf say, merged.

    Facts are worked out when first asked for and kept. A schema that refers to itself gives the same node object again,
    so recursion costs nothing. Nodes are read only and belong to their tool.
    """

    def __init__(self, document: SchemaDocument, sources: list[tuple]) -> None:
        self._document = document
        self._sources = sources

    @cached_property
    def _alternatives(self) -> list[tuple[Fragments, frozenset[str]]]:
        return [(fragments, types_of(fragments)) for fragments in self._document.expand(self._sources)]

    @cached_property
    def types(self) -> tuple[str, ...]:
        """JSON type names that the value may have, sorted; empty when anything goes."""
        types = [types for _, types in self._alternatives]
        return tuple(sorted(frozenset().union(*types))) if all(types) else ()

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """JSON spellings that enum and const list, over all alternatives; a branch for null adds `null` to them."""
        listed = [listed_values(fragments) for fragments, _ in self._alternatives]
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
        return next((spelling_of(part["default"]) for part in self._fragments() if "default" in part), None)

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
        names = [name for part in self._fragments("object") for name in properties_of(part) if isinstance(name, str)]
        children = {name: self._child("object", property_reader(name)) for name in dict.fromkeys(names)}
        return {name: child for name, child in children.items() if child is not None}

    @cached_property
    def required(self) -> frozenset[str]:
        """Keys that every alternative which can be an object requires."""
        names = [
            frozenset(name for part in fragments for name in list_of(part, "required") if isinstance(name, str))
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
        length = max((len(prefix_of(part)) for part in self._fragments("array")), default=0)
        places = (self._child("array", lambda part, at=at: prefix_of(part)[at : at + 1]) for at in range(length))
        return tuple(place for place in places if place is not None)

    @cached_property
    def additional(self) -> SchemaNode | None:
        """What is said about the values under free keys of a map; None: nothing."""
        schemas = [(schema,) for part in self._fragments("object") for schema in map_schemas(part)]
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


class SchemaDocument:
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
            pending.extend(reversed([self._resolve(raw.get("$ref")), *list_of(raw, "allOf")]))
            groups += [list_of(raw, "anyOf"), list_of(raw, "oneOf")]
        base = tuple(fragments.values())
        alternatives = [base]
        limit = max(8, MAX_ALTERNATIVES >> depth)
        for group in groups:
            options = _distinct([option for raw in group for option in self._options(raw, seen, depth + 1)][:limit])
            if options and len(alternatives) * len(options) <= limit:
                alternatives = [chosen + option for chosen in alternatives for option in options]
            elif options:  # too many to multiply: side by side, which keeps their names
                alternatives = (alternatives + [base + option for option in options])[:limit]
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
            if isinstance(here, list):
                here = here[int(step)] if re.fullmatch("[0-9]{1,6}", step) and int(step) < len(here) else None
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


def _distinct(alternatives: list[Fragments]) -> list[Fragments]:
    """The alternatives without repetition, each without a schema object twice."""
    by_identity = [{id(part): part for part in fragments} for fragments in alternatives]
    return [tuple(parts.values()) for parts in {tuple(parts): parts for parts in by_identity}.values()]
