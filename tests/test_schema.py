"""What parse_tools finds in tool lists, ordinary and odd."""

import json
import time

import pytest
from cases import case_params

from schemafill.inference.request import UserError
from schemafill.inference.toolcall.schema import Catalog, Slot, iter_slots, parse_tools


def slots_of(parameters: object) -> dict[tuple[str, ...], Slot]:
    catalog = parse_tools([{"name": "probe", "parameters": parameters}])
    return {slot.steps: slot for slot in iter_slots(catalog.tools[0])}


def all_slots(catalog: Catalog) -> dict[tuple[str, ...], Slot]:
    return {(tool.name, *slot.steps): slot for tool in catalog.tools for slot in iter_slots(tool)}


def check_fact(slot: Slot, fact: dict) -> None:
    node = slot.node
    if "types" in fact:
        assert (list(slot.types) or ["any"]) == fact["types"]
    if "choices" in fact:
        assert list(node.choices) == [json.dumps(value, ensure_ascii=False) for value in fact["choices"]]
    if "choices_text" in fact:
        assert list(node.choices) == fact["choices_text"]
    if "const" in fact:
        assert node.const == json.dumps(fact["const"])
    if "default" in fact:
        assert node.default == json.dumps(fact["default"])
    if "required" in fact:
        assert slot.is_required == fact["required"]


@pytest.mark.parametrize("item", case_params("schema", "S"))
def test_case_slots_are_found(item):
    expect = item.expect
    beside = item.given.get("each_beside")
    for tools in [[tool, *beside] for tool in item.given["tools"]] if beside else [item.given["tools"]]:
        start = time.perf_counter()
        catalog = parse_tools(tools)
        slots = all_slots(catalog)
        assert time.perf_counter() - start < expect.get("max_seconds", 2)
        assert len(slots) <= expect.get("max_slots", 10_000)
    expected = {tuple(steps) for steps in expect.get("slots", [])}
    assert not expected - slots.keys()
    assert not expect.get("slots_exact") or slots.keys() == expected
    assert not slots.keys() & {tuple(steps) for steps in expect.get("not_slots", [])}
    assert all(catalog.get(name) for name in expect.get("tools_usable", []))
    for fact in expect.get("facts", []):
        check_fact(slots[tuple(fact["slot"])], fact)


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_both_forms_of_a_tool_are_read(is_wrapped):
    functions = [{"name": "Get User", "description": "d", "parameters": {"properties": {"id": {}}}}, {"name": "ping"}]
    catalog = parse_tools([{"type": "function", "function": f} if is_wrapped else f for f in functions])
    assert [tool.name for tool in catalog.tools] == ["Get User", "ping"]
    assert (catalog.tools[0].description, catalog.tools[1].description) == ("d", "")
    assert catalog.raw[0] is catalog.tools[0].raw
    assert catalog.get("get user") is None
    assert list(catalog.get("Get User").parameters.properties) == ["id"]


@pytest.mark.parametrize(
    ("tools", "fault"),
    [
        ({"name": "a"}, "tools must be a list, got dict"),
        (None, "tools must be a list"),
        (["a"], r"tools\[0\] must be an object"),
        ([{"name": "a"}, {"function": {"name": ""}}], r"tools\[1\] must be an object that gives its function a name"),
        ([{"function": None, "name": "a"}], r"tools\[0\]"),
        ([{"name": 5}], r"tools\[0\]"),
        ([{"name": "a"}, {"function": {"name": "a"}}], r"tools\[1\] has the name 'a'"),
    ],
)
def test_only_a_faulty_list_object_or_name_is_an_error(tools, fault):
    with pytest.raises(UserError, match=fault) as raised:
        parse_tools(tools)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "parameters",
    [
        None, True, False, 5, "text", [], {}, {"type": 5}, {"type": ["object", None, 3]}, {"$ref": 5}, {"$ref": "#"},
        {"$ref": "#/no/such"}, {"$ref": "https://example.org/x"}, {"$ref": "#/a/0", "a": [{"$ref": "#/a/0"}]},
        {"$ref": "#/a/" + "9" * 5000, "a": [{}]}, {"$ref": "#/a/7", "a": [{}]},
        {"properties": {"a": {"const": 10**5000}}},
        {"anyOf": 5}, {"anyOf": [5, None, True]}, {"allOf": {}}, {"oneOf": [False]}, {"required": "x"}, {"enum": "abc"},
        {"required": [1, {}]}, {"properties": {"a": None, "b": 5, "c": [], 3: {}}}, {"items": 7, "prefixItems": 7},
        {"properties": {"a": {"enum": [float("nan"), "\ud800"], "default": object(), "description": 5, "format": []}}},
        {"properties": {"a": {"patternProperties": [], "additionalProperties": "no", "nullable": "yes"}}},
    ],
)  # fmt: skip
def test_no_schema_is_an_error(parameters):
    nodes = [slot.node for slot in slots_of(parameters).values()]
    assert all((node.choices, node.const, node.default, node.format) == ((), None, None, None) for node in nodes)


@pytest.mark.parametrize(
    ("written", "types"),
    [
        ("dict", ["object"]), ("HashMap", ["object"]), ("float", ["number"]), ("double", ["number"]),
        ("int", ["integer"]), ("long", ["integer"]), ("Boolean", ["boolean"]), ("STRING", ["string"]),
        ("char", ["string"]), ("any", []), ("", []), ("datetime", []), (None, []),
        (["string", "null"], ["null", "string"]), (["str", "no"], ["string"]), (["string", "any"], []),
    ],
)  # fmt: skip
def test_type_names_of_the_corpora_are_understood(written, types):
    assert list(slots_of({"type": "dict", "properties": {"x": {"type": written}}})[("x",)].types) == types


def test_a_property_may_be_called_type():
    assert slots_of({"type": "object", "properties": {"type": {"type": "int"}}})[("type",)].types == ("integer",)


@pytest.mark.parametrize("written", ["list(str)", "List[str]", "ArrayList<String>"])
def test_a_type_name_may_say_what_a_list_holds(written):
    slots = slots_of({"properties": {"x": {"type": written}}})
    assert {steps: slot.types for steps, slot in slots.items()} == {("x", "[]"): ("string",)}


def test_parts_of_lists_tuples_and_maps_are_slots():
    slots = slots_of({
        "properties": {
            "bare": {"type": "array"},
            "pair": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}]},
            "old": {"items": [{"type": "number"}], "additionalItems": {"type": "boolean"}},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            "free": {"type": "object", "additionalProperties": True},
            "anything": True,
            "never": False,
        },
        "patternProperties": {"^x-": {"type": "string"}},
    })  # fmt: skip
    assert {steps: slot.types for steps, slot in slots.items()} == {
        ("bare", "[]"): (), ("pair", "[0]"): ("number",), ("pair", "[1]"): ("string",), ("old", "[0]"): ("number",),
        ("old", "[]"): ("boolean",), ("map", "{}"): ("integer",), ("free",): ("object",), ("anything",): (),
        ("{}",): ("string",),
    }  # fmt: skip


def test_pointers_lead_anywhere_in_the_parameters():
    slots = slots_of({
        "properties": {
            "a": {"$ref": "#/$defs/x~1y~0z/anyOf/1"}, "b": {"$ref": "#/properties/a", "description": "again"},
            "c": {"$ref": "#/$defs/per%20cent"}, "d": {"$ref": "#/$defs/x~1y~0z/anyOf/2"},
        },
        "$defs": {"x/y~z": {"anyOf": [{"type": "null"}, {"type": "integer"}]}, "per cent": {"enum": [1.5]}},
    })  # fmt: skip
    assert [slots[(name,)].types for name in "abcd"] == [("integer",), ("integer",), ("number",), ()]
    assert slots[("b",)].node.description == "again"


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"anyOf": [False, {"type": "string"}]}, ("string",)),
        ({"anyOf": [True, {"type": "string"}]}, ()),
        ({"type": "number", "allOf": [{"type": "integer"}]}, ("integer",)),
        ({"type": "string", "allOf": [{"type": "integer"}]}, ("string",)),
        ({"type": "string", "nullable": True}, ("null", "string")),
        ({"const": {"a": 1}}, ("object",)),
    ],
)
def test_types_are_merged(schema, types):
    assert slots_of({"properties": {"x": schema}})[("x",)].types == types


def test_keywords_that_hold_together_narrow_the_value():
    node = slots_of({
        "properties": {"x": {"allOf": [{"type": ["number", "string"], "description": "inner"}, {"enum": [1, 2, "a"]}],
                             "type": "integer", "enum": [2, 3], "description": "outer", "format": "int32"}},
    })[("x",)].node  # fmt: skip
    assert (node.types, node.choices, node.description, node.format) == (("integer",), ("2",), "outer", "int32")


def test_required_means_in_every_alternative_that_is_an_object():
    slots = slots_of({
        "properties": {"stop": {"anyOf": [
            {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
            {"properties": {"a": {}}, "required": ["a"]},
            {"type": "null"},
        ]}},
    })  # fmt: skip
    assert slots[("stop", "a")].is_required
    assert not slots[("stop", "b")].is_required
    assert slots[("stop",)].types == ("null",)


@pytest.mark.parametrize(
    ("schema", "choices", "const"),
    [
        ({"enum": ["é", None, 1.0, True]}, ('"é"', "null", "1.0", "true"), None),
        ({"const": "a"}, ('"a"',), '"a"'),
        ({"enum": ["a"]}, ('"a"',), None),
        ({"anyOf": [{"const": "a"}, {"type": "null"}]}, ('"a"', "null"), None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, (), None),
        ({"anyOf": [{"type": "string"}, {"enum": ["a", "b"]}]}, ('"a"', '"b"'), None),
    ],
)
def test_choices_are_json(schema, choices, const):
    node = slots_of({"properties": {"x": schema}})[("x",)].node
    assert (node.choices, node.const) == (choices, const)


def test_a_default_of_null_is_not_the_lack_of_one():
    slots = slots_of({"properties": {"x": {"default": None}, "y": {}, "z": {"default": {"a": "½"}}}})
    assert [slots[(name,)].node.default for name in "xyz"] == ["null", None, '{"a": "½"}']


def test_a_schema_that_refers_to_itself_gives_the_same_node_again():
    fan = {"properties": {f"arm_{arm}": {"$ref": "#/$defs/Fan"} for arm in range(9)}}
    (tool,) = parse_tools([{"name": "t", "parameters": {"$ref": "#/$defs/Fan", "$defs": {"Fan": fan}}}]).tools
    node = tool.parameters.properties["arm_0"]
    assert node.properties["arm_8"].properties["arm_3"] is node


def nested(depth: int, wrap) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(depth):
        schema = wrap(schema)
    return {"properties": {"x": schema}}


def described_refs(count: int) -> list[dict]:
    return [{"$ref": f"#/$defs/{number}", "description": "one of many"} for number in range(count)]


@pytest.mark.parametrize(
    "parameters",
    [
        nested(2000, lambda inner: {"type": "object", "properties": {"d": inner}}),
        nested(2000, lambda inner: {"anyOf": [inner, {"type": "null"}]}),
        nested(2000, lambda inner: {"allOf": [inner]}),
        {"properties": {f"p{number}": {"$ref": "#"} for number in range(2000)}},
        {"properties": {f"p{number}": {"$ref": "#", "description": "again"} for number in range(1000)}},
        {"allOf": [{"anyOf": [{"properties": {f"p{a}_{b}": {}}} for b in range(8)]} for a in range(20)]},
        {"anyOf": described_refs(20), "$defs": {
            str(number): {"anyOf": described_refs(20), "properties": {f"k{number}": {"$ref": "#"}}}
            for number in range(20)
        }},
    ],
    ids=["deep-objects", "deep-anyof", "deep-allof", "wide-ring", "wide-ring-described", "products", "unions"],
)  # fmt: skip
def test_hostile_schemas_take_little_time(parameters):
    start = time.perf_counter()
    assert len(slots_of(parameters)) <= 2000
    assert time.perf_counter() - start < 4


def test_slots_end_at_the_limits_shallow_ones_first():
    parameters = nested(10, lambda inner: {"properties": {"d": inner, "e": {}}})
    (tool,) = parse_tools([{"name": "t", "parameters": parameters}]).tools
    assert max(len(slot.steps) for slot in iter_slots(tool)) == 11
    assert [slot.steps for slot in iter_slots(tool, max_depth=3)] == [("x", "e"), ("x", "d", "e")]
    assert [slot.steps for slot in iter_slots(tool, limit=4)] == [("x", "e")]
