"""Which JSON in a target's text is a call, and what of it is passed on."""

import json

import pytest

from schemafill.inference.request import ToolCall
from schemafill.inference.toolcall.dialects import DIALECTS, get_dialect, render_calls
from schemafill.inference.toolcall.output import parse_output
from schemafill.inference.toolcall.schema import parse_tools

CATALOG = parse_tools([{"name": "get_tide"}, {"name": "ping"}])
CALL_LIST = '{"tool_calls": [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]}'
PRETTY_LIST = json.dumps(json.loads(CALL_LIST), indent=2)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (CALL_LIST, None),
        (PRETTY_LIST, None),
        (f"```json\n{CALL_LIST}\n```", None),
        (f"```\n{PRETTY_LIST}", None),
        (f"Both, [then] {{so}}:\n```json\n{CALL_LIST}\n```\nDone.", "Both, [then] {so}:\n\nDone."),
        (f"Sure: {CALL_LIST} ok", "Sure:  ok"),
        ('[{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]', None),
        ('{"name": "a", "arguments": {"x": 1}}\n{"name": "b", "parameters": {}}', None),
        ('{"arguments": {"x": 1}, "name": "a"}, {"id": 7, "name": "b", "arguments": null}', None),
        ('{"tool_calls": [{"name": "a", "arguments": {"x": 1}}], {"name": "b", "arguments": {}}]}', None),
        ('{"tool_calls": [{"name": "a", "arguments": {"x": 1}}}}, {"name": "b", "arguments": {}}]}', None),
    ],
)
def test_json_calls_are_found_in_every_dress(text, content):
    parsed = parse_output(get_dialect("json"), CATALOG, text, "object")
    assert [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls] == [("a", {"x": 1}), ("b", {})]
    assert (parsed.content, parsed.unfinished, parsed.finish_reason) == (content, None, "tool_calls")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "age": 5}', '{"tool_calls": []}', '[1, {"a": [2]}]', '```json\n{"a": 1}\n```', '{"na',
        '[{"a": 1}, {"b": 2}]', "```py\nx[0]```", '```js b {"a": 1}', '{ "a" b: {c}', "a { b } [c] `d` < e",
        '{"note": {"name": "ping", "arguments": {}}}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("finish", ["eos", "object"])
def test_json_that_is_no_call_is_content(text, finish):
    parsed = parse_output(get_dialect("json"), CATALOG, text, finish)
    assert (parsed.tool_calls, parsed.content, parsed.unfinished, parsed.finish_reason) == ([], text, None, "stop")


@pytest.mark.parametrize("dialect", ["json", "llama3"])
def test_a_bare_object_with_a_known_name_alone_is_a_call(dialect):
    assert parse_output(get_dialect(dialect), CATALOG, '{"name": "ping"}', "eos").tool_calls == [ToolCall("ping", "{}")]
    assert parse_output(get_dialect(dialect), CATALOG, '{"name": "pong"}', "eos").content == '{"name": "pong"}'


@pytest.mark.parametrize(
    "arguments",
    ['{ "a" :1.0,\n"b": 1e5, "c": "\\u00e9\\/", "a": 2 }', "[1, 2]", '"text"', "7", "true", '{"t": (1, 2), "u": True}'],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_arguments_come_out_as_written(dialect, arguments):
    call = ToolCall("unheard.of", arguments)
    text = render_calls(get_dialect(dialect), [call])
    assert parse_output(get_dialect(dialect), CATALOG, text, "eos").tool_calls == [call]


@pytest.mark.parametrize(
    ("text", "arguments", "content"),
    [
        ('<tool_call>\n{"name": "a", "arguments": {"x": nut}\n</tool_call>', '{"x": nut}', None),
        ('<tool_call>\n{"name": "a", "arguments": {"x": "nut"\n</tool_call>\nDone', '{"x": "nut"\n', "Done"),
        ('<tool_call>\n{"name": "a", "arguments": {"x": 1}}}\n</tool_call>', '{"x": 1}', None),
        ('<tool_call>\n{"name": "a", "arguments": {"x": 1}} oops</tool_call>', '{"x": 1}', "oops"),
    ],
)
def test_a_call_in_broken_json_keeps_its_text(text, arguments, content):
    parsed = parse_output(get_dialect("hermes"), CATALOG, text, "eos")
    assert (parsed.tool_calls, parsed.content) == ([ToolCall("a", arguments)], content)


def test_a_target_that_stops_before_the_last_brace_has_made_its_call():
    text = '<tool_call>\n{"name": "ping", "arguments": {"a": 1}'
    parsed = parse_output(get_dialect("hermes"), CATALOG, text, "eos")
    assert (parsed.tool_calls, parsed.unfinished) == ([ToolCall("ping", '{"a": 1}')], None)


def test_the_first_name_and_the_first_arguments_count():
    text = '{"name": "a", "arguments": {"x": 1}, "parameters": {"y": 2}, "name": "b"}'
    assert parse_output(get_dialect("json"), CATALOG, text, "eos").tool_calls == [ToolCall("a", '{"x": 1}')]


@pytest.mark.parametrize(
    ("written", "name"), [("\\u6f6e \\ud83c\\udf0a", "潮 🌊"), ("\\ud83c", "\\ud83c"), ("a\\q", "a\\q")]
)
def test_a_name_is_decoded_where_that_gives_text(written, name):
    text = f'{{"name": "{written}", "arguments": {{}}}}'
    assert parse_output(get_dialect("json"), CATALOG, text, "eos").tool_calls == [ToolCall(name, "{}")]
