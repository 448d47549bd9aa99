"""What may come next in an output: structurally sound, and in the schema's order."""

from __future__ import annotations

import json

import pytest
from drafting_setup import Setup
from hypothesis import given, settings
from hypothesis import strategies as st
from models import weather_tools

from schemafill.inference.drafting.cursor import cursor_of
from schemafill.inference.drafting.options import Option
from schemafill.inference.request import SOURCES
from schemafill.inference.toolcall.dialects import DIALECTS
from schemafill.inference.toolcall.output import parse_output
from schemafill.inference.toolcall.style import BARE, FENCED, FENCED_LINES, PRETTY

EACH_DIALECT = pytest.mark.parametrize("dialect", DIALECTS)
ODD_TOOLS = [
    {
        "name": "calendar.events-create",
        "parameters": {
            "type": "object",
            "properties": {
                'a"b': {"type": "boolean"},
                "größe": {"type": "string", "enum": ["S", "M"]},
                "deep": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "integer"}}}},
                },
                "free": {},
                "none": {"type": "object", "properties": {}},
                "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
            },
            "required": ["größe"],
        },
    },
    {"name": "ping"},
]


def texts(setup: Setup, written: str, begun: str = "") -> list[str]:
    return [option.text for option in setup.expander.expand(setup.cursor(written), begun)]


# ---------------------------------------- sound in structure


@EACH_DIALECT
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_planned_behind_an_option_is_what_the_tracker_reads_there(dialect, data):
    """Options at random to the end: each planned spot is the one that is read, and the whole is a list of calls."""
    tools = data.draw(st.sampled_from([weather_tools(), ODD_TOOLS]))
    setup = Setup(dialect, tools, style=data.draw(st.sampled_from([BARE, FENCED, PRETTY, FENCED_LINES])))
    tracker = setup.read("")
    cursor, written, names = cursor_of(tracker), "", []
    for step in range(60):
        options = setup.expander.expand(cursor)
        assert sum(option.probability for option in options) < 1.05
        assert all(option.text and option.source in SOURCES for option in options)
        assert all(0 <= option.marks[0] < option.marks[1] <= len(option.text) for option in options)
        options = [option for option in options if option.following is not None]
        if step > 25:  # come to an end
            options = [option for option in options if option.source == "close"] or options
        if options:
            option = data.draw(st.sampled_from(options))
        else:  # a value that nothing here guesses: the target writes one of its own
            text = (cursor.style.colon if cursor.kind == "value" else "") + '"own"'
            option = Option(text, 1.0, "guess", cursor.behind_value('"own"'), (0, len(text)))
        written += option.text
        if option.source == "name":
            names.append(option.following.call.tool)
        cursor = option.following
        if cursor.kind == "end":
            break
        tracker.advance(option.text.encode())
        if option.text[-1].isalnum():
            continue  # only what follows a number shows that it is whole
        read = cursor_of(tracker)
        assert (read.key, read.tools) == (cursor.key, cursor.tools)
        assert [frame.node for frame in read.frames] == [frame.node for frame in cursor.frames]
    else:
        raise AssertionError(written)
    parsed = parse_output(setup.dialect, setup.catalog, written, "eos")
    assert [call.name for call in parsed.tool_calls] == names
    for call in parsed.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


@EACH_DIALECT
@pytest.mark.parametrize("style", [BARE, FENCED], ids=["bare", "fenced"])
def test_a_call_as_the_schema_wants_it_is_among_the_options_at_every_step(dialect, style):
    setup = Setup(dialect, weather_tools(), style=style)
    options = setup.expander.expand(setup.cursor(""))
    first = next(option for option in options if option.following.call.tool == "get_weather")
    wanted = ['"city"', '"Oslo"', '"unit"', '"celsius"', '"days"', "3", '"place"', "{", '"zip"']
    cursor = first.following
    for text in wanted:
        option = next(o for o in setup.expander.expand(cursor) if o.text.endswith(text))
        cursor = option.following


# ----------------------------------------------------------------------------------------------------------------- keys


@EACH_DIALECT
def test_keys_come_in_the_schemas_order_and_never_twice(dialect):
    setup = Setup(dialect, weather_tools())
    header = setup.header("get_weather")
    assert [t for t in texts(setup, header) if t.endswith("y\"")] == ['"city"']
    behind = texts(setup, header + '"unit": "kelvin"')
    assert ', "days"' in behind and not any('"unit"' in t or '"city"' in t for t in behind)


def test_a_required_key_is_likelier_than_the_end_and_an_optional_one_leaves_it_open():
    setup = Setup("hermes", weather_tools())
    by_text = {o.text: o.probability for o in setup.expander.expand(setup.cursor(setup.header("get_weather")))}
    assert by_text['"city"'] > 0.9 > 0.1 > by_text["}"]
    late = setup.cursor(setup.header("get_weather") + '"city": "Oslo", "unit": "kelvin"')
    by_text = {o.text: o.probability for o in setup.expander.expand(late)}
    assert by_text["}"] > 0.05 and by_text[', "days"'] > 0.2


def test_the_keys_of_the_call_before_are_likelier():
    setup = Setup("mistral", weather_tools())
    required = '"city": "a", "unit": "kelvin"'
    for first, likelier in ((required, "}"), (required + ', "days": 1', ', "days"')):
        second = '}}, {"name": "get_weather", "arguments": {"city": "b", "unit": "x"'
        options = setup.expander.expand(setup.cursor(setup.header("get_weather") + first + second))
        assert max(options, key=lambda option: option.probability).text == likelier


def test_keys_outside_the_schema_are_expected_again():
    setup = Setup("mistral", weather_tools())
    written = setup.header("send_mail") + '"cc": "a"}}, {"name": "send_mail", "arguments": {'
    assert '"cc"' in texts(setup, written)


def test_an_empty_object_closes_without_white_space():
    setup = Setup("json", weather_tools(), style=PRETTY)
    assert "}" in texts(setup, '{"tool_calls": [{"name": "send_mail", "arguments": {')


# ---------------------------------------------------------------------------------------------------------------- tools


@EACH_DIALECT
def test_every_tool_of_a_short_catalogue_may_be_called_first(dialect):
    setup = Setup(dialect, weather_tools())
    options = setup.expander.expand(setup.cursor(""))
    assert {option.following.call.tool for option in options} == {"get_weather", "send_mail"}
    for option in options:
        assert cursor_of(setup.read(option.text)).call.tool == option.following.call.tool


def test_without_tools_no_call_is_planned():
    setup = Setup("hermes", [])
    assert setup.expander.expand(setup.cursor("")) == []


def test_a_call_of_an_unknown_tool_follows_the_schema_of_the_one_it_is_named_like():
    setup = Setup("hermes", weather_tools())
    begun = '<tool_call>\n{"name": "get_weather_now"'
    assert any(t.startswith(begun + ", ") for t in texts(setup, "", begun))
    assert '"city"' in texts(setup, begun + ', "arguments": {')
    assert '"city"' not in texts(setup, '<tool_call>\n{"name": "zzz", "arguments": {')


def test_a_name_that_is_the_start_of_another_is_not_taken_for_unknown():
    setup = Setup("hermes", [{"name": "get_item"}, {"name": "get_items"}])
    for name in ("get_item", "get_items"):
        begun = f'<tool_call>\n{{"name": "{name}"'
        fitting = [o for o in setup.expander.expand(setup.cursor(""), begun) if o.text.startswith(begun)]
        assert [option.following.call.tool for option in fitting] == [name]


@EACH_DIALECT
def test_behind_a_call_comes_the_next_or_the_end(dialect):
    setup = Setup(dialect, weather_tools())
    written = setup.header("send_mail") + '"to": "a"}'
    options = setup.expander.expand(setup.cursor(written))
    kinds = {option.following.kind for option in options}
    assert kinds == {"object", "end"}
    for option in options:
        parsed = parse_output(setup.dialect, setup.catalog, written + option.text, "eos")
        assert parsed.tool_calls[0].name == "send_mail" and parsed.content is None


# --------------------------------------------------------------------------------------------------------------- values


def test_values_known_to_the_schema_and_begun_ones():
    setup = Setup("hermes", weather_tools())
    header = setup.header("get_weather")
    assert {': "celsius"', ': "kelvin"'} <= set(texts(setup, header + '"unit"'))
    assert ': "São Paulo"' in texts(setup, header + '"city"', ': "São')
    assert ': "Sao P"' in texts(setup, header + '"city"', ': "Sao P')


def test_nested_containers_are_opened_and_left():
    setup = Setup("hermes", weather_tools())
    header = setup.header("get_weather")
    assert ": {" in texts(setup, header + '"place"') and ": [" in texts(setup, header + '"tags"')
    assert '"city"' in texts(setup, header + '"place": {')
    assert "]" in texts(setup, header + '"tags": ["a"')
    after = setup.expander.expand(setup.cursor(header + '"place": {"city": "x", "zip": "1"'))
    left = next(option for option in after if option.text == "}")
    assert left.following.kind == "object" and left.following.frames[-1].role == "args"


@EACH_DIALECT
def test_where_no_structure_is_known_there_is_no_cursor(dialect):
    setup = Setup(dialect, weather_tools())
    assert setup.cursor(setup.header("get_weather") + "oops") is None
    assert setup.cursor(setup.header("get_weather") + '"city": "\u5317'[:-1]) is not None


def test_probes_ask_for_the_values_of_later_fields():
    setup = Setup("hermes", weather_tools())
    header = setup.header("get_weather") + '"city": "Oslo"'
    cursor = setup.cursor(header)
    later = setup.expander.later_fields(cursor)
    assert [value.field_name for value in later][:1] == ["unit"]
    for value in later:
        text = setup.expander.probe_text(cursor, value)
        read = setup.cursor(header + text)
        assert read.kind == "value" and read.key == value.key
