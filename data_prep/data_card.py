"""Describes rollouts for people: `python -m schemafill.data_prep.data_card` writes a card, its numbers, a picture."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from schemafill.data_prep.card_figures import CardFigures, figures_of, percentiles
from schemafill.data_prep.manifest import Manifest, is_done, manifest_path, write_output
from schemafill.data_prep.rollout_form import rollout_rows
from schemafill.data_prep.rollout_inputs import read_told
from schemafill.data_prep.rollout_manifests import hashes_with_records, rollout_manifests
from schemafill.data_prep.sealed_inputs import input_names, refuse_output, refuse_overwriting
from schemafill.inference.command_line import Parser, run_command
from schemafill.inference.request import UserError
from schemafill.inference.results import write_atomically, write_json
from schemafill.inference.toolcall.dialects import get_dialect

SHOWN_SETTINGS = (
    "target", "revision", "dialect", "prompt", "backend", "dtype", "row_invariant", "temperature", "top_p", "top_k",
    "seed", "max_new_tokens", "max_prompt_tokens", "tokenizer_sha256", "template_sha256",
)  # fmt: skip
WIDTH_INCHES, HEIGHT_INCHES, DPI, NUM_BINS = 6.6, 2.8, 150, 40


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("data_card", build_parser, argv)


def build_parser() -> Parser:
    parser = Parser(prog="data_card", description="Describe rollouts: counts, lengths, agreement with the corpora.")
    parser.add_argument("--rollouts", type=Path, nargs="+", required=True, metavar="FILE", help="rollouts files")
    parser.add_argument("--records", type=Path, nargs="+", required=True, metavar="FILE", help="what was rolled out")
    parser.add_argument("--out", type=Path, required=True, help="card, a Markdown file; .json and .png stand beside it")
    parser.add_argument("--unsealed", action="store_true", help="take records made by hand, or not rolled out")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> None:
    refuse_output(args.out)
    numbers, picture = args.out.with_suffix(".json"), args.out.with_suffix(".png")
    refuse_overwriting([args.out, numbers, picture], [*args.rollouts, *args.records])
    manifests = rollout_manifests(args.rollouts)
    inputs = hashes_with_records(args.rollouts, manifests, args.records, is_unsealed_allowed=args.unsealed)
    settings = shown_settings(args.rollouts, manifests)
    there = [path for path in (args.out, numbers, picture) if path.exists()]
    if is_done(args.out, "data_card", settings, inputs) and len(there) == 3:
        print(f"{args.out} is there already")
        return
    if there and not manifest_path(args.out).exists():
        raise UserError(f"{there[0]} is there and belongs to no finished card: remove it or choose another --out")
    items, _ = read_told(args.records)
    records = {item.record.id: item.record for item in items}
    figures = figures_of(rollout_rows(args.rollouts), records, get_dialect(manifests[0].settings["dialect"]))
    counts = figures_json(figures)
    text, histogram = card_text(figures, settings, picture.name), histograms(figures)
    manifest = Manifest(step="data_card", settings=settings, inputs=inputs, counts=counts["total"])
    write_output(args.out, text.encode(), manifest)  # first: after a stop, the files beside are known again
    write_json(numbers, {"settings": settings} | counts)
    write_atomically(picture, histogram)
    total = figures.total
    print(f"{args.out}: {total.rows} rows, {total.usable} usable, {total.with_calls} with calls")


def shown_settings(paths: Sequence[Path], manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Setting -> its value, or, where files differ in it, its value in each of them by name."""
    names, shown = input_names(paths), {}
    for key in SHOWN_SETTINGS:
        values = [manifest.settings.get(key) for manifest in manifests]
        is_common = all(value == values[0] for value in values)
        shown[key] = values[0] if is_common else dict(zip(names, values, strict=True))
    return shown


def figures_json(figures: CardFigures) -> dict[str, Any]:
    """The figures as JSON holds them."""
    return {
        "total": asdict(figures.total),
        "sources": {name: asdict(one) for name, one in sorted(figures.sources.items())},
        "changes": dict(sorted(figures.changes.items())),
        "unusable": dict(figures.reasons.most_common()),
        "prompt_tokens": percentiles(figures.prompt_lengths),
        "completion_tokens": percentiles(figures.completion_lengths),
    }


def card_text(figures: CardFigures, settings: dict[str, Any], picture: str) -> str:
    """The card as Markdown."""
    parts = [
        f"# Rollouts of {settings['target']}",
        "Answers that the target itself wrote to requests of public tool-calling corpora. A head learns from them to "
        "draft for this target.",
        "## What is in it",
        _source_table(figures),
        "`with calls`: usable rows in which a call can be read. `same tools`, `same calls`: usable rows that call the "
        "tools of the corpus's reference, and that call them with equal arguments as JSON in any order; a reference is "
        "one right answer of several, so this is agreement, not correctness.",
        _change_line(figures),
        "## Lengths of usable rows, in tokens",
        _length_table(figures),
        f"![Histograms of prompt and completion lengths]({picture})",
        "## Rows that are not usable",
        _reason_table(figures),
        "## How it was made",
        _setting_table(settings),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _source_table(figures: CardFigures) -> str:
    lines = ["| corpus | rows | usable | with calls | same tools | same calls |"]
    lines.append("| --- | --: | --: | --: | --: | --: |")
    for name, one in [*sorted(figures.sources.items()), ("**all**", figures.total)]:
        lines.append(
            f"| {name} | {one.rows} | {one.usable} | {_share(one.with_calls, one.usable)} "
            f"| {_share(one.same_names, one.compared)} | {_share(one.same_calls, one.compared)} |"
        )
    return "\n".join(lines)


def _share(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else "-"


def _change_line(figures: CardFigures) -> str:
    changes = ", ".join(f"{name} {count}" for name, count in figures.changes.most_common())
    return f"Changes in the copies (one copy may have several): {changes}." if changes else ""


def _length_table(figures: CardFigures) -> str:
    rows = {"prompt": percentiles(figures.prompt_lengths), "completion": percentiles(figures.completion_lengths)}
    names = list(rows["prompt"])
    lines = [f"| | {' | '.join(names)} |", "| --- |" + " --: |" * len(names)]
    lines += [f"| {what} | {' | '.join(str(found[name]) for name in names)} |" for what, found in rows.items()]
    return "\n".join(lines) if names else "No row is usable."


def _setting_table(settings: dict[str, Any]) -> str:
    lines = ["| setting | value |", "| --- | --- |"]
    for key, value in settings.items():
        if isinstance(value, dict):
            value = ", ".join(f"{one} ({name})" for name, one in value.items())
        lines.append(f"| {key} | {value} |")
    return "\n".join(lines)


def _reason_table(figures: CardFigures) -> str:
    lines = [f"| {reason} | {count} |" for reason, count in figures.reasons.most_common()]
    return "\n".join(["| reason | rows |", "| --- | --: |", *lines]) if lines else "None."


def histograms(figures: CardFigures) -> bytes:
    """Prompt and completion lengths as a PNG."""
    import matplotlib

    matplotlib.use("Agg")  # before pyplot: a card needs no display
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
    lengths = {"prompt tokens": figures.prompt_lengths, "completion tokens": figures.completion_lengths}
    for axes, (title, found) in zip(panels, lengths.items(), strict=True):
        axes.hist(found, bins=NUM_BINS, color="#0077BB")
        axes.set_xlabel(title)
    panels[0].set_ylabel("usable rows")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=DPI)
    plt.close(figure)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
