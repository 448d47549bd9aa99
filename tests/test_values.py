"""Guesses of argument values: where they come from, in which form, and that they are only ever well-formed."""

from __future__ import annotations

import json

import pytest
from drafting_setup import field
from hypothesis import given
from hypothesis import strategies as st

from schemafill.inference.drafting.candidates import MOST
from schemafill.inference.drafting.growth import grow
from schemafill.inference.drafting.spans import RequestSpans
from schemafill.inference.drafting.values import ValueGuesser
from schemafill.inference.request import SOURCES


def guesses(request: str, schema: dict | None, key: str = "a", **place) -> list:
    """Guessed values, best first."""
    return [json.loads(c.text) for c in ValueGuesser(request).candidates(field(schema, key, **place))]


def best(request: str, schema: dict | None, key: str = "a", **place) -> object:
    return guesses(request, schema, key, **place)[0]


def test_choices_are_all_guessed_and_those_in_the_request_first():
    unit = {"type": "string", "enum": ["celsius", "kelvin", "fahrenheit"]}
    assert guesses("In kelvin, please.", unit)[0] == "kelvin"
    assert set(guesses("How warm is it?", unit)) == {"celsius", "kelvin", "fahrenheit"}
    assert guesses("x", {"enum": [3, None, "a"]}) == [3, None, "a"]
    assert guesses("x", {"const": "fixed"}) == ["fixed"]


def test_nothing_outside_the_choices_is_guessed():
    assert guesses('Take "green" or 7.', {"type": "string", "enum": ["red"]}) == ["red"]


def test_booleans_and_defaults():
    assert set(guesses("x", {"type": "boolean"})) == {True, False}
    assert guesses("no number", {"type": "integer", "default": 20}) == [20]
    assert None in guesses("x", {"type": ["string", "null"], "default": None})


@pytest.mark.parametrize(
    ("request_text", "schema", "key", "expected"),
    [
        ('Look for "net revenue" in the files.', {"type": "string"}, "query", "net revenue"),
        ("Play a song by Nina Simone now.", {"type": "string"}, "artist", "Nina Simone"),
        ("Write to ann@x.org, please.", {"type": "string"}, "email", "ann@x.org"),
        ("For 12 people.", {"type": "integer"}, "people", 12),
        ("A loan of 250,000 over 30 years.", {"type": "integer"}, "amount", 250000),
        ("Set it to 16.5 degrees.", {"type": "number"}, "degrees", 16.5),
        ("Give me three of them.", {"type": "integer"}, "count", 3),
        ("It is -40 here.", {"type": "number"}, "value", -40),
        ("On March 7, 2025 at noon.", {"type": "string", "format": "date"}, "day", "2025-03-07"),
        ("On 7th of March 2025.", {"type": "string", "description": "Date YYYY-MM-DD"}, "when", "2025-03-07"),
        ("On 2025-03-07.", {"type": "string", "description": "Day as MM/DD/YYYY"}, "date", "03/07/2025"),
        ("Of [3, 8, 1] the median.", {"type": "array", "items": {"type": "integer"}}, "numbers", [3, 8, 1]),
        ("Of 3, 8, 1 and 9.", {"type": "array", "items": {"type": "integer"}}, "numbers", [3, 8, 1, 9]),
        ("Tag it red, green and blue.", {"type": "array", "items": {"type": "string"}}, "t", ["red", "green", "blue"]),
        ("Tag it red, green, or blue.", {"type": "array", "items": {"type": "string"}}, "t", ["red", "green", "blue"]),
    ],
)
def test_values_that_the_request_tells_come_first(request_text, schema, key, expected):
    assert best(request_text, schema, key) == expected


def test_of_several_values_those_not_used_yet_come_first():
    text = "Weather in Oslo, in Rome and in Lima."
    city = {"type": "string"}
    assert best(text, city, "city", earlier=[{"city": '"Oslo"'}]) == "Rome"
    assert best(text, city, "city", earlier=[{"city": '"Oslo"'}, {"city": '"Rome"'}]) == "Lima"
    assert best("From 10 to 20.", {"type": "integer"}, "end", written={"start": "10"}) == 20


def test_of_several_dates_those_behind_the_last_used_come_first():
    day = {"type": "string", "format": "date"}
    text = "On 2025-03-07, on 2025-03-09 and on 2025-03-11."
    assert best(text, day, "on", earlier=[{"on": '"2025-03-07"'}]) == "2025-03-09"
    assert best(text, day, "on", earlier=[{"on": '"2025-03-07"'}, {"on": '"2025-03-09"'}]) == "2025-03-11"


def test_what_all_calls_before_wrote_is_written_again():
    unit = {"type": "string"}
    earlier = [{"unit": '"metric"'}, {"unit": '"metric"'}]
    assert best("In Oslo and Rome.", unit, "unit", earlier=earlier) == "metric"
    other_tool = field(unit, "unit", earlier=earlier)
    other_tool = type(other_tool)(**{**vars(other_tool), "call": type(other_tool.call)("other")})
    texts = [c.text for c in ValueGuesser("In Oslo and Rome.").candidates(other_tool)]
    assert '"metric"' not in texts


def test_elements_of_a_told_list_are_guessed_at_their_places():
    schema = {"type": "string"}
    found = [best("Tag it red, green and blue.", schema, "tags", element=place) for place in range(3)]
    assert found == ["red", "green", "blue"]


def test_values_of_a_key_without_schema_are_guessed_too():
    assert best('Call it "blue".', None, "name") == "blue"


def test_sources_are_known_names_and_probabilities_leave_room():
    text = 'Send "a b" to Ann Lee at 9:30 on 2025-03-07 for 3.5 EUR or 20%, [1, 2] times, café.'
    for schema in ({}, {"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "array", "items": {}}):
        candidates = ValueGuesser(text).candidates(field(schema, "date", earlier=[{"date": "1"}]))
        assert len(candidates) <= MOST
        assert sum(c.probability for c in candidates) < 1
        assert all(c.source in SOURCES and c.probability > 0 for c in candidates)
        assert [c.probability for c in candidates] == sorted((c.probability for c in candidates), reverse=True)


def test_guesses_for_the_same_place_are_worked_out_once():
    guesser = ValueGuesser("Oslo")
    place = field({"type": "string"})
    assert guesser.candidates(place) is guesser.candidates(place)


SIGNS = st.sampled_from(
    ['"', "'", "`", "[", "]", ", ", " and ", "1,000", "-3", ".5", "1e9", "07", "2025-13-45", "31/12/2024", 
     "Feb 30, 2021", "%",
     "Ann", "de la", "a@b", "http://x/y", "\\", "\n", "“", "”", "é", "北", "\U0001f327", "{", "}", "0",
     "9:30 pm", "two", "May", " "]
)  # fmt: skip
TEXTS = st.lists(SIGNS | st.text(max_size=4), max_size=25).map("".join)
TYPES = [
    {}, {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"},
    {"type": "string", "format": "date"},
    {"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "number"}}, {"type": "array"},
    {"type": ["string", "null"], "description": "e.g. a, b or 'c'"}, {"type": "object"},
]  # fmt: skip


@given(TEXTS, st.sampled_from(TYPES), st.sampled_from(["date", "a_count", "Time", "", "北"]), st.integers(-1, 2))
def test_every_guess_is_a_json_value_whatever_the_request_says(text, schema, key, element):
    candidates = ValueGuesser(text).candidates(field(schema, key, element=element, written={"b": '"Ann"'}))
    for candidate in candidates:
        json.loads(candidate.text)
        candidate.text.encode()


# ----------------------------------------------------------------------------------------------------------------- grow


def grown(request: str, begun: str) -> list[str]:
    return [candidate.text for candidate in grow(RequestSpans(request), begun)]


def test_a_begun_string_goes_on_as_it_stands_in_the_request():
    text = "Turn on the light in the dining room at once."
    assert grown(text, '"dining')[0].startswith('"dining room')
    assert '"dining room"' in grown(text, '"dining')
    assert '"Light in the dining room"' in grown(text, '"Light in the dining')  # by its last word


def test_a_begun_value_may_be_whole_already():
    assert grown("Nothing like it.", '"blue') == ['"blue"']
    assert grown("x", '"done", "next') == ['"done"']
    assert grown("x", "12}") == ["12"]
    assert grown("x", "true") == ["true"]


def test_a_begun_number_goes_on_as_numbers_of_the_request_do():
    assert grown("Of 1250 and 12.5 and 7.", "12") == ["1250", "12.5", "12"]


@given(TEXTS, TEXTS, st.sampled_from(['"', "", "-", "1", "{", '"\\']))
def test_what_grows_from_a_beginning_begins_with_it(request_text, rest, first):
    begun = first + rest
    if not begun:
        return
    if "\\" in begun or not begun.isprintable():
        return  # what is spelt with escapes is not found in a request; such candidates fit no output and are dropped
    for candidate in grow(RequestSpans(request_text), begun):
        assert candidate.text.startswith(begun) or begun.startswith(candidate.text)
        assert 0 < candidate.probability <= 1
        candidate.text.encode()
