"""The four figures of a report, as PNG bytes. Knows matplotlib and nothing of files."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import matplotlib

matplotlib.use("Agg")  # before pyplot: a report needs no display

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from schemafill.inference.figures import BASELINE, PHASES, MethodFigures, ResultRow, ratio  # noqa: E402
from schemafill.inference.report_tables import sources_in  # noqa: E402
from schemafill.inference.results import FinishedRun  # noqa: E402

# Hues after P. Tol, "Colour Schemes" (2021), told apart with the common kinds of colour blindness; where two come
# close in lightness, the hatch of the second differs as well.
SOURCE_COLOURS = {
    "target": "#BBBBBB", "structure": "#0077BB", "name": "#33BBEE", "key": "#009988", "copy": "#EE7733",
    "choice": "#CC3311", "evidence": "#EE3377", "previous": "#AA4499", "guess": "#DDCC77", "close": "#332288",
    "ngram": "#999933", "probe": "#44AA99", "side": "#882255",
}  # fmt: skip
PHASE_COLOURS = {
    "prepare": "#DDCC77", "prefill": "#33BBEE", "draft": "#EE7733", "verify": "#0077BB", "other": "#BBBBBB",
}  # fmt: skip
OTHER_COLOUR = "#555555"
HATCHES = ("", "", "//", "", "", "\\\\", "", "xx", "", "..", "", "oo", "++")
BAR_COLOUR, POINT_COLOUR = "#99CCEE", "#004466"
WIDTH_INCHES, DPI = 6.6, 150  # narrow, so that the letters stay readable on a telephone


def draw_plots(runs: Sequence[FinishedRun]) -> dict[str, bytes]:
    """File name -> PNG, each with one panel per run."""
    return {
        "speedup.png": _figure(runs, _speedup),
        "accepted_length.png": _figure(runs, _accepted_length),
        "sources.png": _figure(runs, _sources),
        "phases.png": _figure(runs, _phases),
    }


def _figure(runs: Sequence[FinishedRun], draw: Callable[[Axes, FinishedRun], None]) -> bytes:
    heights = [1.5 + 0.36 * len(run.summary.methods) for run in runs]
    with plt.rc_context({"font.size": 10, "axes.titlesize": 11, "hatch.linewidth": 0.6, "text.parse_math": False}):
        figure, panels = plt.subplots(
            len(runs),
            figsize=(WIDTH_INCHES, sum(heights)),
            squeeze=False,
            gridspec_kw={"height_ratios": heights},
            layout="constrained",
        )
        for axes, run in zip(panels[:, 0], runs, strict=True):
            draw(axes, run)
            if len(runs) > 1:
                axes.set_title(f"{axes.get_title()}\n{run.name}")
        _add_legend(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=DPI)
        plt.close(figure)
    return buffer.getvalue()


def _add_legend(figure: Figure) -> None:
    """One legend for all panels, of what carries a label."""
    handles = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=6, fontsize=8)


def _speedup(axes: Axes, run: FinishedRun) -> None:
    methods = run.summary.methods
    if BASELINE in methods:
        pooled = [figures.speedup for figures in methods.values()]
        _bars_with_spread(axes, run, pooled, lambda row: row.speedup, "{:.2f}x")
        axes.axvline(1, color="black", linewidth=0.8, linestyle="--")
        axes.set(title="Speed-up over ar: all requests (bar), each run (dots)", xlabel="times faster than ar")
    else:
        pooled = [figures.tps for figures in methods.values()]
        _bars_with_spread(axes, run, pooled, lambda row: row.tps, "{:.1f}")
        axes.set(title="Speed: all requests (bar), each run (dots); no ar to compare with", xlabel="tokens per second")


def _accepted_length(axes: Axes, run: FinishedRun) -> None:
    pooled = [figures.accepted_length for figures in run.summary.methods.values()]
    _bars_with_spread(axes, run, pooled, lambda row: row.accepted_length, "{:.2f}")
    axes.set(title="Accepted length: all requests (bar), each run (dots)", xlabel="tokens per verify call")


def _bars_with_spread(
    axes: Axes,
    run: FinishedRun,
    pooled: list[float | None],
    value: Callable[[ResultRow], float | None],
    form: str,
) -> None:
    """One bar per method with its number, and a dot per run on it, spread over the bar's height in row order."""
    names = list(run.summary.methods)
    bars = axes.barh(range(len(names)), [one or 0 for one in pooled], height=0.72, color=BAR_COLOUR)
    dots = {name: [value(row) for row in run.rows if row.method == name] for name in names}
    furthest = 0.0
    for place, name in enumerate(names):
        values = [one for one in dots[name] if one is not None]
        offsets = [0.5 * ((idx * 0.618) % 1 - 0.5) for idx in range(len(values))]  # golden ratio: even, and repeatable
        axes.scatter(values, [place + offset for offset in offsets], s=14, color=POINT_COLOUR, alpha=0.55, linewidths=0)
        furthest = max([furthest, *values, pooled[place] or 0])
        if not run.summary.methods[name].lossless:
            bars[place].set_hatch("//")
    right = furthest or 1.0
    for place, one in enumerate(pooled):
        text = form.format(one) if one is not None else "no figure"
        # In a column of its own at the right edge: on the bar it would lie under the dots.
        axes.text(right * 1.03, place, text, va="center", ha="left", fontweight="bold", fontsize=9)
    axes.set_xlim(0, right * 1.17)
    _name_rows(axes, run.summary.methods)


def _sources(axes: Axes, run: FinishedRun) -> None:
    methods = run.summary.methods
    parts = {
        source: [figures.accepted_by_source.get(source, 0) for figures in methods.values()]
        for source in sources_in(methods)
    }
    totals = [sum(figures.accepted_by_source.values()) for figures in methods.values()]
    shares = {
        source: [100 * (ratio(count, total) or 0) for count, total in zip(counts, totals, strict=True)]
        for source, counts in parts.items()
    }
    _stacked(axes, methods, shares, SOURCE_COLOURS, list(SOURCE_COLOURS), right=100)
    axes.set(title="Output tokens by the source that proposed them", xlabel="% of the output tokens")


def _phases(axes: Axes, run: FinishedRun) -> None:
    methods = run.summary.methods
    parts = {
        phase: [1000 * (ratio(figures.seconds_by_phase[phase], figures.runs) or 0) for figures in methods.values()]
        for phase in PHASES
    }
    longest = max([sum(column) for column in zip(*parts.values(), strict=True)], default=0)
    _stacked(axes, methods, parts, PHASE_COLOURS, list(PHASE_COLOURS), right=1.02 * longest or 1.0)
    axes.set(title="Where the time goes", xlabel="milliseconds per run")


def _stacked(
    axes: Axes,
    methods: dict[str, MethodFigures],
    parts: dict[str, list[float]],
    colours: dict[str, str],
    order: list[str],
    right: float,
) -> None:
    """Stacked bars up to `right`; a part carries its name where there is room, so that colour is not all there is."""
    letter = right / 75  # width of one at this size, in units of the axis
    lefts = [0.0] * len(methods)
    for part, widths in parts.items():
        colour = colours.get(part, OTHER_COLOUR)
        hatch = HATCHES[order.index(part) % len(HATCHES)] if part in order else "oo"
        rows = range(len(methods))
        axes.barh(rows, widths, 0.72, lefts, color=colour, hatch=hatch, edgecolor="white", linewidth=0.3, label=part)
        for place, (left, width) in enumerate(zip(lefts, widths, strict=True)):
            if width > letter * (len(part) + 1):
                axes.text(
                    left + width / 2, place, part, ha="center", va="center", fontsize=7.5, color=_ink_on(colour),
                    bbox={"facecolor": colour, "edgecolor": "none", "pad": 1} if hatch else None,
                )  # fmt: skip
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.set_xlim(0, right)
    _name_rows(axes, methods)


def _name_rows(axes: Axes, methods: dict[str, MethodFigures]) -> None:
    names = [name if figures.lossless else f"{name}\n(not lossless)" for name, figures in methods.items()]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # first method on top
    axes.spines[["top", "right"]].set_visible(False)


def _ink_on(colour: str) -> str:
    """Black or white, whichever reads better on `colour` (luma of BT.601)."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"
