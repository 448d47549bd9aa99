"""Rows of a benchmark, and the figures pooled from them. Arithmetic only: no files, no model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

BASELINE = "ar"
PHASES = ("prepare", "prefill", "draft", "verify", "other")
Z_95 = 1.959963984540054  # two-sided 95% of the normal distribution


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One request decoded once by one method."""

    request_id: str
    method: str
    repeat: int
    error: str | None
    """What was raised; the row then holds the seconds spent and no output."""
    prompt_tokens: int = 0
    tokens: int = 0
    seconds: float
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    verify_calls: int = 0
    rechecks: int = 0
    nodes: int = 0
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    rejections: dict[str, int] = field(default_factory=dict)
    finish_reason: str | None = None
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    trace: dict[str, list] | None = None
    """First repeat only: `token_texts`, `token_sources`, `rounds` = [tokens, nodes, side nodes, seconds, rejected]."""
    accepted_length: float | None = None
    nodes_per_verify: float | None = None
    tps: float | None = None
    speedup: float | None = None
    speedup_decode_only: float | None = None
    agreement: bool | None = None
    """Same token ids as ar in this request and repeat; None where ar has none."""
    first_divergence: int | None = None
    """Index of the first token that differs from ar's; None where none does or there is nothing to compare."""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.request_id, self.method, self.repeat


@dataclass(frozen=True, kw_only=True)
class MethodFigures:
    """Pooled figures of one method. A ratio is None where its denominator is zero or ar is not in the run."""

    lossless: bool
    requests: int
    runs: int
    """requests x repeats."""
    failures: int
    """Runs that raised."""
    tokens: int
    seconds: float
    verify_calls: int
    rechecks: int
    accepted_length: float | None
    tps: float | None
    speedup: float | None
    speedup_decode_only: float | None
    agreement: float | None
    agreement_wilson95_low: float | None
    agreement_requests: int
    """Requests that `agreement` is a share of: those ar finished in every repeat."""
    nodes_per_verify: float | None
    seconds_p50: float | None
    seconds_p90: float | None
    seconds_by_phase: dict[str, float]
    share_outside_forwards: float | None
    accepted_by_source: dict[str, int]
    rejections: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What summary.json holds."""

    settings: dict[str, Any]
    """The run's configuration, versions, machine and command; in the file at the top level."""
    methods: dict[str, MethodFigures]

    def to_json(self) -> dict[str, Any]:
        return {**self.settings, "methods": {name: asdict(figures) for name, figures in self.methods.items()}}


def pool(rows: Sequence[ResultRow], lossless: dict[str, bool]) -> dict[str, MethodFigures]:
    """Figures per method in the order of `lossless`, from all rows of a run."""
    by_method: dict[str, list[ResultRow]] = {method: [] for method in lossless}
    for row in rows:
        by_method[row.method].append(row)
    baseline = by_method.get(BASELINE, [])
    return {method: _figures(own, baseline, lossless[method]) for method, own in by_method.items()}


def _figures(rows: list[ResultRow], baseline: list[ResultRow], lossless: bool) -> MethodFigures:
    tokens, seconds = sum(row.tokens for row in rows), math.fsum(row.seconds for row in rows)
    verify_calls = sum(row.verify_calls for row in rows)
    phases = {phase: math.fsum(row.seconds_by_phase.get(phase, 0.0) for row in rows) for phase in PHASES}
    agreeing, compared = _agreement(rows, baseline)
    return MethodFigures(
        lossless=lossless,
        requests=len({row.request_id for row in rows}),
        runs=len(rows),
        failures=sum(row.error is not None for row in rows),
        tokens=tokens,
        seconds=seconds,
        verify_calls=verify_calls,
        rechecks=sum(row.rechecks for row in rows),
        accepted_length=ratio(tokens, verify_calls),
        tps=tokens_per_second(rows),
        speedup=ratio(tokens_per_second(rows), tokens_per_second(baseline)),
        speedup_decode_only=ratio(decode_tokens_per_second(rows), decode_tokens_per_second(baseline)),
        agreement=ratio(agreeing, compared),
        agreement_wilson95_low=wilson_low(agreeing, compared),
        agreement_requests=compared,
        nodes_per_verify=ratio(sum(row.nodes for row in rows), verify_calls),
        seconds_p50=quantile([row.seconds for row in rows], 0.5),
        seconds_p90=quantile([row.seconds for row in rows], 0.9),
        seconds_by_phase=phases,
        share_outside_forwards=1 - (phases["prefill"] + phases["verify"]) / seconds if seconds else None,
        accepted_by_source=_total(row.accepted_by_source for row in rows),
        rejections=_total(row.rejections for row in rows),
    )


def _agreement(rows: list[ResultRow], baseline: list[ResultRow]) -> tuple[int, int]:
    """How many requests agree with ar in every repeat, of how many that ar finished in every repeat.

    Repeats of a greedy request are no independent samples, so the request is the unit, not the run.
    """
    reference = {(row.request_id, row.repeat): row for row in baseline}
    open_ids = {row.request_id for row in baseline if row.error is not None}
    verdicts: dict[str, bool] = {}
    for row in rows:
        ar = reference.get((row.request_id, row.repeat))
        if ar is None or row.request_id in open_ids:
            continue
        same = row.error is None and row.token_ids == ar.token_ids
        verdicts[row.request_id] = verdicts.get(row.request_id, True) and same
    return sum(verdicts.values()), len(verdicts)


def tokens_per_second(rows: Sequence[ResultRow]) -> float | None:
    return ratio(sum(row.tokens for row in rows), math.fsum(row.seconds for row in rows))


def decode_tokens_per_second(rows: Sequence[ResultRow]) -> float | None:
    before = (row.seconds_by_phase.get("prepare", 0.0) + row.seconds_by_phase.get("prefill", 0.0) for row in rows)
    return ratio(sum(row.tokens for row in rows), math.fsum(row.seconds for row in rows) - math.fsum(before))


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def wilson_low(successes: int, trials: int) -> float | None:
    """Lower end of the 95% Wilson interval of a share (Wilson 1927)."""
    if not trials:
        return None
    p, n, zz = successes / trials, trials, Z_95 * Z_95
    low = (p + zz / (2 * n) - Z_95 * math.sqrt(p * (1 - p) / n + zz / (4 * n * n))) / (1 + zz / n)
    return max(low, 0.0)  # rounding may leave -1e-17 where no trial succeeded


def quantile(values: Sequence[float], q: float) -> float | None:
    """Linear between order statistics; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _total(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Sum of the counters, largest first."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total.most_common())
