import os
from pathlib import Path

import pytest
from sealed_files import sealed

from schemafill.data_prep.sealed_inputs import (
    input_hashes,
    input_manifest,
    input_names,
    refuse_output,
    refuse_overwriting,
)
from schemafill.inference.request import UserError


@pytest.mark.parametrize("name", ["", ".", "/", ".."])
def test_a_path_without_a_name_is_no_output(name: str) -> None:
    with pytest.raises(UserError, match="names no file"):
        refuse_output(Path(name))


def test_only_a_regular_file_may_be_replaced(tmp_path: Path) -> None:
    """A device would be replaced by a file of its name, whoever may write into its folder."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(os.devnull)
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.manifest.json").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path in (Path(os.devnull), *(tmp_path / name for name in ("link", "folder", "a", "pipe"))):
        with pytest.raises(UserError, match="is no regular file"):
            refuse_output(path)
    refuse_output(tmp_path / "file")
    refuse_output(tmp_path / "new" / "folder" / "file")
    with pytest.raises(UserError, match="file is no folder"):
        refuse_output(tmp_path / "file" / "inside" / "it")


def test_names_that_are_too_long_are_no_outputs(tmp_path: Path) -> None:
    refuse_output(tmp_path / ("n" * 200))
    for path in (tmp_path / ("n" * 250), tmp_path / ("é" * 101), tmp_path / ("n" * 300) / "name"):
        with pytest.raises(UserError, match="too long"):
            refuse_output(path)


@pytest.mark.parametrize(
    ("outputs", "fault"),
    [
        (["in"], "in is an input of this step"),
        (["in.manifest.json"], "in.manifest.json is the manifest of an input of this step"),
        (["other"], "the manifest of .*other is an input of this step"),
        (["x", "./x"], "x is named for two outputs"),
        (["x", "x.manifest.json"], "x.manifest.json is named for two outputs"),
        (["x.manifest.json", "x"], "the manifest of .*x is named for two outputs"),
    ],
)
def test_files_and_their_manifests_are_kept_apart(tmp_path: Path, outputs: list[str], fault: str) -> None:
    """The output `in.manifest.json` took the place of what vouches for the input."""
    inputs = [tmp_path / "in", tmp_path / "other.manifest.json"]
    refuse_overwriting([tmp_path / "y"], [*inputs, Path("")])
    with pytest.raises(UserError, match=fault):
        refuse_overwriting([Path(f"{tmp_path}/{name}") for name in outputs], inputs)


def test_names_of_inputs_do_not_depend_on_how_their_paths_are_spelled(tmp_path: Path, monkeypatch) -> None:
    """With a relative path, then an absolute one, the same command was refused as one with other settings."""
    files = [tmp_path / name for name in ("a/b/rows", "a/c/rows", "d/c/rows", "more")]
    for path in files:
        sealed(path, [])
    (tmp_path / "link").symlink_to(tmp_path / "a" / "c")
    expected = ["b/rows", "a/c/rows", "d/c/rows", "more"]
    monkeypatch.chdir(tmp_path / "a")
    spelled = [Path("b/rows"), Path("../link/rows"), Path("../a/../d/c/rows"), tmp_path / "more"]
    assert input_names(files) == input_names(spelled) == expected
    assert input_hashes(files) == input_hashes(spelled)
    assert input_names([Path("b/rows"), files[0]]) == ["rows", "rows"]


def test_an_input_is_called_by_its_own_name_and_not_by_that_of_what_it_links_to(tmp_path: Path) -> None:
    sealed(tmp_path / "a1b2", [])
    (tmp_path / "rows").symlink_to("a1b2")
    assert input_names([tmp_path / "rows"]) == ["rows"]


@pytest.mark.parametrize("name", ["n" * 300, "n" * 250, ""])
def test_an_input_that_cannot_be_one_is_refused(tmp_path: Path, name: str) -> None:
    if len(name) == 250:
        (tmp_path / name).write_text("")  # its manifest has no room
    with pytest.raises(UserError, match="cannot read|no such file"):
        input_manifest(tmp_path / name, ["split"], is_unsealed_allowed=False)
