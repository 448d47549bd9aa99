"""How a target lays out its calls: what is learned from an output spells that output again."""

from __future__ import annotations

import json

import pytest
from test_tracker import CATALOG

from schemafill.inference.toolcall.dialects import DIALECTS, Dialect, get_dialect
from schemafill.inference.toolcall.style import (
    BARE,
    FENCED,
    FENCED_LINES,
    PRETTY,
    PRIORS,
    Style,
    StyleMemory,
    between_calls,
    call_end,
    call_header,
    closing,
    opening,
    quoted,
)
from schemafill.inference.toolcall.tracker import Tracker

CALLS = [
    ("get_weather", {"city": "Zürich", "place": {"zip": "1", "city": "x"}, "tags": ["a", "b"]}),
    ("send_mail", {"to": "a@b", "urgent": True}),
]
STYLES = {
    "bare": BARE,
    "fenced": FENCED,
    "pretty": PRETTY,
    "lines": FENCED_LINES,
    "compact": Style(
        colon=":", spaces=tuple(sorted({(r, "item"): "" for r in ("call", "args", "list", "array")}.items()))
    ),
    "wide": Style(unit="    ", spaces=PRETTY.spaces),
    "tight lists": Style(spaces=(*PRETTY.spaces[:3], *PRETTY.spaces[6:])),
}


def spell_value(style: Style, value: object, depth: int, role: str) -> str:
    """A value with the style's white space; `depth` containers are open around it."""
    if isinstance(value, dict):
        parts = [
            quoted(key) + style.colon + spell_value(style, part, depth + 1, "object") for key, part in value.items()
        ]
        signs = "{}"
    elif isinstance(value, list):
        parts, signs, role = [spell_value(style, part, depth + 1, "object") for part in value], "[]", "array"
    else:
        return json.dumps(value, ensure_ascii=False)
    if not parts:
        return signs
    separator = "," + style.space(role, "item", depth + 1)
    inside = style.space(role, "open", depth + 1) + separator.join(parts) + style.space(role, "close", depth + 1)
    return signs[0] + inside + signs[1]


def spell(style: Style, dialect: Dialect, calls: list[tuple[str, dict]]) -> str:
    """A whole output made of what the style says about its parts."""
    bodies = [spell_value(style, arguments, dialect.call_depth + 1, "args")[1:] for _, arguments in calls]
    written = [
        call_header(style, dialect, name) + body + call_end(style, dialect)
        for (name, _), body in zip(calls, bodies, strict=True)
    ]
    return opening(style, dialect) + between_calls(style, dialect).join(written) + closing(style, dialect)


def learned(dialect: str, text: str, start: Style = BARE) -> Style:
    tracker = Tracker(get_dialect(dialect), CATALOG, start)
    tracker.advance(text.encode())
    return tracker.state.style


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("start", [BARE, FENCED], ids=["from bare", "from fenced"])
def test_the_style_learned_from_an_output_spells_it_again(dialect, name, start):
    style = STYLES[name]
    text = spell(style, get_dialect(dialect), CALLS)
    found = learned(dialect, text, start)
    again = spell(found, get_dialect(dialect), CALLS)
    if dialect != "json":  # a prefix is learned in the one dialect whose outputs have one
        again, text = (part.removeprefix(style.prefix).removeprefix(start.prefix) for part in (again, text))
        again, text = again.removesuffix("\n```"), text.removesuffix("\n```")
    assert again == text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_spelled_calls_are_the_calls(dialect):
    form = get_dialect(dialect)
    for style in STYLES.values():
        tracker = Tracker(form, CATALOG, style)
        tracker.advance(spell(style, form, CALLS).encode())
        found = [(call.tool, {key: json.loads(text) for key, text in call.fields}) for call in tracker.state.calls]
        assert found == CALLS


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ["bare", "pretty", "lines", "compact"])
def test_one_call_is_enough_to_spell_the_next(dialect, name):
    """White space between two calls cannot be known from one; everything else of the second call is."""
    form, style = get_dialect(dialect), STYLES[name]
    first = spell(style, form, CALLS[:1])
    known = learned(dialect, first[: first.rindex("}")], BARE)
    name, arguments = CALLS[1]
    assert call_header(known, form, name) == call_header(style, form, name)
    depth = form.call_depth + 1
    assert spell_value(known, arguments, depth, "args") == spell_value(style, arguments, depth, "args")


def test_json_layouts_of_the_standard_library():
    for options in ({}, {"indent": 2}, {"indent": 3}, {"separators": (",", ":")}):
        value = {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in CALLS]}
        text = json.dumps(value, ensure_ascii=False, **options)
        assert spell(learned("json", text), get_dialect("json"), CALLS) == text


def test_an_indentation_counts_the_open_containers():
    style = PRETTY
    assert [style.space("args", "open", depth) for depth in (1, 2, 4)] == ["\n  ", "\n    ", "\n        "]
    assert style.space("args", "close", 2) == "\n  "
    assert BARE.space("args", "item", 3) == " "


def test_learning_what_is_known_gives_the_same_style():
    assert PRETTY.learn("args", "open", "\n      ", 3) is PRETTY
    changed = PRETTY.learn("args", "open", "", 3)
    assert changed != PRETTY
    assert changed.learn("args", "open", "\n      ", 3) == PRETTY


# --------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_memory_starts_with_the_dialects_usual_styles(dialect):
    guesses = StyleMemory(dialect).guesses()
    assert guesses[0][0] == PRIORS[dialect][0][0]
    assert sum(share for _, share in guesses) <= 1.0 + 1e-9
    assert [share for _, share in guesses] == sorted((share for _, share in guesses), reverse=True)


def test_what_was_seen_outweighs_the_usual():
    memory = StyleMemory("json")
    for _ in range(4):
        memory.add(PRETTY)
    assert memory.guesses()[0][0] == PRETTY
    own = Style(unit="   ", spaces=PRETTY.spaces)
    for _ in range(20):
        memory.add(own)
    assert memory.guesses()[0][0] == own


def test_a_memory_is_bounded_and_keeps_what_comes_often():
    memory = StyleMemory("json")
    memory.add(PRETTY)
    memory.add(PRETTY)
    for number in range(100):
        memory.add(Style(unit=" " * number))
    assert len(memory.counts) <= memory.limit
    assert memory.counts[PRETTY] == 2
