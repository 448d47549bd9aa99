"""The search over continuations: sound texts, bounded work, and evidence that outweighs guesses."""

from __future__ import annotations

import json

import pytest
from drafting_setup import Setup
from models import weather_tools

from schemafill.inference.drafting.cursor import cursor_of
from schemafill.inference.drafting.paths import MOST_LEAVES, Evidence, Path, search_paths
from schemafill.inference.toolcall.dialects import DIALECTS

ARGUMENTS = {"city": "Oslo", "unit": "celsius", "days": 3, "tags": ["a", "b"], "place": {"city": "x"}}


def search(setup: Setup, written: str, evidence: Evidence | None = None) -> list[Path]:
    tracker = setup.read(written)
    cursor = cursor_of(tracker)
    return [] if cursor is None else search_paths(setup.expander, cursor, tracker.place.partial, evidence or Evidence())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_path_from_every_place_of_an_output_is_sound(dialect):
    """Read behind what is written, no path breaks the structure; its parts lie side by side and get less likely."""
    setup = Setup(dialect, weather_tools())
    written = setup.header("get_weather") + json.dumps(ARGUMENTS)[1:] + setup.dialect.closing[:1]
    num_paths = 0
    for size in range(len(written)):
        paths = search(setup, written[:size])
        partial = setup.read(written[:size]).place.partial
        assert len(paths) <= MOST_LEAVES
        num_paths += len(paths)
        for path in paths:
            assert setup.read(written[:size] + path.text).state.kind != "lost", path.text
            starts = [part.start for part in path.parts]
            ends = [part.end for part in path.parts]
            assert starts == [-len(partial), *ends[:-1]] and ends[-1] == len(path.text)
            likely = [part.probability for part in path.parts]
            assert likely == sorted(likely, reverse=True) and likely[-1] == path.probability <= 1
            assert path.is_whole == (path.cursor is not None and path.cursor.kind == "end")
    assert num_paths > len(written)


def test_the_likeliest_path_comes_first_and_paths_share_their_parts():
    setup = Setup("hermes", weather_tools())
    paths = search(setup, "")
    assert paths[0].text.startswith('<tool_call>\n{"name": "get_weather", "arguments": {"city": ')
    numbers = [[part.number for part in path.parts] for path in paths]
    shared = [one for one in numbers[1:] if one[0] == numbers[0][0]]
    assert shared
    for path in paths:
        for other in paths:
            common = {part.number for part in path.parts} & {part.number for part in other.parts}
            for number in common:
                end = next(part.end for part in path.parts if part.number == number)
                assert path.text[:end] == other.text[:end]


def test_paths_go_on_from_what_stands_at_the_place():
    setup = Setup("hermes", weather_tools())
    header = setup.header("get_weather")
    for written, rest in (
        (header + '"city": "Os', 'lo"'),
        (header + '"city": "Oslo", "un', 'it": '),
        (header + '"city": "Oslo",', ' "unit": '),
        ('<tool_call>\n{"name": "send', '_mail"'),
    ):
        assert any(path.text.startswith(rest) for path in search(setup, written)[:3]), written


def test_nothing_is_proposed_behind_text_that_fits_no_option():
    setup = Setup("hermes", weather_tools())
    assert search(setup, "Sure, I will look.") == []
    assert search(setup, setup.header("get_weather") + '"nope": "x", "and') == []


def test_evidence_outweighs_every_guess():
    setup = Setup("hermes", weather_tools())
    written = setup.header("get_weather") + '"city": "Oslo", "unit"'
    spot = setup.cursor(written).key
    evidence = Evidence()
    before = {path.text.split(",")[0][:11] for path in search(setup, written)}
    assert {': "celsius"', ': "kelvin"'[:11]} <= before
    for value in ("kelvin", "celsius"):
        evidence.texts[spot] = f': "{value[0]}'
        found = search(setup, written, evidence)
        agreeing = sum(path.probability for path in found if path.text.startswith(f': "{value[0]}'))
        assert agreeing > 3 * sum(path.probability for path in found) / 4
        assert any(path.text.startswith(f': "{value}"') for path in found)
    evidence.add(spot, ': "qu')  # what no schema knows
    assert any(path.text.startswith(': "qu') for path in search(setup, written, evidence))


def test_evidence_for_a_later_spot_is_used_on_the_way_there():
    setup = Setup("hermes", weather_tools())
    header = setup.header("get_weather")
    evidence = Evidence()
    evidence.add(setup.cursor(header + '"city": "anything", "unit"').key, ': "kelvin"')
    likely = search(setup, header, evidence)[0].text
    assert '"unit": "kelvin"' in likely


def test_evidence_keeps_the_newest_word_and_the_longer_of_two_that_agree():
    evidence = Evidence()
    evidence.add(("a",), ': "Os')
    evidence.add(("a",), ': "O')
    assert evidence.texts[("a",)] == ': "Os'
    evidence.add(("a",), ': "Oslo"')
    assert evidence.texts[("a",)] == ': "Oslo"'
    evidence.add(("a",), ': "R')
    evidence.add(("a",), "")
    assert evidence.texts[("a",)] == ': "R'


def test_one_search_is_bounded_for_large_catalogues():
    properties = {f"key_{i}": {"type": "string", "enum": [f"v{j}" for j in range(30)]} for i in range(60)}
    tools = [{"name": f"tool_{n}", "parameters": {"type": "object", "properties": properties}} for n in range(40)]
    setup = Setup("json", tools)
    calls = []
    real = setup.expander.expand
    setup.expander.expand = lambda *args: calls.append(args) or real(*args)
    paths = search(setup, "")
    assert len(calls) <= 60 and 0 < len(paths) <= MOST_LEAVES
    assert all(len(path.text) < 2000 for path in paths)
