"""Where an output stands, read from committed bytes: in any cut, well-formed or not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import weather_tools

from schemafill.inference.toolcall.dialects import DIALECTS, get_dialect
from schemafill.inference.toolcall.schema import parse_tools
from schemafill.inference.toolcall.style import StyleMemory
from schemafill.inference.toolcall.tracker import Tracker

CATALOG = parse_tools(weather_tools())
WEATHER = {"city": 'Zürich "8"', "place": {"zip": "", "city": "x"}, "tags": ["a,b", 1.5, None], "days": 3}
CALLS = [("get_weather", WEATHER), ("send_mail", {}), ("unknown.tool", {"urgent": True, "é": {}})]


def outputs(dialect: str) -> dict[str, str]:
    """The same three calls as a target of the dialect may lay them out."""
    key = "parameters" if dialect == "llama3" else "arguments"
    calls = [{"name": name, key: arguments} for name, arguments in CALLS]
    dump = {
        "spaced": lambda value: json.dumps(value, ensure_ascii=False),
        "compact": lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        "pretty": lambda value: json.dumps(value, ensure_ascii=False, indent=2),
        "wide": lambda value: json.dumps(value, ensure_ascii=True, indent=4),
    }
    around = {
        "json": lambda write: write({"tool_calls": calls}),
        "hermes": lambda write: "\n".join(f"<tool_call>\n{write(call)}\n</tool_call>" for call in calls),
        "mistral": lambda write: "[TOOL_CALLS] " + write(calls),
        "llama3": lambda write: "; ".join(map(write, calls)),
    }[dialect]
    texts = {name: around(write) for name, write in dump.items()}
    if dialect == "json":
        texts["fenced"] = "```json\n" + texts["pretty"]
    if dialect == "llama3":
        texts["marked"] = "<|python_tag|>" + texts["spaced"]
    if dialect == "hermes":
        texts["after reasoning"] = "<think>\nShould I write {}?\n</think>\n\n" + texts["spaced"]
        texts["after prose"] = "I use a tool {now}.\n" + texts["spaced"]
    return texts


ALL_OUTPUTS = [
    pytest.param(dialect, text, id=f"{dialect}-{name}")
    for dialect in DIALECTS
    for name, text in outputs(dialect).items()
]
EACH_DIALECT = pytest.mark.parametrize("dialect", DIALECTS)


def tracker(dialect: str) -> Tracker:
    return Tracker(get_dialect(dialect), CATALOG, StyleMemory(dialect).guesses()[0][0])


def read(dialect: str, *pieces: bytes | str) -> Tracker:
    made = tracker(dialect)
    for piece in pieces:
        made.advance(piece.encode() if isinstance(piece, str) else piece)
    return made


def values(tracker_: Tracker) -> list:
    return [(call.tool, {key: json.loads(text) for key, text in call.fields}) for call in tracker_.state.calls]


@pytest.mark.parametrize(("dialect", "text"), ALL_OUTPUTS)
def test_finished_calls_are_known_with_their_tools_keys_and_values(dialect, text):
    whole = read(dialect, text)
    assert values(whole) == CALLS
    assert whole.state.text == text
    assert whole.state.kind == ("done" if dialect in ("json", "mistral") else "after_args")
    assert whole.place.call_index == 3
    body = text[: text.index("unknown.tool") + 30]
    assert values(read(dialect, body))[:2] == CALLS[:2]


@pytest.mark.parametrize(("dialect", "text"), ALL_OUTPUTS)
def test_any_cut_gives_the_same_state(dialect, text):
    data = text.encode()
    whole = read(dialect, data).state
    assert read(dialect, *(data[at : at + 1] for at in range(len(data)))).state == whole
    for at in range(0, len(data), 1 if len(data) < 420 else 9):  # the long ones are mostly indentation
        assert read(dialect, data[:at], data[at:]).state == whole


@pytest.mark.parametrize(("dialect", "text"), ALL_OUTPUTS)
def test_going_back_to_a_snapshot_equals_never_having_gone_on(dialect, text):
    data, going = text.encode(), tracker(dialect)
    for at in range(0, len(data), 3):
        before = going.snapshot()
        place = going.place
        going.advance(data[at : at + 40])
        going.advance(b'"}]{,\xff')
        going.restore(before)
        assert (going.state, going.place) == (before, place)
        going.advance(data[at : at + 3])
    assert going.state == read(dialect, data).state


# --------------------------------------------------------------------------------------------------------------- places

PLACES = [
    # what was written, kind, what stands at the place, keys of the innermost container
    ("", "open", "", None),
    ('"city": "Os', "value", ': "Os', ("city",)),
    ("", "object", "", ()),
    ('"ci', "object", '"ci', ()),
    ('"city"', "value", "", ("city",)),
    ('"city": ', "value", ": ", ("city",)),
    ('"city": "Oslo"', "object", "", ("city",)),
    ('"city": "Oslo",', "object", ",", ("city",)),
    ('"city": "Oslo", "uni', "object", ', "uni', ("city",)),
    ('"city": "a\\"', "value", ': "a\\"', ("city",)),
    ('"days": 1', "value", ": 1", ("days",)),
    ('"days": 12, ', "object", ", ", ("days",)),
    ('"place": {', "object", "", ()),
    ('"place": {"zip": "1"', "object", "", ("zip",)),
    ('"place": {"zip": "1"}', "object", "", ("place",)),
    ('"tags": [', "array", "", None),
    ('"tags": ["a"', "array", "", None),
    ('"tags": ["a", ', "array", ", ", None),
    ('"tags": ["a"], ', "object", ", ", ("tags",)),
    ("}", "after_args", "", ("name", "arguments")),
]


@EACH_DIALECT
@pytest.mark.parametrize(("written", "kind", "partial", "keys"), PLACES[1:])
def test_places_inside_the_arguments(dialect, written, kind, partial, keys):
    key = "parameters" if dialect == "llama3" else "arguments"
    header = get_dialect(dialect).opening + f'{{"name": "get_weather", "{key}": {{'
    place = read(dialect, header + written).place
    assert (place.kind, place.partial, place.call_index) == (kind, partial, 0)
    if keys is not None:
        expected = ("name", key) if kind == "after_args" else keys
        assert place.frames[-1].keys == expected
    assert place.call.tool == "get_weather"


@EACH_DIALECT
def test_before_the_first_call_all_that_is_written_stands_at_the_place(dialect):
    opening = get_dialect(dialect).opening + '{"name": "get_wea'
    for size in range(len(opening)):
        place = read(dialect, opening[:size]).place
        assert (place.kind, place.partial, place.call_index) == ("open", opening[:size], 0)


@EACH_DIALECT
def test_between_calls_the_text_since_the_arguments_stands_at_the_place(dialect):
    form = get_dialect(dialect)
    header = f'{{"name": "send_mail", "{form.arguments_key}": {{'
    first = form.opening + header + '"to": "a"}'
    between = "}" + form.separator + '{"name": "get'
    for size in range(len(between)):
        place = read(dialect, first + between[:size]).place
        assert (place.kind, place.partial) == ("after_args", between[:size])
        assert place.call_index == (size > 0)
    second = read(dialect, first + "}" + form.separator + header)
    assert (second.place.kind, second.place.call_index) == ("object", 1)
    assert second.state.calls[0].fields == (("to", '"a"'),)


@EACH_DIALECT
def test_frames_carry_the_schema_of_what_they_hold(dialect):
    header = get_dialect(dialect).opening + f'{{"name": "get_weather", "{get_dialect(dialect).arguments_key}": {{'
    node = CATALOG.get("get_weather").parameters
    assert read(dialect, header).place.frames[-1].node is node
    assert read(dialect, header + '"place": {').place.frames[-1].node is node.properties["place"]
    assert read(dialect, header + '"tags": [').place.frames[-1].node is node.properties["tags"]
    assert read(dialect, header + '"other": {').place.frames[-1].node is None
    unknown = header.replace("get_weather", "no_such_tool")
    assert read(dialect, unknown).place.frames[-1].node is None


def test_escaped_names_and_keys_are_read_as_what_they_mean():
    made = read("hermes", '<tool_call>{"name": "get\\u005fweather", "arguments": {"\\u0063ity": "a", "a\\"b": 1}}')
    assert values(made) == [("get_weather", {"city": "a", 'a"b': 1})]
    assert made.state.calls[0].fields[0] == ("city", '"a"')


def test_either_key_of_the_arguments_is_taken_and_remembered():
    for key in ("arguments", "parameters"):
        made = read("hermes", f'<tool_call>{{"name": "send_mail", "{key}": {{"to": "a"}}}}')
        assert values(made) == [("send_mail", {"to": "a"})]
        assert made.state.style.arguments_key == key


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("hermes", 'Use {"name": "get_weather", "arguments": {"city'),
        ("hermes", '<think>\n<tool_call>\n{"name": "get_weather", "arguments": {"city'),
        ("mistral", '[{"name": "get_weather", "arguments": {"city'),
        ("json", "Like {this} and [that"),
        ("llama3", "Like {this} and [that"),
    ],
)
def test_json_where_the_dialect_has_no_calls_is_text(dialect, text):
    place = read(dialect, text).place
    assert place.kind in ("open", "lost") and not place.frames


# ---------------------------------------- broken and strange


@EACH_DIALECT
def test_half_a_character_is_no_place_to_go_on_from(dialect):
    header = (
        get_dialect(dialect).opening + f'{{"name": "a", "{get_dialect(dialect).arguments_key}": {{"k": "'
    ).encode()
    letter = "北".encode()
    for size in (1, 2):
        made = read(dialect, header + letter[:size])
        assert made.place.kind == "lost"
        made.advance(letter[size:] + b'"')
        assert made.place.kind == "object"
        assert made.state.call.fields == (("k", '"北"'),)


@EACH_DIALECT
@pytest.mark.parametrize(
    "broken", ['"city": nut "x": }', '"city" "Oslo"}}', "city: 1}", '"a": 1]', '"a": {]', ", }", "}}}}"]
)
def test_text_that_is_no_json_loses_track_until_the_next_call(dialect, broken):
    form = get_dialect(dialect)
    header = f'{{"name": "get_weather", "{form.arguments_key}": {{'
    made = read(dialect, form.opening + header + broken)
    assert made.place.kind in ("lost", "after_args", "done", "object")
    again = (" and so on\n" + form.call_marker + header + '"city": "Oslo"').encode()
    before = made.snapshot()
    made.advance(again)
    if made.state.kind != "done":
        assert made.place.kind == "object"
        assert made.state.call.fields[-1] == ("city", '"Oslo"')
    whole = made.state
    made.restore(before)
    for at in range(len(again)):  # the next header comes in pieces
        made.advance(again[at : at + 1])
    assert made.state == whole


def test_a_tool_that_is_named_after_its_arguments_has_no_schema():
    made = read("hermes", '<tool_call>\n{"arguments": {"city": "Oslo"}, "name": "get_weather"}')
    assert values(made) == [("get_weather", {"city": "Oslo"})]


def test_nesting_beyond_the_limit_loses_track_and_nothing_else():
    header = '<tool_call>\n{"name": "get_weather", "arguments": {"tags": '
    made = read("hermes", header + "[" * 5000 + "]" * 5000)
    assert made.place.kind == "lost"
    made.advance(b'<tool_call>\n{"name": "send_mail", "arguments": {')
    assert made.place.call.tool == "send_mail"


PIECES = st.sampled_from(
    ['{"', '"}', '": ', ", ", "[", "]", "{", "}", '"', "\\", ":", "1", "-2.5", "null", "\n", "  ", "é北", "name",
     "arguments",
     "parameters", "tool_calls", '{"name": "get_weather", "arguments": {', '"city": "Oslo"', "<tool_call>\n",
     "</tool_call>",
     "[TOOL_CALLS] [", "<|python_tag|>", "<think>", "</think>", "```json\n", "```", "; ", "place", "tags"]
)  # fmt: skip


@EACH_DIALECT
@given(pieces=st.lists(PIECES | st.binary(max_size=3), max_size=40), data=st.data())
def test_any_bytes_in_any_cut_give_the_same_state(dialect, pieces, data):
    text = b"".join(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
    whole = read(dialect, text)
    cut = data.draw(st.integers(0, len(text)))
    assert read(dialect, text[:cut], text[cut:]).state == whole.state
    place = whole.place
    assert whole.state.text.endswith(place.partial)
    assert place.call_index == len(whole.state.calls)
