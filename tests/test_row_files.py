"""Files of rows, plain and packed, and the row files of a corpus folder."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from corpus_reading import write_lines

from schemafill.data_prep.readers.source_files import SourceFile, decisions_of, row_files, rows_of
from schemafill.data_prep.records import LeftOut
from schemafill.inference.request import UserError
from schemafill.inference.row_files import Place, parse_json, read_rows, read_text

PACKED = gzip.compress(b'{"a": 1}\n' * 50)


def refusal(path: Path) -> str:
    """Why a file cannot be read; it is one line that names it."""
    with pytest.raises(UserError) as caught:
        list(read_rows(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------- one file


def test_a_packed_file_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(gzip.compress(b"\xef\xbb\xbf{}"))
    assert read_text(tmp_path / "rows.jsonl") == "{}"
    (tmp_path / "plain.gz").write_bytes(b"{}")
    assert read_text(tmp_path / "plain.gz") == "{}"


def test_the_packed_copy_is_read_where_the_plain_one_is_not_there(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl.gz", {"packed": 1})
    assert list(read_rows(tmp_path / "rows.jsonl")) == [(Place(tmp_path / "rows.jsonl", 1), {"packed": 1})]
    write_lines(tmp_path / "rows.jsonl", {"packed": 0})
    assert [row for _, row in read_rows(tmp_path / "rows.jsonl")] == [{"packed": 0}]


@pytest.mark.parametrize(
    "data",
    [PACKED[:-6], PACKED[:10] + b"\xff" * 8, PACKED + b"more", PACKED[:3], gzip.compress(b"\xff\xfe")],
    ids=["cut", "damaged", "more behind it", "no header", "no text in it"],
)
def test_a_packed_file_that_cannot_be_unpacked_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(data)
    assert refusal(tmp_path / "rows.jsonl.gz").startswith("cannot read ")


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").mkdir()
    for name in ("rows.jsonl", "none.jsonl"):
        assert refusal(tmp_path / name).startswith("cannot read ")


def test_lines_are_counted_with_the_blank_ones_and_elements_of_a_list_alone(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", "", '{"a": 1}', " \r", '{"a": 2}')
    assert [(place.line, row["a"]) for place, row in read_rows(path)] == [(2, 1), (4, 2)]
    path.write_text('\n\n [\n{"a": 1},\n\n{"a":\n 2}]\n')
    assert [(place.line, row["a"]) for place, row in read_rows(path)] == [(1, 1), (2, 2)]


@pytest.mark.parametrize("is_list", [False, True], ids=["lines", "list"])
def test_rows_that_are_no_objects_are_told_and_left_out(tmp_path: Path, is_list: bool) -> None:
    told: list[tuple[str, str]] = []
    rows = ["null", '{"a": 1}', '"text"', "3"]
    path = tmp_path / "rows.json"
    path.write_text(f"[{','.join(rows)}]" if is_list else "\n".join(rows))
    found = [row for _, row in read_rows(path, lambda place, reason: told.append((str(place), reason)))]
    assert found == [{"a": 1}]
    assert told == [(f"{path}:{line}", "a row must be a JSON object") for line in (1, 3, 4)]
    assert refusal(path) == f"{path}:1: a row must be a JSON object"


def test_one_line_that_is_no_json_spoils_no_other(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    path = write_lines(tmp_path / "rows.jsonl", '{"a": 1}', '{"a":', '{"a": ' + "[" * 100_000, '{"a": 2}')
    found = [row["a"] for _, row in read_rows(path, lambda place, reason: told.append((place.line, reason)))]
    assert found == [1, 2]
    assert [line for line, _ in told] == [2, 3]
    assert all(reason.startswith("not JSON: ") and "\n" not in reason for _, reason in told)


def test_a_list_that_is_no_json_is_refused_whole(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"a": 1}, {"a":]')
    assert refusal(tmp_path / "rows.json").startswith(f"{tmp_path / 'rows.json'}: not JSON: ")


def test_a_file_of_bad_rows_alone_holds_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", "1", "2")
    assert list(read_rows(path, lambda *_: None)) == []
    path.write_text(" \n")
    assert refusal(path) == f"{path} holds no rows"


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1" * 5000], ids=["empty", "cut", "too deep", "too long"])
def test_what_spells_no_value_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="^not JSON: [^\n]+$"):
        parse_json(text)


# ------------------------------------------------------------------------------------------------ the files of a folder


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        write_lines(folder / name, {})
    return folder


def test_the_files_of_rows_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    touch(tmp_path, "b.json", "a.jsonl", "c.json.gz", "d.jsonl.gz", "notes.md", "e.json.bak", ".json", "deeper/f.json")
    (tmp_path / "folder.json").mkdir()
    files = row_files(tmp_path)
    assert [file.path.name for file in files] == ["a.jsonl", "b.json", "c.json.gz", "d.jsonl.gz"]
    assert [file.name for file in files] == ["a.jsonl", "b.json", "c.json", "d.jsonl"]
    assert [file.stem for file in files] == ["a", "b", "c", "d"]


def test_of_a_file_that_is_there_twice_the_plain_one_counts(tmp_path: Path) -> None:
    touch(tmp_path, "a.json", "a.json.gz", "deeper/a.json.gz")
    assert [file.path for file in row_files(tmp_path)] == [tmp_path / "a.json"]
    assert [file.path for file in row_files(tmp_path, pattern="**/*")] == [
        tmp_path / "a.json",
        tmp_path / "deeper" / "a.json.gz",
    ]


def test_files_of_one_stem_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    touch(tmp_path, "a.json", "b/a.jsonl.gz", "b/c.json", "d.json", "d.jsonl")
    files = row_files(tmp_path, pattern="**/*")
    assert [file.stem for file in files] == ["a.json", "b/a.jsonl", "c", "d.json", "d.jsonl"]
    assert [file.name for file in files] == ["a.json", "a.jsonl", "c.json", "d.json", "d.jsonl"]


def test_names_without_rows_are_passed_over_packed_or_not(tmp_path: Path) -> None:
    touch(tmp_path, "index.json.gz", "a.json", "deeper/index.json")
    files = row_files(tmp_path, pattern="**/*", without=("index.json",))
    assert [file.name for file in files] == ["a.json"]
    with pytest.raises(UserError, match=f"^{tmp_path} holds no .json or .jsonl file of rows"):
        row_files(tmp_path, without=("index.json", "a.json"))


@pytest.mark.parametrize(
    ("there", "named", "name", "stem"),
    [
        ("rows.jsonl", "rows.jsonl", "rows.jsonl", "rows"),
        ("rows.json.gz", "rows.json.gz", "rows.json", "rows"),
        ("rows.json.gz", "rows.json", "rows.json", "rows"),
        ("v1.2.jsonl", "v1.2.jsonl", "v1.2.jsonl", "v1.2"),
        ("rows.txt", "rows.txt", "rows.txt", "rows.txt"),
    ],
)
def test_one_file_is_taken_whatever_it_is_called(tmp_path: Path, there: str, named: str, name: str, stem: str) -> None:
    touch(tmp_path, there, "beside.json")
    assert row_files(tmp_path / named) == [SourceFile(path=tmp_path / there, name=name, stem=stem)]


def test_a_folder_without_files_of_rows_and_a_missing_one_are_named(tmp_path: Path) -> None:
    touch(tmp_path / "full", "notes.md", "deeper/a.json")
    with pytest.raises(UserError, match=f"^{tmp_path / 'full'} holds no .json or .jsonl file of rows"):
        row_files(tmp_path / "full")
    with pytest.raises(UserError, match=f"^no such file or folder: {tmp_path / 'none'}$"):
        row_files(tmp_path / "none")


def test_what_is_no_row_stands_between_the_rows(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl.gz", "1", "{", {"a": 1}, "", "null", {"a": 2}, "[]")
    [file] = row_files(tmp_path)
    found = list(rows_of(file))
    places = [one.row if isinstance(one, LeftOut) else one for one in found]
    assert places == [1, 2, (3, {"a": 1}), 5, (6, {"a": 2}), 7]
    bad = [one for one in found if isinstance(one, LeftOut)]
    assert {(one.file, one.reason, one.turn) for one in bad} == {("a.jsonl", "row_form", None)}
    assert [one.detail.startswith("not JSON: ") for one in bad] == [False, True, False, False]


def test_a_row_is_decided_on_with_its_file_and_number(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", "", {"a": 2}, "7", {"a": 0})
    [file] = row_files(tmp_path)

    def decide(of: SourceFile, number: int, row: dict):
        yield from (LeftOut(file=of.stem, row=number, turn=turn, reason="no_call") for turn in range(row["a"]))

    found = [(one.file, one.row, one.turn, one.reason) for one in decisions_of(file, decide)]
    assert found == [("a", 2, 0, "no_call"), ("a", 2, 1, "no_call"), ("a.jsonl", 3, None, "row_form")]
