"""A job whose output is there: what failed is asked again, a larger limit goes on, everything else stays as it is."""

import json
from pathlib import Path

import pytest
from rollout_setup import StubBackend, echo_call, read_rows, record_row, roll_out, tiny_facts, write_rows

from schemafill.data_prep.manifest import manifest_path, read_manifest
from schemafill.data_prep.rollout_file import RolloutFile
from schemafill.inference.request import SamplingParams, UserError

FACTS = tiny_facts()


@pytest.fixture
def records(tmp_path: Path) -> Path:
    rows = [record_row(text, text) for text in "abcd"] + [record_row("long " * 200, "long")]
    return write_rows(tmp_path / "r.jsonl", rows)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


FINISHED = {"r.jsonl", "out.jsonl", "out.jsonl.manifest.json"}
LONGEST = {"max_prompt_tokens": 500}


def test_rows_that_failed_are_asked_again_when_the_job_has_ended(records, tmp_path, capsys):
    """The same command once said that the output was there, and the rows were lost."""
    out = tmp_path / "out.jsonl"
    roll_out(records, out, FACTS, StubBackend(FACTS, fails=["b", "d"]), **LONGEST)
    assert read_manifest(out).left_out == {"failed": 2, "prompt_too_long": 1}
    assert "the same command tries them again" in capsys.readouterr().out
    backend = roll_out(records, out, FACTS, **LONGEST)
    assert backend.asked == ["b", "d"]
    roll_out(records, tmp_path / "whole.jsonl", FACTS, **LONGEST)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    ours, whole = read_manifest(out), read_manifest(tmp_path / "whole.jsonl")
    assert (ours.settings, ours.counts, ours.left_out) == (whole.settings, whole.counts, whole.left_out)
    assert roll_out(records, out, FACTS, **LONGEST).asked == []


def test_a_row_that_fails_again_changes_nothing(records, tmp_path):
    out = tmp_path / "out.jsonl"
    roll_out(records, out, FACTS, StubBackend(FACTS, fails=["b"]), **LONGEST)
    before = out.read_bytes()
    backend = roll_out(records, out, FACTS, StubBackend(FACTS, fails=["b"]), **LONGEST)
    assert backend.asked == ["b"] and out.read_bytes() == before
    assert names(tmp_path) == FINISHED


class Stop(BaseException):
    """Ends a job in a way that nothing catches."""


@pytest.mark.parametrize("after", [0, 1])
def test_a_job_that_is_stopped_while_it_tries_again_goes_on(records, tmp_path, after):
    out = tmp_path / "out.jsonl"
    roll_out(records, out, FACTS, StubBackend(FACTS, fails=["b", "d"]), **LONGEST)
    finished = out.read_bytes()

    def stop(number: int) -> None:
        if number == after:
            raise Stop

    with pytest.raises(Stop):
        roll_out(records, out, FACTS, StubBackend(FACTS, before=stop), **LONGEST)
    assert out.read_bytes() == finished and read_manifest(out).left_out["failed"] == 2, "the output stays until then"
    assert roll_out(records, out, FACTS, **LONGEST).asked == ["b", "d"][after:]
    assert [row["usable"] for row in read_rows(out)] == [True] * 4 + [False]
    assert names(tmp_path) == FINISHED


@pytest.mark.parametrize("limit", [4, None, 99])
def test_a_larger_limit_goes_on_behind_the_finished_rows(records, tmp_path, limit):
    out = tmp_path / "out.jsonl"
    roll_out(records, out, FACTS, limit=2, **LONGEST)
    backend = roll_out(records, out, FACTS, limit=limit, **LONGEST)
    assert backend.asked == ["c", "d"]
    roll_out(records, tmp_path / "whole.jsonl", FACTS, limit=limit, **LONGEST)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert read_manifest(out).settings["limit"] == limit
    with pytest.raises(UserError, match=f"limit was {limit}, is 2"):
        roll_out(records, out, FACTS, limit=2, **LONGEST)


def test_other_settings_do_not_go_on_with_finished_rows(records, tmp_path):
    out = tmp_path / "out.jsonl"
    roll_out(records, out, FACTS, limit=2)
    with pytest.raises(UserError, match="seed was 0, is 1"):
        roll_out(records, out, FACTS, sampling=SamplingParams(seed=1))
    assert names(tmp_path) == FINISHED


def test_parts_of_other_settings_are_not_mixed_with_finished_rows(records, tmp_path):
    out = tmp_path / "out.jsonl"
    roll_out(records, out, FACTS, limit=2)
    with RolloutFile(out).opened() as file:
        file.begin({"seed": 7})
    with pytest.raises(UserError, match="begun with other settings"):
        roll_out(records, out, FACTS)
    assert file.rows_path.read_bytes() == b""


def test_parts_that_a_kill_left_beside_the_output_are_removed(records, tmp_path, capsys):
    """The job was killed when the output was sealed and its parts were not yet gone: they stayed for good."""
    out = tmp_path / "out.jsonl"
    roll_out(records, out, FACTS, **LONGEST)
    settings = {name: value for name, value in read_manifest(out).settings.items() if name != "limit"}
    with RolloutFile(out).opened() as file:
        file.begin(settings)
        for row in read_rows(out):
            file.append(row["record_id"], row)
    assert len(names(tmp_path)) == 5
    assert roll_out(records, out, FACTS, **LONGEST).asked == []
    assert "is there already" in capsys.readouterr().out
    assert names(tmp_path) == FINISHED


def test_rows_of_a_larger_limit_are_not_removed(records, tmp_path):
    out = tmp_path / "out.jsonl"
    roll_out(records, out, FACTS, limit=2)

    def stop(number: int) -> None:
        if number == 1:
            raise Stop

    with pytest.raises(Stop):
        roll_out(records, out, FACTS, StubBackend(FACTS, before=stop))
    assert roll_out(records, out, FACTS, limit=2).asked == []
    assert roll_out(records, out, FACTS).asked == ["d", "long"]


# ------------------------------------------------------------------------------------------------- nothing but failures


@pytest.mark.parametrize("num_rows", [3, 20])
def test_a_job_in_which_every_row_failed_is_not_finished(tmp_path, num_rows):
    """It was sealed without a usable row."""
    rows = [record_row("long " * 200, "long"), *(record_row("same", str(number)) for number in range(num_rows))]
    records, out = write_rows(tmp_path / "r.jsonl", rows), tmp_path / "out.jsonl"
    with pytest.raises(UserError, match=f"all {num_rows} rows that were asked failed, most with failed: RuntimeError"):
        roll_out(records, out, FACTS, StubBackend(FACTS, fails=["same"]), **LONGEST)
    assert not out.exists() and not manifest_path(out).exists()
    assert len(roll_out(records, out, FACTS, **LONGEST).asked) == num_rows
    assert read_manifest(out).counts["usable"] == num_rows


def test_prompts_that_are_not_asked_do_not_hide_that_all_others_fail(tmp_path):
    """They come first, and one of them was enough to let a job of failures run to its end."""
    rows = [record_row("long " * 200, "long"), *(record_row("same", str(number)) for number in range(60))]
    records, out = write_rows(tmp_path / "r.jsonl", rows), tmp_path / "out.jsonl"
    for _ in range(2):  # the second time there is a row in the file, and none of them an answer
        with pytest.raises(UserError, match="the first 25 rows all failed"):
            roll_out(records, out, FACTS, StubBackend(FACTS, fails=["same"]), **LONGEST)


def test_a_job_in_which_nothing_could_be_asked_is_finished(tmp_path):
    records = write_rows(tmp_path / "r.jsonl", [record_row("a", "a")])
    roll_out(records, tmp_path / "out.jsonl", FACTS, max_prompt_tokens=1)
    assert read_manifest(tmp_path / "out.jsonl").counts["usable"] == 0


# --------------------------------------------------------------------------------------------------------- edited files


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"dialect": None}, r"settings\.dialect"),
        ({"dialect": "french"}, r"settings\.dialect: unknown dialect 'french'"),
        ({"target": []}, r"settings\.target"),
        ({"end_ids": None}, r"settings\.end_ids"),
        ({"vocab_size": "many"}, r"settings\.vocab_size"),
    ],
)
def test_a_manifest_that_was_edited_is_named_with_its_field(records, tmp_path, change, fault):
    out = tmp_path / "out.jsonl"
    roll_out(records, out, FACTS)
    manifest = json.loads(manifest_path(out).read_text())
    for name, value in change.items():
        manifest["settings"].pop(name)
        if value is not None:
            manifest["settings"][name] = value
    manifest_path(out).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"out\.jsonl\.manifest\.json: " + fault):
        roll_out(records, out, FACTS)


def test_answers_are_what_the_stub_writes(records, tmp_path):
    """The tests above compare files with each other; this one says what is in them."""
    roll_out(records, tmp_path / "out.jsonl", FACTS, **LONGEST)
    assert [row["text"] for row in read_rows(tmp_path / "out.jsonl")] == [*map(echo_call, "abcd"), ""]
