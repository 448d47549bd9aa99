"""Records and the files that hold them: what is refused, and that every text comes back as it was."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from corpus_reading import write_lines
from hypothesis import given
from hypothesis import strategies as st
from sealed_files import row

from schemafill.data_prep.records import LeftOut, json_line, json_lines, read_records, record_of, require_files
from schemafill.inference.request import UserError
from schemafill.inference.row_files import Place, read_rows

ROW = row("glaive/f/1", "Hello")
LOST = object()


def changed(**fields: Any) -> dict[str, Any]:
    """The row with other fields; LOST takes one away."""
    return {name: value for name, value in (ROW | fields).items() if value is not LOST}


# ---------------------------------------------------------------------------------------------------------- one record


def test_a_record_is_what_its_row_says() -> None:
    record = record_of(changed(meta={"row": 1}))
    assert record.to_json() == changed(meta={"row": 1})
    assert record_of(json.loads(json_line(record.to_json()))) == record


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"id": LOST}, "id must be a text that is not empty"),
        ({"id": ""}, "id must be a text"),
        ({"id": 7}, "id must be a text"),
        ({"messages": LOST}, "needs a list of at least one message"),
        ({"messages": []}, "needs a list of at least one message"),
        ({"messages": {"role": "user"}}, "needs a list of at least one message"),
        ({"messages": [{"role": "user"}, "text"]}, "every message must be an object with a role"),
        ({"messages": [{"content": "x"}]}, "one of system, user, assistant, tool"),
        ({"messages": [{"role": "human"}]}, "one of system, user, assistant, tool"),
        ({"messages": [{"role": ["user"]}]}, "one of system, user, assistant, tool"),
        ({"tools": LOST}, "tools must be a list, got NoneType"),
        ({"tools": {}}, "tools must be a list, got dict"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\] must be an object that gives its function a name"),
        ({"tools": ROW["tools"] * 2}, "which an earlier tool has already"),
        ({"reference_calls": "ping()"}, "reference_calls must be a list of objects or null"),
        ({"reference_calls": {}}, "reference_calls must be a list of objects or null"),
        ({"reference_calls": [{}, "ping()"]}, "reference_calls must be a list of objects or null"),
        ({"reference_calls": [{"name": 1, "arguments": {}}]}, "every reference call needs a name, a text"),
        ({"reference_calls": [{"name": "ping", "arguments": "{}"}]}, "and arguments, an object"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "tool_calls of a message must be a list"),
        ({"messages": [{"role": "assistant", "tool_calls": ["x"]}]}, "tool_calls of a message must be a list"),
        ({"meta": "x"}, "meta must be an object"),
        ({"meta": [1]}, "meta must be an object"),
        ({"meta": []}, "meta must be an object"),
        ({"meta": 0}, "meta must be an object"),
    ],
)
def test_a_row_that_is_no_record_is_refused_by_field(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault) as caught:
        record_of(changed(**fields))
    assert "\n" not in str(caught.value)


def test_what_a_record_may_lack_has_a_default() -> None:
    record = record_of(changed(source=LOST, group=LOST, meta=LOST, reference_calls=LOST))
    assert (record.source, record.group, record.meta, record.reference_calls) == ("unknown", ROW["id"], {}, None)
    assert record_of(changed(source=None, group=None, meta=None, reference_calls=None)) == record
    assert record_of(changed(tools=[])).tools == []


@pytest.mark.parametrize(("given", "group"), [("a", "a"), (7, "7"), (0, "0"), ("0", "0"), ("", ROW["id"])])
def test_a_group_is_a_text_and_a_number_counts_as_one(given: object, group: str) -> None:
    """The group 0 was taken for none: its records were groups of their own, and stood on both sides of a split."""
    assert record_of(changed(group=given)).group == group


def test_fields_that_no_record_has_are_passed_over() -> None:
    assert record_of(changed(further=1)) == record_of(ROW)


def test_what_is_left_out_says_where_it_stands() -> None:
    one = LeftOut(file="a.jsonl", row=3, reason="row_form")
    assert one.to_json() == {"file": "a.jsonl", "row": 3, "reason": "row_form", "turn": None, "detail": ""}


# ------------------------------------------------------------------------------------------------------- a file of them


def test_a_bad_row_is_named_by_its_place(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", ROW, changed(id=""))
    with pytest.raises(UserError, match=f"^{path}:2: id must be a text"):
        list(read_records(path))


def test_who_asks_is_told_of_every_bad_row_and_gets_the_others(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    rows = [ROW, "{", changed(id="b", tools=3), [1], ROW, changed(id="c")]
    path = write_lines(tmp_path / "rows.jsonl", *rows, "")
    records = list(read_records(path, lambda place, reason: told.append((place.line, reason))))
    assert [one.id for one in records] == [ROW["id"], "c"]
    assert [line for line, _ in told] == [2, 3, 4, 5]
    assert [reason.split(":")[0] for _, reason in told] == [
        "not JSON", "tools must be a list, got int", "a row must be a JSON object", "id 'glaive/f/1' stands twice",
    ]  # fmt: skip


def test_a_second_row_of_an_id_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", ROW, changed(messages=[{"role": "user", "content": "Other"}]))
    with pytest.raises(UserError, match=f"^{path}:2: id 'glaive/f/1' stands twice$"):
        list(read_records(path))


def test_the_place_of_a_bad_row_is_that_in_the_file(tmp_path: Path) -> None:
    places: list[Place] = []
    path = write_lines(tmp_path / "rows.jsonl.gz", "", "null", ROW)
    list(read_records(path, lambda place, _: places.append(place)))
    assert places == [Place(path, 2)] and str(places[0]) == f"{path}:2"


# ----------------------------------------------------------------------------------------------------------- every text

TEXTS = [
    "line\u2028sep", "para\u2029", "nel\u0085", "\r\n", "\ufeffmark", "tab\t nul\x00", "日本 größe 😀", "half \ud83d",
    "\udc00",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
@pytest.mark.parametrize("form", ["plain", "mark", "crlf", "gzip"])
def test_every_text_comes_back_as_it_was(tmp_path: Path, text: str, form: str) -> None:
    rows = [changed(messages=[{"role": "user", "content": text}], meta={text: [text]}), changed(id="second")]
    data = json_lines(rows)
    forms = {"mark": b"\xef\xbb\xbf" + data, "crlf": data.replace(b"\n", b"\r\n"), "gzip": gzip.compress(data)}
    (tmp_path / "rows.jsonl").write_bytes(forms.get(form, data))
    assert [one.to_json() for one in read_records(tmp_path / "rows.jsonl")] == rows


def test_letters_stand_as_they_are_and_half_a_pair_as_an_escape() -> None:
    rows = [{"a": "größe\u2028"}, {"b": "größe \ud83d"}, {"c": "😀"}]
    first, second, third, rest = json_lines(rows).split(b"\n")
    assert first == '{"a": "größe\u2028"}'.encode()
    assert second == rb'{"b": "gr\u00f6\u00dfe \ud83d"}'
    assert (third, rest) == ('{"c": "😀"}'.encode(), b"")
    assert json_lines([]) == b""


ANY_TEXT = st.text(st.characters(exclude_categories=())).map(lambda text: json.loads(json.dumps(text)))


@given(st.lists(st.dictionaries(ANY_TEXT, ANY_TEXT), min_size=1, max_size=3))
def test_every_row_is_one_line_and_reads_as_it_was(tmp_path_factory, rows: list[dict[str, str]]) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    data = json_lines(rows)
    path.write_bytes(data)
    assert data.count(b"\n") == len(rows)
    assert [(place.line, row) for place, row in read_rows(path)] == list(enumerate(rows, start=1))


# -------------------------------------------------------------------------------------------------------- missing files


def test_the_first_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", ROW)
    require_files()
    require_files(path, path)
    with pytest.raises(UserError, match=f"^no such file: {tmp_path / 'b'}$"):
        require_files(path, tmp_path / "b", tmp_path / "c")


@pytest.mark.parametrize("name", ["", "rows.jsonl/below", "long" * 100], ids=["a folder", "below a file", "too long"])
def test_what_can_be_no_file_is_not_there(tmp_path: Path, name: str) -> None:
    write_lines(tmp_path / "rows.jsonl", ROW)
    with pytest.raises(UserError, match="no such file"):
        require_files(tmp_path / name)
