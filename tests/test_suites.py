import gzip
import json
from pathlib import Path

import pytest

from schemafill.inference.request import UserError
from schemafill.inference.suites import load_suite

TOOL = {"type": "function", "function": {"name": "ping", "description": "Ping a host.", "parameters": {}}}
ROW = {"id": "a", "source": "x", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], "group": "g"}


def write_rows(path: Path, *rows: dict | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    data = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def bfcl_row(id_: str, **more: object) -> dict:
    function = {"name": "geo.find", "description": "", "parameters": {"type": "dict", "properties": {}}}
    return {"id": id_, "question": [[{"role": "user", "content": f"text {id_}"}]], "function": [function], **more}


def test_demo_suite_is_whole() -> None:
    items = load_suite("demo")
    num_calls = [len(item.reference_calls) for item in items]
    assert len(items) == 20
    assert sum(2 <= count <= 4 for count in num_calls) >= 10
    assert 1 in num_calls
    assert max(len(item.tools) for item in items) >= 12
    assert sum(len(item.tools) <= 4 for item in items) > len(items) / 2


def matches(value: object, schema: dict) -> bool:
    """Whether a reference argument fits the part of JSON Schema that the demo's tools use."""
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
    if not isinstance(value, kinds[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        return False
    if schema["type"] == "array":
        return all(matches(one, schema["items"]) for one in value)
    if schema["type"] == "object":
        known = schema["properties"]
        fits = all(name in known and matches(one, known[name]) for name, one in value.items())
        return fits and set(schema["required"]) <= set(value)
    return value in schema.get("enum", [value])


@pytest.mark.parametrize("item", load_suite("demo"), ids=lambda item: item.id)
def test_demo_reference_calls_fit_their_tools(item) -> None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in item.tools}
    assert len(schemas) == len(item.tools)
    for call in item.reference_calls:
        assert matches(call["arguments"], schemas[call["name"]]), call


@pytest.mark.parametrize("item", load_suite("demo"), ids=lambda item: item.id)
def test_demo_texts_and_numbers_stand_in_the_request(item) -> None:
    request = item.messages[-1]["content"]

    def leaves(value: object) -> list:
        if isinstance(value, dict):
            return [leaf for one in value.values() for leaf in leaves(one)]
        return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list) else [value]

    schemas = json.dumps(item.tools)
    for call in item.reference_calls:
        for leaf in leaves(call["arguments"]):
            if not isinstance(leaf, bool):
                assert str(leaf).removesuffix(".0") in request or f'"{leaf}"' in schemas, leaf


def test_records_keep_messages_tools_and_order(tmp_path: Path) -> None:
    calls = [{"name": "ping", "arguments": {}}]
    path = write_rows(tmp_path / "r.jsonl", ROW | {"reference_calls": calls, "meta": {"k": 1}}, ROW | {"id": "b"})
    first, second = load_suite(str(path))
    assert (first.id, first.messages, first.tools) == ("a", ROW["messages"], [TOOL])
    assert (first.reference_calls, first.meta) == (calls, {"k": 1})
    assert (second.id, second.reference_calls, second.meta) == ("b", None, {})
    assert [item.id for item in load_suite(str(path), limit=1)] == ["a"]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.jsonl.gz"])
def test_only_a_newline_ends_a_row(tmp_path: Path, name: str) -> None:
    text = "line\u2028sep and \u0085 nel"
    odd = ROW | {"id": "b", "messages": [{"role": "user", "content": text}]}
    path = write_rows(tmp_path / name, "\ufeff" + json.dumps(ROW), json.dumps(odd, ensure_ascii=False) + "\r", "", "  ")
    items = load_suite(str(path))
    assert [item.id for item in items] == ["a", "b"]
    assert items[1].messages[0]["content"] == text


def test_one_json_list_is_read_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([ROW, ROW | {"id": "b"}]))
    assert [item.id for item in load_suite(str(path))] == ["a", "b"]


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ('{"id": "b", "mess', "not JSON"),
        ("[1, 2]", "JSON object"),
        (ROW | {"id": None}, "id must be"),
        (ROW | {"id": "b", "messages": []}, "at least one message"),
        (ROW | {"id": "b", "messages": [{"content": "x"}]}, "with a role"),
        (ROW | {"id": "b", "tools": None}, "tools must be a list"),
        (ROW | {"id": "b", "tools": [{"function": {"name": ""}}]}, r"tools\[0\]"),
        (ROW | {"id": "b", "tools": [TOOL, TOOL]}, "'ping'"),
        (ROW | {"id": "b", "reference_calls": "ping()"}, "reference_calls"),
        (ROW | {"id": "b", "meta": []}, "meta"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, bad: dict | str, fault: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROW, bad)
    with pytest.raises(UserError, match=fault) as caught:
        load_suite(str(path))
    assert f"{path}:2: " in str(caught.value)


def test_two_rows_of_one_id_are_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROW, ROW)
    with pytest.raises(UserError, match="'a'"):
        load_suite(str(path))


@pytest.mark.parametrize("data", [b"", b"\n\n", b"[]", b"\xff\xfe", b"\x1f\x8b cut"])
def test_a_file_without_rows_or_text_is_an_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)
    with pytest.raises(UserError, match="rows.jsonl"):
        load_suite(str(path))


def test_unknown_suite_lists_the_built_in_ones() -> None:
    with pytest.raises(UserError, match="'nothing'.*demo"):
        load_suite("nothing")


def test_bfcl_line_ranges_count_from_one_and_include_both_ends(tmp_path: Path) -> None:
    one = write_rows(tmp_path / "one.json", *(bfcl_row(f"p_{i}") for i in range(5)))
    two = write_rows(tmp_path / "two.json.gz", *(bfcl_row(f"q_{i}") for i in range(3)))
    ids = [item.id for item in load_suite(f"bfcl:{one}:2-3+{two}:1-1")]
    assert ids == ["p_1", "p_2", "q_0"]
    assert len(load_suite(f"bfcl:{one}")) == 5
    assert len(load_suite(f"bfcl:{one}+{two}", limit=6)) == 6


def test_bfcl_types_are_mapped_where_a_schema_stands_and_nowhere_else(tmp_path: Path) -> None:
    parameters = {
        "type": "dict",
        "properties": {
            "type": {"type": "string", "description": "type: float"},
            "at": {"type": "tuple", "items": {"type": "float"}},
            "rows": {"type": "array", "items": {"type": "dict", "properties": {"n": {"type": "any", "default": 1}}}},
            "tags": {"type": "List[str]"},
            "when": {"type": "datetime"},
            "maybe": {"type": ["String", "null"]},
            "long": {"type": "long", "enum": ["float"]},
        },
        "required": ["type"],
    }
    function = {"name": "a.b", "description": "dict", "parameters": parameters}
    [item] = load_suite("bfcl:" + str(write_rows(tmp_path / "f.json", bfcl_row("p", function=[function]))))
    assert item.tools == [
        {
            "type": "function",
            "function": {
                "name": "a.b",
                "description": "dict",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string", "description": "type: float"},
                        "at": {"type": "array", "items": {"type": "number"}},
                        "rows": {"type": "array", "items": {"type": "object", "properties": {"n": {"default": 1}}}},
                        "tags": {"type": "array", "items": {"type": "string"}},
                        "when": {},
                        "maybe": {"type": ["string", "null"]},
                        "long": {"type": "integer", "enum": ["float"]},
                    },
                    "required": ["type"],
                },
            },
        }
    ]
    assert item.messages == [{"role": "user", "content": "text p"}]


@pytest.mark.parametrize(
    ("rows", "span", "fault"),
    [
        ([bfcl_row("p"), bfcl_row("q", question=[[{"role": "user"}], []])], "", r"f\.json:2: question"),
        ([bfcl_row("p"), bfcl_row("q", function=None)], "", r"f\.json:2: tools must be a list"),
        ([bfcl_row("p"), {"question": [[{"role": "user"}]]}], "", r"f\.json:2: id"),
        ([bfcl_row("p"), bfcl_row("q", function=[{}])], "", r"f\.json:2: tools\[0\]"),
        ([bfcl_row("p"), "{"], "", r"f\.json:2: not JSON"),
        ([bfcl_row("p")], ":1-2", r"f\.json ends at line 1"),
        ([bfcl_row("p")], ":0-1", "bad line range"),
        ([bfcl_row("p"), bfcl_row("q")], ":2-1", "bad line range"),
    ],
)
def test_bfcl_faults_name_the_place(tmp_path: Path, rows: list, span: str, fault: str) -> None:
    path = write_rows(tmp_path / "f.json", *rows)
    with pytest.raises(UserError, match=fault):
        load_suite(f"bfcl:{path}{span}")


def test_missing_bfcl_file_is_named() -> None:
    with pytest.raises(UserError, match="nowhere.json"):
        load_suite("bfcl:nowhere.json:1-2")
