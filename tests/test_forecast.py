"""Which tools the request's words point at."""

import pytest

from schemafill.inference.toolcall.forecast import forecast_groups, rank_tools, split_words
from schemafill.inference.toolcall.schema import parse_tools

CATALOG = parse_tools([
    {"name": "getWeather", "description": "Weather of a city"},
    {"name": "book_flight", "description": "Book a seat", "parameters": {"properties": {"airport": {}}}},
    {"name": "sendMail", "parameters": {"properties": {"to": {"description": "the recipient of the letter"}}}},
    {"name": "潮汐", "description": "Größe der Tide"},
])  # fmt: skip


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("what is the WEATHER like", 0),
        ("from which airport", 1),
        ("a letter for ann", 2),
        ("潮汐 bitte", 3),
        ("welche größe", 3),
        ("flight, flight, weather", 1),
    ],
)
def test_the_tool_whose_words_are_asked_for_comes_first(query, first):
    ranking = rank_tools(CATALOG, query)
    assert ranking[0] == first
    assert sorted(ranking) == [0, 1, 2, 3]


@pytest.mark.parametrize("query", ["", "nothing like this", "!?"])
def test_ties_keep_the_order_of_the_catalogue(query):
    assert rank_tools(CATALOG, query) == [0, 1, 2, 3]


def test_a_word_that_most_tools_share_still_counts_for_them():
    catalog = parse_tools([{"name": "other"}, {"name": "room_a"}, {"name": "room_b"}, {"name": "room_c"}])
    assert rank_tools(catalog, "room")[-1] == 0


def test_an_empty_catalogue_and_wordless_names_are_ranked():
    assert rank_tools(parse_tools([]), "query") == []
    assert rank_tools(parse_tools([{"name": "🌦"}, {"name": "🌊"}]), "query") == [0, 1]


def test_words_are_cut_at_case_underscores_and_digits():
    assert split_words("getHTTPResponse_v2 größe查询 Émile's") == [
        "get", "http", "response", "v", "2", "größe查询", "émile", "s",
    ]  # fmt: skip


def test_the_ranking_is_cycled_to_the_number_of_groups():
    assert forecast_groups([2, 0]) == [2, 0, 2]
    assert forecast_groups([2, 0, 1, 3]) == [2, 0, 1]
    assert forecast_groups([1], size=4) == [1, 1, 1, 1]
    assert forecast_groups([]) == []
