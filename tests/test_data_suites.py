from dataclasses import replace
from pathlib import Path

import pytest
from corpus_reading import DATA, needs_corpus, num_calls, num_fields, write_lines

from schemafill.data_prep import hub, suites
from schemafill.data_prep.manifest import read_manifest
from schemafill.data_prep.readers import glaive
from schemafill.data_prep.records import LeftOut, Record, read_records
from schemafill.inference.suites import load_suite

ANY_COUNTS = "--allow-other-counts"
PING = {"name": "ping", "description": "", "parameters": {"type": "dict", "properties": {"host": {"type": "string"}}}}


def write_bfcl(folder: Path, version: int = 3) -> Path:
    """A corpus of four rows; `parallel` holds three calls with two fields."""
    truths = {
        "exec_parallel": [["ping(host='a')", "ping('b')"]],
        "parallel": [[{"ping": {"host": ["a"]}}, {"ping": {"host": [""]}}], [{"ping": {"host": ["c"]}}]],
        "parallel_multiple": [[{"ping": {"host": ["d"]}}]],
        "simple": [[{"ping": {"host": ["e"]}}]],
    }
    for category, rows in truths.items():
        name = f"BFCL_v{version}_{category}.json"
        home = folder / "unused_datasets" if category.startswith("exec") else folder
        asked = home / "question" if category.startswith("exec") else home
        ids = [f"{category}_{number}" for number in range(len(rows))]
        asks = [{"id": id_, "question": [[{"role": "user", "content": id_}]], "function": [PING]} for id_ in ids]
        write_lines(asked / name, *asks)
        answers = [{"id": id_, "ground_truth": truth} for id_, truth in zip(ids, rows, strict=True)]
        write_lines(home / "possible_answer" / name, *answers)
    return folder


def bfcl_args(source: Path | str, out: Path, *more: str) -> list[str]:
    return ["--suite", "bfcl450", "--source", str(source), "--out", str(out), *more]


def decision(row: int, text: str, group: str, turn: int = 1) -> Record:
    return Record(
        id=f"glaive/x/{row}/{turn}", source="glaive", messages=[{"role": "user", "content": text}],
        tools=[{"type": "function", "function": PING}], reference_calls=[{"name": "ping", "arguments": {"host": text}}],
        group=group, meta={"file": "x.json", "row": row, "turn": turn},
    )  # fmt: skip


def test_bfcl450_holds_the_three_categories_in_file_order(tmp_path: Path, capsys) -> None:
    out = tmp_path / "suite.jsonl"
    assert suites.main(bfcl_args(write_bfcl(tmp_path / "v3"), out, ANY_COUNTS)) == 0
    records = list(read_records(out))
    names = [one.id.rpartition("/")[2] for one in records]
    assert names == ["exec_parallel_0", "parallel_0", "parallel_1", "parallel_multiple_0"]
    assert records[0].reference_calls == [{"name": "ping", "arguments": {"host": host}} for host in "ab"]
    assert "4 requests, 6 calls, 5 fields; read 4, left out 0" in capsys.readouterr().out


def test_bench_reads_the_suite(tmp_path: Path) -> None:
    out = tmp_path / "suite.jsonl"
    suites.main(bfcl_args(write_bfcl(tmp_path / "v3"), out, ANY_COUNTS))
    assert [item.record() | {"group": None} for item in load_suite(str(out))] == [
        {key: value for key, value in one.to_json().items() if key != "source"} | {"group": None}
        for one in read_records(out)
    ]


def test_manifest_counts_categories_and_hashes_what_was_read(tmp_path: Path) -> None:
    out = tmp_path / "suite.jsonl"
    suites.main(bfcl_args(write_bfcl(tmp_path / "v3"), out, ANY_COUNTS))
    manifest = read_manifest(out)
    assert manifest.settings == {"suite": "bfcl450", "source": "v3"}
    assert (manifest.counts["read"], manifest.counts["written"], manifest.counts["is_expected"]) == (4, 4, False)
    assert manifest.counts["categories"]["parallel"] == {"requests": 2, "calls": 3, "fields": 2}
    names = [f"BFCL_v3_{category}.json" for category in suites.BFCL450]
    assert sorted(manifest.inputs) == sorted([*names, *(f"possible_answer/{name}" for name in names)])


def test_other_counts_are_refused_in_one_line_with_both_numbers(tmp_path: Path, capsys) -> None:
    out = tmp_path / "suite.jsonl"
    assert suites.main(bfcl_args(write_bfcl(tmp_path / "v3"), out)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "not the files of BFCL v3" in line
    assert "parallel holds 2 requests, 3 calls, 2 fields, expected 200 requests, 538 calls, 1,440 fields" in line
    assert "in all 4 requests, 6 calls, 5 fields, expected 450 requests, 1,333 calls, 3,356 fields" in line
    assert "--allow-other-counts" in line
    assert not out.exists()


def test_other_counts_are_written_when_allowed_and_said(tmp_path: Path, capsys) -> None:
    out, source = tmp_path / "suite.jsonl", write_bfcl(tmp_path / "v3")
    assert suites.main(bfcl_args(source, out, ANY_COUNTS)) == 0
    assert read_manifest(out).counts["is_expected"] is False
    assert "in all 4 requests" in capsys.readouterr().err
    assert suites.main(bfcl_args(source, out, ANY_COUNTS)) == 0
    assert "is there already" in capsys.readouterr().out
    assert suites.main(bfcl_args(source, out)) == 2
    assert "written with --allow-other-counts" in capsys.readouterr().err


def test_row_left_out_of_the_450_is_named_in_the_refusal(tmp_path: Path, capsys) -> None:
    source = write_bfcl(tmp_path / "v3")
    (source / "possible_answer" / "BFCL_v3_parallel_multiple.json").unlink()
    assert suites.main(bfcl_args(source, tmp_path / "suite.jsonl")) == 2
    assert "left out: 1 no_reference" in capsys.readouterr().err


def test_missing_or_doubled_category_is_refused(tmp_path: Path, capsys) -> None:
    source, out = write_bfcl(tmp_path / "v3"), tmp_path / "suite.jsonl"
    write_bfcl(source, version=4)
    assert suites.main(bfcl_args(source, out)) == 2
    assert "BFCL_v3_exec_parallel.json and BFCL_v4_exec_parallel.json" in capsys.readouterr().err
    other = write_bfcl(tmp_path / "other")
    (other / "BFCL_v3_parallel.json").unlink()
    assert suites.main(bfcl_args(other, out)) == 2
    assert "no BFCL_v3_parallel.json" in capsys.readouterr().err


def test_second_run_has_nothing_to_do_and_other_input_is_refused(tmp_path: Path, capsys) -> None:
    source, out = write_bfcl(tmp_path / "v3"), tmp_path / "suite.jsonl"
    suites.main(bfcl_args(source, out, ANY_COUNTS))
    before = out.stat().st_mtime_ns
    assert suites.main(bfcl_args(source, out, ANY_COUNTS)) == 0
    assert (out.stat().st_mtime_ns, "is there already" in capsys.readouterr().out) == (before, True)
    (source / "BFCL_v3_parallel.json").write_text((source / "BFCL_v3_parallel.json").read_text() + "\n")
    assert suites.main(bfcl_args(source, out, ANY_COUNTS)) == 2
    assert "other inputs (BFCL_v3_parallel.json" in capsys.readouterr().err


def test_hub_source_is_fetched(tmp_path: Path, monkeypatch) -> None:
    source, asked = write_bfcl(tmp_path / "abc123"), []
    monkeypatch.setattr(hub, "fetch_corpus", lambda name, revision=None: asked.append(name) or source)
    out = tmp_path / "suite.jsonl"
    assert suites.main(bfcl_args("hub", out, ANY_COUNTS)) == 0
    assert asked == ["bfcl"]
    assert read_manifest(out).settings["source"] == "hub@abc123"


def test_one_decision_of_each_conversation_is_drawn_and_of_a_repeat_none(capsys) -> None:
    rows = [decision(row, f"{row} {turn}", f"group {row}", turn) for row in range(5) for turn in range(3)]
    repeat = [decision(9, f"0 {turn}", "group 0", turn) for turn in range(3)]
    suite = suites.glaive650([*rows, *repeat, LeftOut(file="x.json", row=10, reason="call_form")])
    assert sorted(one.messages[0]["content"][0] for one in suite.records) == ["0", "1", "2", "3", "4"]
    assert suite.left_out == {"call_form": 1}
    assert suite.counts == {
        "read": 19, "decisions": 18, "different_decisions": 15, "conversations": 5, "is_partial": True,
    }  # fmt: skip
    assert "5 records can be drawn, not 650" in capsys.readouterr().err


def test_draw_does_not_depend_on_the_order_of_the_file() -> None:
    rows = [decision(row, f"{row} {turn}", f"group {row}", turn) for row in range(40) for turn in range(3)]
    moved = [decision(100 - one.meta["row"], one.messages[0]["content"], one.group) for one in reversed(rows)]
    first, second = suites.glaive650(rows).records, suites.glaive650(moved).records
    assert [one.messages for one in first] == [one.messages for one in second]
    assert [one.meta["row"] for one in first] != sorted(one.meta["row"] for one in first)


def test_fewer_records_than_can_be_drawn_are_a_prefix_of_the_same_draw(capsys) -> None:
    rows = [decision(row, str(row), str(row)) for row in range(700)]
    suite = suites.glaive650(rows)
    assert (len(suite.records), suite.counts["is_partial"], capsys.readouterr().err) == (650, False, "")
    assert suites.glaive650(rows, num_records=20).records == suite.records[:20]
    assert suites.glaive650(rows[:50], num_records=20).counts["is_partial"]


def test_limit_is_for_the_drawn_suite(tmp_path: Path, capsys) -> None:
    assert suites.main([*bfcl_args(tmp_path, tmp_path / "suite.jsonl"), "--limit", "3"]) == 2
    assert capsys.readouterr().err == "suites: error: --limit belongs to --suite glaive650\n"


def test_decision_that_two_conversations_share_is_drawn_once() -> None:
    first, other = sorted([decision(1, "x", "a"), decision(1, "y", "a")], key=suites.request_key)
    suite = suites.glaive650([first, replace(first, group="b"), replace(other, group="b")])
    assert (suite.counts["conversations"], len(suite.records)) == (2, 1)


def test_repeat_with_other_tools_counts_as_one_in_any_order() -> None:
    one = decision(1, "x", "a")
    other = replace(one, tools=[{"type": "function", "function": PING | {"description": "other"}}])
    there, back = suites.glaive650([one, other]), suites.glaive650([other, one])
    assert there == back
    assert (len(there.records), there.counts["conversations"]) == (1, 1)


def test_record_without_reference_is_not_drawn() -> None:
    rows = [replace(decision(1, "a", "a"), reference_calls=None), decision(2, "b", "b")]
    assert [one.group for one in suites.glaive650(rows).records] == ["b"]


def test_option_of_the_other_suite_is_refused(tmp_path: Path, capsys) -> None:
    args = ["--suite", "glaive650", "--source", str(tmp_path), "--out", str(tmp_path / "x"), ANY_COUNTS]
    assert suites.main(args) == 2
    assert "belongs to --suite bfcl450" in capsys.readouterr().err


@needs_corpus("bfcl")
def test_bfcl_v3_gives_the_published_counts(tmp_path: Path, capsys) -> None:
    out = tmp_path / "suite.jsonl"
    assert suites.main(bfcl_args(DATA / "bfcl" / "v3", out)) == 0
    records = list(read_records(out))
    assert (len(records), num_calls(records), num_fields(records)) == (450, 1333, 3356)
    assert len({one.messages[-1]["content"] for one in records}) == 450
    categories = [one.meta["category"] for one in records[::50]]
    assert categories == ["exec_parallel", *["parallel"] * 4, *["parallel_multiple"] * 4]
    assert "450 requests, 1,333 calls, 3,356 fields" in capsys.readouterr().out


@needs_corpus("bfcl")
def test_bfcl_v4_is_told_apart(tmp_path: Path, capsys) -> None:
    out = tmp_path / "suite.jsonl"
    assert suites.main(bfcl_args(DATA / "bfcl" / "v4", out)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "these are the v4 files: parallel holds 200 requests, 540 calls, 1,444 fields, expected 200 requests" in line
    assert "in all 450 requests, 1,335 calls, 3,360 fields, expected 450 requests, 1,333 calls, 3,356 fields" in line
    assert suites.main(bfcl_args(DATA / "bfcl" / "v4", out, ANY_COUNTS)) == 0
    counts = read_manifest(out).counts
    assert (counts["calls"], counts["fields"], counts["is_expected"]) == (1335, 3360, False)


@needs_corpus("bfcl")
def test_partial_glaive_gives_one_decision_of_each_conversation(tmp_path: Path, capsys) -> None:
    out, source = tmp_path / "suite.jsonl", DATA / "glaive" / "rerendered"
    assert suites.main(["--suite", "glaive650", "--source", str(source), "--out", str(out)]) == 0
    counts = read_manifest(out).counts
    records = list(read_records(out))
    groups = {one.group for one in glaive.read(source)}
    assert (counts["decisions"], counts["conversations"], counts["is_partial"]) == (211, len(groups), True)
    assert len(groups) < 153  # conversations with a call, repeats and all
    assert len({one.group for one in records}) == len(records) == counts["written"]
    assert len(groups) - 5 <= len(records) <= len(groups)  # a few begin alike
    assert "partial corpus" in capsys.readouterr().err


@pytest.mark.parametrize("suite", ["bfcl450", "glaive650"])
def test_an_output_inside_the_source_is_refused(suite: str, tmp_path: Path, capsys) -> None:
    source = tmp_path / "source"
    source.mkdir()
    kept = source / "BFCL_v3_parallel.json"
    kept.write_text("upstream\n")
    for out in (kept, source / "new.jsonl"):
        assert suites.main(["--suite", suite, "--source", str(source), "--out", str(out)]) == 2
        assert "lies in the source" in capsys.readouterr().err
    assert kept.read_text() == "upstream\n" and [path.name for path in source.iterdir()] == [kept.name]
