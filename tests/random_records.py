"""Records over random catalogues, for property tests: odd names, nested schemas, references, earlier calls."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from schemafill.data_prep.records import Record

TOOL_NAMES = (
    "get_weather", "search", "Moving Average (MA)", "geo.find-nearest", "sendMailNow", "v2", "日程を追加", "a_b",
    "Get Time",
)  # fmt: skip
PROPERTY_NAMES = (
    "city", "startDate", "user-id", "type", "properties", "required", "日付", "x", "$expand", "Id 2", "a_b", "name",
    "items", "a/b", "m~n",
)  # fmt: skip
TEXTS = ("Oslo", "Paris", "2024-05-01", "get_weather", "plain words", "", "it's", "日本")
SCALARS = {
    "string": st.sampled_from(TEXTS),
    "integer": st.integers(-3, 5000),
    "number": st.floats(-50, 50, allow_nan=False).map(lambda number: round(number, 2)),
    "boolean": st.booleans(),
}


@st.composite
def scalar_schemas(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(SCALARS)))
    description = draw(st.sampled_from(("", "Use get_weather first.", "A city", "Not with `x`, 'city' or user-id.")))
    schema: dict[str, Any] = {"type": kind, "description": description}
    extra = draw(st.sampled_from(("", "", "enum", "default")))
    if extra == "enum":
        schema["enum"] = draw(st.lists(SCALARS[kind], min_size=1, max_size=3, unique_by=repr))
    elif extra == "default":
        schema["default"] = draw(SCALARS[kind])
    return schema


@st.composite
def object_schemas(draw: st.DrawFn, inner: st.SearchStrategy) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(PROPERTY_NAMES), max_size=4, unique=True))
    properties = {name: draw(inner) for name in names}
    schema = {"type": "object", "properties": properties, "required": names[: draw(st.integers(0, len(names)))]}
    if draw(st.booleans()):
        schema["default"] = value_of(draw, schema, schema)
    return schema


def array_schemas(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(lambda items: {"type": "array", "items": items}, inner)


SCHEMAS = st.recursive(
    scalar_schemas(),
    lambda inner: object_schemas(inner) | array_schemas(inner) | st.builds(lambda one: {"anyOf": [one]}, inner),
    max_leaves=6,
)


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, Any]:
    """The parameters of a tool; in some, one property refers to another or to a definition."""
    schema = draw(object_schemas(SCHEMAS))
    schema.pop("default", None)
    names = list(schema["properties"])
    if names and draw(st.booleans()):
        step = names[0].replace("~", "~0").replace("/", "~1")
        schema["properties"]["again"] = {"$ref": f"#/properties/{step}"}
    if draw(st.booleans()):
        schema["$defs"] = {"city": draw(object_schemas(scalar_schemas()))}
        schema["properties"]["where"] = {"$ref": "#/$defs/city"}
    return schema


def value_of(draw: st.DrawFn, schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """A value that fits a schema of this module."""
    if "$ref" in schema:
        here: Any = root
        for step in schema["$ref"].split("/")[1:]:
            here = here[step.replace("~1", "/").replace("~0", "~")]
        return value_of(draw, here, root)
    if "anyOf" in schema:
        return value_of(draw, schema["anyOf"][0], root)
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    if schema["type"] == "object":
        optional = [name for name in schema["properties"] if name not in schema["required"]]
        chosen = [*schema["required"], *(name for name in optional if draw(st.booleans()))]
        return {name: value_of(draw, schema["properties"][name], root) for name in chosen}
    if schema["type"] == "array":
        return [value_of(draw, schema["items"], root) for _ in range(draw(st.integers(0, 2)))]
    return draw(SCALARS[schema["type"]])


@st.composite
def records(draw: st.DrawFn) -> Record:
    """One to four tools, one or two reference calls, sometimes an earlier call with its result."""
    names = draw(st.lists(st.sampled_from(TOOL_NAMES), min_size=1, max_size=4, unique=True))
    schemas = {name: draw(parameters()) for name in names}
    tools = [
        {"type": "function", "function": {"name": name, "description": "Unlike `search`.", "parameters": schema}}
        for name, schema in schemas.items()
    ]

    def call() -> dict[str, Any]:
        name = draw(st.sampled_from(names))
        return {"name": name, "arguments": value_of(draw, schemas[name], schemas[name])}

    messages: list[dict[str, Any]] = [{"role": "system", "content": "Call get_weather or 'search' when asked."}]
    if draw(st.booleans()):
        earlier = call()
        function = earlier | {"arguments": json.dumps(earlier["arguments"], ensure_ascii=False)}
        messages += [
            {"role": "user", "content": "First this."},
            {"role": "assistant", "content": None,
             "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "call_1", "name": earlier["name"], "content": '{"ok": true}'},
        ]  # fmt: skip
    calls = [call() for _ in range(draw(st.integers(1, 2)))]
    said = [json.dumps(value, ensure_ascii=False) for one in calls for value in one["arguments"].values()]
    messages.append({"role": "user", "content": f"Please use get_weather with {' and '.join(said)}."})
    return Record(
        id=f"made/rows/{draw(st.integers(1, 9))}", source="made", messages=messages, tools=tools, reference_calls=calls,
        group="g", meta={"file": "rows", "row": 1, "turn": 1},
    )  # fmt: skip
