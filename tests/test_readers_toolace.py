import json
from collections import Counter
from pathlib import Path

import pytest
from corpus_reading import DATA, FIXTURES, needs_corpus, num_calls, num_fields, read_all, reasons, write_lines

from schemafill.data_prep.readers import toolace
from schemafill.data_prep.readers.toolace_calls import read_calls, read_value

FIXTURE = FIXTURES / "toolace" / "rows.json"
MARKER = "Here is a list of functions in JSON format that you can invoke:\n"
NAMES = ["f", "f.g", "Moving Average (MA)", "Moving Average", "a/b, c", "天气"]


def row(*turns: tuple[str, str], names: tuple = ("f", "g"), system: str | None = None) -> dict:
    tools = [{"name": name, "description": "", "parameters": {"type": "dict", "properties": {}}} for name in names]
    listed = f"{MARKER}{json.dumps(tools)}. \nShould you decide to return the function call(s). \n"
    turned = [{"from": speaker, "value": text} for speaker, text in turns]
    return {"system": listed if system is None else system, "conversations": turned}


def read_lines(folder: Path, *rows: object):
    return read_all(toolace, write_lines(folder / "rows.jsonl", *rows))


def test_a_turn_of_calls_becomes_a_record() -> None:
    records, left_out = read_all(toolace, FIXTURE)
    first, second, third = records
    assert first.id == "toolace/rows/1/1"
    assert first.reference_calls == [
        {
            "name": "Find Train (fast)",
            "arguments": {"from-city": 'Bergen, "west" [B]', "price": 1.0, "stops": [1, "x", True]},
        },
        {"name": "Find Train", "arguments": {}},
    ]
    assert isinstance(first.reference_calls[0]["arguments"]["price"], float)
    fast = first.tools[0]["function"]
    assert set(fast) == {"name", "description", "parameters"}
    assert fast["parameters"]["type"] == "object"
    assert fast["parameters"]["properties"]["price"] == {"type": "number"}
    assert fast["parameters"]["properties"]["stops"]["items"] == {"type": ["string", "integer"]}
    assert first.group == second.group == "toolace/rows/1" != third.group
    assert second.meta == {"file": "rows.json", "row": 1, "turn": 5}
    assert third.reference_calls == [{"name": "查询", "arguments": {"词": "海"}}]
    assert [(one.row, one.turn, one.reason) for one in left_out] == [(3, None, "custom_protocol")]


def test_one_result_message_answers_every_call_of_its_turn() -> None:
    second = read_all(toolace, FIXTURE)[0][1]
    calls, *results = second.messages[2:5]
    assert [call["id"] for call in calls["tool_calls"]] == ["call_1", "call_2"]
    assert results == [
        {"role": "tool", "tool_call_id": "call_1", "content": '{"at": "9:00"}'},
        {"role": "tool", "tool_call_id": "call_2", "content": "none"},
    ]


@pytest.mark.parametrize("text", ["not JSON", '[{"name": "g", "results": 1}, {"name": "f", "results": 2}]', "[1, 2]"])
def test_results_that_do_not_fit_their_calls_stay_one_text(tmp_path: Path, text: str) -> None:
    turns = [("user", "go"), ("assistant", "[f(), g()]"), ("tool", text), ("assistant", "[f()]")]
    records, _ = read_lines(tmp_path, row(*turns))
    assert records[1].messages[2:] == [{"role": "tool", "tool_call_id": "call_1", "content": text}]


def test_of_the_system_text_tools_and_output_form_are_dropped() -> None:
    first, _, third = read_all(toolace, FIXTURE)[0]
    assert first.messages[0] == {"role": "system", "content": "Today is 2031-02-03, Friday.\nYou plan journeys."}
    assert third.messages[0] == {"role": "system", "content": "你会查询。"}


def test_a_system_text_of_nothing_else_leaves_no_system_message(tmp_path: Path) -> None:
    (record,), _ = read_lines(tmp_path, row(("user", "go"), ("assistant", "[f()]")))
    assert record.messages == [{"role": "user", "content": "go"}]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[f()]", [("f", {})]),
        ("[ f ( ) , f.g(x=1)\n]", [("f", {}), ("f.g", {"x": 1})]),
        ("[Moving Average (MA)(n=3), Moving Average()]", [("Moving Average (MA)", {"n": 3}), ("Moving Average", {})]),
        ("[a/b, c (x='1'), 天气(城市=\"挪威\")]", [("a/b, c", {"x": "1"}), ("天气", {"城市": "挪威"})]),
        ('[f(postal-unit="a", $expand=True, api key=2)]', [("f", {"postal-unit": "a", "$expand": True, "api key": 2})]),
        ('[f(a="x), g(b=1", b=\'it\\\'s\')]', [("f", {"a": "x), g(b=1", "b": "it's"})]),
        ('[f(a={"k": ["(", {"l": ")"}]}, b=-1.5)]', [("f", {"a": {"k": ["(", {"l": ")"}]}, "b": -1.5})]),
        ("[f(a=some text, b=it's here, c=2024-01)]", [("f", {"a": "some text", "b": "it's here", "c": "2024-01"})]),
        ("[f(a=)]", [("f", {"a": ""})]),
    ],
)
def test_calls_are_read(text: str, found: list) -> None:
    assert read_calls(text, NAMES) == [{"name": name, "arguments": arguments} for name, arguments in found]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[g()]", "undeclared_tool"),
        ("[f(), Other Tool(a=1)]", "undeclared_tool"),
        ("[Note] f is a tool", "call_form"),
        ("[]", "call_form"),
        ("[f]", "call_form"),
        ("[f()", "call_form"),
        ("[f(a=1]", "call_form"),
        ("[f(a=1) f()]", "call_form"),
        ("[f()] and so on", "call_form"),
        ("[f(1)]", "call_form"),
        ("[f(a=1, 2)]", "call_form"),
        ("[f(a=1, a=2)]", "call_form"),
        ("[f(a=1,, b=2)]", "call_form"),
        ('[f(a="x)]', "call_form"),
        ("f()", "call_form"),
    ],
)
def test_what_is_no_list_of_declared_calls_is_named(text: str, reason: str) -> None:
    assert read_calls(text, NAMES) == reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.0", 1.0),
        ("True", True),
        ("None", None),
        ("(1, 2)", [1, 2]),
        ('{"a": (1,)}', {"a": [1]}),
        ("true", True),
        ('{"a": null, "b": [false]}', {"a": None, "b": [False]}),
        ('"\\u6d77"', "海"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ('"a\\d"', "a\\d"),
        ('"two\nlines"', "two\nlines"),
        ("007", "007"),
        ("1 / 6", "1 / 6"),
        ("{1: 2}", "{1: 2}"),
        ("{1, 2}", "{1, 2}"),
        ("b'x'", "b'x'"),
        ("1e999", "1e999"),
        ("[NaN]", "[NaN]"),
        ("1+2j", "1+2j"),
        ("print(1)", "print(1)"),
        ("[" * 300 + "]" * 300, "[" * 300 + "]" * 300),
        ("", ""),
    ],
)
def test_a_value_is_a_literal_or_json_or_its_text(text: str, value: object) -> None:
    if text.startswith("[["):
        found = read_value(text)
        assert found == text or isinstance(found, list)  # how deep Python reads depends on its version
    else:
        assert read_value(text) == value and type(read_value(text)) is type(value)


def test_prose_is_no_decision_and_calls_of_later_turns_see_it(tmp_path: Path) -> None:
    turns = [("user", "go"), ("assistant", "Where?"), ("user", "there"), ("assistant", "[f()]")]
    (record,), left_out = read_lines(tmp_path, row(*turns))
    assert [message["content"] for message in record.messages] == ["go", "Where?", "there"]
    assert left_out == []


def test_unusable_turns_are_named_and_stay_in_the_history(tmp_path: Path) -> None:
    turns = [("user", "go"), ("assistant", "[h(a=1)]"), ("tool", "[]"), ("assistant", "[f(]"), ("assistant", "[f()]")]
    (record,), left_out = read_lines(tmp_path, row(*turns))
    assert [(one.turn, one.reason) for one in left_out] == [(1, "undeclared_tool"), (3, "call_form")]
    assert [message["content"] for message in record.messages] == ["go", "[h(a=1)]", "[]", "[f(]"]


def test_bad_rows_are_named_and_the_others_read(tmp_path: Path) -> None:
    good = row(("user", "go"), ("assistant", "[f()]"))
    rows = [
        "{",
        {"system": good["system"]},
        {"system": None, "conversations": []},
        row(("robot", "go")),
        good | {"system": f"{MARKER}[{{"},
        good | {"system": f"{MARKER}{{}}"},
        good | {"system": f"{MARKER}[1]"},
        row(("assistant", "[f()]")),
        row(("user", "go"), ("assistant", "[f()]"), ("assistant", "[g()]"), names=("f", "f", "g")),
        good,
    ]
    records, left_out = read_lines(tmp_path, *rows)
    assert [record.id for record in records] == ["toolace/rows/9/2", "toolace/rows/10/1"]
    assert records[0].meta["flags"] == ["tool_declared_twice"]
    found = dict.fromkeys((1, 2, 3, 4), "row_form") | dict.fromkeys((5, 6, 7), "tool_form")
    assert {one.row: one.reason for one in left_out} == found | {8: "no_history", 9: "tool_declared_twice"}


def test_the_list_of_row_numbers_beside_the_rows_is_no_file_of_rows(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", row(("user", "go"), ("assistant", "[f()]")))
    (tmp_path / "upstream_row_indices.json").write_text("[1, 2]")
    records, left_out = read_all(toolace, tmp_path)
    assert (len(records), left_out) == (1, [])


# ----------------------------------------------------------------------------------------------------- the real corpus


@needs_corpus("toolace")
def test_counts_of_the_corpus() -> None:
    records, left_out = read_all(toolace, DATA / "toolace")
    assert (len(records), num_calls(records), num_fields(records)) == (1247, 2316, 4179)
    assert len({record.group for record in records}) == 1155
    sizes = Counter(len(record.reference_calls) for record in records)
    assert sizes == {1: 713, 2: 217, 3: 161, 4: 115, 5: 26, 6: 10, 7: 4, 8: 1}
    assert reasons(left_out) == {"custom_protocol": 71}
    assert Counter(record.messages[-1]["role"] for record in records) == {"user": 1194, "tool": 53}
