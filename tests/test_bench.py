"""What a run measures, compares and writes, on an engine that follows a script."""

import json
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from bench_runs import METHODS, config_of_two_requests, measured, rows_of
from fake_engine import AR_IDS, FakeEngine, completion, default_script, install

from schemafill.inference.bench import run_bench
from schemafill.inference.bench_config import BenchConfig
from schemafill.inference.bench_rows import first_divergence
from schemafill.inference.bench_schedule import balanced_orders
from schemafill.inference.report_tables import text_report
from schemafill.inference.request import SamplingParams, UserError
from schemafill.inference.results import RunFolder


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    return install(monkeypatch, FakeEngine())


@pytest.fixture
def config(tmp_path: Path) -> BenchConfig:
    return config_of_two_requests(tmp_path)


def test_summary_holds_pooled_figures(engine: FakeEngine, config: BenchConfig) -> None:
    methods = run_bench(config).methods

    ar, fast, wrong, broken = (methods[name] for name in METHODS)
    assert (ar.requests, ar.runs, ar.failures, ar.tokens, ar.seconds, ar.verify_calls) == (2, 2, 0, 12, 12.0, 12)
    assert (ar.tps, ar.speedup, ar.speedup_decode_only, ar.accepted_length, ar.agreement) == (1.0, 1.0, 1.0, 1.0, 1.0)
    assert ar.seconds_by_phase == {"prepare": 0.5, "prefill": 2.0, "draft": 0.5, "verify": 8.5, "other": 0.5}
    assert ar.share_outside_forwards == pytest.approx(1.5 / 12)
    # fast: 6 tokens in 2 rounds of 8 nodes and 2 s, of which 1.25 s prepare and prefill; ar: 4.75 s without them
    assert (fast.tokens, fast.verify_calls, fast.tps, fast.speedup) == (12, 4, 3.0, 3.0)
    assert fast.speedup_decode_only == pytest.approx(4.75 / 0.75)
    assert (fast.accepted_length, fast.nodes_per_verify) == (3.0, 8.0)
    assert fast.accepted_by_source == {"key": 8, "target": 4}
    assert fast.rejections == {"value end": 4}
    assert (fast.agreement, fast.agreement_requests) == (1.0, 2)
    assert fast.agreement_wilson95_low == pytest.approx(0.3424, abs=1e-4)
    assert (wrong.lossless, wrong.agreement, wrong.agreement_wilson95_low) == (False, 0.0, 0.0)
    assert (broken.runs, broken.failures, broken.tokens, broken.agreement) == (2, 2, 0, 0.0)
    assert (broken.accepted_length, broken.nodes_per_verify, broken.speedup) == (None, None, 0.0)
    assert broken.seconds > 0


def test_failures_stay_in_the_sums(config: BenchConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(method: str, request: str, trace: bool):
        if method == "fast" and request == "do b":
            raise MemoryError("full")
        return default_script(method, request, trace)

    install(monkeypatch, FakeEngine(script))
    fast = run_bench(replace(config, methods=("ar", "fast"))).methods["fast"]
    failed = next(row for row in rows_of(config) if row["error"])
    assert failed["error"] == "MemoryError: full"
    assert (fast.failures, fast.tokens, fast.agreement) == (1, 6, 0.5)
    assert fast.seconds == pytest.approx(2.0 + failed["seconds"], abs=1e-12)


def test_a_request_that_ar_failed_is_no_evidence_on_agreement(
    config: BenchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(method: str, request: str, trace: bool):
        return default_script("broken" if method == "ar" and request == "do b" else method, request, trace)

    install(monkeypatch, FakeEngine(script))
    fast = run_bench(replace(config, methods=("ar", "fast"))).methods["fast"]
    assert (fast.agreement, fast.agreement_requests) == (1.0, 1)
    assert [row["agreement"] for row in rows_of(config) if row["request_id"] == "b"] == [None, None]


def test_one_differing_repeat_makes_the_request_differ(config: BenchConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter = Counter()

    def script(method: str, request: str, trace: bool):
        seen[method, request] += 1
        differs = method == "fast" and request == "do a" and seen[method, request] == 2
        return completion([*AR_IDS[:3], 9] if differs else AR_IDS, trace=trace)

    install(monkeypatch, FakeEngine(script))
    fast = run_bench(replace(config, methods=("ar", "fast"), repeat=3)).methods["fast"]
    assert (fast.agreement, fast.agreement_requests, fast.requests, fast.runs) == (0.5, 2, 2, 6)
    assert [row["first_divergence"] for row in rows_of(config) if row["agreement"] is False] == [3]


def test_without_ar_there_is_no_speedup(engine: FakeEngine, config: BenchConfig) -> None:
    fast = run_bench(replace(config, methods=("fast",))).methods["fast"]
    assert fast.tps == 3.0
    assert [fast.speedup, fast.speedup_decode_only, fast.agreement, fast.agreement_wilson95_low] == [None] * 4
    assert all(row["speedup"] is None and row["agreement"] is None for row in rows_of(config))


def test_rows_carry_output_trace_and_comparison(engine: FakeEngine, config: BenchConfig) -> None:
    run_bench(replace(config, repeat=2))
    rows = {(row["request_id"], row["method"], row["repeat"]): row for row in rows_of(config)}
    assert len(rows) == 2 * 4 * 2
    wrong = rows["a", "wrong", 0]
    assert wrong["token_ids"] == [0, 1, 2, 3, 4, 9]
    assert wrong["text"].endswith("<script>")
    assert wrong["tool_calls"] == [{"name": "ping", "arguments": '{"host":  "örtchen"}'}]
    assert (wrong["first_divergence"], wrong["agreement"], wrong["speedup"]) == (5, False, 2.0)
    assert wrong["trace"]["token_sources"] == ["copy", "target"] * 3
    assert wrong["trace"]["token_texts"][2] == "ping"
    assert wrong["trace"]["rounds"] == [[2, 0, 0, 0.5, "<b>odd</b> | reason"]] * 3
    assert rows["a", "wrong", 1]["trace"] is None
    assert (rows["b", "broken", 0]["error"], rows["b", "broken", 0]["agreement"]) == (
        "RuntimeError: out of <memory> in do b",
        False,
    )


def test_summary_file_holds_configuration_versions_and_figures(engine: FakeEngine, config: BenchConfig) -> None:
    summary = run_bench(replace(config, sampling=SamplingParams(temperature=0.7), repeat=2, limit=1))
    written = json.loads((config.out / "summary.json").read_text())
    assert written == summary.to_json()
    expected = {
        "suite": config.suite, "target": "toy", "head": None, "device": "cpu", "dtype": "bfloat16", "repeat": 2,
        "numerics": "guarded", "prefix_cache": False, "temperature": 0.7, "num_requests": 1, "dialect": "json",
    }  # fmt: skip
    assert {name: written[name] for name in expected} == expected
    assert written["versions"] == {"schemafill": "0.1", "torch": "2.13.0"}
    assert list(written["methods"]) == list(METHODS)
    assert RunFolder(config.out).read_summary() == summary


def test_engine_is_loaded_once_with_the_configuration(engine: FakeEngine, config: BenchConfig) -> None:
    run_bench(replace(config, head="some/head", threads=3, dtype="float32", numerics="exact", prefix_cache=True))
    [(target, settings)] = engine.loads
    assert target == "toy"
    assert settings == {
        "head": "some/head", "device": "auto", "dtype": "float32", "numerics": "exact", "threads": 3,
        "prefix_cache": True, "dialect": "auto", "trust_remote_code": False,
    }  # fmt: skip


def test_every_method_is_warmed_up_before_the_first_measurement(engine: FakeEngine, config: BenchConfig) -> None:
    run_bench(config)
    assert [method for method, _ in engine.requests[:4]] == list(METHODS)
    assert all(not request.startswith("do ") for _, request in engine.requests[:4])
    assert len(measured(engine)) == 8 == len(engine.requests) - 4


def test_a_configuration_fault_in_the_warm_up_ends_the_run(
    config: BenchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(method: str, request: str, trace: bool):
        raise UserError("eagle3 needs a head")

    install(monkeypatch, FakeEngine(script))
    with pytest.raises(UserError, match="needs a head"):
        run_bench(config)
    assert not config.out.exists()


def test_prefix_cache_is_filled_before_the_methods_run(engine: FakeEngine, config: BenchConfig) -> None:
    run_bench(replace(config, methods=("ar", "fast"), prefix_cache=True))
    asked = list(zip(engine.requests, engine.samplings, strict=True))[2:]
    assert [request for (_, request), _ in asked] == ["do a"] * 3 + ["do b"] * 3
    assert [sampling.max_new_tokens for _, sampling in asked] == [1, 512, 512] * 2


def test_seed_grows_with_the_repeat(engine: FakeEngine, config: BenchConfig) -> None:
    run_bench(replace(config, methods=("ar",), repeat=3, sampling=SamplingParams(seed=7, temperature=1.0)))
    assert [sampling.seed for sampling in engine.samplings[1:]] == [7, 7, 8, 8, 9, 9]


@pytest.mark.parametrize("num_methods", [1, 2, 3, 4, 5, 8, 11])
def test_orders_are_balanced(num_methods: int) -> None:
    methods = tuple("abcdefghijk"[:num_methods])
    orders = balanced_orders(methods)
    assert all(sorted(order) == list(methods) for order in orders)
    places = Counter((method, place) for order in orders for place, method in enumerate(order))
    followers = Counter(pair for order in orders for pair in zip(order, order[1:], strict=False))
    assert len(set(places.values())) == 1
    assert len(followers) == num_methods * (num_methods - 1)
    assert len(set(followers.values())) <= 1


def test_methods_take_turns_within_each_request(engine: FakeEngine, config: BenchConfig) -> None:
    run_bench(config)
    asked = measured(engine)
    assert [request for _, request in asked] == ["do a"] * 4 + ["do b"] * 4
    assert [method for method, _ in asked[:4]] != [method for method, _ in asked[4:]]


def test_unknown_method_is_named_before_anything_is_loaded(engine: FakeEngine, config: BenchConfig) -> None:
    with pytest.raises(UserError, match="'slow'; known: ar, fast"):
        run_bench(replace(config, methods=("ar", "slow")))
    assert engine.loads == [] and not config.out.exists()


@pytest.mark.parametrize("change", [{"methods": ()}, {"methods": ("ar", "ar")}, {"limit": 0}, {"repeat": 0}])
def test_senseless_settings_are_refused(config: BenchConfig, change: dict) -> None:
    with pytest.raises(UserError):
        replace(config, **change)


def test_command_names_every_setting_that_is_not_the_default(config: BenchConfig) -> None:
    changed = replace(
        config,
        head="none",
        prefix_cache=True,
        trust_remote_code=True,
        repeat=3,
        sampling=SamplingParams(temperature=0.5, seed=4),
    )
    start = ["schemafill", "bench", "--target", "toy", "--suite", config.suite, "--methods", "ar,fast,wrong,broken"]
    assert shlex.split(config.command()) == [*start, "--out", str(config.out)]
    assert shlex.split(changed.command())[len(start) :] == [
        "--head", "none", "--repeat", "3", "--prefix-cache", "on", "--trust-remote-code",
        "--temperature", "0.5", "--seed", "4", "--out", str(config.out),
    ]  # fmt: skip


def test_terminal_table_shows_figures_and_command(engine: FakeEngine, config: BenchConfig) -> None:
    text = text_report(run_bench(config))
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert lines["fast"][1:5] == ["0", "3.0", "3.00x", "6.33x"]
    assert lines["wrong"][1] == "*"
    assert f"command: {config.command()}" in text


@pytest.mark.parametrize(
    ("ours", "theirs", "index"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([1, 2], [1], 1), ([], [1], 0), ([], [], None)],
)
def test_first_divergence(ours: list[int], theirs: list[int], index: int | None) -> None:
    assert first_divergence(ours, theirs) == index
