"""The plain-text prompt: nothing that a schema says about a value is lost, and no schema breaks it."""

from __future__ import annotations

import json

import pytest
from cases import case_params
from hypothesis import given
from hypothesis import strategies as st

from schemafill.inference.request import UserError
from schemafill.inference.toolcall.plain_prompt import INSTRUCTION, describe_tool, render_plain
from schemafill.inference.toolcall.prompt import normalise_messages
from schemafill.inference.toolcall.schema import parse_tools


def described(parameters: object, description: str = "Says when") -> str:
    return describe_tool(
        parse_tools([{"name": "tides", "description": description, "parameters": parameters}]).tools[0]
    )


def argument(schema: object) -> str:
    """The description of a tool with one argument `a`."""
    return described({"type": "object", "properties": {"a": schema}, "required": ["a"]})


def rendered(messages: list[dict], tools: list[dict] = ()) -> str:
    return render_plain(normalise_messages(messages, id_length=None), parse_tools(list(tools)))


def test_a_signature_has_one_line_an_argument():
    schema = {
        "type": "object",
        "properties": {
            "port": {"type": "string", "description": "Where"},
            "day": {"type": ["string", "null"], "format": "date"},
            "unit": {"type": "string", "enum": ["m", "ft"], "default": "m"},
            "pairs": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            "free": {},
        },
        "required": ["port", "unit"],
    }
    assert described(schema) == (
        "tides: Says when\n"
        "- port (string): Where\n"
        "- day (string or null, optional, format date)\n"
        '- unit (string, one of ["m", "ft"], default "m")\n'
        "- pairs (array of array of integer, optional)\n"
        "- free (any, optional)"
    )


def test_nested_objects_are_indented_in_place():
    inner = {"type": "object", "properties": {"zip": {"type": "string"}}, "required": ["zip"]}
    listed = {"type": "array", "items": {"type": "object", "properties": {"of": inner}}}
    schema = {
        "type": "object",
        "properties": {"to": inner, "parts": listed, "z": {"type": "string"}},
        "required": ["to"],
    }
    assert described(schema, "") == (
        "tides\n"
        "- to (object)\n"
        "  - zip (string)\n"
        "- parts (array of object, optional)\n"
        "  - of (object, optional)\n"
        "    - zip (string)\n"
        "- z (string, optional)"
    )


@pytest.mark.parametrize("default", [0, False, None, "", []])
def test_defaults_that_count_as_nothing_are_shown(default):
    assert f"default {json.dumps(default)})" in argument({"type": "string", "default": default})


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_tool_without_arguments_is_its_title(parameters):
    assert described(parameters) == "tides: Says when"


ODD_SCHEMAS = [
    {"$ref": "#/$defs/x"},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    {"const": 5},
    {"type": "string", "pattern": "^a$"},
    {"type": "integer", "minimum": 3},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "array", "prefixItems": [{"type": "string"}]},
    {"type": "array", "items": [{"type": "string"}]},
    {"type": "object", "properties": ["a"]},
    True,
    "string",
    None,
    # each of these once failed
    {"type": "object", "properties": {"b": {}}, "required": True},
    {"type": "string", "required": True},
    {"type": ["string", None]},
    {"type": ["string", {"x": 1}]},
    {"type": "string", "description": ["a", "b"]},
    {"type": "string", "description": 5},
    # of each of these a part was once left out
    {"items": {"type": "integer", "enum": [7, 8]}},
    {"type": ["array", "null"], "items": {"type": "integer", "enum": [7, 8]}},
    {"type": "array", "items": {"type": "string", "description": "ISO code"}},
    {"type": "array", "items": {"type": "string", "format": "date"}},
    {"type": "array", "items": {"type": "string", "default": "x"}},
    {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "description": "a row"}},
    {"type": "array", "items": {"type": "object", "properties": {"b": {}}, "description": "a thing"}},
]


@pytest.mark.parametrize("schema", ODD_SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_what_the_short_form_cannot_say_is_printed_as_json(schema):
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    assert argument(schema) == f"tides: Says when\nparameters: {json.dumps(parameters)}"
    deep = {
        "type": "object",
        "properties": {"in": {"type": "array", "items": {"type": "object", "properties": {"a": schema}}}},
    }
    assert described(deep) == f"tides: Says when\nparameters: {json.dumps(deep)}"


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": {}}, "description": "All about it"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "properties": {"a": {}}, "oneOf": [{"required": ["a"]}]},
        {"type": "object", "properties": {"a": {}}, "required": "a"},
        ["a"],
        True,
        "none",
    ],
    ids=json.dumps,
)
def test_odd_parameters_are_printed_as_json(parameters):
    assert described(parameters) == f"tides: Says when\nparameters: {json.dumps(parameters)}"


FACTS = {
    "description": st.sampled_from(["ISO code", "größe", "two\nlines"]),
    "enum": st.lists(st.sampled_from(["m", "ft", 3, None]), min_size=1, max_size=3),
    "default": st.sampled_from(["m", 0, False, None, ["x"]]),
    "format": st.sampled_from(["date", "email"]),
    "minimum": st.integers(100, 999),
    "pattern": st.sampled_from(["^x+$", "[0-9]"]),
    "const": st.sampled_from(["fixed", 77]),
}
KINDS = st.sampled_from(["string", "integer", "boolean", ["string", "null"], "number"])
SCALARS = st.fixed_dictionaries({"type": KINDS}, optional=FACTS)
NAMES = st.sampled_from(["city", "größe", 'a"b', "user.name", "x y"])
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner}, optional={"description": FACTS["description"]}
        ),
        st.fixed_dictionaries({"items": inner}),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, min_size=1, max_size=3)},
            optional={"required": st.lists(NAMES, max_size=2), "description": FACTS["description"]},
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
    ),
    max_leaves=8,
)


def facts(schema: object, is_name: bool = False) -> list[str]:
    """Texts that a reader needs: names, descriptions, choices, defaults, limits, types."""
    if isinstance(schema, dict) and is_name:
        return [
            text for name, part in schema.items() for text in [json.dumps(name, ensure_ascii=False)[1:-1], *facts(part)]
        ]
    if isinstance(schema, dict):
        found = []
        for key, value in schema.items():
            if key == "required":
                continue
            found += facts(value, key == "properties")
        return found
    if isinstance(schema, list):
        return [text for part in schema for text in facts(part)]
    text = json.dumps(schema, ensure_ascii=False)
    return [text[1:-1] if isinstance(schema, str) else text]


@given(SCHEMAS)
def test_nothing_that_a_schema_says_is_lost(schema):
    text = argument(schema)
    as_json = text.replace("\n", "\\n").replace('a"b', 'a\\"b')  # the short form writes names and texts as they are
    for fact in facts(schema):
        assert fact in text or fact in as_json


@given(SCHEMAS)
def test_the_same_schema_gives_the_same_text(schema):
    assert argument(schema) == argument(json.loads(json.dumps(schema)))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
       lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
           st.sampled_from(["type", "properties", "items", "required", "enum", "description", "format", "default", "x",
                            "additionalProperties", "title", "optional"]),
                             inner, max_size=4), max_leaves=12))  # fmt: skip
def test_no_value_in_the_place_of_a_schema_is_an_error(value):
    described(value)
    argument(value)


@pytest.mark.parametrize("item", case_params("schema"))
def test_case_tools_are_described(item):
    tools = item.given.get("tools", []) + item.given.get("each_beside", [])
    if not all(isinstance(tool, dict) for tool in tools):
        return
    for tool in parse_tools(tools).tools:
        assert describe_tool(tool).startswith(tool.name)


def test_prompt_holds_tools_then_the_request_then_the_instruction():
    tools = [{"name": "ping"}, {"type": "function", "function": {"name": "pong", "description": "Answers"}}]
    text = rendered([{"role": "user", "content": "Is it up?"}], tools)
    assert text == f"Tools:\n\nping\n\npong: Answers\n\nUser request: Is it up?\n\n{INSTRUCTION}\n\nAnswer:\n"
    assert rendered([{"role": "user", "content": "Hi"}]) == f"User request: Hi\n\n{INSTRUCTION}\n\nAnswer:\n"


def test_a_conversation_keeps_every_turn():
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Tide in Brest?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": "1", "function": {"name": "tides", "arguments": '{"port": "Brést"}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "6.2 m"},
        {"role": "user", "content": "And in Cork?"},
    ]
    assert rendered(messages).startswith(
        "Conversation:\nSystem: Be short.\nUser: Tide in Brest?\n"
        'Assistant: Let me see. {"tool_calls": [{"name": "tides", "arguments": {"port": "Brést"}}]}\n'
        "Tool result: 6.2 m\nUser: And in Cork?\n\n"
    )
    silent = [{**messages[2], "content": None}, messages[3]]
    assert 'Assistant: {"tool_calls"' in rendered(silent)


def test_no_messages_are_a_fault_of_the_caller():
    with pytest.raises(UserError, match="messages are empty"):
        rendered([])
