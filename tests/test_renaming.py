import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_records import records

from schemafill.data_prep.consistency import inconsistency
from schemafill.data_prep.name_styles import NameMaker, spell, words_of
from schemafill.data_prep.record_calls import called_functions
from schemafill.data_prep.records import Record
from schemafill.data_prep.renaming import Renaming, plan_renaming
from schemafill.data_prep.schema_names import property_names
from schemafill.data_prep.tool_definitions import tool_name
from schemafill.inference.toolcall.schema import parse_tools

SEEDS = st.integers(0, 2**32)


def tool(name: str, properties: dict, **more: object) -> dict:
    parameters = {"type": "object", "properties": properties, **more}
    return {"type": "function", "function": {"name": name, "description": f"Runs {name}.", "parameters": parameters}}


def record(tools: list, calls: list, *messages: dict) -> Record:
    messages = messages or ({"role": "user", "content": "go"},)
    return Record(id="a/b/1", source="a", messages=list(messages), tools=tools, reference_calls=calls, group="g")


def listed_names(schema: object) -> set[str]:
    """What stands in schema positions, found without the module under test: keys of properties, names in required."""
    found: set[str] = set()
    if isinstance(schema, list):
        return found.union(*map(listed_names, schema))
    if isinstance(schema, dict):
        for key, part in schema.items():
            if key in ("properties", "$defs"):
                found |= set(part) if key == "properties" else set()
                found |= found.union(*map(listed_names, part.values()))
            elif key == "required":
                found |= set(part)
            elif key in ("items", "anyOf"):
                found |= listed_names(part)
    return found


@settings(max_examples=25, deadline=None)
@given(records(), SEEDS)
def test_renaming_is_one_to_one_and_leaves_no_old_name_in_a_schema(one: Record, seed: int) -> None:
    renaming = plan_renaming(one, Random(seed))
    for names in (renaming.tools, renaming.properties):
        assert len(set(names.values())) == len(names)
    copy = renaming.apply(one)
    parse_tools(copy.tools)  # no name twice
    old, new = ({n for t in r.tools for n in listed_names(t["function"]["parameters"])} for r in (one, copy))
    assert not old & new
    assert len(old) == len(new)
    renamed = set(renaming.tools)
    assert not renamed & set(map(tool_name, copy.tools))


@settings(max_examples=25, deadline=None)
@given(records(), SEEDS)
def test_the_opposite_renaming_gives_the_record_back(one: Record, seed: int) -> None:
    """So nothing else of the record has changed, and nothing was renamed in one place only."""
    renaming = plan_renaming(one, Random(seed))
    back = Renaming(*({new: old for old, new in names.items()} for names in (renaming.tools, renaming.properties)))
    assert back.apply(renaming.apply(one)) == one


@settings(max_examples=25, deadline=None)
@given(records(), SEEDS)
def test_calls_fit_the_renamed_schemas_and_arguments_stay_json(one: Record, seed: int) -> None:
    before = json.dumps(one.to_json())
    copy = plan_renaming(one, Random(seed)).apply(one)
    assert inconsistency(one, copy) is None
    for message in copy.messages:
        for function in called_functions(message):
            assert isinstance(json.loads(function["arguments"]), dict)
    assert json.dumps(one.to_json()) == before  # the original is not touched


def renamed(one: Record, tools: dict | None = None, properties: dict | None = None) -> Record:
    return Renaming(tools or {}, properties or {}).apply(one)


def test_every_position_of_a_property_name_follows() -> None:
    schema = {
        "a": {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"], "default": {"b": "x"}},
        "c": {"type": "array", "items": {"type": "object", "properties": {"b": {}}, "optional": ["b"]}},
        "d": {"$ref": "#/properties/a/properties/b"},
        "e": {"anyOf": [{"type": "object", "properties": {"b": {}}}, {"type": "null"}], "enum": [{"b": 1}, None]},
        "f": {"type": "object", "additionalProperties": {"type": "object", "properties": {"b": {}}}},
    }
    more = {"required": ["a", "c"], "dependentRequired": {"a": ["c"]}, "$defs": {"b": {"properties": {"b": {}}}}}
    arguments = {"a": {"b": "b"}, "c": [{"b": 1}], "f": {"b": {"b": 2}}, "z": {"b": 3}}
    one = record([tool("t", schema, **more)], [{"name": "t", "arguments": arguments}])
    copy = renamed(one, {}, {"b": "B", "a": "A"})
    parameters = copy.tools[0]["function"]["parameters"]
    assert parameters == {
        "type": "object",
        "properties": {
            "A": {"type": "object", "properties": {"B": {"type": "string"}}, "required": ["B"], "default": {"B": "x"}},
            "c": {"type": "array", "items": {"type": "object", "properties": {"B": {}}, "optional": ["B"]}},
            "d": {"$ref": "#/properties/A/properties/B"},
            "e": {"anyOf": [{"type": "object", "properties": {"B": {}}}, {"type": "null"}], "enum": [{"B": 1}, None]},
            "f": {"type": "object", "additionalProperties": {"type": "object", "properties": {"B": {}}}},
        },
        "required": ["A", "c"],
        "dependentRequired": {"A": ["c"]},
        "$defs": {"b": {"properties": {"B": {}}}},
    }
    # a free key that happens to be spelled like a parameter, and an argument that no schema declares, stay
    [call] = copy.reference_calls
    assert call["arguments"] == {"A": {"B": "b"}, "c": [{"B": 1}], "f": {"b": {"B": 2}}, "z": {"b": 3}}


def test_calls_results_and_mentions_take_the_new_tool_name() -> None:
    messages = (
        {"role": "system", "content": "get_weather is there; get_weather_now and my.get_weather are others."},
        {"role": "user", "content": "Call get_weather. Search the web with 'search'."},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": '{"api": "get_weather"}'},
    )  # fmt: skip
    calls = [{"name": "get_weather", "arguments": {}}, {"name": "undeclared", "arguments": {}}]
    one = record([tool("get_weather", {}), tool("search", {})], calls, *messages)
    copy = renamed(one, {"get_weather": "fetchIt", "search": "web_find"})
    system, user, assistant, result = copy.messages
    assert system["content"] == "fetchIt is there; get_weather_now and my.get_weather are others."
    assert user["content"] == "Call fetchIt. Search the web with 'web_find'."  # an everyday word: in quotes only
    assert assistant["tool_calls"][0]["function"]["name"] == result["name"] == "fetchIt"
    assert result["content"] == '{"api": "fetchIt"}'
    assert [call["name"] for call in copy.reference_calls] == ["fetchIt", "undeclared"]
    assert copy.tools[0]["function"]["description"] == "Runs fetchIt."
    assert copy.tools[1]["function"]["description"] == "Runs search."


def test_parameter_names_in_descriptions_follow() -> None:
    """`Only together with user_id` said a name that the schema no longer had."""
    schema = {
        "user_id": {"description": "Of whom; see `city`, 'city' and \"city\". The city may be any."},
        "city": {"title": "city", "description": "Only together with user_id, never with my.user_id or user_id_2."},
        "inner": {"type": "object", "properties": {"startDate": {"description": "Not before (startDate)."}}},
    }
    first, second = tool("t", schema), tool("other", {"user_id": {}, "x": {}})
    first["function"]["description"] = "Needs user_id."
    second["function"]["description"] = "Takes the user_id, see t, and 'city' is a word here."
    messages = ({"role": "user", "content": "Use user_id and 'city'."},)
    new_names = {"user_id": "member", "city": "town", "startDate": "begin-day"}
    copy = renamed(record([first, second], [], *messages), {}, new_names)
    function = copy.tools[0]["function"]
    properties = function["parameters"]["properties"]
    assert function["description"] == "Needs member."
    assert properties["member"]["description"] == "Of whom; see `town`, 'town' and \"town\". The city may be any."
    assert properties["town"] == {
        "title": "city", "description": "Only together with member, never with my.user_id or user_id_2.",
    }  # fmt: skip
    assert properties["inner"]["properties"]["begin-day"]["description"] == "Not before (begin-day)."
    assert copy.tools[1]["function"]["description"] == "Takes the member, see t, and 'city' is a word here."
    assert copy.messages == list(messages)


def test_a_parameter_name_that_is_also_a_value_stays_in_descriptions() -> None:
    schema = {"date": {}, "price": {}, "by": {"description": "'date', 'price' or 'stars'", "enum": ["date", "stars"]}}
    one = record([tool("t", schema)], [{"name": "t", "arguments": {"by": "price"}}])
    copy = renamed(one, {}, {"date": "day", "price": "cost"})
    assert copy.tools[0]["function"]["parameters"]["properties"]["by"]["description"] == "'date', 'price' or 'stars'"


def test_a_name_without_letters_is_no_mention() -> None:
    one = record([tool("t", {"1": {"description": "After 1 day."}})], [])
    [copy] = renamed(one, {}, {"1": "first_one"}).tools
    assert copy["function"]["parameters"]["properties"] == {"first_one": {"description": "After 1 day."}}


def test_a_tool_name_wins_over_a_parameter_of_the_same_name() -> None:
    one = record([tool("a_b", {"a_b": {"description": "As a_b does."}})], [])
    [copy] = renamed(one, {"a_b": "tool.a_b"}, {"a_b": "c_d"}).tools
    assert copy["function"]["parameters"]["properties"] == {"c_d": {"description": "As tool.a_b does."}}


def test_tool_calls_that_are_no_list_stay() -> None:
    one = record([tool("t", {})], [], {"role": "assistant", "content": None, "tool_calls": 5})
    assert renamed(one, {"t": "u_v"}).messages == one.messages


def test_arguments_that_are_no_json_stay_as_they_are_written() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "t", "arguments": '{"a": '}}
    one = record([tool("t", {"a": {}})], [], {"role": "assistant", "content": None, "tool_calls": [call]})
    [message] = renamed(one, {"t": "u_v"}, {"a": "b"}).messages
    assert message["tool_calls"][0]["function"] == {"name": "u_v", "arguments": '{"a": '}


def test_a_tool_whose_name_is_a_listed_value_keeps_it() -> None:
    one = record([tool("route_to", {"next": {"enum": ["get_weather", "stop"]}}), tool("get_weather", {})], [])
    assert set(plan_renaming(one, Random(0)).tools) == {"route_to"}


@pytest.mark.parametrize("name", ["getUserID2", "get_user-id.2", "Get user ID 2", "get user id 2", "GetUserID_2"])
def test_names_in_any_style_have_the_same_words(name: str) -> None:
    assert words_of(name) == ["get", "user", "id", "2"]


def test_styles() -> None:
    words = ["get", "user", "id"]
    spelled = {style: spell(words, style) for style in ("snake", "camel", "kebab", "dotted", "pascal")}
    assert spelled == {
        "snake": "get_user_id", "camel": "getUserId", "kebab": "get-user-id", "dotted": "get.user_id",
        "pascal": "GetUserId",
    }  # fmt: skip
    assert spell(["search"], "dotted") == "search"


ODD_NAMES = st.sampled_from(["id", "Id", "ID", "x", "$", "_", "名前", "a b", "a_b", "aB", "9"])


@given(st.lists(ODD_NAMES, unique=True), SEEDS)
def test_names_that_differ_only_in_style_still_get_different_ones(names: list[str], seed: int) -> None:
    maker = NameMaker(Random(seed), ("snake",), ("input", "arg"), set(names))
    made = [maker.make(name) for name in names]
    assert len(set(made)) == len(names)
    assert not set(made) & set(names)
    assert all(made)


def test_property_names_are_found_at_every_depth_and_a_property_called_properties_is_one() -> None:
    schema = {"properties": {"properties": {"properties": {"in": {}}}, "list": {"items": [{"properties": {"at": {}}}]}}}
    assert list(property_names(schema)) == ["properties", "list", "in", "at"]
