import json
from pathlib import Path

import pytest
from corpus_reading import DATA, FIXTURES, needs_corpus, num_fields, read_all, reasons, write_lines

from schemafill.data_prep.readers import toolalpaca
from schemafill.data_prep.readers.toolalpaca import parameter_schema
from schemafill.inference.row_files import read_rows

FIXTURE = FIXTURES / "toolalpaca"


def test_the_first_call_of_each_request_is_a_record() -> None:
    records, _ = read_all(toolalpaca, FIXTURE / "eval_small.json")
    assert [record.id for record in records] == ["toolalpaca/eval_small/1/0", "toolalpaca/eval_small/1/1"]
    find, lend = records
    assert find.messages == [{"role": "user", "content": "Which books are on tides?"}]
    assert find.reference_calls == [{"name": "find-books_get", "arguments": {"title": "tides", "limit": 10}}]
    assert lend.reference_calls == [{"name": "lend", "arguments": {"id": 7.0}}]
    assert {record.group for record in records} == {"toolalpaca/Bücher.io"}
    assert lend.meta == {"file": "eval_small.json", "row": 1, "turn": 1}


def test_an_unusable_answer_is_named() -> None:
    _, left_out = read_all(toolalpaca, FIXTURE / "eval_small.json")
    assert [(one.row, one.turn, one.reason) for one in left_out] == [
        (1, 2, "undeclared_tool"),
        (1, 3, "input_not_json"),
        (1, 4, "no_call"),
        (1, 5, "arguments_not_object"),
        (1, 6, "call_form"),
        (2, None, "no_functions"),
        (3, None, "no_requests"),
    ]


def test_tools_are_the_functions_with_a_path() -> None:
    records, _ = read_all(toolalpaca, FIXTURE / "eval_small.json")
    find, lend, now, bare = (tool["function"] for tool in records[0].tools)
    assert [find["name"], lend["name"], now["name"], bare["name"]] == ["find-books_get", "lend", "now", "bare"]
    assert (find["description"], lend["description"], now["description"]) == ("Find books", "", "The time")
    assert find["parameters"]["required"] == ["title"]
    assert list(find["parameters"]["properties"]) == ["title", "sort", "limit", "tags", "range", "odd"]
    assert lend["parameters"]["required"] == ["id", "days"]
    assert now["parameters"] == bare["parameters"] == {}


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("Required. string. A name. Any.", {"type": "string", "description": "A name. Any."}),
        ("integer. ", {"type": "integer", "description": ""}),
        ("Required. number", {"type": "number", "description": ""}),
        ("string. One of: [a, b c]. Which.", {"type": "string", "description": "Which.", "enum": ["a", "b c"]}),
        ("integer. One of: [1, 2]. Which.", {"type": "integer", "description": "One of: [1, 2]. Which."}),
        ("string. One of: []. Which.", {"type": "string", "description": "One of: []. Which."}),
        ("Array[string]. Some.", {"type": "array", "items": {"type": "string"}, "description": "Array[string]. Some."}),
        ("Array[Object{a}]. Some.", {"type": "array", "description": "Array[Object{a}]. Some."}),
        ("Object{a: string}. It.", {"type": "object", "description": "Object{a: string}. It."}),
        ("Objects to find.", {"description": "Objects to find."}),
        ("", {"description": ""}),
    ],
)
def test_a_parameter_is_read_out_of_its_text(text: str, schema: dict) -> None:
    assert parameter_schema(text) == (schema, text.startswith("Required."))


def test_each_step_of_a_trace_is_a_record() -> None:
    records, left_out = read_all(toolalpaca, FIXTURE / "traces.json")
    ids = ["1/0/0", "1/0/3", "1/2/0"]
    assert [record.id for record in records] == [f"toolalpaca/traces/{one}" for one in ids]
    first, last, other = records
    assert first.messages == [{"role": "user", "content": "Wake me in an hour."}]
    assert [one["content"] for one in last.messages if one["role"] == "tool"] == [
        "Status Code: 200. Response: 12:00",
        "Today",
        "Error: not JSON",
    ]
    functions = [one["tool_calls"][0]["function"] for one in last.messages if "tool_calls" in one]
    assert functions == [
        {"name": "now", "arguments": "{}"},
        {"name": "getDetails", "arguments": '{"Question": "Which day?"}'},
        {"name": "alarm", "arguments": "{at: 13:00}"},
    ]
    assert last.reference_calls == [{"name": "alarm", "arguments": {"at": "13:00"}}]
    assert other.meta == {"file": "traces.json", "row": 1, "turn": 2, "step": 0}
    assert "need the time" not in json.dumps([record.to_json() for record in records])
    assert [(one.turn, one.reason) for one in left_out] == [
        (0, "undeclared_tool"),
        (0, "input_not_json"),
        (1, "failed_trace"),
        (2, "call_form"),
    ]


def test_answers_count_where_there_are_traces_too(tmp_path: Path) -> None:
    api = json.loads((FIXTURE / "traces.json").read_text())[0]
    api["Golden_Answers"] = [[{"Action": "now", "Action_Input": "{}"}]]
    records, left_out = read_all(toolalpaca, write_lines(tmp_path / "both.jsonl", api))
    assert [record.id for record in records] == ["toolalpaca/both/1/0"]
    assert left_out == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"Name": None}, "row_form"),
        ({"Function_Projection": {}}, "no_functions"),
        ({"Function_Projection": {"": ["/", "get"]}}, "no_functions"),
        ({"Instances": [3]}, "row_form"),
        ({"Instances": None, "Golden_Answers": []}, "row_form"),
        ({"Instances": None, "Golden_Answers": ["now()"]}, "row_form"),
        ({"Instances": None, "Golden_Answers": [["now()"]]}, "call_form"),
    ],
)
def test_an_odd_api_is_named_and_the_next_one_read(tmp_path: Path, change: dict, reason: str) -> None:
    api = json.loads((FIXTURE / "traces.json").read_text())[0]
    api["Instances"] = api["Instances"][2:3]
    records, left_out = read_all(toolalpaca, write_lines(tmp_path / "apis.jsonl", api | change, "[", api))
    assert [record.id for record in records] == ["toolalpaca/apis/3/0/0"]
    assert [(one.row, one.reason) for one in left_out] == [(1, reason), (2, "row_form"), (3, "call_form")]


# ----------------------------------------------------------------------------------------------------- the real corpus

CORPUS = DATA / "toolalpaca"
needs_toolalpaca = needs_corpus("toolalpaca")


@needs_toolalpaca
@pytest.mark.parametrize(
    ("name", "num_apis", "num_functions", "decisions", "fields", "skipped"),
    [
        ("eval_real", 11, 40, 104, 152, {"undeclared_tool": 6, "input_not_json": 4}),
        ("eval_simulated", 10, 54, 85, 197, {"undeclared_tool": 8, "input_not_json": 7}),
        ("third-party-golden/golden-eval_mix", 21, 94, 200, 399, {"undeclared_tool": 14}),
        ("third-party-golden/golden-eval_real", 11, 40, 108, 174, {"undeclared_tool": 6}),
    ],
)
def test_counts_of_the_files(name, num_apis, num_functions, decisions, fields, skipped) -> None:
    path = CORPUS / f"{name}.json"
    records, left_out = read_all(toolalpaca, path)
    assert (len(records), num_fields(records), reasons(left_out)) == (decisions, fields, skipped)
    lists = [toolalpaca.api_tools(api) for _, api in read_rows(path)]
    assert (len(lists), sum(len(tools.tools) for tools in lists)) == (num_apis, num_functions)


@needs_toolalpaca
def test_the_folder_is_read_without_the_third_party_files() -> None:
    records, _ = read_all(toolalpaca, CORPUS)
    assert len(records) == 104 + 85


@needs_toolalpaca
def test_types_of_the_parameters() -> None:
    found: dict[str, int] = {}
    num_required = {}
    for name in ("eval_real", "eval_simulated"):
        tools = [tool for _, api in read_rows(CORPUS / f"{name}.json") for tool in toolalpaca.api_tools(api).tools]
        schemas = [tool["function"]["parameters"] for tool in tools]
        counts = [(len(one["required"]), len(one["properties"])) for one in schemas]
        num_required[name] = tuple(map(sum, zip(*counts, strict=True)))
        for schema in (schema for one in schemas for schema in one["properties"].values()):
            kind = schema.get("type", "none") + (" of strings" if "items" in schema else "")
            found[kind] = found.get(kind, 0) + 1
    # One function's text begins with its parameters: with it there are 39 of 75, and 168 texts.
    assert num_required == {"eval_real": (39, 75), "eval_simulated": (60, 137)}
    assert found == {
        "string": 168, "integer": 30, "number": 4, "array of strings": 7, "array": 1, "object": 2,
    }  # fmt: skip


@needs_toolalpaca
@pytest.mark.parametrize(("name", "num_steps", "num_failed"), [("mix", 270, 15), ("real", 136, 6)])
def test_recorded_steps_of_the_third_party_files(tmp_path: Path, name: str, num_steps: int, num_failed: int) -> None:
    """Without their answers the files have the layout of the training file, log aside."""
    apis = [api for _, api in read_rows(CORPUS / "third-party-golden" / f"golden-eval_{name}.json")]
    stripped = [{key: value for key, value in api.items() if key != "Golden_Answers"} for api in apis]
    records, left_out = read_all(toolalpaca, write_lines(tmp_path / "traces.jsonl", *stripped))
    found = reasons(left_out)
    assert found.pop("failed_trace") == num_failed
    assert len(records) + sum(found.values()) == num_steps
