"""What plain schema objects say by themselves: types, listed values, parts and their JSON spellings.

Knows the keywords of JSON Schema that stand for a value or a part, and the type names that tool lists use beside them.
References and branches are followed in `schema_node`; nothing here looks further than the objects it is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import reduce

TYPE_NAMES = {
    "object": "object", "dict": "object", "hashmap": "object", "null": "null",
    "array": "array", "list": "array", "tuple": "array", "arraylist": "array",
    "string": "string", "str": "string", "char": "string", "boolean": "boolean", "bool": "boolean",
    "number": "number", "float": "number", "double": "number",
    "integer": "integer", "int": "integer", "long": "integer",
}  # fmt: skip
LIST_TYPE = re.compile(r"(?:list|tuple|array|arraylist)[(\[<](\w+)[)\]>]", re.IGNORECASE)

Fragments = tuple[dict, ...]
"""Schema objects that hold together, references and branches already followed."""


def types_of(fragments: Fragments) -> frozenset[str]:
    """Types that a conjunction declares, or else those that its other keywords speak of; empty: anything."""
    declared = [types for part in fragments if (types := _declared_types(part))]
    if declared:
        types = reduce(_common_types, declared)
    elif listed := listed_values(fragments):
        types = frozenset(map(_type_of_spelling, listed))
    elif any(part.get("properties") or part.get("required") or map_schemas(part) for part in fragments):
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


def listed_values(fragments: Fragments) -> list[str]:
    """Spellings of the values that a conjunction allows by name; empty where it names none."""
    allowed: list[str] = []
    for part in fragments:
        values = [part["const"]] if "const" in part else list_of(part, "enum")
        spellings = [spelling for value in values if (spelling := spelling_of(value)) is not None]
        common = set(allowed) & set(spellings)
        allowed = [spelling for spelling in allowed if spelling in common] if common else allowed or spellings
    return allowed


def map_schemas(part: dict) -> list[dict]:
    """Schemas of values under free keys; `true` and `{}` say nothing and are left out."""
    patterns = part.get("patternProperties")
    schemas = [*(patterns.values() if isinstance(patterns, dict) else ()), part.get("additionalProperties")]
    return [schema for schema in schemas if isinstance(schema, dict) and schema]


def properties_of(part: dict) -> dict:
    """The schemas of the known keys of an object; empty where it names none."""
    listed = part.get("properties")
    return listed if isinstance(listed, dict) else {}


def property_reader(name: str) -> Callable[[dict], list]:
    """A function that gives the schema of one known key, as a list of one or none."""
    return lambda part: [properties_of(part)[name]] if name in properties_of(part) else []


def prefix_of(part: dict) -> list:
    """The schemas of a tuple-like array, place by place; older drafts list them under `items`."""
    return list_of(part, "prefixItems") or list_of(part, "items")


def list_of(part: dict, key: str) -> list:
    """The list under a keyword; empty where there is none."""
    value = part.get(key)
    return value if isinstance(value, list) else []


def spelling_of(value: object) -> str | None:
    """A value as JSON text; None for what JSON or UTF-8 cannot carry."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return None
    return text
