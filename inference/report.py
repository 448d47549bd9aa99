"""Report on benchmark runs: the entry module behind `schemafill report`. No torch.

Into the first of the folders: `report.md`, four PNG figures, and `report.html`, one file that needs nothing else.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from schemafill.inference.report_page import render_page
from schemafill.inference.report_plots import draw_plots
from schemafill.inference.report_tables import Table, tables_of
from schemafill.inference.request import UserError
from schemafill.inference.results import FinishedRun, RunFolder, write_atomically


def write_report(folders: Sequence[str | Path]) -> None:
    """Read the runs in `folders` and write one report on all of them into the first."""
    if not folders:
        raise UserError("no folder to report on")
    runs = [RunFolder(Path(folder)).load() for folder in folders]
    out = Path(folders[0])
    plots = draw_plots(runs)
    for name, png in plots.items():
        write_atomically(out / name, png)
    write_atomically(out / "report.md", markdown(runs, list(plots)).encode("utf-8", "replace"))
    write_atomically(out / "report.html", render_page(runs, plots).encode("utf-8", "replace"))


def markdown(runs: Sequence[FinishedRun], plot_names: Sequence[str]) -> str:
    parts = ["# Benchmark report"]
    for run in runs:
        parts.append(f"## {_escaped(run.name)}")
        for table in tables_of(run):
            parts += [f"### {_escaped(table.title)}", _markdown_table(table)]
            if table.note:
                parts.append("\n".join(f"- {_escaped(line)}" for line in table.note))
    parts += ["## Figures", *(f"![{Path(name).stem}]({name})" for name in plot_names)]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    rule = ["---" if column < table.num_text_columns else "---:" for column in range(len(table.header))]
    rows = [[_escaped(cell) for cell in row] for row in (table.header, *table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]])


def _escaped(text: str) -> str:
    """`text` as Markdown that shows it as it is, on one line: outputs may hold tags, bars and stars."""
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", html.escape(" ".join(text.split()), quote=False))
