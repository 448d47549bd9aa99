"""Whole requests: every method gives the target's own ids, streamed or not, cancelled before or not, whatever it
writes."""

from __future__ import annotations

import copy
import itertools
import json

import pytest
import torch
from cases import case_params
from hostile import SHAPES, install_blocks, install_hostile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import (
    PaddedTarget,
    Scripted,
    as_target,
    byte_level_tokenizer,
    memorised_model,
    scripted_engine,
    seed_of,
    tiny_model,
    tiny_target,
    weather_tools,
)

from schemafill.inference.decoding.methods import METHODS, Method
from schemafill.inference.drafting.drafter import MAX_NODES, NoDraft
from schemafill.inference.drafting.slot_fill import SlotFill, SlotFillConfig
from schemafill.inference.engine import Engine
from schemafill.inference.model.latency import FLAT, LatencyCurve
from schemafill.inference.model.tree import Proposal
from schemafill.inference.request import Completion, SamplingParams, UserError
from schemafill.inference.toolcall.dialects import DIALECTS, get_dialect
from schemafill.inference.toolcall.output import Delta, parse_output
from schemafill.inference.toolcall.schema import parse_tools

FAMILY_DIALECTS = {
    "qwen2.5": "hermes",
    "qwen3": "hermes",
    "hermes3": "hermes",
    "mistral": "mistral",
    "llama3.1": "llama3",
}
REQUEST = [
    {"role": "user", "content": "What is the weather in Oslo, in Zürich and in Lisbon? Order part M8 bolt, 2 of it."}
]
LOSSLESS = [name for name, method in METHODS.items() if method.lossless]
STEEP = LatencyCurve(rows=(1, 256), seconds=(1.0, 60.0), prompt_row_s=0.2, noise=0.0)
"""Every further row costs: the drafter proposes little and runs no SIDE branches."""
CONFIGS = {
    "all": {},
    "nothing": {
        "uses_evidence": False,
        "uses_lookup": False,
        "uses_siblings": False,
        "uses_probes": False,
        "uses_side": False,
    },
    "side": {"uses_side": True},
    "no side": {"uses_side": False},
    "no probes": {"uses_probes": False},
    "no evidence": {"uses_evidence": False},
}
CALL = {
    "json": '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius", "days": 3}}]}',
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}}\n</tool_call>',
    "mistral": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}}]',
    "llama3": '{"name": "get_weather", "parameters": {"city": "Oslo", "unit": "celsius"}}',
}
TWO_CALLS = {
    "json": '```json\n{\n  "tool_calls": [\n    {\n      "name": "get_weather",\n'
    '      "arguments": {\n        "city": "Oslo",\n'
    '        "unit": "kelvin"\n      }\n    },\n    {\n      "name": "get_weather",\n      "arguments": {\n'
    '        "city": "Zürich",\n        "unit": "kelvin"\n      }\n    }\n  ]\n}',
    "hermes": CALL["hermes"] + "\n" + CALL["hermes"].replace("Oslo", "Zürich") + "\nDone.",
    "mistral": CALL["mistral"][:-1] + ", " + CALL["mistral"][len("[TOOL_CALLS] [") :].replace("Oslo", "Zürich"),
    "llama3": CALL["llama3"] + "; " + CALL["llama3"].replace("Oslo", "Zürich"),
}  # fmt: skip


def install_config(monkeypatch: pytest.MonkeyPatch, name: str, *, max_nodes: int = 0) -> None:
    """Make SchemaFill with one of CONFIGS and, if given, a limit on its proposals, available as `varied`."""

    def make(state):
        state.max_nodes = max_nodes or state.max_nodes
        return SlotFill(SlotFillConfig(**CONFIGS[name]), state)

    monkeypatch.setitem(METHODS, "varied", Method("test", make))


def ask(scripted: Scripted, method: str, tools: list[dict] = (), **sampling) -> Completion:
    return scripted.engine.generate(
        messages=REQUEST, tools=list(tools), method=method, sampling=SamplingParams(**sampling)
    )


def reply(items: list) -> tuple[list, Completion]:
    """A stream's deltas with neighbours of one kind joined, and its completion."""
    *deltas, completion = items
    joined: list[Delta] = []
    for delta in deltas:
        if joined and (joined[-1].kind, joined[-1].call_idx) == (delta.kind, delta.call_idx) and delta.kind != "call":
            delta = Delta(delta.kind, joined.pop().text + delta.text, delta.call_idx)
        joined.append(delta)
    return joined, completion


def check_stream(deltas: list[Delta], completion: Completion) -> None:
    """Content, reasoning, names and arguments of the deltas are those of the whole."""
    for kind in ("content", "reasoning"):
        assert "".join(delta.text for delta in deltas if delta.kind == kind) == (getattr(completion, kind) or "")
    names = [delta.text for delta in deltas if delta.kind == "call"]
    arguments = [
        "".join(delta.text for delta in deltas if delta.kind == "arguments" and delta.call_idx == number)
        for number in range(len(names))
    ]
    calls = [(call.name, call.arguments) for call in completion.tool_calls]
    assert list(zip(names, arguments, strict=True))[: len(calls)] == calls


def outcome(completion: Completion) -> tuple:
    """All of a completion but its counters and the random ids of its calls."""
    calls = [(call.name, call.arguments) for call in completion.tool_calls]
    return (
        completion.text, completion.token_ids, calls, completion.content, completion.reasoning,
        completion.finish_reason,
        completion.unfinished,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- every method, every dialect


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("is_split", [True, False], ids=["words", "joined"])
def test_every_method_writes_what_the_target_writes(dialect, has_kernels, is_split, monkeypatch):
    for text in (CALL[dialect], TWO_CALLS[dialect]):
        scripted = scripted_engine(text, dialect, is_split=is_split, has_kernels=has_kernels)
        expected = scripted.output_ids[:-1] if dialect == "json" else scripted.output_ids
        for shape in ("mixed", "ends"):
            install_hostile(monkeypatch, scripted.output_ids, len(byte_level_tokenizer()), shape=shape)
            assert ask(scripted, "hostile", weather_tools()).token_ids == expected
        for method in LOSSLESS:
            done = ask(scripted, method, weather_tools())
            assert done.token_ids == expected, method
            assert done.text == text
            assert done.finish_reason == "tool_calls"
            assert [json.loads(call.arguments)["city"] for call in done.tool_calls] == ["Oslo", "Zürich"][
                : text.count("city")
            ]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("numerics", ["guarded", "fast", "exact"])
def test_every_numerics_and_every_latency_curve_gives_the_same_ids(dialect, numerics):
    scripted = scripted_engine(TWO_CALLS[dialect], dialect, numerics=numerics, is_doubtful=numerics == "guarded")
    expected = ask(scripted, "ar", weather_tools()).token_ids
    assert expected == scripted.output_ids[: len(expected)]
    for curve in (FLAT, STEEP):
        scripted.engine.latency = curve
        for method in LOSSLESS[1:]:
            assert ask(scripted, method, weather_tools()).token_ids == expected, method


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dialect", ["json", "hermes"])
def test_every_source_can_be_switched_off(config, dialect, monkeypatch):
    install_config(monkeypatch, config)
    scripted = scripted_engine(TWO_CALLS[dialect], dialect, has_kernels=True)
    done = ask(scripted, "varied", weather_tools())
    assert done.text == TWO_CALLS[dialect]
    assert done.stats.verify_calls < done.stats.tokens / 2


@pytest.mark.parametrize("dialect", DIALECTS)
def test_drafts_from_the_schema_are_accepted(dialect):
    """Fewer passes than prompt lookup needs, and structure, keys and names among what is accepted."""
    scripted = scripted_engine(TWO_CALLS[dialect], dialect, has_kernels=True)
    plain, filled = (ask(scripted, method, weather_tools()).stats for method in ("pld", "schemafill"))
    assert filled.verify_calls < 0.7 * plain.verify_calls
    assert {"name", "key"} <= filled.accepted_by_source.keys()


def test_proposals_keep_to_the_rows_that_are_laid_out_for_them(monkeypatch):
    """SIDE branches and probes count as well."""
    sizes = []
    real = SlotFill.propose

    def propose(self, state):
        proposal = real(self, state)
        sizes.append((proposal.num_nodes, state.max_nodes))
        assert proposal.tokens[0] == state.root
        return proposal

    monkeypatch.setattr(SlotFill, "propose", propose)
    for max_nodes in (1, 3, 12, 96):
        install_config(monkeypatch, "side", max_nodes=max_nodes)
        for dialect in ("json", "hermes"):
            ask(scripted_engine(TWO_CALLS[dialect], dialect, has_kernels=True), "varied", weather_tools())
    assert all(size <= most for size, most in sizes), max(sizes)
    assert max(sizes)[0] > 12


def test_rows_of_side_branches_come_back(monkeypatch):
    """Whatever happens to a branch, its rows end up in the pool or with a branch that is still open."""
    branches, closed_beside = [], []
    real = Proposal.add_side

    def add_side(self, branch, forced):
        branches.append(branch)
        return real(self, branch, forced)

    monkeypatch.setattr(Proposal, "add_side", add_side)
    broken = TWO_CALLS["json"].replace('"unit": "kelvin"', '"unit": kelvin and so on, for a while', 1)
    for text, max_nodes, is_doubtful in itertools.product((TWO_CALLS["json"], broken), (0, 14, 24), (False, True)):
        branches.clear()
        install_config(monkeypatch, "side", max_nodes=max_nodes)
        scripted = scripted_engine(text, is_doubtful=is_doubtful)
        assert ask(scripted, "varied", weather_tools()).text == text
        arena = scripted.engine._arena
        held = [row for branch in {id(branch): branch for branch in branches}.values() for row in branch.rows]
        assert sorted([*arena._free_side, *held]) == list(range(arena.side_rows))
        closed_beside += [branch for branch in branches if branch.is_closed]
        assert not any(branch.rows for branch in branches if branch.is_closed)
    assert closed_beside


# ---------------------------------------- case files


def encoded(parts: list, end_id: int) -> list[int]:
    """Draft ids of texts and end signs."""
    tokenizer = byte_level_tokenizer().backend_tokenizer
    ids = []
    for part in parts:
        ids += tokenizer.encode(part, add_special_tokens=False).ids if isinstance(part, str) else [end_id]
    return ids


@pytest.mark.parametrize("item", case_params("decode", "X01"))
def test_case_end_inside_a_draft(item, monkeypatch):
    asked, expect = item.given, item.expect
    dialect = FAMILY_DIALECTS[asked["family"]]
    end = "<|im_end|>" if asked["end"] == "eos" else "<|eot_id|>"
    scripted = scripted_engine(asked["target_text"], dialect, end=end, prefix_cache=True)
    options = {"stop": tuple(asked.get("stop", ())), "max_new_tokens": asked.get("max_tokens", 512)}
    tools = asked.get("tools", [])
    whole = scripted.output_ids
    draft = encoded(asked.get("draft", [asked["target_text"]]), whole[-1])
    first = ask(scripted, "ar", tools, **options)
    for length in asked["draft_lengths"]:
        install_blocks(monkeypatch, draft, length)
        for method in ("blocks", *LOSSLESS):
            done = ask(scripted, method, tools, **options)
            assert outcome(done) == outcome(first), (method, length)
            if "max_tokens" in asked:
                assert done.token_ids == whole[: asked["max_tokens"]]
            elif "stop" in asked:
                assert done.text == expect["text"]
            else:
                assert (done.token_ids, done.text) == (whole, asked["target_text"])
            assert done.finish_reason == expect["finish_reason"]
            assert done.stats.tokens == len(done.token_ids) == sum(done.stats.accepted_by_source.values())
            assert len(done.tool_calls) == expect.get("calls", len(done.tool_calls))
            deltas, again = reply(list(scripted.engine.stream(
                messages=REQUEST, tools=tools, method=method, sampling=SamplingParams(**options)
            )))  # fmt: skip
            assert outcome(again) == outcome(first)
            check_stream(deltas, again)


def check_same_ids(item, monkeypatch, tools: list[dict]) -> None:
    text, dialect = item.given["target_text"], FAMILY_DIALECTS[item.given["family"]]
    scripted = scripted_engine(text, dialect, has_kernels=True)
    calls = parse_output(get_dialect(dialect), parse_tools(tools), text, "eos").tool_calls
    runs = [(method, "all", 0) for method in LOSSLESS]
    lengths = [*item.given.get("draft_lengths", [4]), 0]
    for number, config in enumerate(CONFIGS):  # everything on and everything off with each length, the others with one
        runs += [
            ("varied", config, length) for length in (lengths if number < 2 else lengths[number % len(lengths) :][:1])
        ]
    for method, config, length in runs:
        install_config(monkeypatch, config, max_nodes=length)
        done = ask(scripted, method, tools)
        assert done.token_ids == scripted.output_ids, (method, config, length)
        assert done.text == text
        assert [(call.name, call.arguments) for call in done.tool_calls] == [(c.name, c.arguments) for c in calls]
        assert done.finish_reason == item.expect.get("finish_reason", "tool_calls" if calls else "stop")


@pytest.mark.parametrize("item", case_params("decode", "X02", "S06"))
def test_case_target_decides_whatever_the_schema_says(item, monkeypatch):
    check_same_ids(item, monkeypatch, item.given["tools"])


@pytest.mark.parametrize("item", case_params("schema", "S0"))
def test_case_schemas_break_no_request(item):
    """The plain prompt, the drafter and the parser take every tool; a call in and one outside the schema come out."""
    if not item.given.get("tools") and "each_beside" not in item.given:
        assert ask(scripted_engine(CALL["json"]), "schemafill", item.given["tools"]).text == CALL["json"]
        return
    groups = [item.given["tools"] + [tool] for tool in item.given.get("each_beside", [])] or [item.given["tools"]]
    samples = [*item.expect.get("arguments_ok", []), *item.expect.get("arguments_outside", [])]
    samples = samples or [{"tool": groups[0][0]["function"]["name"], "arguments": {"d": {"d": [1, None]}}}]
    for tools in groups[:3]:
        for sample in samples[:4]:
            call = {"name": sample["tool"], "arguments": sample["arguments"]}
            text = json.dumps({"tool_calls": [call, call]}, ensure_ascii=False)
            scripted = scripted_engine(text, "json", has_kernels=True)
            done = ask(scripted, "schemafill", tools)
            assert done.text == text
            assert [json.loads(made.arguments) for made in done.tool_calls] == [sample["arguments"]] * 2


# --------------------------------------------------------------------------------------------------- anything at all

WORDS = [
    "Oslo",
    "M8 bolt",
    "Zürich",
    "2",
    "true",
    "null",
    "celsius",
    "2025-03-11",
    'a"b',
    "北区",
    "\\u00e9",
    "x" * 30,
    "",
]
VALUES = st.recursive(
    st.sampled_from(WORDS)
    | st.integers(-5, 99999)
    | st.booleans()
    | st.none()
    | st.floats(-9, 9).map(lambda x: round(x, 2)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["city", "part", "qty", "größe", 'a"b', "ship to", "tags", "0", "\ud83d"])
FIELD_SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(
                ["string", "integer", "number", "boolean", "array", "object", ["string", "null"], "any"]
            ),
            "enum": st.lists(st.sampled_from(WORDS), min_size=1, max_size=3),
            "default": st.sampled_from(WORDS) | st.integers(0, 9),
            "description": st.sampled_from(["A date YYYY-MM-DD", "größe", ""]),
            "format": st.sampled_from(["date", "email"]),
        },
    ),
    lambda inner: (
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(KEYS, inner, max_size=3)},
            optional={"required": st.lists(KEYS, max_size=2)},
        )
        | st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=2)})
    ),
    max_leaves=5,
)
NAMES = st.sampled_from(["get_item", "get_items", "order.part", "查询库存", 'a"b'])
TOOLS = st.dictionaries(NAMES, st.dictionaries(KEYS, FIELD_SCHEMAS, max_size=4), max_size=3)


@st.composite
def target_texts(draw, dialect: str, tools: dict) -> str:
    """What a target may write: calls laid out in one of several ways, cut, damaged, mixed with prose and other
    dialects."""
    written = draw(st.sampled_from([dialect] * 4 + list(DIALECTS)))
    form, calls = DIALECTS[written], []
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(tools))) if tools and draw(st.integers(0, 9)) else draw(NAMES)
        keys = list(tools.get(name, {})) if draw(st.booleans()) else draw(st.lists(KEYS, max_size=3))
        calls.append({form.name_key: name, form.arguments_key: {key: draw(VALUES) for key in keys}})
    options = draw(st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": True}]))
    options = {"ensure_ascii": False} | options
    text = form.opening + form.separator.join(json.dumps(call, **options) for call in calls) + form.closing
    if written == "json":
        text = json.dumps({"tool_calls": calls}, **options)
    text = draw(st.sampled_from(["", "", "```json\n", "Sure: ", "<think>\nno {\n</think>\n"])) + text
    text += draw(st.sampled_from(["", "", "\n```", "\nDone.", '{"name": "get_item", ', "\n\n"]))
    text = text.encode(errors="replace").decode()
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(["", "}", '"', "\\", ", ", "nut", "北", "{"])) + text[at + 1 :]
    return text if draw(st.integers(0, 5)) else text[: draw(st.integers(0, len(text)))]


def script_of(draw, text: str, tokenizer) -> list[int]:
    """Ids of a text: as the vocabulary splits it, or (a target is free to) split at other places too."""
    encode = tokenizer.backend_tokenizer.encode
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=draw(st.sampled_from([0, 0, 6])))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [token for piece in pieces for token in encode(piece, add_special_tokens=False).ids]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_text_any_schema_and_any_draft_give_the_targets_ids(data):
    draw = data.draw
    dialect = draw(st.sampled_from(sorted(DIALECTS)))
    named = draw(TOOLS)
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": fields}}}
        for name, fields in json.loads(json.dumps(named).replace("\\ud83d", "\\u2600")).items()
    ]
    text = draw(
        target_texts(
            dialect, {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in tools}
        )
    )
    is_split = draw(st.booleans())
    script = script_of(draw, text, byte_level_tokenizer(is_split=is_split))
    has_kernels = draw(st.booleans())
    scripted = scripted_engine(
        script, dialect, is_split=is_split, has_kernels=has_kernels, is_doubtful=not has_kernels and draw(st.booleans())
    )
    scripted.engine.latency = draw(st.sampled_from([FLAT, STEEP]))
    words = draw(st.lists(st.sampled_from(WORDS[:-2]), max_size=6))
    messages = [{"role": "user", "content": "Please: " + ", ".join(words) + "."}]
    expected = None
    with pytest.MonkeyPatch.context() as monkeypatch:
        shape = draw(st.sampled_from(SHAPES))
        install_hostile(monkeypatch, scripted.output_ids, len(byte_level_tokenizer()), shape=shape, seed=seed_of(text))
        for method in ("ar", "schemafill", "hostile", draw(st.sampled_from(["pld", "schemafill"]))):
            items = list(scripted.engine.stream(messages=messages, tools=tools, method=method))
            deltas, done = reply(items)
            check_stream(deltas, done)
            if expected is None:
                expected = outcome(done)
                assert done.token_ids == scripted.output_ids[: len(done.token_ids)]
                ended = done.token_ids == scripted.output_ids or dialect == "json" or len(done.token_ids) == 512
                assert ended
            assert outcome(done) == expected, method


def test_escaped_halves_of_a_character_in_an_output_are_kept():
    """A key that the target spelt as an escape means something that no text can hold; drafts must not spell it out."""
    call = '{"name": "get_weather", "arguments": {"\\ud83d": "\\ud83d", "city": "\\ude00"}}'
    for dialect, text in (
        ("json", f'{{"tool_calls": [{call}, {call}, {call}]}}'),
        ("hermes", f"<tool_call>{call}</tool_call>" * 3),
    ):
        scripted = scripted_engine(text, dialect, has_kernels=True)
        for config in (FLAT, STEEP):
            scripted.engine.latency = config
            done = ask(scripted, "schemafill", weather_tools())
            assert done.text == text and len(done.tool_calls) == 3


def test_texts_that_no_encoding_can_hold_are_a_fault_of_the_caller():
    """Half a surrogate pair is valid JSON on the wire, and no tokenizer takes it."""
    half = json.loads('"\\ud83d"')
    scripted = scripted_engine(CALL["json"])
    odd_tools = [
        {"name": "a", "parameters": {"type": "object", "properties": {half: {"type": "string", "enum": [half]}}}}
    ]
    for messages, tools in (([{"role": "user", "content": half}], []), (REQUEST, odd_tools)):
        with pytest.raises(UserError) as caught:
            scripted.engine.generate(messages=messages, tools=tools)
        assert "\n" not in str(caught.value)


# ---------------------------------------- stop rules and streams


@pytest.mark.parametrize("method", [*LOSSLESS, "hostile"])
@pytest.mark.parametrize("stop", [(), ("Oslo",), ('": "',), ("arguments", "city"), ("}}",), ("zzz", "<tool")])
def test_stops_and_limits_cut_every_method_at_the_same_token(method, stop, monkeypatch):
    scripted = scripted_engine(TWO_CALLS["hermes"], "hermes", is_split=False, has_kernels=True)
    install_hostile(monkeypatch, scripted.output_ids, len(byte_level_tokenizer()), shape="deep")
    for limit in (1, 2, 7, 13, 400):
        plain = ask(scripted, "ar", weather_tools(), stop=stop, max_new_tokens=limit)
        deltas, done = reply(list(scripted.engine.stream(
            messages=REQUEST, tools=weather_tools(), method=method,
            sampling=SamplingParams(stop=stop, max_new_tokens=limit),
        )))  # fmt: skip
        assert outcome(done) == outcome(plain)
        assert len(done.token_ids) == done.stats.tokens <= limit
        assert not any(word in done.text for word in stop)
        assert TWO_CALLS["hermes"].startswith(done.text)
        check_stream(deltas, done)


@pytest.mark.parametrize("stop", ["open", "gate is open.", "gate is", " is open. W", "q", "en. What"])
@pytest.mark.parametrize("length", [1, 2, 3, 8])
def test_nothing_is_streamed_that_a_stop_text_takes_back(stop, length, monkeypatch):
    text = "The north gate is open. What is the weather?"
    scripted = scripted_engine(text, "hermes")
    install_blocks(monkeypatch, scripted.output_ids, length)
    expected = text.split(stop)[0]
    streamed = ""
    for item in scripted.engine.stream(
        messages=REQUEST, method="blocks", sampling=SamplingParams(stop=(stop, "never"))
    ):  # fmt: skip
        if isinstance(item, Delta):
            streamed += item.text
            assert expected.strip().startswith(streamed)
        else:
            assert (item.text, item.content) == (expected, expected.strip())
            assert item.finish_reason == "stop"
    assert streamed == expected.strip()


@pytest.mark.parametrize("method", [*LOSSLESS, "hostile"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_streamed_deltas_join_to_the_plain_result(method, dialect, monkeypatch):
    scripted = scripted_engine(TWO_CALLS[dialect], dialect, has_kernels=True)
    install_hostile(monkeypatch, scripted.output_ids, len(byte_level_tokenizer()), shape="mixed")
    deltas, done = reply(list(scripted.engine.stream(messages=REQUEST, tools=weather_tools(), method=method)))
    check_stream(deltas, done)
    assert outcome(done) == outcome(ask(scripted, "ar", weather_tools()))
    assert [delta.text for delta in deltas if delta.kind == "call"] == ["get_weather"] * 2


def test_characters_split_over_tokens_are_streamed_whole():
    text = "eins 查询 🏭 zwei"
    scripted = scripted_engine(text, "hermes")
    deltas = [item.text for item in scripted.engine.stream(messages=REQUEST, method="ar") if isinstance(item, Delta)]
    assert "".join(deltas) == text and not any("\ufffd" in delta for delta in deltas)
    assert len(deltas) > 4


def test_an_output_cut_inside_a_character_shows_a_replacement_sign():
    scripted = scripted_engine("北", "hermes")
    done = ask(scripted, "schemafill", max_new_tokens=1)
    assert (done.text, done.content, done.finish_reason) == ("\ufffd", "\ufffd", "length")


# ---------------------------------------- one request after another


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])
def test_a_cancelled_stream_leaves_the_next_request_unchanged(prefix_cache, has_kernels, monkeypatch):
    scripted = scripted_engine(TWO_CALLS["hermes"], "hermes", prefix_cache=prefix_cache, has_kernels=has_kernels)
    expected = outcome(ask(scripted, "ar", weather_tools()))
    install_hostile(monkeypatch, scripted.output_ids, len(byte_level_tokenizer()), shape="wide")
    for number in range(1, 12):
        stream = scripted.engine.stream(messages=REQUEST[:1], tools=weather_tools()[:1], method="hostile")
        for _, _ in zip(range(number), stream, strict=False):
            pass
        stream.close()
        assert outcome(ask(scripted, "schemafill", weather_tools())) == expected


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("method", [*LOSSLESS, "hostile"])
def test_a_pass_that_is_broken_off_leaves_the_next_request_unchanged(prefix_cache, method, monkeypatch):
    """Also the prompt's own pass: rows that were never computed must not count as a known prefix."""
    other = [{"role": "user", "content": "Something else with more words in it, and none of them the same."}]
    for pass_number in range(1, 5):
        scripted = scripted_engine(TWO_CALLS["json"], prefix_cache=prefix_cache)
        install_hostile(monkeypatch, scripted.output_ids, len(byte_level_tokenizer()), shape="wide")
        expected = outcome(ask(scripted, "ar", weather_tools()))
        scripted.engine.generate(messages=other, method="ar")
        scripted.model.fails_at = scripted.model.num_passes + pass_number
        with pytest.raises(KeyboardInterrupt):
            ask(scripted, method, weather_tools())
        for again in (method, "ar"):
            assert outcome(ask(scripted, again, weather_tools())) == expected


def test_the_largest_padded_pass_fits_at_the_end_of_the_longest_output(monkeypatch):
    """Passes on a GPU are padded: 97 rows take 128. The arena once had room for the 97 only."""

    class Full(NoDraft):
        def propose(self, state):
            proposal = Proposal(state.root)
            for token in range(state.max_nodes):
                proposal.add(token, 0, "guess")
            return proposal

    monkeypatch.setitem(METHODS, "full", Method("test", lambda state: Full()))
    text = "The north gate is open. What is the weather in Oslo and Lisbon? " * 24
    scripted = scripted_engine(text, "hermes", kind=PaddedTarget)
    num_prompt = ask(scripted, "ar", max_new_tokens=1).stats.prompt_tokens
    limit = 512 - (MAX_NODES + 1) - num_prompt  # the arena has a multiple of 512 rows
    assert 0 < limit < len(scripted.output_ids)
    done = ask(scripted_engine(text, "hermes", kind=PaddedTarget), "full", max_new_tokens=limit)
    assert done.token_ids == scripted.output_ids[:limit]


def test_prefix_cache_runs_only_what_is_new():
    scripted = scripted_engine(CALL["json"], prefix_cache=True)
    seen = []
    model = scripted.model
    real = model.forward

    def forward(input_ids, **options):
        seen.append(input_ids.shape[1])
        return real(input_ids, **options)

    model.forward = forward
    ids = []
    longer = [*REQUEST, {"role": "assistant", "content": "No."}, {"role": "user", "content": "Again."}]
    for messages in (REQUEST, REQUEST, longer):
        del seen[:]
        done = scripted.engine.generate(messages=messages, tools=weather_tools(), method="ar")
        ids.append((done.token_ids, done.stats.prompt_tokens, seen[0]))
    assert ids[0][0] == ids[1][0] == ids[2][0]
    assert ids[0][2] == ids[0][1]
    assert ids[1][2] == 1
    assert 1 < ids[2][2] < ids[2][1]


def test_requests_of_all_sizes_share_an_engine():
    scripted = scripted_engine(CALL["json"], has_kernels=True)
    expected = outcome(ask(scripted, "ar", weather_tools()))
    for size in (1, 1500, 3, 400):
        messages = [{"role": "user", "content": "word " * size}]
        assert scripted.engine.generate(messages=messages, tools=weather_tools()).text == CALL["json"]
        assert outcome(ask(scripted, "schemafill", weather_tools())) == expected


def test_layouts_are_remembered_from_calls_only():
    scripted = scripted_engine(TWO_CALLS["json"], has_kernels=True)
    first = ask(scripted, "schemafill", weather_tools()).stats.verify_calls
    assert sum(scripted.engine.styles.counts.values()) == 1
    for _ in range(6):
        again = ask(scripted, "schemafill", weather_tools()).stats.verify_calls
    assert again <= first
    prose = scripted_engine("No call is needed.", "json")
    ask(prose, "schemafill", weather_tools())
    assert not prose.engine.styles.counts


def test_streaming_leaves_torchs_modes_to_the_caller():
    """A mode entered inside a generator stays on while the caller has its turn."""
    scripted = scripted_engine(CALL["json"])
    for _ in scripted.engine.stream(messages=REQUEST, tools=weather_tools()):
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
    stream = scripted.engine.stream(messages=REQUEST, tools=weather_tools())
    next(stream)
    with torch.no_grad():
        stream.close()
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


def test_requests_and_tools_are_left_as_they_were_given():
    scripted = scripted_engine(CALL["json"])
    messages, tools = copy.deepcopy(REQUEST), weather_tools()
    scripted.engine.generate(messages=messages, tools=tools)
    assert messages == REQUEST and tools == weather_tools()


# ---------------------------------------- real arithmetic


@pytest.fixture(scope="module")
def memorised():
    """A small model that has learned to write two calls; with the kernels and with torch."""
    tokenizer = byte_level_tokenizer()
    scripted = scripted_engine(TWO_CALLS["json"])
    prompt_ids = []
    ids_of = scripted.engine.prompts.encode
    scripted.engine.prompts.encode = lambda prompt: prompt_ids.extend(ids_of(prompt)) or list(prompt_ids)
    ask(scripted, "ar", weather_tools())
    output_ids = scripted.output_ids[:-1]
    model = memorised_model(prompt_ids, output_ids, len(tokenizer))
    targets = {
        has_kernels: as_target(copy.deepcopy(model), has_kernels=has_kernels, end_ids=scripted.engine.target.end_ids)
        for has_kernels in (False, True)
    }
    return targets, output_ids


@pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("numerics", ["guarded", "fast", "exact"])
def test_a_real_model_that_calls_tools_is_decoded_in_few_passes(memorised, has_kernels, numerics):
    targets, output_ids = memorised
    target = targets[has_kernels]
    target.exact = numerics == "exact"
    engine = Engine(target, byte_level_tokenizer(), dialect=get_dialect("json"), numerics=numerics)
    plain = engine.generate(messages=REQUEST, tools=weather_tools(), method="ar")
    assert plain.token_ids == output_ids
    filled = engine.generate(messages=REQUEST, tools=weather_tools())
    assert outcome(filled) == outcome(plain)
    assert filled.stats.verify_calls < plain.stats.verify_calls / 3


@pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])
def test_the_same_seed_gives_the_same_text_with_real_acceptance(memorised, has_kernels):
    """Hot enough that the model leaves what it learned, cool enough that drafts are accepted on the way."""
    target = memorised[0][has_kernels]
    target.exact = False
    engine = Engine(target, byte_level_tokenizer(), dialect=get_dialect("json"))
    texts, passes = set(), {"ar": 0, "pld": 0, "schemafill": 0}
    for seed in range(3):
        for options in ({"temperature": 0.9}, {"temperature": 1.3, "top_p": 0.95}, {"temperature": 1.6, "top_k": 20}):
            params = SamplingParams(seed=seed, max_new_tokens=40, **options)
            runs = {
                m: engine.generate(messages=REQUEST, tools=weather_tools(), method=m, sampling=params) for m in passes
            }
            assert len({tuple(done.token_ids) for done in runs.values()}) == 1
            texts.add(runs["ar"].text)
            passes = {name: passes[name] + runs[name].stats.verify_calls for name in passes}
    assert len(texts) > 3
    assert passes["schemafill"] < 0.8 * passes["ar"]


@pytest.mark.parametrize("numerics", ["guarded", "fast", "exact"])
def test_random_targets_stop_at_the_end_of_their_context(numerics):
    target = tiny_target("llama", has_kernels=False, exact=numerics == "exact")
    engine = Engine(target, byte_level_tokenizer(), dialect=get_dialect("json"), numerics=numerics)
    num_prompt = engine.generate(
        messages=REQUEST, method="ar", sampling=SamplingParams(max_new_tokens=1)
    ).stats.prompt_tokens
    target.config.max_position_embeddings = num_prompt + 9
    outputs = [engine.generate(messages=REQUEST, method=method) for method in LOSSLESS]
    assert all(done.token_ids == outputs[0].token_ids for done in outputs)
    assert len(outputs[0].token_ids) == 9 and outputs[0].finish_reason == "length"
    target.config.max_position_embeddings = num_prompt
    with pytest.raises(UserError, match=f"the prompt has {num_prompt} tokens, the target's context holds {num_prompt}"):
        engine.generate(messages=REQUEST)


# ---------------------------------------- faults and the surface


def test_faults_of_the_caller_are_named_before_anything_is_computed():
    scripted = scripted_engine("x")
    engine = scripted.engine
    faults = [
        ({"method": "magic"}, "unknown method 'magic', known are ar, pld"),
        ({"tools": [{"name": ""}]}, r"tools\[0\]"),
        ({"messages": [{"role": "nobody"}]}, "nobody"),
        ({"messages": []}, "messages are empty"),
    ]
    for options, part in faults:
        with pytest.raises(UserError, match=part):
            engine.generate(**{"messages": REQUEST, **options})
    assert scripted.model.num_passes == 0
    with pytest.raises(UserError, match="unknown numerics 'sloppy', known are guarded, fast, exact"):
        Engine(engine.target, engine.tokenizer, dialect=engine.dialect, numerics="sloppy")


def test_the_trace_is_kept_only_when_it_is_asked_for():
    scripted = scripted_engine(CALL["json"], has_kernels=True)
    assert ask(scripted, "schemafill", weather_tools()).stats.rounds == []
    done = scripted.engine.generate(messages=REQUEST, tools=weather_tools(), trace=True)
    rounds = done.stats.rounds
    assert [token for one in rounds for token in one.token_ids] == done.token_ids
    assert sum(one.num_nodes for one in rounds) == done.stats.nodes
    phases = done.stats.seconds_by_phase
    assert sum(phases.values()) == pytest.approx(done.stats.seconds)
    assert all(seconds >= 0 for seconds in phases.values())


def test_every_call_of_a_reply_has_an_id_of_its_own():
    scripted = scripted_engine(TWO_CALLS["mistral"], "mistral")
    ids = [call.id for _ in range(2) for call in ask(scripted, "schemafill", weather_tools()).tool_calls]
    assert len(set(ids)) == 4 and all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny target with its tokenizer and a chat template on disk."""
    folder = tmp_path_factory.mktemp("targets") / "tiny"
    tokenizer = byte_level_tokenizer(dialect="hermes")
    model = tiny_model("qwen2", len(tokenizer), attention="sdpa")
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|eot_id|>"])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Caches go to an empty folder; compiling is left to the tests of the kernels."""
    monkeypatch.setenv("SCHEMAFILL_HOME", str(tmp_path))
    monkeypatch.setenv("SCHEMAFILL_CPU_KERNELS", "0")
    return tmp_path


def test_an_engine_from_a_folder(saved, home):
    engine = Engine.from_pretrained(str(saved), dtype="float32", device="cpu", progress=False)
    assert engine.dialect.name == "hermes"
    assert engine.target.end_ids == tuple(engine.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|eot_id|>"]))
    info = engine.info
    assert (info["target"], info["device"], info["dtype"], info["numerics"]) == ("tiny", "cpu", "float32", "guarded")
    assert info["row_invariant"] is False and info["head"] is None
    assert info["threads"] == torch.get_num_threads()
    assert [rows for rows, _ in info["latency_curve"]] == list(engine.latency.rows)
    params = SamplingParams(max_new_tokens=12)
    ids = [engine.generate(messages=REQUEST, method=m, sampling=params).token_ids for m in LOSSLESS]
    assert all(found == ids[0] for found in ids)
    assert "".join(engine.tokenizer_text(ids[0])) == engine.vocabulary.text_of(ids[0]) or len(ids[0]) > 1
    again = Engine.from_pretrained(
        str(saved), dtype="float32", device="cpu", numerics="exact", dialect="json", progress=False
    )
    assert again.dialect.name == "json" and again.target.exact


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"head": "some/head"}, "some/head"),
        ({"numerics": "sloppy"}, "known are guarded"),
        ({"threads": 0}, "threads must be from 1"),
        ({"dialect": "morse"}, "unknown dialect 'morse'"),
        ({"dtype": "int3"}, "unknown dtype"),
    ],
)
def test_faulty_options_are_named_before_anything_is_loaded(saved, home, options, part):
    with pytest.raises(UserError, match=part):
        Engine.from_pretrained(str(saved), **options)


def test_a_target_without_a_tokenizer_is_refused(saved, home, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "bare").mkdir(exist_ok=True)
        (tmp_path / "bare" / name).write_bytes((saved / name).read_bytes())
    with pytest.raises(UserError, match="tokenizer"):
        Engine.from_pretrained(str(tmp_path / "bare"), dtype="float32", device="cpu", progress=False)


def test_a_second_stream_is_refused_while_one_is_open():
    """Two streams would share one arena; once both wrote wrong tokens without a word."""
    engine = scripted_engine('{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}').engine
    request = {"messages": [{"role": "user", "content": "Weather in Oslo?"}], "tools": weather_tools()}
    first = engine.stream(**request)
    next(first)
    with pytest.raises(UserError, match="another request"):
        next(engine.stream(**request))
    first.close()
    assert engine.generate(**request).stats.tokens > 0
