"""The step that writes records, from its command line to its files."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus_reading import FIXTURES, write_lines
from sealed_files import read_rows

from schemafill.data_prep import corpora
from schemafill.data_prep.manifest import Manifest, manifest_path, read_manifest, write_output
from schemafill.data_prep.records import LeftOut, Record, read_records
from schemafill.inference.request import UserError

TOOL = {"name": "ping", "description": "", "parameters": {"type": "dict", "properties": {"host": {"type": "string"}}}}
SYSTEM = f"Here is a list of functions in JSON format that you can invoke:\n{json.dumps([TOOL])}. \n"


def conversation(answer: str, asked: str = "go") -> dict:
    """A row of ToolACE; the answer is a list of calls of `ping`, or no such thing."""
    turns = [{"from": "user", "value": asked}, {"from": "assistant", "value": answer}]
    return {"system": SYSTEM, "conversations": turns}


def write_corpus(folder: Path) -> Path:
    """Four decisions with five calls and three fields; a row that is none, and a call of no declared tool."""
    rows = [conversation("[ping(host='a'), ping(host='b')]", "line\u2028sep"), "[1, 2]", conversation("[pong()]")]
    write_lines(folder / "a.jsonl", "", *rows, conversation("[ping()]"), *[""] * 4, conversation("[ping()]"))
    write_lines(folder / "b.jsonl.gz", json.dumps(conversation("[ping(host='c')]", "half \ud83d")))
    (folder / "README.md").write_text("not a file of rows")
    return folder


def args(source: Path | str, out: Path | str, *more: str) -> list[str]:
    return ["--corpus", "toolace", "--source", str(source), "--out", str(out), *more]


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its content, and every folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def one_line(capsys: pytest.CaptureFixture) -> str:
    """The only thing that was said, a complaint."""
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("corpora: error: ") and err.count("\n") == 1
    return err


# ------------------------------------------------------------------------------------------------------- what it writes


def test_records_come_out_in_the_order_of_files_and_rows(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "records.jsonl"
    source = write_corpus(tmp_path / "toolace-copy")
    assert corpora.main(args(source, out)) == 0
    records = list(read_records(out))
    assert [one.id for one in records] == ["toolace/a/2/1", "toolace/a/5/1", "toolace/a/10/1", "toolace/b/1/1"]
    assert records == [one for one in corpora.CORPORA["toolace"].read(source) if isinstance(one, Record)]
    assert [one.messages[0]["content"] for one in records] == ["line\u2028sep", "go", "go", "half \ud83d"]


def test_the_manifest_says_what_was_read_written_and_left_out(tmp_path: Path) -> None:
    source, out = write_corpus(tmp_path / "toolace-copy"), tmp_path / "records.jsonl"
    assert corpora.main(args(source, out)) == 0
    manifest = read_manifest(out)
    assert (manifest.step, manifest.settings) == ("corpora", {"corpus": "toolace", "source": "toolace-copy"})
    assert manifest.inputs == {
        name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in ("a.jsonl", "b.jsonl.gz")
    }
    assert manifest.counts == {"read": 6, "written": 4, "left_out": 2, "calls": 5, "fields": 3}
    assert manifest.left_out == {"row_form": 1, "undeclared_tool": 1}


def test_what_gave_no_record_stands_beside_the_records(tmp_path: Path, capsys) -> None:
    source, out = write_corpus(tmp_path / "toolace-copy"), tmp_path / "records.jsonl"
    assert corpora.main(args(source, out)) == 0
    rows = read_rows(tmp_path / "left_out" / "records.jsonl")
    assert [(row["file"], row["row"], row["turn"], row["reason"]) for row in rows] == [
        ("a.jsonl", 3, None, "row_form"),
        ("a.jsonl", 4, 1, "undeclared_tool"),
    ]
    assert set(rows[0]) == {"file", "row", "turn", "reason", "detail"}
    said = capsys.readouterr().out
    assert f"{out}: 4 records, 5 calls, 3 fields" in said
    assert "left out      1  undeclared_tool" in said and str(tmp_path / "left_out" / "records.jsonl") in said


def test_where_nothing_is_left_out_no_file_says_so(tmp_path: Path, capsys) -> None:
    """A file of an earlier run stayed, and named rows as left out that gave records."""
    source, out = write_corpus(tmp_path / "toolace-copy"), tmp_path / "records.jsonl"
    assert corpora.main(args(source, out)) == 0
    out.unlink()
    write_lines(source / "a.jsonl", conversation("[ping()]"))
    capsys.readouterr()
    assert corpora.main(args(source, out)) == 0
    assert read_manifest(out).counts["left_out"] == 0
    assert not (tmp_path / "left_out" / "records.jsonl").exists()
    assert capsys.readouterr().out == f"{out}: 2 records, 2 calls, 1 fields\n"
    assert corpora.main(args(source, tmp_path / "other" / "records.jsonl")) == 0
    assert not (tmp_path / "other" / "left_out").exists()


def test_one_file_can_be_the_source(tmp_path: Path) -> None:
    source, out = write_corpus(tmp_path / "toolace-copy"), tmp_path / "records.jsonl"
    assert corpora.main(args(source / "b.jsonl.gz", out)) == 0
    manifest = read_manifest(out)
    assert manifest.settings["source"] == "b.jsonl.gz" and list(manifest.inputs) == ["b.jsonl.gz"]
    assert [one.id for one in read_records(out)] == ["toolace/b/1/1"]


@pytest.mark.parametrize(("name", "corpus"), [(name.replace("-", "_"), one) for name, one in corpora.CORPORA.items()])
def test_the_manifest_hashes_every_file_that_a_reader_opens(name: str, corpus, monkeypatch) -> None:
    opened: set[Path] = set()
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.add(path) or read_bytes(path))
    rows = list(corpus.read(FIXTURES / name))
    assert rows and opened
    names = {str(path.relative_to(FIXTURES / name)) for path in opened if path.is_file()}
    assert names <= set(corpora.source_hashes(FIXTURES / name))


def test_hashes_of_a_folder_go_by_path_and_leave_out_what_holds_no_rows(tmp_path: Path) -> None:
    for name in ("z.json", "deeper/a.jsonl", "deeper/b.jsonl.gz", "table.csv", "notes.md", "picture.png"):
        write_lines(tmp_path / name, name)
    (tmp_path / "folder.json").mkdir()
    assert list(corpora.source_hashes(tmp_path)) == ["deeper/a.jsonl", "deeper/b.jsonl.gz", "table.csv", "z.json"]


# ------------------------------------------------------------------------------------------------------- running again


def test_a_second_run_has_nothing_to_do(tmp_path: Path, capsys, monkeypatch) -> None:
    source, out = write_corpus(tmp_path / "toolace-copy"), tmp_path / "records.jsonl"
    assert corpora.main(args(source, out)) == 0
    before, written = tree(tmp_path), out.stat().st_mtime_ns
    capsys.readouterr()
    monkeypatch.setattr(corpora, "read_corpus", lambda *_: pytest.fail("the corpus is read again"))
    assert corpora.main(args(source, out)) == 0
    assert capsys.readouterr().out == f"{out} is there already\n"
    assert tree(tmp_path) == before and out.stat().st_mtime_ns == written


def other_content(source: Path, out: Path) -> list[str]:
    write_lines(source / "a.jsonl", conversation("[ping()]"))
    return args(source, out)


def other_file(source: Path, out: Path) -> list[str]:
    write_lines(source / "c.jsonl", conversation("[ping()]"))
    return args(source, out)


def other_folder(source: Path, out: Path) -> list[str]:
    return args(source.rename(source.with_name("elsewhere")), out)


def other_corpus(source: Path, out: Path) -> list[str]:
    return ["--corpus", "glaive", "--source", str(source), "--out", str(out)]


def other_step(source: Path, out: Path) -> list[str]:
    write_output(out, b"{}\n", Manifest(step="split", settings={}, inputs={}, counts={}))
    return args(source, out)


def other_output(source: Path, out: Path) -> list[str]:
    out.write_bytes(out.read_bytes() + b"\n")
    return args(source, out)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (other_content, "was made with other inputs (a.jsonl was '"),
        (other_file, "was made with other inputs (c.jsonl was None, is '"),
        (other_folder, "was made with other settings (source was 'toolace-copy', is 'elsewhere')"),
        (other_corpus, "was made with other settings (corpus was 'toolace', is 'glaive')"),
        (other_step, "was written by step split, not by corpora"),
        (other_output, "was changed after it was written"),
    ],
)
def test_what_was_made_otherwise_is_refused_by_field_and_stays(tmp_path: Path, capsys, change, fault: str) -> None:
    source, out = write_corpus(tmp_path / "toolace-copy"), tmp_path / "records.jsonl"
    assert corpora.main(args(source, out)) == 0
    argv, before = change(source, out), tree(tmp_path)
    capsys.readouterr()
    assert corpora.main(argv) == 2
    error = one_line(capsys)
    assert fault in error and str(out) in error
    assert tree(tmp_path) == before


@pytest.mark.parametrize("lost", [lambda out: out, manifest_path], ids=["records", "manifest"])
def test_a_stopped_run_is_done_again(tmp_path: Path, lost) -> None:
    source, out = write_corpus(tmp_path / "toolace-copy"), tmp_path / "records.jsonl"
    assert corpora.main(args(source, out)) == 0
    whole = tree(tmp_path)
    lost(out).unlink()
    assert corpora.main(args(source, out)) == 0
    assert tree(tmp_path) == whole


# -------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--corpus", "nothing"], "'bfcl', 'glaive', 'api-bank', 'toolace', 'toolalpaca'"),
        (["--source", "{}/nowhere"], "no such folder or file: {}/nowhere"),
        (["--source", "{}/" + "long" * 100], "no such folder or file: {}/longlong"),
        (["--source", "~no_such_user/corpus"], "no such folder or file: ~no_such_user/corpus"),
        (["--source", "{}/empty"], "{}/empty holds no .json or .jsonl file"),
        (["--source", "{}/none.jsonl"], "{}/none.jsonl holds no decision of toolace (2 rows left out)"),
        (["--source", "{}/cut.gz"], "cannot read {}/cut.gz"),
        (["--revision", "abc"], "--revision belongs to --source hub"),
        (["--out", "{}/none.jsonl/records.jsonl"], "records.jsonl: {}/none.jsonl is no folder"),
        (["--out", "{}/" + "long" * 100], "is too long for an output"),
        (["--out", "{}/empty"], "{}/empty is there and is no regular file"),
        (["--out", ""], "'.' names no file"),
        (["--out", "{}/toolace-copy/records.jsonl"], "lies in the source {}/toolace-copy: choose another --out"),
        (["--unknown"], "unrecognized arguments: --unknown"),
    ],
)
def test_faults_of_the_user_are_one_line_and_write_nothing(tmp_path: Path, capsys, options: list, fault: str) -> None:
    source = write_corpus(tmp_path / "toolace-copy")
    write_lines(tmp_path / "none.jsonl", conversation("[pong()]"), conversation("[ping("))
    (tmp_path / "cut.gz").write_bytes(b"\x1f\x8b cut")
    (tmp_path / "empty").mkdir()
    before = tree(tmp_path)
    options = [option.replace("{}", str(tmp_path)) for option in options]
    assert corpora.main([*args(source, tmp_path / "records.jsonl"), *options]) == 2
    assert fault.replace("{}", str(tmp_path)) in one_line(capsys)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("missing", ["--corpus", "--source", "--out"])
def test_every_option_that_is_needed_is_asked_for(capsys, missing: str) -> None:
    argv = args("source", "out")
    at = argv.index(missing)
    assert corpora.main(argv[:at] + argv[at + 2 :]) == 2
    assert f"the following arguments are required: {missing}" in one_line(capsys)


def test_the_source_is_never_written_over(tmp_path: Path, capsys) -> None:
    """A file named as source and as output was lost: it had no manifest, so it passed for a stopped run's."""
    source = write_lines(tmp_path / "rows.jsonl", conversation("[ping()]"))
    (tmp_path / "link.jsonl").symlink_to(source)
    before = tree(tmp_path)
    for out in (source, tmp_path / "link.jsonl"):
        assert corpora.main(args(source, out)) == 2
        assert f"{out} lies in the source {source}" in one_line(capsys)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("failing", ["records.jsonl", "records.jsonl.manifest.json", "left_out/records.jsonl"])
def test_where_writing_fails_no_file_is_half_written(tmp_path: Path, capsys, monkeypatch, failing: str) -> None:
    source, out = write_corpus(tmp_path / "toolace-copy"), tmp_path / "new" / "records.jsonl"
    write_bytes = Path.write_bytes

    def full_disk(path: Path, data: bytes) -> int:
        if path.parent / path.name.strip(".").rpartition(".")[0] == out.parent / failing:
            write_bytes(path, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    assert corpora.main(args(source, out)) == 2
    assert one_line(capsys) == f"corpora: error: cannot write {out.parent / failing}: No space left on device\n"
    assert not manifest_path(out).exists()
    names = {path.name for path in out.parent.rglob("*")}
    assert names <= {"records.jsonl", "left_out"}
    monkeypatch.undo()
    assert corpora.main(args(source, out)) == 0
    assert read_manifest(out).counts["written"] == 4


def test_where_reading_breaks_off_nothing_is_written(tmp_path: Path, capsys) -> None:
    source = write_corpus(tmp_path / "toolace-copy")
    (source / "z.json").write_text("[{]")
    before = tree(tmp_path)
    assert corpora.main(args(source, tmp_path / "new" / "records.jsonl")) == 2
    assert f"{source / 'z.json'}: not JSON" in one_line(capsys)
    assert tree(tmp_path) == before


def record(id_: str) -> Record:
    tools = [{"type": "function", "function": TOOL}]
    return Record(id=id_, source="made", messages=[{"role": "user", "content": "go"}], tools=tools, group="g")


@pytest.mark.parametrize(
    "rows",
    [[record("a"), LeftOut(file="f", row=1, reason="unheard_of")], [record("a"), record("b"), record("a")]],
    ids=["unknown reason", "id twice"],
)
def test_what_a_reader_may_not_give_is_our_fault(tmp_path: Path, capsys, monkeypatch, rows: list) -> None:
    def read(source: Path) -> Iterator[Record | LeftOut]:
        return iter(rows)

    monkeypatch.setitem(corpora.CORPORA, "toolace", corpora.Corpus("toolace", read, ("row_form",)))
    before = tree(tmp_path)
    assert corpora.main(args(FIXTURES, tmp_path / "records.jsonl")) == 1
    assert "AssertionError" in capsys.readouterr().err
    assert tree(tmp_path) == before


def test_records_without_calls_of_the_corpus_count_none() -> None:
    assert corpora.statistics([record("a")]) == {"calls": 0, "fields": 0}


def test_a_source_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch) -> None:
    source = write_corpus(tmp_path / "toolace-copy")
    opened = Path.open

    def closed(path: Path, *more: str):
        if path.name == "a.jsonl":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *more)

    monkeypatch.setattr(Path, "open", closed)
    with pytest.raises(UserError, match="^cannot read .*a.jsonl: Permission denied$"):
        corpora.source_hashes(source)
