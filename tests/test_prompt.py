"""What clients send as a history, and the prompt that chat templates with the families' traits make of it."""

import itertools
import json
import re
from pathlib import Path

import pytest
from cases import case_params
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from schemafill.inference.request import UserError
from schemafill.inference.toolcall.dialects import DIALECTS, dialect_from_template
from schemafill.inference.toolcall.output import new_call_id, parse_output
from schemafill.inference.toolcall.prompt import normalise_messages, render_chat, request_text
from schemafill.inference.toolcall.schema import parse_tools

FIXTURES = Path(__file__).parent / "fixtures"
FAMILY_TEMPLATES = {
    "qwen2.5": "qwen_like", "qwen3": "qwen_like", "hermes3": "hermes_like", "mistral": "mistral_like",
    "llama3.1": "llama_like",
}  # fmt: skip
ID_LENGTHS = {"mistral": 9}
TOOLS = [{"type": "function", "function": {"name": "gate_state", "parameters": {"type": "object", "properties": {}}}}]


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges that has one of the fixture templates."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)
    tokenizer.chat_template = (FIXTURES / f"{template}.jinja").read_text(encoding="utf-8")
    return tokenizer


def render(family: str, messages: list, tools: list = (), **options: object) -> str:
    history = normalise_messages(messages, id_length=ID_LENGTHS.get(family))
    return render_chat(tokenizer_with(FAMILY_TEMPLATES[family]), history, list(tools), **options)


def call(call_id: str | None, name: str = "gate_state", arguments: object = "{}") -> dict:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: dict) -> dict:
    return {"role": "assistant", "tool_calls": list(calls)}


def call_ids(calls: list[dict], id_length: int | None = 9) -> list[str]:
    (message,) = normalise_messages([assistant(*calls)], id_length=id_length)
    return [made["id"] for made in message["tool_calls"]]


def without_empty_fields(messages: list[dict]) -> list[dict]:
    return [{key: value for key, value in message.items() if value} for message in messages]


def check_ids(prompt: str) -> None:
    call_ids, result_ids = re.findall(r'"id": "(.*?)"', prompt), re.findall(r'"call_id": "(.*?)"', prompt)
    assert all(re.fullmatch("[A-Za-z0-9]{9}", call_id) for call_id in call_ids)
    assert len(set(call_ids)) == len(call_ids)
    assert result_ids == call_ids


@pytest.mark.parametrize("item", case_params("prompt"))
def test_case_prompt_is_rendered(item):
    given, expect = item.given, item.expect
    histories = [variant["messages"] for variant in given.get("variants", [])] or [given["messages"]]
    for family in given["families"]:
        prompts = [render(family, history, given.get("tools", []), **given.get("options", {})) for history in histories]
        assert len(set(prompts)) == 1
        for text in expect.get("contains", []):
            assert text in prompts[0]
        assert not any(text in prompts[0] for text in expect.get("not_contains", []))
        for text, count in expect.get("count", {}).items():
            assert prompts[0].count(text) == count
        assert prompts[0].endswith(expect.get("ends_with", ""))
        if expect.get("mistral_ids"):
            check_ids(prompts[0])
        if "same_ids_as_reference" in expect:
            variants = {variant["name"]: variant["messages"] for variant in given.get("variants", [])}
            history = without_empty_fields(variants.get("arguments-as-object", histories[0]))
            tokenizer = tokenizer_with(FAMILY_TEMPLATES[family])
            reference = tokenizer.apply_chat_template(history, tools=given["tools"], add_generation_prompt=True)
            assert tokenizer(prompts[0])["input_ids"] == reference["input_ids"]


@pytest.mark.parametrize("item", case_params("server", "P03"))
def test_case_ids_made_here_survive_the_next_turn(item):
    given, expect = item.given, item.expect
    catalog = parse_tools(given["request"]["tools"])
    parsed = parse_output(DIALECTS["mistral"], catalog, given["target_text"], given["end"])
    calls = [call(new_call_id(), made.name, made.arguments) for made in parsed.tool_calls]
    assert [made["function"]["name"] for made in calls] == [wanted["name"] for wanted in expect["calls"]]
    assert all(re.fullmatch(expect["call_ids"]["pattern"], made["id"]) for made in calls)
    assert len({made["id"] for made in calls}) == len(calls)
    results = [{"role": "tool", "tool_call_id": made["id"], "content": "open"} for made in calls]
    history = given["request"]["messages"] + [{"role": "assistant", "tool_calls": calls}, *results]
    prompt = render("mistral", [*history, {"role": "user", "content": "And now?"}], given["request"]["tools"])
    check_ids(prompt)
    assert all(made["id"] in prompt for made in calls)


def test_one_history_in_many_spellings_is_one_history():
    plain = {"role": "assistant", "content": "ok"}
    answers = [plain, {**plain, "tool_calls": []}, {**plain, "tool_calls": None, "refusal": None, "annotations": []}]
    arguments = [{"gate": "é", "n": 1}, '{"gate": "\\u00e9", "n": 1}', ' {"gate":"é",\n"n":1}\n']
    expected = [{**assistant(call("c1", arguments=arguments[0])), "content": ""}, plain]
    for content, written, answer in itertools.product([None, "", []], arguments, answers):
        history = [{**assistant(call("c1", arguments=written)), "content": content, "audio": None}, answer]
        assert normalise_messages(history, id_length=None) == expected


@pytest.mark.parametrize("arguments", ["", "  \n", "{}", {}, None])
def test_no_arguments_are_an_empty_object(arguments):
    (message,) = normalise_messages([assistant(call("c", arguments=arguments))], id_length=None)
    assert message["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("arguments", ['{"gate": nor', "[1]", "5", '{"n": NaN}', pytest.param("[" * 9000, id="deep")])
@pytest.mark.parametrize("family", FAMILY_TEMPLATES)
def test_arguments_that_are_no_object_are_kept_as_text_and_render(family, arguments):
    history = [{"role": "user", "content": "x"}, assistant(call("c", arguments=arguments))]
    normalised = normalise_messages(history, id_length=9)
    assert normalised[1]["tool_calls"][0]["function"]["arguments"] == arguments
    assert render(family, history, TOOLS)


def test_text_parts_are_joined_and_the_given_messages_left_alone():
    given = [{"role": "developer", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}]
    assert normalise_messages(given, id_length=9) == [{"role": "system", "content": "a b"}]
    assert isinstance(given[0]["content"], list)


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ({"role": "user"}, "must be a list"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"role": "user"}, {"role": "robot"}], r"messages\[1\] has the role 'robot', known are system"),
        ([{"role": ["user"]}], "has the role"),
        ([{"role": "user", "content": 5}], "must be text or a list"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "only text parts .* 'image_url'"),
        ([{"role": "user", "content": ["text"]}], "only text parts"),
        ([{"role": "assistant", "tool_calls": {"id": 1}}], "tool_calls must be a list"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], r"tool_calls\[0\] must be an object with a function"),
    ],
)
def test_a_faulty_history_is_named_in_one_line(messages, fault):
    with pytest.raises(UserError, match=fault) as raised:
        normalise_messages(messages, id_length=None)
    assert "\n" not in str(raised.value)


def test_ids_are_fitted_the_same_way_each_time_and_never_made_one():
    ids = ["call_0f3a91b2c4d5e6", "call_0f3a91b2c4d5e7", "a1B2c3D4e", "é", "toolong-1234567", "x" * 9]
    fitted = call_ids([call(call_id) for call_id in ids])
    assert all(re.fullmatch("[A-Za-z0-9]{9}", call_id) for call_id in fitted)
    assert len(set(fitted)) == len(ids)
    assert (fitted[2], fitted[5]) == (ids[2], ids[5])
    assert call_ids([call(ids[1])]) == [fitted[1]]
    assert call_ids([call(call_id) for call_id in ids], id_length=None) == ids


def test_a_derived_id_gives_way_to_one_that_a_client_sent():
    (derived,) = call_ids([call("call_1")])
    first, second = call_ids([call("call_1"), call(derived)])
    assert second == derived
    assert first != derived


def test_a_result_gets_the_name_and_the_id_of_its_call():
    calls = [call("c1", "open_gate"), call("c2", "shut_gate"), call(None, "list_gates")]
    history = [
        assistant(*calls),
        {"role": "tool", "tool_call_id": "c2", "content": "shut"},
        {"role": "tool", "tool_call_id": "c1", "content": None},
        {"role": "tool", "content": "three gates"},
    ]
    asked, *results = normalise_messages(history, id_length=None)
    assert [result["name"] for result in results] == ["shut_gate", "open_gate", "list_gates"]
    assert results[2]["tool_call_id"] == asked["tool_calls"][2]["id"] != ""
    assert results[1]["content"] == ""


def test_options_reach_the_template():
    history = [{"role": "user", "content": "x"}]
    assert render("qwen3", history, enable_thinking=True).endswith("assistant\n<think>\n")
    assert render("qwen3", history, enable_thinking=False).endswith("assistant\n")


def test_tools_reach_the_template_as_they_came():
    given = {"function": {"parameters": {"properties": {"größe": {}}}, "name": "潮汐"}, "type": "function"}
    line = json.dumps(given, ensure_ascii=False)
    assert f"<tools>\n{line}\n</tools>" in render("qwen2.5", [{"role": "user", "content": "x"}], [given])


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": []}])
def test_a_template_that_needs_parameters_gets_them(parameters):
    prompt = render("hermes3", [{"role": "user", "content": "x"}], [{"name": "ping", "parameters": parameters}])
    assert prompt.startswith("ping() ")


def test_a_refusing_template_is_the_callers_fault_in_one_line():
    with pytest.raises(UserError, match="^the chat template cannot render this request: the id of a call must have"):
        render_chat(tokenizer_with("mistral_like"), [assistant(call("c"))], [])
    with pytest.raises(UserError, match="cannot render"):
        render("qwen2.5", [{"role": "user", "content": "half a character \ud800"}])
    tokenizer = tokenizer_with("qwen_like")
    tokenizer.chat_template = "{{ raise_exception('first line\nsecond line') }}"
    with pytest.raises(UserError, match="request: first line second line$"):
        render_chat(tokenizer, [{"role": "user", "content": "x"}], [])


def test_request_text_is_what_was_said_without_system_and_catalogue():
    history = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "Open gate 7"},
        {"role": "assistant", "content": "One moment", "tool_calls": [call("c1", arguments={"gate": 8})]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    assert request_text(normalise_messages(history, id_length=None)) == "Open gate 7\nOne moment\ndone"


@pytest.mark.parametrize(
    ("fixture", "dialect"),
    [("qwen_like", "hermes"), ("hermes_like", "hermes"), ("mistral_like", "mistral"), ("llama_like", "llama3")],
)
def test_a_template_shows_its_dialect(fixture, dialect):
    assert dialect_from_template((FIXTURES / f"{fixture}.jinja").read_text(encoding="utf-8")) == dialect


def test_a_template_without_marks_of_a_dialect_means_json():
    assert dialect_from_template("{{ messages }}") == dialect_from_template("") == "json"
    assert dialect_from_template("<|python_tag|>") == "llama3"
