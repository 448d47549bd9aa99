"""What the output parser makes of a target's text, whole and in pieces."""

import json
import time

import pytest
from cases import case_params
from hypothesis import given, settings
from hypothesis import strategies as st

from schemafill.inference.request import ToolCall
from schemafill.inference.toolcall.dialects import DIALECTS, get_dialect, render_calls
from schemafill.inference.toolcall.output import OutputParser, Parsed, new_call_id, parse_output
from schemafill.inference.toolcall.reply import Delta
from schemafill.inference.toolcall.schema import Catalog, parse_tools

FAMILY_DIALECTS = {
    "qwen2.5": "hermes", "qwen3": "hermes", "hermes3": "hermes", "mistral": "mistral", "llama3.1": "llama3",
}  # fmt: skip
CATALOG = parse_tools([{"name": "get_tide"}, {"name": "ping"}])


def parse_pieces(dialect: str, catalog: Catalog, pieces: list[str], finish: str, reasoning_open: bool = False):
    """The whole reply and its deltas, neighbours of one kind joined."""
    parser = OutputParser(get_dialect(dialect), catalog, reasoning_open)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    parsed = parser.finish(finish)
    joined: list[Delta] = []
    for delta in deltas + parsed.deltas:
        if joined and (joined[-1].kind, joined[-1].call_idx) == (delta.kind, delta.call_idx) and delta.kind != "call":
            delta = Delta(delta.kind, joined.pop().text + delta.text, delta.call_idx)
        joined.append(delta)
    return parsed, joined


def check_stream_equals_whole(parsed: Parsed, deltas: list[Delta]) -> None:
    for kind in ("content", "reasoning"):
        assert "".join(delta.text for delta in deltas if delta.kind == kind) == (getattr(parsed, kind) or "")
    starts = [delta for delta in deltas if delta.kind == "call"]
    assert [start.call_idx for start in starts] == list(range(len(starts)))
    streamed = [
        (start.text, "".join(delta.text for delta in deltas if delta.kind == "arguments" and delta.call_idx == idx))
        for idx, start in enumerate(starts)
    ]
    whole = [(call.name, call.arguments) for call in parsed.tool_calls]
    if len(streamed) > len(whole):
        whole.append((parsed.unfinished.name, parsed.unfinished.arguments))
    assert streamed == whole


def exact(text: str) -> list:
    """Arguments in a form that tells 1 from 1.0 and one order of keys from another."""
    return json.loads(text, object_pairs_hook=lambda pairs: ["object", *pairs], parse_float=lambda digits: [digits])


def check_expected(expect: dict, parsed: Parsed) -> None:
    if "calls" in expect:
        assert [call.name for call in parsed.tool_calls] == [call["name"] for call in expect["calls"]]
        for call, expected in zip(parsed.tool_calls, expect["calls"], strict=True):
            assert exact(call.arguments) == exact(json.dumps(expected["arguments"]))
    for call, text in zip(parsed.tool_calls, expect.get("arguments_text", []), strict=False):
        assert text in (None, call.arguments)
    if "content" in expect:
        assert parsed.content in expect.get("content_any_of", [expect["content"]])
    assert all(text in parsed.reasoning for text in expect.get("reasoning_contains", []))
    reasons = expect["finish_reason"]
    assert parsed.finish_reason in (reasons if isinstance(reasons, list) else [reasons])
    assert not any(text in (parsed.content or "") for text in expect.get("not_in_content", []))
    if unfinished := expect.get("unfinished"):
        assert parsed.unfinished.name == unfinished["name"]
        assert parsed.unfinished.arguments == unfinished["arguments_so_far"]
    else:
        assert parsed.unfinished is None


@pytest.mark.parametrize("item", case_params("output"))
def test_case_output_is_parsed_in_every_cut(item):
    given_ = item.given
    text, dialect, catalog = given_["text"], FAMILY_DIALECTS[given_["family"]], parse_tools(given_["tools"])
    reasoning_open = "<think>" in given_.get("prompt_ends_with", "")
    cuts = [[text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]
    cuts += given_.get("chunkings", [])
    whole = parse_pieces(dialect, catalog, [text], given_["finish"], reasoning_open)
    check_expected(item.expect, whole[0])
    check_stream_equals_whole(*whole)
    for pieces in cuts:
        parsed, deltas = parse_pieces(dialect, catalog, pieces, given_["finish"], reasoning_open)
        assert deltas == whole[1]
        assert parsed.tool_calls == whole[0].tool_calls
        assert parsed.unfinished == whole[0].unfinished
        assert not any(text in delta.text for text in item.expect.get("not_in_any_piece", []) for delta in deltas)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
argument_texts = st.builds(
    lambda value, indent, ascii_: json.dumps(value, indent=indent, ensure_ascii=ascii_),
    st.dictionaries(st.sampled_from(["name", "arguments"]) | st.text(max_size=4), json_values, max_size=3),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
calls = st.lists(st.builds(ToolCall, st.text(min_size=1, max_size=8), argument_texts), min_size=1, max_size=3)


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=50, deadline=None)
@given(calls=calls)
def test_parsing_what_was_rendered_gives_the_calls(dialect, calls):
    parsed = parse_output(get_dialect(dialect), CATALOG, render_calls(get_dialect(dialect), calls), "eos")
    assert parsed.tool_calls == calls
    assert (parsed.content, parsed.reasoning, parsed.unfinished) == (None, None, None)
    assert parsed.finish_reason == "tool_calls"


FRAGMENTS = [
    "<tool_call>", "\n</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<think>", "</think>", "```json\n", "```", "`",
    "<", "</too", '{"tool_calls": [', "]}", '{"name": "ping"', '"ping"', "}", "}}", "{", "[", "]", ", ", "; ", ": ",
    '"', "\\", '{"name": "other", "arguments": {"a": "</tool_call>```"', '"arguments": ', '"parameters": null',
    '"name": ', "12", "nu", "null", " \n", "text", "é🌊",
]  # fmt: skip
messy_texts = st.lists(st.sampled_from(FRAGMENTS), max_size=16).map("".join)


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=60, deadline=None)
@given(text=messy_texts, cuts=st.lists(st.integers(0, 99), max_size=5), finish=st.sampled_from(["eos", "length"]))
@pytest.mark.parametrize("reasoning_open", [False, True])
def test_any_cut_of_any_text_gives_the_same_reply(dialect, text, cuts, finish, reasoning_open):
    at = sorted(min(cut, len(text)) for cut in cuts)
    pieces = [text[start:end] for start, end in zip([0, *at], [*at, len(text)], strict=True)]
    parsed, deltas = parse_pieces(dialect, CATALOG, pieces, finish, reasoning_open)
    whole, whole_deltas = parse_pieces(dialect, CATALOG, [text], finish, reasoning_open)
    assert deltas == whole_deltas == parse_pieces(dialect, CATALOG, list(text), finish, reasoning_open)[1]
    assert (parsed.tool_calls, parsed.unfinished) == (whole.tool_calls, whole.unfinished)
    check_stream_equals_whole(whole, whole_deltas)


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=60, deadline=None)
@given(text=messy_texts)
def test_text_without_a_call_is_content_unchanged(dialect, text):
    parsed = parse_output(get_dialect(dialect), CATALOG, text, "eos")
    if not parsed.tool_calls and not parsed.unfinished and "<think>" not in text:
        assert (parsed.content or "") == text.strip()


@pytest.mark.parametrize(
    ("dialect", "text", "name", "arguments"),
    [
        ("hermes", "<tool_call>", None, ""),
        ("hermes", '<tool_call>\n{"name": "pi', None, ""),
        ("hermes", '<tool_call>\n{"name": "ping", "argu', "ping", ""),
        ("mistral", '[TOOL_CALLS] [{"name": "ping", "arguments": nul', "ping", "nul"),
        ("llama3", '{"name": "ping", "parameters": {"a": "b', "ping", '{"a": "b'),
        ("llama3", '{"name": "pi', None, ""),
        ("json", '{"tool_calls": [', None, ""),
        ("json", '```json\n{"tool_calls": [{"name": "ping", "arguments": {}', "ping", "{}"),
    ],
)
def test_a_cut_off_call_is_given_as_far_as_written(dialect, text, name, arguments):
    parsed, deltas = parse_pieces(dialect, CATALOG, list(text), "length")
    assert (parsed.unfinished.name, parsed.unfinished.arguments) == (name, arguments)
    assert (parsed.tool_calls, parsed.content, parsed.finish_reason) == ([], None, "length")
    assert "".join(delta.text for delta in deltas if delta.kind == "arguments") == arguments


def test_the_end_of_the_output_releases_what_was_held_back():
    parsed, deltas = parse_pieces("hermes", CATALOG, ["so <tool", "_"], "eos")
    assert parsed.content == "so <tool_"
    assert deltas == [Delta("content", "so <tool_")]
    assert parse_output(get_dialect("hermes"), CATALOG, "a </thi", "eos", reasoning_open=True).reasoning == "a </thi"


def test_what_the_end_cut_off_after_a_whole_call_is_no_content():
    text = '<tool_call>\n{"name": "ping", "arguments": {"a": 1}}\n</tool_'
    parsed = parse_output(get_dialect("hermes"), CATALOG, text, "length")
    assert (parsed.tool_calls, parsed.content) == ([ToolCall("ping", '{"a": 1}')], None)
    fence = parse_output(get_dialect("json"), CATALOG, "so:\n```json\n", "length")
    assert (fence.content, fence.unfinished) == ("so:\n```json", None)


def test_content_and_arguments_are_not_held_back():
    parser = OutputParser(get_dialect("hermes"), CATALOG)
    assert parser.feed("The north") == [Delta("content", "The north")]
    assert parser.feed(' gate <tool_call>\n{"name": "ping"') == [Delta("content", " gate"), Delta("call", "ping", 0)]
    assert parser.feed(', "arguments": {"a": "b') == [Delta("arguments", '{"a": "b', 0)]
    assert parser.feed('c"') == [Delta("arguments", 'c"', 0)]


def test_reasoning_is_only_at_the_start():
    call = '<tool_call>\n{"name": "ping"}\n</tool_call>'
    assert parse_output(get_dialect("hermes"), CATALOG, call + "<think>b</think>", "eos").reasoning is None
    parsed = parse_output(get_dialect("hermes"), CATALOG, " <think>\na</think> b <think> c", "eos")
    assert (parsed.reasoning, parsed.content) == ("a", "b <think> c")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "ping", "arguments": {"a": "' + "x\\\\ " * 50_000 + '"}}',
        '{"name": "ping", "arguments": {"a": ' + "[" * 10_000 + "]" * 10_000 + "}}",
        '{"tool_calls": [' * 10_000, "[{" * 10_000, '{"a":' * 10_000, "```" * 10_000, "<" * 10_000, " " * 200_000 + "x",
    ],
    ids=["long-text", "deep-value", "deep-wrappers", "deep-lists", "deep-objects", "fences", "angles", "spaces"],
)  # fmt: skip
def test_long_and_deep_texts_take_linear_time(text):
    pieces = [text[at : at + 50] for at in range(0, len(text), 50)]
    start = time.perf_counter()
    parsed, _ = parse_pieces("json", CATALOG, pieces, "eos")
    assert time.perf_counter() - start < 3
    assert parsed.tool_calls or parsed.content == text.strip()


def test_call_ids_have_nine_letters_or_digits_and_differ():
    ids = {new_call_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(call_id) == 9 and call_id.isascii() and call_id.isalnum() for call_id in ids)
