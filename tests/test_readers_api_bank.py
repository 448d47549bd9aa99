import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from corpus_reading import DATA, FIXTURES, needs_corpus, num_calls, num_fields, read_all, reasons, write_lines

from schemafill.data_prep.readers import api_bank
from schemafill.data_prep.readers.api_bank_tools import dialogue_tools
from schemafill.inference.request import UserError

FIXTURE = FIXTURES / "api_bank"
GIVEN, SEARCH = FIXTURE / "given", FIXTURE / "toolsearcher"
SPEECH = {"role": "User", "text": "go"}


def call(name: str = "GetToken", **arguments: str) -> dict:
    return {"role": "API", "api_name": name, "param_dict": arguments, "result": {"output": "ok"}}


def names(record) -> list[str]:
    return [tool["function"]["name"] for tool in record.tools]


def test_each_call_of_a_dialogue_is_a_record() -> None:
    records, left_out = read_all(api_bank, GIVEN)
    assert [record.id.rsplit("/", 1)[1] for record in records] == ["4", "5", "9"]
    assert [record.reference_calls[0]["name"] for record in records] == ["GetToken", "AddMeeting", "GetToken"]
    assert {record.group for record in records} == {"api-bank/AddMeeting-GetToken-level-2-1"}
    assert records[0].meta == {"file": "AddMeeting-GetToken-level-2-1.jsonl", "row": 4, "turn": 3}
    assert [message["content"] for message in records[0].messages][1:] == ["Sure.", "One moment."]
    assert records[1].messages[3:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "GetToken", "arguments": '{"user": "Bo"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": '{"token": "t1"}'},
    ]
    assert [(one.row, one.reason, one.detail) for one in left_out] == [(7, "undeclared_tool", "Weather")]


def test_given_tools_are_those_called_anywhere_in_order_of_first_call() -> None:
    for record in read_all(api_bank, GIVEN)[0]:
        assert names(record) == ["GetToken", "AddMeeting"]
    meeting = record.tools[1]["function"]
    assert meeting["description"] == "Books a meeting."
    parameters = meeting["parameters"]
    assert parameters["required"] == ["topic", "people", "hours", "extra"]
    assert parameters["properties"]["people"] == {
        "type": "array",
        "items": {"type": "string"},
        "description": "Who comes.",
    }
    assert parameters["properties"]["hours"]["type"] == "number"
    assert parameters["properties"]["extra"] == {"description": "Anything else."}


def test_arguments_are_what_the_model_gave_unchanged() -> None:
    meeting = read_all(api_bank, GIVEN)[0][1]
    assert meeting.reference_calls[0]["arguments"] == {"topic": "tides", "people": "['Ada']", "hours": "1", "room": "7"}


def test_results_of_every_kind_become_text() -> None:
    last = read_all(api_bank, GIVEN)[0][-1]
    results = [message["content"] for message in last.messages if message["role"] == "tool"]
    assert results == ['{"token": "t1"}', "success", "null"]


def test_a_searching_model_has_the_tools_found_so_far() -> None:
    records, left_out = read_all(api_bank, SEARCH)
    offered = {record.id.rsplit("/", 1)[1]: names(record) for record in records}
    assert offered == {
        "4": ["ToolSearcher"],
        "5": ["ToolSearcher", "AddMeeting"],
        "6": ["ToolSearcher", "AddMeeting", "GetToken"],
        "7": ["ToolSearcher", "AddMeeting", "GetToken"],
    }
    assert records[2].tools[1]["function"]["description"] == "Books a meeting (found)."
    assert [(one.file, one.row, one.reason) for one in left_out] == [
        ("AddMeeting-level-3-1.jsonl", 2, "tool_not_yet_found"),
        ("GetToken-level-3-1.jsonl", 2, "tool_not_yet_found"),
    ]
    assert len([message for message in records[0].messages if message["role"] == "tool"]) == 1


def test_processed_records_are_read_at_every_level() -> None:
    records, left_out = read_all(api_bank, FIXTURE / "processed")
    second, _, third = records
    assert second.reference_calls == [{"name": "AddMeeting", "arguments": {"topic": "tides"}}]
    assert second.group == "api-bank/AddMeeting-level-3-9"
    assert second.messages[0] == {"role": "user", "content": "Log me in and book\na meeting."}
    assert second.messages[2]["tool_calls"][0]["function"] == {"name": "GetToken", "arguments": '{"user": "Bo"}'}
    assert second.messages[3:] == [
        {"role": "tool", "tool_call_id": "call_1", "content": "{'token': 't1'}"},
        {"role": "assistant", "content": "Now the meeting."},
    ]
    parameters = second.tools[0]["function"]["parameters"]
    assert parameters["properties"]["user"] == {"type": "string", "description": "The user's name: \n any."}
    assert second.tools[1]["function"]["description"] == ""
    assert names(third) == ["Weather", "Now"]
    assert third.tools[0]["function"]["description"] == "The weather: today only."
    assert [message["content"] for message in third.messages[2:]] == ["12:00", "12:01", "not a call"]
    assert third.reference_calls == [{"name": "Weather", "arguments": {"city": "Oslo"}}]
    assert [(one.row, one.reason) for one in left_out] == [(2, "undeclared_tool")]


def test_a_record_that_repeats_a_dialogue_is_left_out_beside_it(tmp_path: Path) -> None:
    for folder in (SEARCH, FIXTURE / "processed"):
        shutil.copytree(folder, tmp_path / folder.name)
    shutil.copy(FIXTURE / "tool_schemas.json", tmp_path)
    records, left_out = read_all(api_bank, tmp_path)
    assert [record.id for record in records[:4]] == [f"api-bank/AddMeeting-level-3-1/{line}" for line in (4, 5, 6, 7)]
    assert [record.meta["file"][:7] for record in records[4:]] == ["level-2", "level-3"]
    assert [one.detail for one in left_out if one.reason == "repeats_a_dialogue"] == ["GetToken-level-3-1.jsonl"]


def test_the_hub_layout_is_read() -> None:
    records, left_out = read_all(api_bank, FIXTURE / "hub")
    found, now = records
    assert found.reference_calls == [{"name": "AddMeeting", "arguments": {"topic": 'the tides, "high"'}}]
    assert names(found) == ["ToolSearcher", "AddMeeting"]
    assert found.messages[:2] == [
        {"role": "user", "content": "Book a meeting.\nIt is on tides."},
        {"role": "assistant", "content": "Sure."},
    ]
    assert found.messages[2]["tool_calls"][0]["function"]["arguments"] == '{"keywords": "meeting"}'
    assert json.loads(found.messages[3]["content"])["name"] == "AddMeeting"
    assert len(found.messages) == 4
    assert now.reference_calls == [{"name": "Now", "arguments": {"zone": "UTC"}}]
    assert now.tools[0]["function"]["parameters"]["required"] == ["zone"]
    found_reasons = {one.row: one.reason for one in left_out}
    assert found_reasons == {4: "undeclared_tool", 5: "tool_form", 6: "row_form"}


def test_definitions_come_from_the_nearest_folder_above(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data" / "level-1" / "x.jsonl", SPEECH, call())
    shutil.copy(FIXTURE / "tool_schemas.json", tmp_path)
    for source in (path, path.parent, tmp_path):
        assert names(read_all(api_bank, source)[0][0]) == ["GetToken"]


def test_the_table_serves_where_there_are_no_schemas(tmp_path: Path) -> None:
    write_lines(tmp_path / "x.jsonl", SPEECH, call(), call("AddMeeting"), call("Broken"))
    (tmp_path / "data").mkdir()
    shutil.copy(FIXTURE / "table" / "all_apis.csv", tmp_path / "data")
    records, left_out = read_all(api_bank, tmp_path)
    assert [record.reference_calls[0]["name"] for record in records] == ["GetToken", "AddMeeting"]
    token, meeting = (tool["function"] for tool in records[0].tools)
    assert token["parameters"]["properties"]["user"]["type"] == "string"
    assert meeting["parameters"]["properties"] == {}
    assert reasons(left_out) == {"undeclared_tool": 1}


def test_dialogues_without_any_definitions_are_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "x.jsonl", SPEECH, call())
    with pytest.raises(UserError, match="tool_schemas.json"):
        list(api_bank.read(tmp_path))


def test_schemas_without_the_section_of_dialogues_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tool_schemas.json").write_text('{"lv3_apis": {}}')
    with pytest.raises(UserError, match="'apis'"):
        dialogue_tools(tmp_path)


@pytest.mark.parametrize(
    "line", ['{"role": "User"', {"role": "Robot", "text": "?"}, {"role": "API", "api_name": "GetToken"}]
)
def test_a_bad_line_is_named_and_later_calls_have_a_broken_history(tmp_path: Path, line: object) -> None:
    shutil.copy(FIXTURE / "tool_schemas.json", tmp_path)
    write_lines(tmp_path / "x.jsonl", SPEECH, call(), line, call())
    write_lines(tmp_path / "y.jsonl", call(), call())
    records, left_out = read_all(api_bank, tmp_path)
    assert [record.id for record in records] == ["api-bank/x/2", "api-bank/y/2"]
    found = [(one.file, one.row, one.reason) for one in left_out]
    assert found == [("x.jsonl", 3, "row_form"), ("x.jsonl", 4, "broken_history"), ("y.jsonl", 1, "no_history")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answer": {"name": "GetToken"}}, "call_form"),
        ({"answer": []}, "call_form"),
        ({"system": "no tools"}, "tool_form"),
        ({"system": "you can use the following tools:\n1. GetToken"}, "tool_form"),
        ({"system": "you can use the following tools:\n1. GetToken: x\nParameters: {open()}"}, "tool_form"),
        ({"user": None}, "row_form"),
        ({"user": "<user> please only make one tool call </user>"}, "no_history"),
    ],
)
def test_an_unusable_processed_record_is_named(tmp_path: Path, change: dict, reason: str) -> None:
    good = {
        "system": "you can use the following tools:\n1. GetToken: x\nParameters: {}",
        "user": "<user> hi </user>",
        "answer": {"name": "GetToken", "parameters": {}},
    }
    records, left_out = read_all(api_bank, write_lines(tmp_path / "rows.jsonl", good | change, good))
    assert [record.meta["row"] for record in records] == [2]
    assert reasons(left_out) == {reason: 1}


# ----------------------------------------------------------------------------------------------------- the real corpus

CORPUS = DATA / "api-bank"
needs_api_bank = needs_corpus("api-bank")


def before(record) -> str:
    """Who spoke last before the call; a result belongs to an API turn."""
    return {"user": "User", "assistant": "AI", "tool": "API"}[record.messages[-1]["role"]]


@needs_api_bank
def test_counts_of_the_dialogues_with_given_tools() -> None:
    records, left_out = read_all(api_bank, CORPUS / "lv1-lv2-samples" / "level-1-given-desc")
    assert (len(records), num_calls(records), num_fields(records)) == (389, 389, 881)
    assert [(one.file, one.detail) for one in left_out] == [("SearchEngine-level-1-1.jsonl", "the file is empty")]
    assert len({record.group for record in records}) == 212
    assert Counter(map(before, records)) == {"AI": 256, "User": 123, "API": 10}


@needs_api_bank
def test_counts_of_the_dialogues_with_search() -> None:
    records, left_out = read_all(api_bank, CORPUS / "lv1-lv2-samples" / "level-2-toolsearcher")
    assert (len(records), num_fields(records)) == (106, 194)
    assert reasons(left_out) == {"tool_not_yet_found": 13}
    assert len({record.group for record in records}) == 45
    assert sum(record.reference_calls[0]["name"] == "ToolSearcher" for record in records) == 45


@needs_api_bank
def test_calls_that_do_not_fit_their_definitions() -> None:
    num_lacking = num_extra = 0
    for record in read_all(api_bank, CORPUS / "lv1-lv2-samples")[0]:
        reference = record.reference_calls[0]
        tool = next(tool["function"] for tool in record.tools if tool["function"]["name"] == reference["name"])
        known, given = set(tool["parameters"]["properties"]), set(reference["arguments"])
        num_lacking += bool(known - given)
        num_extra += bool(given - known)
    assert (num_lacking, num_extra) == (20, 8)


@needs_api_bank
@pytest.mark.parametrize(
    ("level", "num_tools", "num_decisions", "fields", "skipped"),
    [(1, 872, 399, 901, {}), (2, 109, 61, 149, {"undeclared_tool": 6}), (3, 226, 131, 234, {})],
)
def test_counts_of_the_processed_records(level, num_tools, num_decisions, fields, skipped) -> None:
    path = CORPUS / "processed" / f"level-{level}-api_processed.json"
    records, left_out = read_all(api_bank, path)
    assert (len(records), num_fields(records), reasons(left_out)) == (num_decisions, fields, skipped)
    if not skipped:
        assert sum(len(record.tools) for record in records) == num_tools
    assert not any("only make one tool call" in (message["content"] or "") for r in records for message in r.messages)


@needs_api_bank
def test_of_the_whole_corpus_dialogues_win() -> None:
    records, left_out = read_all(api_bank, CORPUS)
    assert len(records) == 389 + 106 + 131
    assert reasons(left_out) == {"tool_not_yet_found": 13, "repeats_a_dialogue": 399 + 67, "row_form": 1}
