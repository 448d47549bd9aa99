"""Manifests: what they vouch for, what they refuse, and the inputs of a step that are checked by them."""

from __future__ import annotations

import errno
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemafill.data_prep.manifest import (
    Manifest,
    code_version,
    file_sha256,
    is_done,
    manifest_path,
    read_manifest,
    remove_file,
    seal_output,
    write_output,
)
from schemafill.data_prep.sealed_inputs import input_manifest
from schemafill.inference.request import UserError

SETTINGS = {"seed": 1, "parts": ["a", "b"], "share": 0.5, "name": None}
INPUTS = {"in.jsonl": "0" * 64}
MANIFEST = Manifest(
    step="split", settings=SETTINGS, inputs=INPUTS, counts={"read": 3, "by_source": {"größe\u2028": 2}},
    left_out={"bad_row": 1},
)  # fmt: skip


def written(folder: Path, data: bytes = b"{}\n") -> Path:
    write_output(folder / "out.jsonl", data, MANIFEST)
    return folder / "out.jsonl"


def refusal(output: Path) -> str:
    """Why the manifest of a file is refused; it is one line."""
    with pytest.raises(UserError) as caught:
        read_manifest(output)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------- writing


def test_what_is_written_is_read_with_the_hash_and_the_version(tmp_path: Path) -> None:
    out = written(tmp_path / "new" / "folder", b"some rows\n")
    sha256 = hashlib.sha256(b"some rows\n").hexdigest()
    assert read_manifest(out) == replace(MANIFEST, output_sha256=sha256, code_version=code_version())
    assert out.read_bytes() == b"some rows\n" and code_version()
    assert sorted(path.name for path in out.parent.iterdir()) == ["out.jsonl", "out.jsonl.manifest.json"]


def test_the_manifest_is_written_last_and_an_earlier_one_goes_first(tmp_path: Path, monkeypatch) -> None:
    out = written(tmp_path)
    seen: list[tuple[str, bool]] = []
    put = Path.replace

    def noted(path: Path, target: Path) -> Path:
        seen.append((target.name, manifest_path(out).exists()))
        return put(path, target)

    monkeypatch.setattr(Path, "replace", noted)
    written(tmp_path, b"other rows\n")
    assert seen == [("out.jsonl", False), ("out.jsonl.manifest.json", False)]


@pytest.mark.parametrize("failing", ["out.jsonl", "out.jsonl.manifest.json"])
def test_where_writing_fails_the_file_is_not_vouched_for(tmp_path: Path, monkeypatch, failing: str) -> None:
    out = written(tmp_path)
    put = Path.replace

    def full_disk(path: Path, target: Path) -> Path:
        if target.name == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(path, target)

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(UserError, match=f"^cannot write .*{failing}: No space left on device$"):
        written(tmp_path, b"other rows\n")
    assert out.read_bytes() == (b"{}\n" if failing == "out.jsonl" else b"other rows\n")
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert not is_done(out, "split", SETTINGS, INPUTS)


def test_places_that_cannot_be_written_to_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="^cannot make the folder .*file: "):
        written(tmp_path / "file")
    manifest_path(tmp_path / "out.jsonl").mkdir()
    with pytest.raises(UserError, match=r"^cannot remove .*out.jsonl.manifest.json: "):
        written(tmp_path)
    assert not (tmp_path / "out.jsonl").exists()


def test_removing_what_is_not_there_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    remove_file(tmp_path / "file")
    remove_file(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_file_can_be_sealed_where_it_lies(tmp_path: Path) -> None:
    out = tmp_path / "out.bin"
    out.write_bytes(b"\x00\xff")
    seal_output(out, MANIFEST)
    assert read_manifest(out).output_sha256 == hashlib.sha256(b"\x00\xff").hexdigest() == file_sha256(out)


def test_a_folder_has_no_hash(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^cannot read {tmp_path}: Is a directory$"):
        file_sha256(tmp_path)


# ------------------------------------------------------------------------------------------------------------- reading


def test_a_file_without_a_manifest_and_a_manifest_without_a_file_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "out.jsonl") == f"no such file: {tmp_path / 'out.jsonl'}"
    out = written(tmp_path)
    manifest_path(out).rename(tmp_path / "kept")
    assert refusal(out).startswith(f"{out} has no manifest (out.jsonl.manifest.json)")
    (tmp_path / "kept").rename(manifest_path(out))
    out.unlink()
    assert refusal(out) == f"no such file: {out}"


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    out = written(tmp_path)
    out.write_bytes(b"[]\n")
    assert refusal(out).startswith(f"{out} was changed after it was written")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"step": "split"} more'],
    ids=["empty", "cut", "too deep", "no text", "more"],
)
def test_what_is_no_json_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    out = written(tmp_path)
    manifest_path(out).write_bytes(data)
    assert refusal(out).startswith(f"{manifest_path(out)}: not a manifest of this version: Invalid JSON: ")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"step": None}, "step: Input should be a valid string"),
        ({"step": 5, "settings": []}, "step: Input should be a valid string; settings: Input should be an object"),
        ({"inputs": {"a.jsonl": 1}}, "inputs.a.jsonl: Input should be a valid string"),
        ({"inputs": ...}, "inputs: Field required"),
        ({"counts": ..., "settings": ...}, "settings: Field required; counts: Field required"),
        ({"left_out": {"x": "1"}}, "left_out.x: Input should be a valid integer"),
        ({"further": 1}, "further: Unexpected keyword argument"),
        ({"odd\nname": 1}, "odd name: Unexpected keyword argument"),
    ],
)
def test_a_wrong_field_is_named_in_one_line(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    """What was told were the several lines of the library, a link to its pages among them."""
    out = written(tmp_path)
    fields = json.loads(manifest_path(out).read_bytes()) | change
    fields = {name: value for name, value in fields.items() if value is not ...}
    manifest_path(out).write_text(json.dumps(fields))
    assert refusal(out) == f"{manifest_path(out)}: not a manifest of this version: {fault}"


def test_a_manifest_that_is_no_object_is_refused(tmp_path: Path) -> None:
    out = written(tmp_path)
    manifest_path(out).write_text("[1]")
    assert refusal(out).endswith("not a manifest of this version: Input should be an object")


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch) -> None:
    out = written(tmp_path)

    def closed(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", closed)
    assert refusal(out) == f"cannot read {manifest_path(out)}: Permission denied"


# -------------------------------------------------------------------------------------------------- whether it is done


def test_a_step_is_done_where_file_and_manifest_are_there(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert not is_done(out, "split", SETTINGS, INPUTS)
    written(tmp_path)
    assert is_done(out, "split", SETTINGS, INPUTS)
    assert is_done(out, "split", dict(reversed(SETTINGS.items())), INPUTS)


@pytest.mark.parametrize("lost", [lambda out: out, manifest_path], ids=["output", "manifest"])
def test_a_step_that_was_stopped_is_not_done(tmp_path: Path, lost) -> None:
    out = written(tmp_path)
    lost(out).unlink()
    assert is_done(out, "split", {"another": 1}, {}) is False


@pytest.mark.parametrize(
    ("settings", "inputs", "fault"),
    [
        ({"seed": 2}, {}, "other settings (seed was 1, is 2)"),
        ({"seed": 2, "parts": ["a"]}, {}, "other settings (seed was 1, is 2; parts was ['a', 'b'], is ['a'])"),
        ({"added": "x"}, {}, "other settings (added was None, is 'x')"),
        ({"share": None}, {}, "other settings (share was 0.5, is None)"),
        ({}, {"in.jsonl": "1" * 64}, f"other inputs (in.jsonl was '{'0' * 64}', is '{'1' * 64}')"),
        ({}, {"more.jsonl": "1"}, "other inputs (more.jsonl was None, is '1')"),
    ],
)
def test_what_was_made_otherwise_is_refused_by_field(tmp_path: Path, settings, inputs, fault: str) -> None:
    out = written(tmp_path)
    with pytest.raises(UserError) as caught:
        is_done(out, "split", SETTINGS | settings, INPUTS | inputs)
    assert str(caught.value) == f"{out} was made with {fault}: choose another --out or remove it"


def test_an_input_that_is_no_longer_there_counts(tmp_path: Path) -> None:
    out = written(tmp_path)
    with pytest.raises(UserError, match="other inputs .in.jsonl was '0+', is None"):
        is_done(out, "split", SETTINGS, {})


def test_the_file_of_another_step_is_refused(tmp_path: Path) -> None:
    out = written(tmp_path)
    with pytest.raises(UserError, match="was written by step split, not by corpora: choose another --out"):
        is_done(out, "corpora", {}, {})


def test_a_changed_output_is_never_done(tmp_path: Path) -> None:
    out = written(tmp_path)
    out.write_bytes(b"")
    with pytest.raises(UserError, match="was changed after it was written"):
        is_done(out, "split", SETTINGS, INPUTS)


@pytest.mark.parametrize("name", ["folder", ".", ""])
def test_a_folder_is_no_output(tmp_path: Path, monkeypatch, name: str) -> None:
    """A path without a name (`.`) ended in a traceback, a folder after all the work in `Is a directory`."""
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is a folder: choose another --out"):
        is_done(Path(name), "split", SETTINGS, INPUTS)


def test_an_output_that_cannot_be_there_is_not_done(tmp_path: Path) -> None:
    """A name that is too long is for the writing to refuse, like a folder that may not be entered."""
    assert is_done(tmp_path / ("long" * 100), "split", SETTINGS, INPUTS) is False
    with pytest.raises(UserError, match="File name too long$"):
        write_output(tmp_path / ("long" * 100), b"", MANIFEST)


# ----------------------------------------------------------------------------------------------------- inputs of a step


def test_inputs_are_vouched_for_by_their_manifest(tmp_path: Path) -> None:
    out = written(tmp_path)
    assert input_manifest(out, ("split", "augment"), is_unsealed_allowed=False) == read_manifest(out)
    with pytest.raises(UserError, match="`step` in its manifest is 'split', here it must be corpora or augment$"):
        input_manifest(out, ("corpora", "augment"), is_unsealed_allowed=True)


def test_an_input_made_by_hand_has_none_where_those_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "hand.jsonl").write_text("{}\n")
    assert input_manifest(tmp_path / "hand.jsonl", ("split",), is_unsealed_allowed=True) is None
    with pytest.raises(UserError, match="has no manifest .hand.jsonl.manifest.json.: pass --unsealed"):
        input_manifest(tmp_path / "hand.jsonl", ("split",), is_unsealed_allowed=False)
    with pytest.raises(UserError, match=f"^no such file: {tmp_path / 'none.jsonl'}$"):
        input_manifest(tmp_path / "none.jsonl", ("split",), is_unsealed_allowed=True)
