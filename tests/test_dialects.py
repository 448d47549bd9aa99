"""How each family of targets writes its calls."""

import pytest

from schemafill.inference.request import ToolCall, UserError
from schemafill.inference.toolcall.dialects import DIALECTS, get_dialect, render_calls


def test_calls_are_rendered_as_each_family_writes_them():
    calls = [ToolCall("ping", "{}"), ToolCall("größe", '{"x":1}')]
    assert {name: render_calls(dialect, calls) for name, dialect in DIALECTS.items()} == {
        "json": '{"tool_calls": [{"name": "ping", "arguments": {}}, {"name": "größe", "arguments": {"x":1}}]}',
        "hermes": '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "größe", "arguments": {"x":1}}\n</tool_call>',
        "mistral": '[TOOL_CALLS] [{"name": "ping", "arguments": {}}, {"name": "größe", "arguments": {"x":1}}]',
        "llama3": '{"name": "ping", "parameters": {}}; {"name": "größe", "parameters": {"x":1}}',
    }


def test_rendering_no_call_gives_no_text():
    assert [render_calls(dialect, []) for dialect in DIALECTS.values()] == ["", "", "", ""]


def test_an_unknown_dialect_is_named_with_the_known_ones():
    with pytest.raises(UserError, match="unknown dialect 'xml', known are json, hermes, mistral, llama3"):
        get_dialect("xml")
