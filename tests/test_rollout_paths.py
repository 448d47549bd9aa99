"""Where a rollout job may write: what cannot be, or is something else's, is refused before anything is loaded."""

import os
from pathlib import Path

import pytest
from rollout_setup import record_row, roll_out, tiny_facts, write_rows

from schemafill.data_prep import rollout, rollout_job
from schemafill.data_prep.rollout_config import RolloutConfig
from schemafill.data_prep.rollout_job import run_rollout
from schemafill.inference.request import UserError

ROWS = [record_row(text, text) for text in "ab"]


def refused(records: list[Path], out: Path, **config: object) -> str:
    """Why a job is refused; loading its target would fail the test."""
    with pytest.raises(UserError) as caught:
        run_rollout(
            RolloutConfig(target="t", records=records, out=out, unsealed=True, **config),
            lambda _: pytest.fail("the target was read"),
        )
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["x.jsonl.part.jsonl", "x.jsonl.part.json", "x.jsonl.manifest.json", "x.jsonl"])
def test_an_input_at_a_place_that_the_job_writes_is_refused(name, tmp_path):
    """The parts file was taken for this job's, cut and removed, and with it the records."""
    records = write_rows(tmp_path / name, ROWS)
    before = records.read_bytes()
    fault = refused([records], tmp_path / "x.jsonl")
    assert "is an input of this step" in fault or "choose another" in fault
    assert records.read_bytes() == before


def test_an_input_under_the_name_of_the_temporary_file_is_refused(tmp_path):
    records = write_rows(tmp_path / f".x.jsonl.{os.getpid()}", ROWS)
    assert "is an input of this step" in refused([records], tmp_path / "x.jsonl")


@pytest.mark.parametrize("name", ["", ".", "..", "/", "n" * 250, "folder", "fifo", "file/out.jsonl"])
def test_an_output_that_is_no_file_is_refused_at_once(name, tmp_path, monkeypatch, capsys):
    """A folder was found out after the whole job, and anything else was replaced."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    records = write_rows(tmp_path / "r.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rollout_job, "read_target", lambda *_, **__: pytest.fail("the target was read"))
    assert rollout.main(["--target", "t", "--records", str(records), "--out", name, "--unsealed"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "Traceback" not in err
    assert (tmp_path / "fifo").is_fifo() and (tmp_path / "folder").is_dir()


@pytest.mark.parametrize("name", ["out.jsonl.part.jsonl", "out.jsonl.part.json", "out.jsonl.manifest.json"])
def test_a_folder_at_the_place_of_a_part_is_refused_at_once(name, tmp_path):
    (tmp_path / name).mkdir()
    assert name in refused([write_rows(tmp_path / "r.jsonl", ROWS)], tmp_path / "out.jsonl")


@pytest.mark.parametrize("name", ["out.jsonl", "file"])
def test_features_need_a_folder_of_their_own(name, tmp_path):
    (tmp_path / "file").touch()
    records = write_rows(tmp_path / "r.jsonl", ROWS)
    assert "--features" in refused([records], tmp_path / "out.jsonl", features=tmp_path / name)


def test_the_same_records_twice_are_refused(tmp_path):
    """Every row of the second would be left out as one whose id stands twice."""
    records = write_rows(tmp_path / "r.jsonl", ROWS)
    (tmp_path / "link.jsonl").symlink_to(records)
    for again in (records, tmp_path / "." / "link.jsonl"):
        assert "the same file is named twice" in refused([records, again], tmp_path / "out.jsonl")


def test_many_bad_rows_are_counted_and_the_first_are_named(tmp_path, capsys):
    records = write_rows(tmp_path / "r.jsonl", [*ROWS, *[{"id": "bad"}] * 23])
    roll_out(records, tmp_path / "out.jsonl", tiny_facts())
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("left out", "..."))]
    assert len(lines) == 21 and lines[-1] == "... and 3 more"
