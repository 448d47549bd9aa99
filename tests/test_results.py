"""What a run folder continues and what it refuses."""

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bench_runs import METHODS, config_of_two_requests, measured, rows_of, write_suite
from fake_engine import FakeEngine, install

from schemafill.inference.bench import run_bench
from schemafill.inference.bench_config import BenchConfig
from schemafill.inference.request import SamplingParams, UserError
from schemafill.inference.results import RunFolder, write_atomically


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    return install(monkeypatch, FakeEngine())


@pytest.fixture
def config(tmp_path: Path) -> BenchConfig:
    return config_of_two_requests(tmp_path)


def test_resume_runs_only_what_is_missing(engine: FakeEngine, config: BenchConfig) -> None:
    whole = run_bench(config)
    results = config.out / "results.jsonl"
    before = results.read_bytes()
    lines = before.splitlines(keepends=True)
    results.write_bytes(b"".join(lines[:5]) + lines[5][:40])  # killed while writing the sixth row
    (config.out / "summary.json").unlink()
    engine.requests.clear()

    resumed = run_bench(config)

    redone = {(row["method"], f"do {row['request_id']}") for row in map(json.loads, lines[5:])}
    assert set(measured(engine)) == redone and len(measured(engine)) == 3
    assert results.read_bytes().startswith(b"".join(lines[:5]))
    assert Counter((row["request_id"], row["method"]) for row in rows_of(config)) == Counter(
        (id_, method) for id_ in "ab" for method in METHODS
    )
    without_failures = [method for method in METHODS if method != "broken"]
    assert all(resumed.methods[name] == whole.methods[name] for name in without_failures)


def test_resumed_rows_are_compared_with_the_ar_row_of_the_first_run(engine: FakeEngine, config: BenchConfig) -> None:
    run_bench(config)
    results = config.out / "results.jsonl"
    kept = [line for line in results.read_text().splitlines(keepends=True) if '"method": "ar"' in line]
    results.write_text("".join(kept))
    run_bench(config)
    wrong = [row for row in rows_of(config) if row["method"] == "wrong"]
    assert [row["first_divergence"] for row in wrong] == [5, 5]


def test_a_complete_folder_needs_no_engine(engine: FakeEngine, config: BenchConfig) -> None:
    first = run_bench(config)
    engine.loads.clear()
    assert run_bench(config) == first
    assert engine.loads == []


def test_more_requests_and_repeats_continue_the_same_run(engine: FakeEngine, config: BenchConfig) -> None:
    run_bench(replace(config, limit=1))
    engine.requests.clear()
    summary = run_bench(replace(config, repeat=2))
    assert len(measured(engine)) == 2 * 2 * 4 - 4
    assert summary.methods["ar"].runs == 4
    assert run_bench(replace(config, limit=1)).methods["ar"].runs == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sampling": SamplingParams(temperature=0.5)}, "temperature was 0.0, is 0.5"),
        ({"sampling": SamplingParams(max_new_tokens=9)}, "max_new_tokens"),
        ({"numerics": "fast"}, "numerics was 'guarded', is 'fast'"),
        ({"prefix_cache": True}, "prefix_cache"),
        ({"methods": ("ar", "fast")}, "method_order"),
        ({"target": "other"}, "target was 'toy', is 'other'"),
    ],
)
def test_another_configuration_is_refused_by_the_name_of_the_field(
    engine: FakeEngine, config: BenchConfig, change: dict, named: str
) -> None:
    run_bench(config)
    before = (config.out / "results.jsonl").read_bytes()
    engine.loads.clear()
    with pytest.raises(UserError, match=named):
        run_bench(replace(config, **change))
    assert (config.out / "results.jsonl").read_bytes() == before
    assert engine.loads == []  # known before a model is loaded


def test_changed_suite_content_is_refused(engine: FakeEngine, config: BenchConfig) -> None:
    run_bench(config)
    write_suite(Path(config.suite), "a", "b", "c")
    with pytest.raises(UserError, match="suite_sha256"):
        run_bench(config)


@pytest.mark.parametrize(("change", "named"), [({"threads": 7}, "threads was 2, is 7"), ({}, "versions.torch")])
def test_what_the_engine_made_of_the_configuration_counts_too(
    engine: FakeEngine, config: BenchConfig, change: dict, named: str
) -> None:
    run_bench(replace(config, limit=1))
    if not change:
        engine.versions = {"schemafill": "0.1", "torch": "2.14.0"}
    before = (config.out / "results.jsonl").read_bytes()
    with pytest.raises(UserError, match=named):
        run_bench(replace(config, **change))
    assert (config.out / "results.jsonl").read_bytes() == before


def test_a_foreign_results_file_is_refused(engine: FakeEngine, config: BenchConfig) -> None:
    config.out.mkdir()
    (config.out / "results.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="no config.json"):
        run_bench(config)


def test_a_damaged_row_is_named(engine: FakeEngine, config: BenchConfig) -> None:
    run_bench(config)
    results = config.out / "results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text(lines[0] + '{"request_id": "a"}\n' + "".join(lines[2:]))
    with pytest.raises(UserError, match=r"results\.jsonl:2"):
        run_bench(config)


@pytest.mark.parametrize(
    "change", [{"seconds": "long"}, {"token_ids": "12"}, {"accepted_by_source": []}, {"seconds": None}, {"colour": 1}]
)
def test_a_row_of_the_wrong_kind_is_named(engine: FakeEngine, config: BenchConfig, change: dict) -> None:
    """It once ended a report in a traceback."""
    run_bench(config)
    results = config.out / "results.jsonl"
    lines = results.read_text().splitlines()
    results.write_text("\n".join([lines[0], json.dumps(json.loads(lines[1]) | change), *lines[2:]]) + "\n")
    with pytest.raises(UserError, match=r"results\.jsonl:2.*(\n.*)*" + next(iter(change))):
        RunFolder(config.out).load()


def test_a_second_run_in_the_same_folder_is_refused(engine: FakeEngine, config: BenchConfig) -> None:
    run_bench(replace(config, limit=1))
    before = (config.out / "results.jsonl").read_bytes()
    with RunFolder(config.out).locked(), pytest.raises(UserError, match="another run is writing"):
        run_bench(config)
    assert (config.out / "results.jsonl").read_bytes() == before
    run_bench(config)


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_loaded(
    engine: FakeEngine, config: BenchConfig, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        run_bench(replace(config, out=tmp_path / "file" / "out"))
    assert not engine.loads


def test_a_failed_start_leaves_no_folder(engine: FakeEngine, config: BenchConfig) -> None:
    with pytest.raises(UserError, match="nowhere"):
        run_bench(replace(config, target="nowhere/nothing"))
    assert not config.out.exists()


def test_a_folder_of_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "requests.jsonl").write_text("mine\n")
    with pytest.raises(UserError, match="not empty"):
        RunFolder(tmp_path).read_config()
    assert (tmp_path / "requests.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "fifo"])
def test_only_files_are_written_over(tmp_path: Path, make: Callable[[Path], object]) -> None:
    """A device or a pipe at the output's place was replaced by a file."""
    make(tmp_path / "out")
    with pytest.raises(UserError, match="is no regular file"):
        write_atomically(tmp_path / "out", b"data")
    assert not (tmp_path / "out").is_file() and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_name_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        write_atomically(tmp_path / ("n" * 250), b"data")
