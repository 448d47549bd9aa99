"""Figures as text cells: one definition for the terminal, for Markdown and for the HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemafill.inference.figures import PHASES, MethodFigures, Summary
from schemafill.inference.request import SOURCES
from schemafill.inference.results import FinishedRun

NUM_REASONS = 10
NUM_LISTED = 20

FORMULAS = {
    "*": "not lossless: the output may differ from ar's",
    "tok/s": "Σ tokens / Σ seconds, failed runs included; seconds run from the request object to the stop",
    "speed-up": "tok/s of the method / tok/s of ar in the same run",
    "decode only": "the same ratio with the seconds of prepare and prefill left out on both sides",
    "accepted length": "Σ tokens / Σ verify calls; the first pass and every re-check count as verify calls",
    "agreement": "requests whose token ids equal ar's in every repeat / requests that ar finished; in brackets the "
    "lower end of the Wilson 95% interval",
    "nodes/verify": "Σ proposed nodes / Σ verify calls",
    "outside forwards": "1 - (prefill + verify seconds) / Σ seconds",
    "p50, p90": "quantiles of a run's seconds over requests and repeats",
}


@dataclass(frozen=True, kw_only=True)
class Table:
    title: str
    header: list[str]
    rows: list[list[str]]
    note: tuple[str, ...] = ()
    """Lines under the table."""
    num_text_columns: int = 1
    """The first so many columns hold text, the others numbers."""


def tables_of(run: FinishedRun) -> list[Table]:
    """All tables of a run that have something to show."""
    methods = run.summary.methods
    tables = [
        _main(run),
        _sources(methods),
        _phases(methods),
        *(_rejections(name, figures) for name, figures in methods.items()),
        _divergences(run),
        _failures(run),
        _settings(run),
    ]
    return [table for table in tables if table.rows]


def _main(run: FinishedRun) -> Table:
    header, *rows = figure_table(run.summary)
    return Table(
        title="Methods",
        header=header,
        rows=rows,
        note=(
            *(f"{name}: {formula}" for name, formula in FORMULAS.items()),
            "Methods run in turn on each request, in an order that changes from request to request.",
        ),
    )


def sources_in(methods: dict[str, MethodFigures]) -> list[str]:
    """Sources that proposed an accepted token somewhere: the known ones in their order, then any other."""
    seen = {source for figures in methods.values() for source in figures.accepted_by_source}
    return [source for source in SOURCES if source in seen] + sorted(seen - set(SOURCES))


def _sources(methods: dict[str, MethodFigures]) -> Table:
    sources = sources_in(methods)
    rows = []
    for name, figures in methods.items():
        total = sum(figures.accepted_by_source.values())
        if total:
            rows.append([name, *(_share(figures.accepted_by_source.get(source, 0), total) for source in sources)])
    return Table(
        title="Output tokens by source",
        header=["method", *sources],
        rows=rows,
        note=("Share of a method's output tokens that each source proposed; target: no draft carried the token.",),
    )


def _phases(methods: dict[str, MethodFigures]) -> Table:
    rows = []
    for name, figures in methods.items():
        total = sum(figures.seconds_by_phase.values())
        if total:
            milliseconds = [figures.seconds_by_phase[phase] / figures.runs * 1000 for phase in PHASES]
            cells = zip(PHASES, milliseconds, strict=True)
            rows.append([name, *(f"{own:.1f} ({_share(figures.seconds_by_phase[p], total)})" for p, own in cells)])
    return Table(
        title="Where the time goes",
        header=["method", *PHASES],
        rows=rows,
        note=("Milliseconds per run, failed runs included, and share of the method's time.",),
    )


def _rejections(name: str, figures: MethodFigures) -> Table:
    total = sum(figures.rejections.values())
    commonest = sorted(figures.rejections.items(), key=lambda item: (-item[1], item[0]))[:NUM_REASONS]
    rest = total - sum(count for _, count in commonest)
    return Table(
        title=f"Why {name} was rejected",
        header=["reason", "count", "share"],
        rows=[[reason, str(count), _share(count, total)] for reason, count in commonest],
        note=(f"{total} rejections; {rest} for other reasons.",),
    )


def _divergences(run: FinishedRun) -> Table:
    rows = [
        [row.request_id, row.method, str(row.repeat), str(row.first_divergence), str(row.tokens)]
        for row in run.rows
        if row.first_divergence is not None
    ]
    return Table(
        title="Outputs that differ from ar's",
        header=["request", "method", "repeat", "first differing token", "tokens"],
        rows=rows[:NUM_LISTED],
        note=_more(rows),
        num_text_columns=2,
    )


def _failures(run: FinishedRun) -> Table:
    rows = [[row.request_id, row.method, row.error, str(row.repeat)] for row in run.rows if row.error is not None]
    return Table(
        title="Failed runs",
        header=["request", "method", "error", "repeat"],
        rows=rows[:NUM_LISTED],
        note=_more(rows),
        num_text_columns=3,
    )


def _settings(run: FinishedRun) -> Table:
    return Table(
        title="Configuration",
        header=["setting", "value"],
        rows=[[name, text] for name, text in setting_lines(run.summary)],
        num_text_columns=2,
    )


def _more(rows: list[list[str]]) -> tuple[str, ...]:
    return (f"and {len(rows) - NUM_LISTED} more",) if len(rows) > NUM_LISTED else ()


def _share(part: float, total: float) -> str:
    return f"{part / total:.1%}"


def figure_table(summary: Summary) -> list[list[str]]:
    """The main table as text cells, header first; a dash where there is no figure, a star where it is not lossless."""
    table = [
        ["method", "runs", "failed", "tokens", "tok/s", "speed-up", "decode only", "accepted length", "agreement"]
        + ["nodes/verify", "outside forwards", "p50 s", "p90 s"]
    ]
    for name, own in summary.methods.items():
        low = f" (≥{own.agreement_wilson95_low:.1%})" if own.agreement_wilson95_low is not None else ""
        table.append(
            [
                name if own.lossless else f"{name} *",
                str(own.runs),
                str(own.failures),
                str(own.tokens),
                _cell(own.tps, "{:.1f}"),
                _cell(own.speedup, "{:.2f}x"),
                _cell(own.speedup_decode_only, "{:.2f}x"),
                _cell(own.accepted_length, "{:.2f}"),
                _cell(own.agreement, "{:.1%}") + low,
                _cell(own.nodes_per_verify, "{:.1f}"),
                _cell(own.share_outside_forwards, "{:.1%}"),
                _cell(own.seconds_p50, "{:.3f}"),
                _cell(own.seconds_p90, "{:.3f}"),
            ]
        )
    return table


def setting_lines(summary: Summary) -> list[tuple[str, str]]:
    """The run's settings as (name, text), for people; curves, hashes and empty lists stay in the file."""
    hidden = ("latency_curve", "suite_sha256", "method_order")
    return [
        (name, ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else _plain(value))
        for name, value in summary.settings.items()
        if name not in hidden and value != []
    ]


TERMINAL_COLUMNS = (
    "method", "failed", "tok/s", "speed-up", "decode only", "accepted length", "agreement", "outside forwards", "p50 s",
)  # fmt: skip


def text_report(summary: Summary) -> str:
    """The final table for a terminal (its main columns), with the command and the configuration that made it."""
    header, *rows = figure_table(summary)
    shown = [header.index(name) for name in TERMINAL_COLUMNS]
    table = [[row[column] for column in shown] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(_aligned(cell, *place) for cell, *place in zip(row, widths, range(len(row)), strict=True))
        for row in table
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    notes = [] if all(own.lossless for own in summary.methods.values()) else ["* not lossless"]
    notes += [f"{name}: {FORMULAS[name]}" for name in ("speed-up", "accepted length", "agreement")]
    settings = [f"{name}: {text}" for name, text in setting_lines(summary)]
    return "\n".join([*lines, *notes, "", *settings])


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
