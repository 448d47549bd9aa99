"""Type names that tool catalogues of other worlds use, as JSON Schema's own."""

from __future__ import annotations

from typing import Any

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


def openai_function(function: dict) -> dict:
    """The function with JSON Schema's own type names; every other field as upstream has it."""
    parameters = function.get("parameters")
    return {**function, "parameters": json_schema(parameters)} if isinstance(parameters, dict) else dict(function)


def json_schema(schema: Any) -> Any:
    """`schema` with type names mapped at every depth.

    Only the value of a schema's own `type` is a type name: a parameter may itself be called `type`.
    """
    if isinstance(schema, list):
        return [json_schema(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    mapped: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type":
            mapped |= _json_type(value)
        elif key in NAMED_SCHEMAS and isinstance(value, dict):
            mapped[key] = {name: json_schema(inner) for name, inner in value.items()}
        elif key in INNER_SCHEMAS:
            mapped[key] = json_schema(value)
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
