import gzip
import json
import shutil
from pathlib import Path

import pytest
from corpus_reading import FIXTURES, read_all, write_lines

from schemafill.data_prep.readers import bfcl
from schemafill.data_prep.readers.bfcl_references import (
    ABSENT,
    NoRecord,
    reference_calls,
    reference_flags,
    representative,
)
from schemafill.data_prep.records import LeftOut, Record
from schemafill.inference.request import UserError

FIXTURE = FIXTURES / "bfcl"
PING = {"name": "ping", "description": "", "parameters": {"type": "dict", "properties": {"host": {"type": "string"}}}}


def by_id(source: Path) -> tuple[dict[str, Record], list[LeftOut]]:
    records, left_out = read_all(bfcl, source)
    return {one.id: one for one in records}, left_out


def write_corpus(folder: Path, questions: list, answers: list, category: str = "simple") -> Path:
    """A corpus of one category; a text is written as the line it is."""
    name = f"BFCL_v3_{category}.json"
    write_lines(folder / name, *questions)
    write_lines(folder / "possible_answer" / name, *answers)
    return folder


def question(id_: str = "simple_0", functions: object = (PING,), **more: object) -> dict:
    return {"id": id_, "question": [[{"role": "user", "content": "hi"}]], "function": functions} | more


def answer(id_: str = "simple_0", truth: object = ({"ping": {"host": ["a"]}},)) -> dict:
    return {"id": id_, "ground_truth": truth}


def tools(*functions: dict) -> list[dict]:
    return [{"type": "function", "function": function} for function in functions]


@pytest.fixture(scope="module")
def fixture() -> tuple[dict[str, Record], list[LeftOut]]:
    return by_id(FIXTURE)


def test_every_row_is_a_record_or_left_out_with_its_reason(fixture) -> None:
    records, left_out = fixture
    assert list(records) == [
        "bfcl/BFCL_v3_multi_turn_miss_func/multi_turn_miss_func_0/0", "bfcl/BFCL_v3_simple/simple_0",
        "bfcl/BFCL_v3_simple/simple_1", "bfcl/BFCL_v3_simple/simple_2", "bfcl/BFCL_v3_exec_simple/exec_simple_0",
    ]  # fmt: skip
    assert [(one.file.removeprefix("BFCL_v3_"), one.row, one.turn, one.reason) for one in left_out] == [
        ("irrelevance.json", 1, 0, "no_call_expected"),
        ("live_relevance.json", 1, 0, "no_reference"),
        ("multi_turn_miss_func.json", 1, 1, "needs_execution"),
        ("multi_turn_miss_func.json", 2, 0, "no_call_expected"),
        ("multi_turn_miss_func.json", 2, 1, "needs_execution"),
        ("multi_turn_miss_func.json", 3, 0, "no_tools"),
        ("simple.json", 4, 0, "no_reference"),
        ("chatable.json", 1, 0, "no_tools"),
        ("exec_simple.json", 2, 0, "call_form"),
        ("rest.json", 1, 0, "recorded_response"),
        ("sql.json", 1, 0, "flat_question"),
    ]


def test_record_names_its_origin(fixture) -> None:
    record = fixture[0]["bfcl/BFCL_v3_simple/simple_1"]
    assert record.source == "bfcl"
    assert record.meta == {
        "file": "BFCL_v3_simple.json", "row": 2, "turn": 0, "category": "simple",
        "flags": ["argument_outside_schema", "missing_required"],
    }  # fmt: skip


def test_system_message_is_kept(fixture) -> None:
    roles = [message["role"] for message in fixture[0]["bfcl/BFCL_v3_simple/simple_1"].messages]
    assert roles == ["system", "user"]


def test_types_are_json_schema_and_a_parameter_may_be_called_type(fixture) -> None:
    [tool] = fixture[0]["bfcl/BFCL_v3_simple/simple_1"].tools
    assert tool["function"]["name"] == "ferry.search"
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "route": {"type": "array", "items": {}},
            "price": {"type": "object", "properties": {"max": {"type": "number"}, "min": {"type": "number"}}},
            "type": {"type": "string"},
        },
        "required": ["route", "type"],
    }


def test_reference_is_the_first_allowed_value_in_the_references_order(fixture) -> None:
    [call] = fixture[0]["bfcl/BFCL_v3_simple/simple_0"].reference_calls
    assert list(call["arguments"].items()) == [("place", "Oslo"), ("days", 3), ("unit", "kelvin")]
    [call] = fixture[0]["bfcl/BFCL_v3_simple/simple_1"].reference_calls
    assert list(call["arguments"].items()) == [("price", {"max": 250.0}), ("route", [4, 9]), ("vessel", "any")]


def test_undeclared_tool_is_kept_and_flagged(fixture) -> None:
    record = fixture[0]["bfcl/BFCL_v3_simple/simple_2"]
    assert record.reference_calls == [{"name": "nearest_lighthouse", "arguments": {"town": "Bergen"}}]
    assert record.meta["flags"] == ["undeclared_tool"]


def test_expression_gets_parameter_names_arrays_and_source_texts(fixture) -> None:
    record = fixture[0]["bfcl/BFCL_v3_exec_simple/exec_simple_0"]
    arguments = {"start": [1, -2.5], "share": "6 / 12", "end": "harbour"}
    assert record.reference_calls == [{"name": "distance", "arguments": arguments}]
    assert "flags" not in record.meta


def test_ground_truth_beside_the_question_is_taken(tmp_path: Path, fixture) -> None:
    retired = FIXTURE / "unused_datasets"
    row = json.loads((retired / "question" / "BFCL_v3_exec_simple.json").read_text().split("\n")[0])
    truth = json.loads((retired / "possible_answer" / "BFCL_v3_exec_simple.json").read_text().split("\n")[0])
    (tmp_path / "BFCL_v3_exec_simple.json").write_text(json.dumps(row | truth))
    assert by_id(tmp_path)[0]["bfcl/BFCL_v3_exec_simple/exec_simple_0"] == fixture[0][
        "bfcl/BFCL_v3_exec_simple/exec_simple_0"
    ]


def test_first_turn_of_several_is_cut_with_the_tools_it_has(fixture) -> None:
    record = fixture[0]["bfcl/BFCL_v3_multi_turn_miss_func/multi_turn_miss_func_0/0"]
    assert [tool["function"]["name"] for tool in record.tools] == ["cd", "head", "add"]  # sort comes in turn 2
    assert all(set(tool["function"]) == {"name", "description", "parameters"} for tool in record.tools)
    assert record.messages == [{"role": "user", "content": "Go into notes and show the first 2 lines of a.txt."}]
    assert record.reference_calls == [
        {"name": "cd", "arguments": {"folder": "notes"}},
        {"name": "head", "arguments": {"file_name": "a.txt", "lines": 2}},
    ]


def test_packed_files_give_the_same_records(tmp_path: Path, fixture) -> None:
    shutil.copytree(FIXTURE, tmp_path / "packed")
    for path in list((tmp_path / "packed").rglob("*.json")):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert by_id(tmp_path) == fixture
    (tmp_path / "packed" / "BFCL_v3_irrelevance.json").write_bytes((FIXTURE / "BFCL_v3_irrelevance.json").read_bytes())
    assert by_id(tmp_path) == fixture  # of two packings one is read


def test_corpus_is_found_below_the_folder_named(tmp_path: Path, fixture) -> None:
    shutil.copytree(FIXTURE, tmp_path / "leaderboard" / "bfcl_eval" / "data")
    (tmp_path / "leaderboard" / "result").mkdir()
    (tmp_path / "leaderboard" / "result" / "BFCL_v3_simple_result.json").write_text("{}")
    assert by_id(tmp_path) == fixture


def test_folder_without_the_corpus_or_with_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no BFCL question file"):
        bfcl.question_files(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        bfcl.question_files(tmp_path / "none")
    for name in ("a", "b"):
        write_corpus(tmp_path / name, [question()], [answer()])
    with pytest.raises(UserError, match="several copies of BFCL, name one: .*a, .*b"):
        bfcl.question_files(tmp_path)


def test_same_file_in_two_places_is_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path, [question()], [answer()])
    write_corpus(tmp_path / "unused_datasets", [question()], [answer()])
    with pytest.raises(UserError, match="BFCL_v3_simple.json stands twice"):
        bfcl.question_files(tmp_path)


def test_bad_rows_are_left_out_and_the_rest_is_read(tmp_path: Path) -> None:
    questions = [
        '{"id": "simple_0"', "[1]", question("simple_1"), question("simple_1"), question(["x"]),
        question("simple_2", question=[]), question("simple_3", question=[[{"role": "host", "content": "hi"}]]),
        question("simple_4", functions=[PING, PING]), question("simple_5", functions=[{"description": "x"}]),
        question("simple_6", functions=[]), question("simple_7", question=[[], []]), question("simple_8"),
        question("simple_9"), question("simple_10"),
    ]  # fmt: skip
    answers = [answer(f"simple_{number}") for number in range(8)] + [
        answer("simple_0"), {"id": "simple_8"}, "no", answer("simple_9", 7), answer("simple_10", []),
    ]  # fmt: skip
    records, left_out = by_id(write_corpus(tmp_path, questions, answers))
    assert list(records) == ["bfcl/BFCL_v3_simple/simple_1"]
    assert [(one.file.removesuffix("/BFCL_v3_simple.json"), one.row, one.reason) for one in left_out] == [
        ("possible_answer", 9, "id_twice"), ("possible_answer", 10, "row_form"), ("possible_answer", 11, "row_form"),
        *[("BFCL_v3_simple.json", row, reason) for row, reason in [
            (1, "row_form"), (2, "row_form"), (4, "id_twice"), (5, "row_form"), (6, "row_form"), (7, "row_form"),
            (8, "tool_declared_twice"), (9, "tool_form"), (10, "no_tools"), (11, "row_form"), (12, "no_reference"),
            (13, "reference_form"), (14, "no_call_expected"),
        ]],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "truth", [7, None, {}, [7], [{}], [{"ping": {}, "pong": {}}], [{"ping": []}], [{"ping": {"host": 1}}], [["x"]]]
)
def test_ground_truth_of_another_form_gives_no_reference(truth: object) -> None:
    with pytest.raises(NoRecord) as caught:
        reference_calls(truth, tools(PING))
    assert caught.value.reason == "reference_form"


def test_empty_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_corpus(tmp_path, [], [answer()])
    with pytest.raises(UserError, match="BFCL_v3_simple.json holds no rows"):
        list(bfcl.read(tmp_path))


def test_line_separators_inside_text_do_not_end_a_row(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three"
    row = json.dumps(question(question=[[{"role": "user", "content": text}]]), ensure_ascii=False)
    [record] = by_id(write_corpus(tmp_path, [row + "\r", ""], [answer()]))[0].values()
    assert record.messages[0]["content"] == text


@pytest.mark.parametrize(
    ("allowed", "value"),
    [
        ([], ABSENT), ([""], ABSENT), (["", 5], ABSENT), ([5, ""], 5), ([[]], []), ([{}], {}), ([None], None), ([0], 0),
        ([False, ""], False), ([" "], " "), ([1.0, 1], 1.0), ([["a", ""]], ["a", ""]), ([[1, [2]]], [1, [2]]),
        ([{"min": [500000], "max": [9, ""]}], {"min": 500000, "max": 9}),
        ([{"a": ["", 1], "b": [""], "c": [], "d": [[]]}], {"d": []}),
        ([{"a": [{"b": [{"c": ["x", "y"]}]}]}], {"a": {"b": {"c": "x"}}}),
        ([[{"op": ["add"], "by": [2, 3]}, {"op": ["", "sub"]}]], [{"op": "add", "by": 2}, {}]),
        ([{"a": "x", "b": 2}], {"a": "x", "b": 2}), ([{"a": ["x"], "b": 2}], {"a": ["x"], "b": 2}),
    ],
)  # fmt: skip
def test_representative_value(allowed: list, value: object) -> None:
    found = representative(allowed)
    assert found is value if value is ABSENT else (found == value and type(found) is type(value))


@pytest.mark.parametrize(
    ("name", "arguments", "flags"),
    [
        ("ping", {"host": "a"}, []), ("ping", {"host": "a", "port": 1}, []), ("pong", {"x": 1}, ["undeclared_tool"]),
        ("ping", {"port": 1}, ["missing_required"]), ("ping", {"host": "a", "x": 1}, ["argument_outside_schema"]),
    ],
)  # fmt: skip
def test_flags_of_a_reference(name: str, arguments: dict, flags: list[str]) -> None:
    schema = {"type": "object", "properties": {"host": {}, "port": {}}, "required": ["host"]}
    declared = tools({"name": "ping", "parameters": schema}, {"name": "bare"})
    calls = [{"name": "bare", "arguments": {}}, {"name": name, "arguments": arguments}]
    assert reference_flags(calls, declared) == flags


def test_tool_set_key_is_that_of_the_definitions_in_any_order() -> None:
    one, other = tools({"name": "a", "description": "å"}), tools({"name": "b"})
    assert bfcl.tool_set_key(one + other) == bfcl.tool_set_key(other + one)
    assert len({bfcl.tool_set_key(each) for each in (one, other, one + other, tools({"name": "a"}))}) == 4
    assert len(bfcl.tool_set_key(one)) == 16
