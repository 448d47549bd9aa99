"""What split does with faulty rows, files and options."""

from pathlib import Path

import pytest
from sealed_files import row, sealed, tool
from test_split import SUITE, others, split

from schemafill.data_prep.manifest import manifest_path, read_manifest


def test_a_bad_row_in_a_suite_is_refused(tmp_path: Path, capsys) -> None:
    sealed(tmp_path / "all.jsonl", others())
    sealed(tmp_path / "suite.jsonl", [{"id": "x"}, *SUITE], "suites")
    assert split(tmp_path, "--exclude", tmp_path / "suite.jsonl") == 2
    assert f"{tmp_path / 'suite.jsonl'}:1" in capsys.readouterr().err
    assert not (tmp_path / "train.jsonl").exists()


def test_files_made_by_hand_need_a_word(tmp_path: Path, capsys) -> None:
    sealed(tmp_path / "all.jsonl", others())
    manifest_path(tmp_path / "all.jsonl").unlink()
    assert split(tmp_path) == 2
    assert "--unsealed" in capsys.readouterr().err
    assert split(tmp_path, "--unsealed") == 0


@pytest.mark.parametrize("unsealed", [(), ("--unsealed",)])
def test_changed_files_and_files_of_other_steps_are_refused(tmp_path: Path, capsys, unsealed: tuple) -> None:
    sealed(tmp_path / "all.jsonl", others(), "rollout")
    assert split(tmp_path, *unsealed) == 2
    assert "`step` in its manifest is 'rollout'" in capsys.readouterr().err
    sealed(tmp_path / "all.jsonl", others())
    with (tmp_path / "all.jsonl").open("a") as file:
        file.write("\n")
    assert split(tmp_path, *unsealed) == 2
    assert "changed after it was written" in capsys.readouterr().err


def test_augmented_records_are_refused(tmp_path: Path, capsys) -> None:
    copy = row("glaive/f/1/aug1", "Something", meta={"augmented": ["names"], "augmented_from": "glaive/f/1"})
    sealed(tmp_path / "all.jsonl", [*others(), copy])
    assert split(tmp_path) == 2
    assert "'glaive/f/1/aug1' is an augmented record" in capsys.readouterr().err
    sealed(tmp_path / "all.jsonl", [copy], "augment", is_augmented=True)
    assert split(tmp_path) == 2
    assert "'augment'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--dev-share", "1"), "between 0 and 1"),
        (("--dev-share", "x"), "between 0 and 1"),
        (("--near-duplicate-threshold", "0"), "between 0 and 1"),
        (("--exclude", "nowhere.jsonl"), "no such file: nowhere.jsonl"),
        (("--out-dev", "{}/train.jsonl"), "named for two outputs"),
        (("--out-dev", "{}/all.jsonl"), "is an input of this step"),
    ],
)
def test_faults_of_the_user_are_one_line(tmp_path: Path, capsys, options: tuple, fault: str) -> None:
    sealed(tmp_path / "all.jsonl", others())
    assert split(tmp_path, *(option.format(tmp_path) for option in options)) == 2
    error = capsys.readouterr().err
    assert fault in error and error.count("\n") == 1


def test_nothing_left_is_an_error(tmp_path: Path, capsys) -> None:
    sealed(tmp_path / "all.jsonl", SUITE)
    sealed(tmp_path / "suite.jsonl", SUITE, "suites")
    assert split(tmp_path, "--exclude", tmp_path / "suite.jsonl") == 2
    assert "nothing to train on" in capsys.readouterr().err


def test_rows_beyond_twenty_are_counted_and_deep_ones_are_bad(tmp_path: Path, capsys) -> None:
    schema: dict = {"type": "string"}
    for _ in range(320):
        schema = {"type": "object", "properties": {"x": schema}}
    deep = [row(f"glaive/d/{at}", "x", tool("t", x=schema)) for at in range(2)]
    sealed(tmp_path / "all.jsonl", [*deep, *({"id": "x"} for _ in range(30)), *others()])
    assert split(tmp_path) == 0
    error = capsys.readouterr().err
    assert error.count("nests deeper than 100 levels") == 2 and error.count("left out ") == 20
    assert "... and 12 more" in error
    assert read_manifest(tmp_path / "train.jsonl").left_out == {"bad_row": 32}


@pytest.mark.parametrize("name", ["", "/", "{}", "{}/" + "n" * 250, "{}/all.jsonl.manifest.json", "{}/all.jsonl/x"])
@pytest.mark.parametrize("option", ["--out-train", "--out-dev"])
def test_outputs_that_cannot_be_written_are_one_line(tmp_path: Path, capsys, option: str, name: str) -> None:
    sealed(tmp_path / "all.jsonl", others())
    assert split(tmp_path, option, name.format(tmp_path)) == 2
    error = capsys.readouterr().err
    assert error.startswith("split: error: ") and error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.jsonl", "all.jsonl.manifest.json"]


@pytest.mark.parametrize("name", ["n" * 250, "n" * 300, "-".join("n" * 200), "", "."])
@pytest.mark.parametrize("option", ["--records", "--exclude"])
def test_inputs_that_cannot_be_read_are_one_line(tmp_path: Path, capsys, option: str, name: str) -> None:
    sealed(tmp_path / "all.jsonl", others())
    assert split(tmp_path, option, name) == 2
    error = capsys.readouterr().err
    assert error.startswith("split: error: ") and error.count("\n") == 1
