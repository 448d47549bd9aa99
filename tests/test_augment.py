import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_records import records
from sealed_files import read_rows, row, sealed, tool

from schemafill.data_prep.augment import LARGEST_CATALOGUE, SHARES, augment, change, main, make_copy
from schemafill.data_prep.consistency import inconsistency, is_consistent
from schemafill.data_prep.distractors import DistractorPool
from schemafill.data_prep.manifest import read_manifest
from schemafill.data_prep.record_calls import called_names
from schemafill.data_prep.records import Record, json_line, record_of
from schemafill.data_prep.split import main as split
from schemafill.data_prep.tool_definitions import interface_key, tool_name

EMPTY = DistractorPool([])
SEEDS = st.integers(0, 2**32)


def rows(count: int = 30) -> list[dict]:
    """Records with a tool of two arguments that the request says, and two tools that nobody calls."""
    made = []
    for at in range(count):
        booking = tool(f"book_{at}", seats={"type": "integer"}, city={"type": "string"})
        calls = [{"name": f"book_{at}", "arguments": {"seats": 37 + at, "city": "Oslo"}}]
        tools = (booking, tool(f"idle_{at}"), tool("stop"))
        made.append(row(f"toolace/f/{at}", f"Book {37 + at} seats in Oslo.", *tools, reference_calls=calls))
    return made


def step(folder: Path, *options: object) -> int:
    files = ["--records", folder / "train.jsonl", "--out", folder / "augmented.jsonl", "--seed", 0]
    return main([str(option) for option in (*files, *options)])


@settings(max_examples=15, deadline=None)
@given(st.lists(records(), min_size=1, max_size=3, unique_by=lambda one: one.id), SEEDS)
def test_copies_of_random_records_are_consistent_and_the_same_each_time(ones: list[Record], seed: int) -> None:
    pool = DistractorPool(ones)
    for one in ones:
        before = json.dumps(one.to_json())
        copy = make_copy(one, seed=seed, number=1, pool=pool)
        assert inconsistency(one, copy) is None
        assert json_line(copy.to_json()) == json_line(make_copy(one, seed=seed, number=1, pool=pool).to_json())
        assert record_of(json.loads(json_line(copy.to_json()))) == copy
        assert len(set(map(tool_name, copy.tools))) == len(copy.tools)
        assert {tool_name(one) for one in copy.tools} >= set(called_names(copy))
        assert json.dumps(one.to_json()) == before


@settings(max_examples=12, deadline=None)
@given(records(), st.lists(records(), max_size=2), SEEDS)
def test_other_records_change_only_the_tools_that_are_added(one: Record, more: list, seed: int) -> None:
    alone, among = (make_copy(one, seed=seed, number=1, pool=DistractorPool(file)) for file in ([one], [one, *more]))
    assert (alone.messages, alone.reference_calls) == (among.messages, among.reference_calls)
    own = {interface_key(tool) for tool in alone.tools}
    if "added_tools" not in alone.meta["augmented"]:
        assert own <= {interface_key(tool) for tool in among.tools}


def test_every_kind_of_change_occurs_and_is_named() -> None:
    originals = [record_of(one) for one in rows(60)]
    by_id = {one.id: one for one in originals}
    copies = augment(originals, seed=0, num_copies=2, left_out=(left_out := Counter()))
    assert len(copies) == 120 and not left_out
    for copy in copies:
        original, done = by_id[copy.meta["augmented_from"]], copy.meta["augmented"]
        assert done and copy.id in (f"{original.id}/aug0-1", f"{original.id}/aug0-2") and copy.group == original.group
        has_names = not {f"book_{at}" for at in range(60)} & set(called_names(copy))
        assert has_names == ("names" in done)
        has_literals = copy.messages[-1]["content"].split(" ")[1:5] != original.messages[-1]["content"].split(" ")[1:5]
        assert has_literals == ("literals" in done)
        if "added_tools" not in done:
            assert len(copy.tools) < len(original.tools) if "dropped_tools" in done else len(copy.tools) == 3
        else:
            assert "dropped_tools" in done or len(copy.tools) > 3
    for what in SHARES:
        assert 20 < sum(what in copy.meta["augmented"] for copy in copies) < 120


def test_called_tools_stay_and_distractors_have_no_name_that_is_there() -> None:
    originals = [record_of(one) for one in rows(20)]
    pool = DistractorPool(originals)
    for one in originals:
        for seed in range(10):
            less = change("dropped_tools", one, one, Random(seed), pool)
            assert "book" in tool_name(less.tools[0]) and 1 <= len(less.tools) < 3
            renamed = change("names", one, one, Random(seed), pool)
            more = change("added_tools", one, renamed, Random(seed), pool)
            added = [tool_name(tool) for tool in more.tools[3:]]
            assert 1 <= len(added) == len(set(added)) <= 3
            assert not set(added) & {tool_name(tool) for tool in (*one.tools, *renamed.tools)}
            assert more.tools[:3] == renamed.tools


def test_nothing_is_dropped_where_it_is_not_known_what_is_called() -> None:
    one = replace(record_of(rows(1)[0]), reference_calls=None)
    assert all(change("dropped_tools", one, one, Random(seed), EMPTY) == one for seed in range(20))


def test_no_tool_is_added_to_a_long_catalogue_or_from_an_empty_pool() -> None:
    one = record_of(rows(1)[0])
    pool = DistractorPool(record_of(other) for other in rows(20))
    long = replace(one, tools=[*one.tools, *(tool(f"t{at}") for at in range(LARGEST_CATALOGUE - 3))])
    assert all(change("added_tools", long, long, Random(seed), pool) == long for seed in range(20))
    assert all(change("added_tools", one, one, Random(seed), EMPTY) == one for seed in range(20))


def test_a_tool_that_is_called_but_not_declared_is_never_added() -> None:
    calls = [{"name": "stop", "arguments": {}}]
    one = record_of(row("bfcl/f/1", "Find it", tool("restaurant.find"), reference_calls=calls))
    pool = DistractorPool([record_of(row("bfcl/f/2", "x", tool("stop")))])
    assert all(change("added_tools", one, one, Random(seed), pool) == one for seed in range(20))


def test_the_file_holds_copies_only_and_its_manifest_says_so(tmp_path: Path, capsys) -> None:
    sealed(tmp_path / "train.jsonl", rows(), "split", part="train")
    assert step(tmp_path, "--copies", 2) == 0
    copies = read_rows(tmp_path / "augmented.jsonl")
    assert [one["id"] for one in copies] == [f"toolace/f/{at}/aug0-{k}" for at in range(30) for k in (1, 2)]
    manifest = read_manifest(tmp_path / "augmented.jsonl")
    assert manifest.step == "augment"
    assert manifest.settings == {"seed": 0, "copies": 2, "changes": list(SHARES), "is_augmented": True}
    assert manifest.counts["read"] == 30 and manifest.counts["written"] == 60
    assert manifest.counts["changes"]["names"] == sum("names" in one["meta"]["augmented"] for one in copies)
    assert "60 copies of 30 records" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others(tmp_path: Path) -> None:
    sealed(tmp_path / "train.jsonl", rows(), "split", part="train")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert step(tmp_path, "--seed", seed, "--out", tmp_path / name) == 0
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again != other


def test_a_second_run_has_nothing_to_do_and_other_settings_are_refused(tmp_path: Path, capsys) -> None:
    sealed(tmp_path / "train.jsonl", rows(), "split", part="train")
    assert step(tmp_path) == step(tmp_path) == 0
    assert "there already" in capsys.readouterr().out
    assert step(tmp_path, "--copies", 3) == 2
    assert "copies was 1, is 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step_name", "written", "fault"),
    [
        ("split", {"part": "dev"}, "`part` in its manifest is 'dev'"),
        ("split", {}, "`part` in its manifest is None"),
        ("corpora", {"corpus": "glaive"}, "`step` in its manifest is 'corpora'"),  # it holds the later dev records
        ("suites", {}, "`step` in its manifest is 'suites'"),
        ("augment", {"is_augmented": True}, "`step` in its manifest is 'augment'"),
    ],
)
def test_files_that_are_not_for_training_are_refused(tmp_path: Path, capsys, step_name, written, fault) -> None:
    sealed(tmp_path / "train.jsonl", rows(), step_name, **written)
    assert step(tmp_path) == 2
    assert fault in capsys.readouterr().err


def test_a_file_made_by_hand_needs_a_word(tmp_path: Path, capsys) -> None:
    (tmp_path / "train.jsonl").write_text("".join(json_line(one) for one in rows(3)))
    assert step(tmp_path) == 2
    assert "--unsealed" in capsys.readouterr().err
    assert step(tmp_path, "--unsealed") == 0


@pytest.mark.parametrize("name", ["", ".", "/", "{}", "{}/" + "n" * 250, "{}/train.jsonl.manifest.json"])
def test_outputs_that_cannot_be_written_are_one_line(tmp_path: Path, capsys, name: str) -> None:
    sealed(tmp_path / "train.jsonl", rows(3), "split", part="train")
    assert step(tmp_path, "--out", name.format(tmp_path)) == 2
    error = capsys.readouterr().err
    assert error.startswith("augment: error: ") and error.count("\n") == 1


@pytest.mark.parametrize("name", ["n" * 250, "n" * 300, "", "."])
def test_inputs_that_cannot_be_read_are_one_line(tmp_path: Path, capsys, name: str) -> None:
    assert step(tmp_path, "--records", name) == 2
    error = capsys.readouterr().err
    assert error.startswith("augment: error: ") and error.count("\n") == 1


def test_copies_of_copies_are_refused(tmp_path: Path, capsys) -> None:
    sealed(tmp_path / "train.jsonl", rows(), "split", part="train")
    assert step(tmp_path) == 0
    by_hand = (tmp_path / "augmented.jsonl").read_bytes()
    sealed(tmp_path / "train.jsonl", [], "split", part="train")
    (tmp_path / "hand.jsonl").write_bytes(by_hand)
    assert step(tmp_path, "--records", tmp_path / "hand.jsonl", "--out", tmp_path / "x", "--unsealed") == 2
    assert "is a copy already" in capsys.readouterr().err


def test_split_refuses_the_copies(tmp_path: Path, capsys) -> None:
    sealed(tmp_path / "train.jsonl", rows(), "split", part="train")
    assert step(tmp_path) == 0
    outputs = ["--out-train", str(tmp_path / "t"), "--out-dev", str(tmp_path / "d")]
    assert split(["--records", str(tmp_path / "augmented.jsonl"), *outputs]) == 2
    assert "'augment'" in capsys.readouterr().err


def test_bad_rows_and_records_without_tools_are_counted(tmp_path: Path, capsys) -> None:
    """Tools can be added to a record that has none; seed 3 does so, seed 5 does not."""
    bare = row("toolace/f/bare", "Say something", tools=[], reference_calls=None)
    sealed(tmp_path / "train.jsonl", [{"id": "x"}, bare, *rows(3)], "split", part="train")
    for seed, written, left_out in ((3, 4, {"bad_row": 1}), (5, 3, {"bad_row": 1, "nothing_to_change": 1})):
        assert step(tmp_path, "--out", tmp_path / f"few{seed}", "--seed", seed) == 0
        manifest = read_manifest(tmp_path / f"few{seed}")
        assert manifest.left_out == left_out
        assert manifest.counts["read"] == 5 and manifest.counts["written"] == written
    assert ":1" in capsys.readouterr().err


def test_rows_beyond_twenty_are_counted_and_deep_ones_are_bad(tmp_path: Path, capsys) -> None:
    schema: dict = {"type": "string"}
    for _ in range(320):
        schema = {"type": "object", "properties": {"x": schema}}
    deep = [row(f"glaive/d/{at}", "x", tool("t", x=schema)) for at in range(2)]
    bad = [*deep, *({"id": "x"} for _ in range(30))]
    sealed(tmp_path / "train.jsonl", [*bad, *rows(3)], "split", part="train")
    assert step(tmp_path) == 0
    error = capsys.readouterr().err
    assert error.count("nests deeper than 100 levels") == 2 and error.count("left out ") == 20
    assert "... and 12 more" in error
    assert read_manifest(tmp_path / "augmented.jsonl").left_out == {"bad_row": 32}


def test_an_inconsistent_copy_is_dropped_and_counted() -> None:
    """The request quotes a word that is a tool's name as well; its value cannot follow, so the copy would not fit."""
    one = record_of(row("toolace/f/1", 'Look up "calculator".', tool("calculator", word={"type": "string"}),
                        reference_calls=[{"name": "calculator", "arguments": {"word": "calculator"}}]))  # fmt: skip
    renamed = change("names", one, one, Random(0), EMPTY)
    assert not is_consistent(one, renamed)
    left_out = Counter()
    assert augment([one], seed=1, num_copies=1, left_out=left_out) == []
    assert left_out == {"inconsistent": 1}
