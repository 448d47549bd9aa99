"""The file of a rollout job: what a kill leaves is read again, what does not belong there is refused."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from schemafill.data_prep.manifest import Manifest, manifest_path, read_manifest
from schemafill.data_prep.rollout_file import RolloutFile
from schemafill.inference.request import UserError

MANIFEST = Manifest(step="rollout", settings={}, inputs={}, counts={})


def row(name: str, why_not: str | None = None) -> dict:
    return {
        "record_id": name, "prompt_ids": [1, 2], "completion_ids": [3], "text": f"line\u2028 and \u0085 of {name}",
        "finish_reason": "stop", "usable": why_not is None, "why_not": why_not,
    }  # fmt: skip


def written(out: Path, *names: str) -> RolloutFile:
    """A job that has put down these rows and was then left."""
    file = RolloutFile(out)
    with file.opened():
        file.begin({"seed": 0})
        for name in names:
            file.append(name, row(name))
    return file


def test_rows_come_back_in_the_order_that_is_asked_for(tmp_path):
    written(tmp_path / "out.jsonl", "c", "a", "b")
    with RolloutFile(tmp_path / "out.jsonl").opened() as file:
        assert file.settings() == {"seed": 0}
        assert [file.is_answered(key) for key in "abcd"] == [True, True, True, False]
        assert list(file.rows("abc")) == [row("a"), row("b"), row("c")]


@pytest.mark.parametrize("kept", [1, 20, -1], ids=["one byte", "some bytes", "all but the newline"])
def test_a_half_written_row_is_cut_off_and_written_again(tmp_path, kept):
    file = written(tmp_path / "out.jsonl", "a", "b")
    whole = file.rows_path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    file.rows_path.write_bytes(whole[: -len(last)] + last[:kept])
    with RolloutFile(tmp_path / "out.jsonl").opened() as again:
        assert again.is_answered("a") and not again.is_answered("b")
        again.append("b", row("b"))
    assert file.rows_path.read_bytes() == whole


def test_the_later_row_of_a_key_counts(tmp_path):
    file = written(tmp_path / "out.jsonl", "a")
    with file.opened():
        file.append("a", row("a", "failed: no answer"))
        assert not file.is_answered("a")
        file.append("a", row("a") | {"text": "third"})
        assert file.is_answered("a")
    with RolloutFile(tmp_path / "out.jsonl").opened() as again:
        assert again.is_answered("a")
        assert [one["text"] for one in again.rows("a")] == ["third"]


@pytest.mark.parametrize("reason", ["length", "prompt_too_long", "not_reencodable"])
def test_only_a_row_that_failed_is_tried_again(tmp_path, reason):
    with RolloutFile(tmp_path / "out.jsonl").opened() as file:
        file.begin({})
        file.append("a", row("a", reason))
        assert file.is_answered("a")


def test_finishing_leaves_the_output_and_its_manifest_alone(tmp_path):
    out = tmp_path / "out.jsonl"
    with written(out, "b", "a").opened() as file:
        file.finish(["a", "b"], MANIFEST)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.manifest.json"]
    lines = out.read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [row("a"), row("b")] and lines[-1] == ""
    assert read_manifest(out).output_sha256


def test_a_job_that_ends_between_output_and_manifest_is_finished_by_the_next(tmp_path):
    out = tmp_path / "out.jsonl"
    file = written(out, "a")
    out.write_text("an older output\n")
    manifest_path(out).write_text("{}")
    with file.opened():
        file.finish(["a"], MANIFEST)
    assert json.loads(out.read_text(encoding="utf-8")) == row("a")


@pytest.mark.parametrize(
    "line", [b"no json\n", b"[1]\n", b'{"key": "a"}\n', b'{"key": "a", "row": {"record_id": "a"}}\n', b"\0\0\n"]
)
def test_a_line_that_is_no_row_is_named(tmp_path, line):
    file = written(tmp_path / "out.jsonl", "a")
    with file.rows_path.open("ab") as rows:
        rows.write(line)
    with pytest.raises(UserError, match=r"out\.jsonl\.part\.jsonl:2: not a row"), file.opened():
        pass


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"why_not": 5, "usable": False}, "why_not must be str | None, is 5"),
        ({"completion_ids": None}, "completion_ids must be list, is None"),
        ({"completion_ids": [1, True]}, "completion_ids must hold whole numbers"),
        ({"prompt_ids": [-1]}, "prompt_ids must hold whole numbers"),
        ({"usable": "yes"}, "usable must be bool, is 'yes'"),
        ({"usable": True, "why_not": "length"}, "usable is True, but why_not is 'length'"),
        ({"usable": True, "completion_ids": []}, "are empty"),
        ({"text": 1}, "text must be str"),
        ({"surplus": 1}, "surplus is no field"),
    ],
)
def test_a_row_that_was_edited_is_named_with_its_field(tmp_path, change, fault):
    """Rows were taken as they stood, and the job ended in a traceback, or was sealed with them."""
    file = written(tmp_path / "out.jsonl", "a")
    with file.rows_path.open("a") as rows:
        rows.write(json.dumps({"key": "b", "row": row("b") | change}) + "\n")
    with pytest.raises(UserError, match=rf"out\.jsonl\.part\.jsonl:2: .*{re.escape(fault)}") as caught, file.opened():
        pass
    assert "\n" not in str(caught.value)


def test_a_line_that_nests_deeply_is_named(tmp_path):
    file = written(tmp_path / "out.jsonl", "a")
    with file.rows_path.open("ab") as rows:
        rows.write(b'{"key": "b", "row": ' + b"[" * 100_000 + b"\n")
    with pytest.raises(UserError, match=r"out\.jsonl\.part\.jsonl:2: not a row"), file.opened():
        pass


def test_rows_of_a_job_that_was_begun_earlier_are_read(tmp_path):
    """Lines exactly as jobs have written them: these files outlive the code."""
    out = tmp_path / "out.jsonl"
    Path(f"{out}.part.json").write_text('{\n  "seed": 0\n}\n')
    lines = [
        r'{"key": "a/1 0f", "row": {"record_id": "a/1", "prompt_ids": [1, 2], "completion_ids": [3], "text": "\ud83d", '
        '"finish_reason": "stop", "usable": true, "why_not": null}}',
        '{"key": "b 0f", "row": {"record_id": "b", "prompt_ids": [], "completion_ids": [], "text": "", '
        '"finish_reason": null, "usable": false, "why_not": "prompt_failed: messages[0]"}}',
    ]
    Path(f"{out}.part.jsonl").write_text("".join(line + "\n" for line in lines))
    with RolloutFile(out).opened() as file:
        assert file.settings() == {"seed": 0}
        assert file.is_answered("a/1 0f") and file.is_answered("b 0f")


def test_rows_without_settings_are_refused(tmp_path):
    file = written(tmp_path / "out.jsonl", "a")
    file.settings_path.unlink()
    with file.opened(), pytest.raises(UserError, match="settings|gone"):
        file.settings()


@pytest.mark.parametrize("text", ["no json", "[]", "[" * 100_000], ids=["no json", "list", "deep"])
def test_settings_that_are_none_are_named(tmp_path, text):
    file = written(tmp_path / "out.jsonl", "a")
    file.settings_path.write_text(text)
    with file.opened(), pytest.raises(UserError, match=r"out\.jsonl\.part\.json"):
        file.settings()


def test_a_job_that_begins_nothing_leaves_nothing(tmp_path):
    with RolloutFile(tmp_path / "new" / "out.jsonl").opened() as file:
        assert file.settings() is None
    assert list((tmp_path / "new").iterdir()) == []


def test_a_second_process_is_refused(tmp_path):
    script = (
        "import sys; from pathlib import Path; from schemafill.data_prep.rollout_file import RolloutFile\n"
        "with RolloutFile(Path(sys.argv[1])).opened(): pass"
    )
    with written(tmp_path / "out.jsonl", "a").opened():
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "out.jsonl")], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1 and "another job is writing" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot write"), RolloutFile(tmp_path / "closed" / "out.jsonl").opened():
        pass


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.part.jsonl", "out.jsonl.part.json"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "fifo"])
def test_a_place_that_something_else_than_a_file_has_is_one_line(tmp_path, name, make):
    make(tmp_path / name)
    with pytest.raises(UserError, match=f"{name} is there"), RolloutFile(tmp_path / "out.jsonl").opened():
        pass
