import json
from pathlib import Path

import pytest
from sealed_files import read_rows, row, sealed, tool

from schemafill.data_prep.manifest import manifest_path, read_manifest
from schemafill.data_prep.split import main

LONG = "Please book a table for four people at the Golden Lion in Vienna on Friday evening at eight"
PLAY = tool("play", "Plays a song.", song={"type": "string"})


def split(folder: Path, *options: object) -> int:
    """Run the step on all.jsonl, with train.jsonl and dev.jsonl as outputs."""
    outputs = ["--out-train", folder / "train.jsonl", "--out-dev", folder / "dev.jsonl"]
    return main([str(option) for option in ("--records", folder / "all.jsonl", *outputs, *options)])


def kept_ids(folder: Path) -> set[str]:
    return {one["id"] for part in ("train", "dev") for one in read_rows(folder / f"{part}.jsonl")}


def others(count: int = 40, source: str = "glaive") -> list[dict]:
    return [row(f"{source}/f/{at}", f"Request number {at} about nothing else") for at in range(count)]


SUITE = [
    row("bfcl/BFCL_v3_parallel/parallel_7", LONG, PLAY),
    row("bfcl/BFCL_v3_parallel/parallel_8", "Play music", tool("stop", "Stops.")),
]
# What overlaps the suite -> the reason under which it is counted.
OVERLAPS = {
    "suite_question_id": row("bfcl/other_file/parallel_8", "Something else"),
    "suite_request": row("glaive/f/a", f"  {LONG.upper()}"),
    "suite_near_duplicate": row("glaive/f/b", LONG.replace("eight", "nine")),
    "suite_tool": row("toolace/f/c", "Sing", tool("sing"), PLAY),
    "suite_tool_reworded": row("toolace/f/d", "Halt", tool("stop", "Makes it stop.")),
}


def test_what_overlaps_a_suite_is_left_out_and_counted_by_reason_and_source(tmp_path: Path, capsys) -> None:
    sealed(tmp_path / "all.jsonl", [*OVERLAPS.values(), *others()])
    sealed(tmp_path / "suite.jsonl", SUITE, "suites")
    assert split(tmp_path, "--exclude", tmp_path / "suite.jsonl") == 0
    assert kept_ids(tmp_path) == {one["id"] for one in others()}
    for part in ("train", "dev"):
        manifest = read_manifest(tmp_path / f"{part}.jsonl")
        assert manifest.left_out == dict.fromkeys(OVERLAPS, 1)
        assert manifest.counts["by_source"]["toolace"] == {"read": 2, "suite_tool": 1, "suite_tool_reworded": 1}
        assert manifest.counts["read"] == 45 and manifest.counts["left_out"] == 5
    summary = capsys.readouterr().out
    assert "suite_tool (toolace 1)" in summary and "45 records read" in summary


@pytest.mark.parametrize("reason", OVERLAPS)
def test_without_the_suite_nothing_of_it_is_left_out(tmp_path: Path, reason: str) -> None:
    sealed(tmp_path / "all.jsonl", [OVERLAPS[reason], *others()])
    assert split(tmp_path) == 0
    assert OVERLAPS[reason]["id"] in kept_ids(tmp_path)
    assert read_manifest(tmp_path / "train.jsonl").left_out == {}


def test_question_ids_count_for_bfcl_alone_and_short_answers_are_no_overlap(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": text} for text in ("Find me something to do in the old town", "Play music")]
    kept = [row("toolace/f/parallel_8", "Something else"), row("parallel_8", "By hand", source="toolace")]
    kept.append(row("glaive/f/t", "", messages=turns))
    sealed(tmp_path / "all.jsonl", [*kept, *others()])
    sealed(tmp_path / "suite.jsonl", SUITE, "suites")
    assert split(tmp_path, "--exclude", tmp_path / "suite.jsonl") == 0
    assert {one["id"] for one in kept} <= kept_ids(tmp_path)


def test_the_threshold_decides_what_is_near(tmp_path: Path) -> None:
    sealed(tmp_path / "all.jsonl", [OVERLAPS["suite_near_duplicate"], *others()])
    sealed(tmp_path / "suite.jsonl", SUITE, "suites")
    assert split(tmp_path, "--exclude", tmp_path / "suite.jsonl", "--near-duplicate-threshold", 0.95) == 0
    assert OVERLAPS["suite_near_duplicate"]["id"] in kept_ids(tmp_path)


def test_the_built_in_suite_is_excluded_by_its_name(tmp_path: Path) -> None:
    asked = "What is the weather in Lisbon, Oslo and Nairobi right now? Use celsius for all three."
    sealed(tmp_path / "all.jsonl", [row("glaive/f/w", asked), *others()])
    assert split(tmp_path, "--exclude", "demo") == 0
    assert read_manifest(tmp_path / "train.jsonl").left_out == {"suite_request": 1}


def test_repeats_and_second_records_of_one_id_are_left_out(tmp_path: Path) -> None:
    first, *rest = others()
    repeat = json.loads(json.dumps(first, sort_keys=True)) | {"id": "glaive/f/repeat", "group": "other"}
    sealed(tmp_path / "all.jsonl", [first, repeat, *rest])
    sealed(tmp_path / "more.jsonl", [row(first["id"], "Another text"), row("glaive/g/1", "One more")])
    assert split(tmp_path, "--records", tmp_path / "all.jsonl", tmp_path / "more.jsonl") == 0
    manifest = read_manifest(tmp_path / "dev.jsonl")
    assert manifest.left_out == {"exact_repeat": 1, "id_twice": 1}
    assert kept_ids(tmp_path) == {one["id"] for one in (first, *rest)} | {"glaive/g/1"}
    assert manifest.settings["records"] == list(manifest.inputs) == ["all.jsonl", "more.jsonl"]


def test_records_come_out_as_they_came_in_and_in_order(tmp_path: Path) -> None:
    odd = row("glaive/f/odd", "line\u2028sep and half a pair \ud83d", meta={"flags": ["x"], "row": 3})
    sealed(tmp_path / "all.jsonl", [odd, *others(60)])
    assert split(tmp_path, "--dev-share", 0.2, "--seed", 3) == 0
    order = {one["id"]: at for at, one in enumerate([odd, *others(60)])}
    for part in ("train", "dev"):
        rows = read_rows(tmp_path / f"{part}.jsonl")
        assert rows and [order[one["id"]] for one in rows] == sorted(order[one["id"]] for one in rows)
        assert all(one == ([odd, *others(60)])[order[one["id"]]] for one in rows)
    counts = read_manifest(tmp_path / "dev.jsonl").counts
    assert counts["train"] + counts["dev"] == 61 and counts["written"] == counts["dev"]
    assert read_manifest(tmp_path / "train.jsonl").counts["written"] == counts["train"]


def test_dev_records_with_trained_tools_are_left_out_of_both_files(tmp_path: Path) -> None:
    shared = [row(f"toolace/f/{at}", f"Play song number {at}", PLAY) for at in range(60)]
    sealed(tmp_path / "all.jsonl", [*shared, *others(100)])
    assert split(tmp_path, "--dev-share", 0.3) == 0
    manifest = read_manifest(tmp_path / "dev.jsonl")
    assert manifest.left_out == {"dev_tool_in_train": 60 - manifest.counts["by_source"]["toolace"]["train"]}
    assert manifest.left_out["dev_tool_in_train"] > 5
    assert not any(one["source"] == "toolace" for one in read_rows(tmp_path / "dev.jsonl"))
    assert len(kept_ids(tmp_path)) == 160 - manifest.left_out["dev_tool_in_train"]


def test_an_empty_dev_file_is_said(tmp_path: Path, capsys) -> None:
    sealed(tmp_path / "all.jsonl", [row(f"toolace/f/{at}", f"Play song number {at}", PLAY) for at in range(60)])
    assert split(tmp_path) == 0
    assert read_rows(tmp_path / "dev.jsonl") == []
    assert "dev holds no record" in capsys.readouterr().out


def test_sources_and_categories_of_which_little_is_left_are_scarce(tmp_path: Path, capsys) -> None:
    def bfcl(category: str, count: int, *tools: dict) -> list[dict]:
        return [row(f"bfcl/{category}/{category}_{at}", f"{category} {at} of them", *tools, meta={"category": category})
                for at in range(count)]  # fmt: skip

    many = [row(f"api-bank/f/{at}", f"dialogue {at} of them", *([PLAY] if at < 270 else [])) for at in range(295)]
    sealed(tmp_path / "all.jsonl", [*bfcl("simple", 25), *bfcl("rest", 25, PLAY), *bfcl("few", 3), *many])
    sealed(tmp_path / "suite.jsonl", SUITE, "suites")
    assert split(tmp_path, "--exclude", tmp_path / "suite.jsonl") == 0
    scarce = read_manifest(tmp_path / "train.jsonl").counts["scarce"]
    assert scarce == {
        "bfcl/rest": {"read": 25, "kept": 0},
        "bfcl/few": {"read": 3, "kept": 3},
        "api-bank": {"read": 295, "kept": 25},  # enough records, but under a tenth
    }
    assert "scarce: bfcl/rest keeps 0 of 25" in capsys.readouterr().out


def test_a_bad_row_is_named_counted_and_stops_nothing(tmp_path: Path, capsys) -> None:
    sealed(tmp_path / "all.jsonl", [{"id": "x"}, *others()])
    assert split(tmp_path) == 0
    assert f"{tmp_path / 'all.jsonl'}:1" in capsys.readouterr().err
    manifest = read_manifest(tmp_path / "train.jsonl")
    assert manifest.left_out == {"bad_row": 1} and manifest.counts["read"] == 41
    assert manifest.counts["scarce"] == {}


def test_a_second_run_has_nothing_to_do_and_other_settings_are_refused_by_name(tmp_path: Path, capsys) -> None:
    sealed(tmp_path / "all.jsonl", others())
    assert split(tmp_path) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert split(tmp_path) == 0
    assert "there already" in capsys.readouterr().out
    assert split(tmp_path, "--seed", 1) == 2
    assert "seed was 0, is 1" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_stopped_run_is_done_again(tmp_path: Path) -> None:
    sealed(tmp_path / "all.jsonl", others())
    assert split(tmp_path) == 0
    whole = (tmp_path / "dev.jsonl").read_bytes()
    manifest_path(tmp_path / "dev.jsonl").unlink()
    (tmp_path / "dev.jsonl").write_bytes(b"cut")
    assert split(tmp_path) == 0
    assert (tmp_path / "dev.jsonl").read_bytes() == whole


def test_two_inputs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    sealed(tmp_path / "all.jsonl", others())
    (tmp_path / "b").mkdir()
    sealed(tmp_path / "b" / "all.jsonl", others(5, "toolace"))
    assert split(tmp_path, "--records", tmp_path / "all.jsonl", tmp_path / "b" / "all.jsonl") == 0
    names = read_manifest(tmp_path / "train.jsonl").settings["records"]
    assert names == [f"{tmp_path.name}/all.jsonl", "b/all.jsonl"]


def test_a_request_of_train_is_left_out_of_dev_whatever_its_tools(tmp_path: Path) -> None:
    """The same request with other tools could be trained on and then be measured."""
    twins = [row(f"toolace/g/{at}", f"  REQUEST number {at} about\nnothing else") for at in range(40)]
    sealed(tmp_path / "all.jsonl", [*others(), *twins])
    assert split(tmp_path, "--dev-share", 0.3, "--seed", 1) == 0
    manifest = read_manifest(tmp_path / "dev.jsonl")
    train, dev = ({one["messages"][0]["content"].strip().casefold().replace("\n", " ") for one in read_rows(path)}
                  for path in (tmp_path / "train.jsonl", tmp_path / "dev.jsonl"))  # fmt: skip
    assert not train & dev
    assert manifest.left_out == {"dev_request_in_train": 9} and manifest.counts["left_out"] == 9
    assert manifest.counts["train"] == len(read_rows(tmp_path / "train.jsonl")) == 59
    assert manifest.counts["dev"] == manifest.counts["written"] == len(read_rows(tmp_path / "dev.jsonl")) == 12


def test_the_same_inputs_spelled_otherwise_are_the_same_settings(tmp_path: Path, capsys, monkeypatch) -> None:
    (tmp_path / "b").mkdir()
    files = [sealed(tmp_path / "all.jsonl", others()), sealed(tmp_path / "b" / "all.jsonl", others(5, "toolace"))]
    assert split(tmp_path, "--records", *files) == 0
    monkeypatch.chdir(tmp_path)
    assert split(tmp_path, "--records", "all.jsonl", "b/../b/all.jsonl") == 0
    assert "there already" in capsys.readouterr().out
