"""The card of a set of rollouts: every count can be checked by hand."""

import json
import os
from pathlib import Path

import pytest
from rollout_setup import ECHO, StubBackend, echo_call, record_row, roll_out, tiny_facts, write_rows
from sealed_files import sealed

from schemafill.data_prep import data_card
from schemafill.data_prep.card_figures import figures_of, percentiles
from schemafill.data_prep.manifest import manifest_path, read_manifest, write_output
from schemafill.data_prep.records import json_lines, record_of
from schemafill.inference.request import SamplingParams
from schemafill.inference.toolcall.dialects import get_dialect

FACTS = tiny_facts()
SAME = [{"name": "echo", "arguments": {"text": "same"}}]
ROWS = [
    record_row("same", "1", reference_calls=SAME),
    record_row("other value", "2", reference_calls=SAME),
    record_row("other tool", "3", reference_calls=[{"name": "say", "arguments": {}}]),
    record_row("no reference", "4"),
    record_row("prose", "5", reference_calls=SAME),
    record_row("copy", "6", source="y", reference_calls=None, meta={"augmented": ["names", "order"]}),
    record_row("q" * 900, "7", source="y", reference_calls=SAME),
]


def write(request: str) -> str:
    return '{"answer": 42}' if request == "prose" else echo_call(request)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    records = write_rows(tmp_path / "records.jsonl", ROWS)
    rollouts = tmp_path / "rollouts.jsonl"
    roll_out(records, rollouts, FACTS, StubBackend(FACTS, write=write), max_prompt_tokens=700)
    return rollouts, records


def run(rollouts: Path, records: Path, out: Path, *more: str) -> int:
    return data_card.main(
        ["--rollouts", str(rollouts), "--records", str(records), "--out", str(out), "--unsealed", *more]
    )


def test_counts_are_those_of_the_rows(files, tmp_path):
    assert run(*files, tmp_path / "card.md") == 0
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["sources"] == {
        "x": {"rows": 5, "usable": 5, "with_calls": 4, "compared": 4, "same_names": 2, "same_calls": 1},
        "y": {"rows": 1, "usable": 0, "with_calls": 0, "compared": 0, "same_names": 0, "same_calls": 0},
        "y, copies": {"rows": 1, "usable": 1, "with_calls": 1, "compared": 0, "same_names": 0, "same_calls": 0},
    }
    assert card["total"]["rows"] == 7 and card["total"]["usable"] == 6
    assert card["changes"] == {"names": 1, "order": 1}
    assert card["unusable"] == {"prompt_too_long": 1}
    assert card["settings"]["target"] == "tiny"
    lengths = card["completion_tokens"]
    assert lengths["max"] == len(FACTS.vocabulary.encode(echo_call("no reference")))


def test_the_card_shows_the_numbers_and_the_picture(files, tmp_path):
    run(*files, tmp_path / "card.md")
    text = (tmp_path / "card.md").read_text()
    assert "| x | 5 | 5 | 80.0% | 50.0% | 25.0% |" in text
    assert "| y, copies | 1 | 1 | 100.0% | - | - |" in text
    assert "| prompt_too_long | 1 |" in text and "names 1, order 1" in text
    assert "](card.png)" in text
    assert (tmp_path / "card.png").read_bytes().startswith(b"\x89PNG")


def test_running_again_says_so(files, tmp_path, capsys):
    for _ in range(2):
        assert run(*files, tmp_path / "card.md") == 0
    assert "is there already" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["card.json", "card.png"])
def test_a_card_whose_numbers_or_picture_are_gone_is_written_again(files, tmp_path, name, capsys):
    run(*files, tmp_path / "card.md")
    before = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    capsys.readouterr()
    assert run(*files, tmp_path / "card.md") == 0
    assert "is there already" not in capsys.readouterr().out
    assert (tmp_path / name).read_bytes()[:4] == before[:4]


@pytest.mark.parametrize("name", ["keep.json", "keep.png", "keep.md"])
def test_files_of_somebody_else_are_not_written_over(files, tmp_path, name, capsys):
    """What stood beside the card under its name was replaced."""
    (tmp_path / name).write_text("mine")
    assert run(*files, tmp_path / "keep.md") == 2
    assert f"{name} is there and belongs to no finished card" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "mine" and len(list(tmp_path.glob("keep.*"))) == 1


def test_settings_in_which_files_differ_are_shown_for_each(files, tmp_path):
    """The card gave the first file's temperature for all."""
    rollouts, records = files
    warm = tmp_path / "warm.jsonl"
    sampling = SamplingParams(temperature=0.9)
    roll_out(records, warm, FACTS, StubBackend(FACTS, write=write), max_prompt_tokens=700, sampling=sampling)
    out = tmp_path / "card.md"
    paths = ["--rollouts", str(rollouts), str(warm), "--records", str(records), "--out", str(out), "--unsealed"]
    assert data_card.main(paths) == 0
    assert "| temperature | 0.0 (rollouts.jsonl), 0.9 (warm.jsonl) |" in out.read_text()
    settings = json.loads((tmp_path / "card.json").read_text())["settings"]
    assert settings["temperature"] == {"rollouts.jsonl": 0.0, "warm.jsonl": 0.9} and settings["seed"] == 0


@pytest.mark.parametrize("name", ["", ".", "/", "n" * 250 + ".md", "folder", "fifo", "beside.md", "numbers.json"])
def test_an_output_that_is_no_file_of_its_own_is_refused(files, tmp_path, name, monkeypatch, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "beside.png").mkdir()
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(*files, Path(name)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "fifo").is_fifo()


@pytest.mark.parametrize("option", ["--rollouts", "--records"])
def test_a_file_that_is_named_twice_is_refused(files, tmp_path, option, capsys):
    """Its rows counted twice."""
    rollouts, records = files
    twice = {"--rollouts": [rollouts], "--records": [records]}
    twice[option].append(tmp_path / ".." / tmp_path.name / twice[option][0].name)
    paths = [str(one) for name, named in twice.items() for one in (name, *named)]
    assert data_card.main([*paths, "--out", str(tmp_path / "card.md"), "--unsealed"]) == 2
    assert "the same file is named twice" in capsys.readouterr().err


def test_records_that_were_not_rolled_out_are_refused(files, tmp_path, capsys):
    rollouts, records = files
    others = sealed(tmp_path / "others.jsonl", ROWS[:2])
    paths = ["--rollouts", str(rollouts), "--records", str(others), "--out", str(tmp_path / "card.md")]
    assert data_card.main(paths) == 2
    assert f"no rollouts file was made from {others}" in capsys.readouterr().err
    assert data_card.main([*paths, "--unsealed"]) == 0


def test_rows_that_are_none_are_named(files, tmp_path, capsys):
    rollouts, records = files
    rows = [json.loads(line) for line in rollouts.read_text().splitlines()]
    del rows[1]["usable"]
    made = read_manifest(rollouts)
    manifest_path(rollouts).unlink()
    write_output(rollouts, json_lines(rows), made)
    assert run(*files, tmp_path / "card.md") == 2
    assert f"{rollouts}:2: not a row of a rollouts file: usable is missing" in capsys.readouterr().err


def test_rows_without_their_record_are_counted_apart(files, tmp_path):
    others = write_rows(tmp_path / "others.jsonl", [ROWS[0]])
    run(files[0], others, tmp_path / "card.md")
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["sources"]["no record"]["rows"] == 6 and card["sources"]["x"]["same_calls"] == 1


def row(text: str) -> dict:
    return {
        "record_id": "a", "prompt_ids": [1], "completion_ids": [2], "text": text, "finish_reason": "tool_calls",
        "usable": True, "why_not": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reference", "same_names", "same_calls"),
    [
        ('[{"name": "echo", "arguments": {"a": 1, "b": 2}}]', [("echo", {"b": 2, "a": 1})], 1, 1),  # order of keys
        ('[{"name": "echo", "arguments": {"a": 1}}]', [("echo", {"a": 1.0})], 1, 0),  # numbers keep their kind
        ('[{"name": "echo", "arguments": {"a": "1"}}]', [("echo", {"a": 1})], 1, 0),
        (
            '[{"name": "echo", "arguments": {"a": 1}}, {"name": "echo", "arguments": {"a": 2}}]',
            [("echo", {"a": 2}), ("echo", {"a": 1})], 1, 1,
        ),  # order of calls
        ('[{"name": "echo", "arguments": {"a": 1}}]', [("echo", {"a": 1}), ("echo", {"a": 1})], 0, 0),  # one is missing
        ('[{"name": "echo", "arguments": {"a": NaN]', [("echo", {"a": 1})], 1, 0),  # no JSON
    ],
)  # fmt: skip
def test_calls_agree_as_json_in_any_order(text, reference, same_names, same_calls):
    calls = [{"name": name, "arguments": arguments} for name, arguments in reference]
    record = record_of(record_row("x", "a", reference_calls=calls) | {"tools": [ECHO]})
    figures = figures_of([row('{"tool_calls": ' + text + "}")], {"a": record}, get_dialect("json"))
    assert (figures.total.same_names, figures.total.same_calls) == (same_names, same_calls)


def test_percentiles_are_lengths_that_occur():
    assert percentiles(range(1, 101)) == {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert percentiles([7]) == {"p50": 7, "p90": 7, "p99": 7, "max": 7}
    assert percentiles([]) == {}


def test_a_card_of_nothing_usable_can_be_read(tmp_path):
    records = write_rows(tmp_path / "records.jsonl", ROWS[:1])
    roll_out(records, tmp_path / "rollouts.jsonl", FACTS, max_prompt_tokens=1)
    assert run(tmp_path / "rollouts.jsonl", records, tmp_path / "card.md") == 0
    assert "No row is usable." in (tmp_path / "card.md").read_text()
