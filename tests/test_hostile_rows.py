"""Rows that a reader cannot use, or that JSON cannot say: named and counted, never a traceback and never guessed."""

import json
from pathlib import Path

import pytest
from corpus_reading import read_all, reasons, write_lines

from schemafill.data_prep.corpora import CORPORA, read_corpus
from schemafill.data_prep.readers import api_bank, bfcl, glaive, toolace
from schemafill.data_prep.readers.python_calls import parse_call
from schemafill.data_prep.readers.toolace_calls import read_value
from schemafill.data_prep.records import record_of
from schemafill.inference.request import UserError
from schemafill.inference.row_files import parse_json

TOOL = '{"name": "f", "description": "", "parameters": %s}'
MARKER = "Here is a list of functions in JSON format that you can invoke:\n"


def nested(levels: int) -> dict:
    value: dict = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def shared_row(parameters: str = "{}", arguments: str = "{}") -> dict:
    calls = [{"from": "human", "value": "go"}, {"from": "function_call", "value": '{"name": "f", "arguments": %s}'}]
    calls[1]["value"] %= arguments
    return {"tools": f"[{TOOL % parameters}]", "conversations": calls}


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e400", '{"a": [-1e999]}'])
def test_what_json_cannot_say_is_no_json(text: str) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        parse_json(text)
    assert parse_json("1e300") == 1e300


@pytest.mark.parametrize("arguments", ['{"x": 1e400}', '{"x": NaN}', json.dumps(nested(300))])
def test_arguments_that_cannot_be_said_are_named(tmp_path: Path, arguments: str) -> None:
    path = write_lines(tmp_path / "rows.jsonl", shared_row(arguments=arguments), shared_row())
    records, left_out = read_all(glaive, path)
    assert [record.meta["row"] for record in records] == [2] and [one.row for one in left_out] == [1]


@pytest.mark.parametrize("parameters", ['"text"', "[1]", json.dumps(nested(300))])
def test_parameters_that_cannot_be_read_are_not_taken_for_none(tmp_path: Path, parameters: str) -> None:
    path = write_lines(tmp_path / "rows.jsonl", shared_row(parameters), shared_row())
    records, left_out = read_all(glaive, path)
    assert [record.meta["row"] for record in records] == [2]
    assert reasons(left_out) == {"tool_form": 1}


@pytest.mark.parametrize("name", CORPORA)
def test_a_row_that_nests_too_deep_is_named_in_every_corpus(name: str, tmp_path: Path) -> None:
    file = "BFCL_v3_simple.json" if name == "bfcl" else "rows.jsonl"
    write_lines(tmp_path / file, nested(120), {"id": "simple_1", "system": "x", "chat": "USER: y", "Name": "z"})
    if name == "bfcl":
        (tmp_path / "possible_answer").mkdir()
        write_lines(tmp_path / "possible_answer" / file, {"id": "simple_1", "ground_truth": []})
    records, left_out = read_corpus(CORPORA[name], tmp_path)
    assert not records and (1, "nests deeper than 100 levels") in [(one.row, one.detail) for one in left_out]


def test_a_good_row_behind_a_bad_one_is_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", "{", nested(200), shared_row(), "[]", shared_row())
    records, left_out = read_all(glaive, path)
    assert [record.meta["row"] for record in records] == [3, 5] and [one.row for one in left_out] == [1, 2, 4]


def test_numbers_without_end_stay_text() -> None:
    digits = "0x" + "F" * 5000
    assert read_value(digits) == digits and read_value("12") == 12
    assert parse_call(f"f(x={digits}, y=7)").keywords == {"x": digits, "y": 7}


def test_a_list_file_that_is_cut_off_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "texts.json").write_text('["abc", "de')
    with pytest.raises(UserError, match=r"texts.json: not JSON"):
        read_all(glaive, tmp_path / "texts.json")


def test_a_speaker_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "tool_schemas.json").write_text('{"apis": {}}')
    turns = [{"role": "User", "text": "go"}, {"role": ["User"], "text": "x"}]
    write_lines(tmp_path / "A-level-1-1.jsonl", *turns)
    _, left_out = read_all(api_bank, tmp_path)
    assert [(one.row, one.reason) for one in left_out] == [(2, "row_form")]


def test_a_field_that_no_table_can_hold_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "all_apis.csv").write_text("API,class\n" + "x" * 200_000 + ",y\n")
    write_lines(tmp_path / "A-level-1-1.jsonl", {"role": "User", "text": "go"})
    with pytest.raises(UserError, match=r"all_apis.csv: field larger"):
        read_all(api_bank, tmp_path)


def test_literals_that_json_cannot_say_are_no_parameters(tmp_path: Path) -> None:
    row = {
        "system": "you can use the following tools:\n1. F: x\nParameters: {'a': {1, 2}}", "user": "<user> hi </user>",
        "answer": {"name": "F", "parameters": {}},
    }  # fmt: skip
    records, left_out = read_all(api_bank, write_lines(tmp_path / "rows.jsonl", row))
    assert not records and len(left_out) == 1


def test_files_whose_names_collide_keep_ids_apart(tmp_path: Path) -> None:
    for name in ("a.json", "a.jsonl", "a.json.json"):
        write_lines(tmp_path / name, shared_row())
    records, _ = read_corpus(CORPORA["glaive"], tmp_path)
    assert len({record.id for record in records}) == 3


def test_a_toolace_row_of_text_parameters_is_left_out(tmp_path: Path) -> None:
    turns = [{"from": "user", "value": "go"}, {"from": "assistant", "value": "[f()]"}]
    row = {"system": f"{MARKER}[{TOOL % json.dumps('none')}]. \n", "conversations": turns}
    assert reasons(read_all(toolace, write_lines(tmp_path / "rows.jsonl", row))[1]) == {"tool_form": 1}


def test_a_bfcl_row_with_a_number_beyond_all_is_named(tmp_path: Path) -> None:
    good = {"id": "simple_0", "question": [[{"role": "user", "content": "go"}]], "function": [json.loads(TOOL % "{}")]}
    write_lines(tmp_path / "BFCL_v3_simple.json", good)
    (tmp_path / "possible_answer").mkdir()
    answer = '{"id": "simple_0", "ground_truth": [{"f": {"x": [1e400]}}]}\n'
    (tmp_path / "possible_answer" / "BFCL_v3_simple.json").write_text(answer)
    records, left_out = read_all(bfcl, tmp_path)
    assert not records and left_out


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"messages": [{"role": "user", "content": "x", "tool_calls": 5}]}, "tool_calls"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": ["a"]}]}, "tool_calls"),
        ({"reference_calls": [{"name": ["a"], "arguments": {}}]}, "reference call"),
        ({"reference_calls": [{"name": "a", "arguments": "{}"}]}, "reference call"),
        ({"reference_calls": [{"arguments": {}}]}, "reference call"),
    ],
)
def test_calls_of_a_record_have_their_form(change: dict, fault: str) -> None:
    row = {"id": "a", "messages": [{"role": "user", "content": "x"}], "tools": []}
    assert record_of(row).id == "a"
    with pytest.raises(ValueError, match=fault):
        record_of(row | change)
