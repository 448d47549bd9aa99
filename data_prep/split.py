"""Divides records into train and dev, without what overlaps the suites: `python -m schemafill.data_prep.split`.

Left out, each record under the first reason that holds: what `suite_overlap` finds in a suite (question id, request
text, near-duplicate request, tool definition), exact repeats of an earlier record (same messages, same tools), a second
record of one id, and, once the sides are chosen, dev records whose tools are trained on (`dev_tool_in_train`, see
`dev_groups`) or whose request text is, with other tools (`dev_request_in_train`). A source or BFCL category of which
little is left is reported as scarce; nothing is let in to make up.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from schemafill.data_prep import suite_overlap
from schemafill.data_prep.dev_groups import Sides, choose_sides, requests_in_train
from schemafill.data_prep.manifest import Manifest, is_done, write_output
from schemafill.data_prep.records import Record, json_lines
from schemafill.data_prep.sealed_inputs import input_hashes, input_manifest, input_names, refuse_overwriting
from schemafill.data_prep.suite_overlap import SuiteOverlap
from schemafill.data_prep.tool_definitions import content_hash
from schemafill.data_prep.usable_records import BadRows, usable_records
from schemafill.inference.command_line import Parser, run_command
from schemafill.inference.request import UserError
from schemafill.inference.row_files import Place
from schemafill.inference.suites import BUILT_IN

REASONS = (*suite_overlap.REASONS, "exact_repeat", "id_twice", "dev_tool_in_train", "dev_request_in_train", "bad_row")
RECORD_STEPS = ("corpora", "split")
SUITE_STEPS = ("suites", "corpora", "split")
SCARCE_SHARE = 0.1
SCARCE_RECORDS = 20


@dataclass
class Tally:
    """What became of the records, by source and by BFCL category (`bfcl/simple`); bad rows by file."""

    by_label: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Label -> `read`, `train`, `dev` and each reason -> how many."""
    total: Counter[str] = field(default_factory=Counter)
    bad_rows: BadRows = field(default_factory=BadRows)

    def count(self, record: Record, what: str) -> None:
        self.total[what] += 1
        for label in labels_of(record):
            self.by_label[label][what] += 1

    def bad_row(self, place: Place, reason: str) -> None:
        """Count a row that is no record, and say which one it is."""
        self.bad_rows.add(place, reason)
        for counter in (self.total, self.by_label[place.path.name]):
            counter.update({"read": 1, "bad_row": 1})

    def left_out(self) -> dict[str, int]:
        return {reason: self.total[reason] for reason in REASONS if self.total[reason]}

    def scarce(self) -> dict[str, dict[str, int]]:
        """Labels of which less than a tenth, or fewer than twenty records, are kept."""
        kept = {label: {"read": counts["read"] - counts["bad_row"], "kept": counts["train"] + counts["dev"]}
                for label, counts in self.by_label.items()}  # fmt: skip
        return {
            label: count for label, count in kept.items()
            if count["read"] and count["kept"] < max(SCARCE_RECORDS, SCARCE_SHARE * count["read"])
        }  # fmt: skip


def labels_of(record: Record) -> list[str]:
    """The source, and for BFCL the category within it."""
    category = record.meta.get("category")
    is_divided = record.source == "bfcl" and isinstance(category, str)
    return [record.source, f"bfcl/{category}"] if is_divided else [record.source]


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("split", build_parser, argv)


def build_parser() -> Parser:
    parser = Parser(prog="split", description="Divide records into train and dev, without what overlaps the suites.")
    parser.add_argument("--records", type=Path, nargs="+", required=True, metavar="FILE", help="from the step corpora")
    parser.add_argument(
        "--exclude", nargs="+", action="extend", default=[], metavar="SUITE", help="from the step suites, or demo"
    )
    parser.add_argument("--out-train", type=Path, required=True)
    parser.add_argument("--out-dev", type=Path, required=True)
    parser.add_argument("--dev-share", type=_share, default=0.05, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--near-duplicate-threshold", type=_share, default=0.8, metavar="T",
        help="Jaccard similarity of word triples from which a request is a near duplicate (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--unsealed", action="store_true", help="take input files without a manifest")
    parser.set_defaults(run=run)
    return parser


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1, got {text!r}")
    return share


def run(args: argparse.Namespace) -> None:
    suites = [suite_path(name) for name in args.exclude]
    refuse_overwriting([args.out_train, args.out_dev], [*args.records, *suites])
    for path in args.records:
        input_manifest(path, RECORD_STEPS, is_unsealed_allowed=args.unsealed)
    for path in suites:
        input_manifest(path, SUITE_STEPS, is_unsealed_allowed=args.unsealed or path.parent == BUILT_IN)
    inputs = input_hashes([*args.records, *suites])
    settings = {
        "records": input_names([*args.records, *suites])[: len(args.records)],
        "exclude": input_names([*args.records, *suites])[len(args.records) :],
        "dev_share": args.dev_share, "seed": args.seed, "near_duplicate_threshold": args.near_duplicate_threshold,
        "is_augmented": False,
    }  # fmt: skip
    outputs = {"train": args.out_train, "dev": args.out_dev}
    if all([is_done(path, "split", settings | {"part": part}, inputs) for part, path in outputs.items()]):
        print(f"{args.out_train} and {args.out_dev} are there already")
        return
    tally = Tally()
    kept = kept_records(args.records, overlap_of(suites, args.near_duplicate_threshold), tally)
    if not kept:
        raise UserError(f"nothing to train on: all {tally.total['read']} records were left out ({tally.left_out()})")
    sides = choose_sides(kept, dev_share=args.dev_share, seed=args.seed)
    write_sides(outputs, kept, sides, tally, settings, inputs)
    print_summary(outputs, tally)


def suite_path(name: str) -> Path:
    """The file of a suite: a built-in one by its name (`demo`), else the path that the name is."""
    built_in = BUILT_IN / f"{name}.jsonl"
    return built_in if name.isidentifier() and os.path.isfile(built_in) else Path(name)  # of any length


def overlap_of(suites: Sequence[Path], threshold: float) -> SuiteOverlap:
    """Everything that the suites hold; a bad row in a suite is refused, since it could not be kept out of training."""
    overlap = SuiteOverlap(threshold)
    for path in suites:
        for item in usable_records(path):
            overlap.add(item)
    return overlap


def kept_records(paths: Sequence[Path], overlap: SuiteOverlap, tally: Tally) -> list[Record]:
    """The records that share nothing with a suite, each once, in the order of the files."""
    kept: list[Record] = []
    seen: set[str] = set()
    ids: set[str] = set()
    for path in paths:
        for record in tqdm(usable_records(path, tally.bad_row), desc=path.name, unit="record", disable=None):
            if record.meta.get("augmented"):
                raise UserError(f"{path}: {record.id!r} is an augmented record: split the corpora, then augment train")
            content = content_hash([record.messages, record.tools])
            reason = overlap.reason(record)
            reason = reason or ("exact_repeat" if content in seen else "id_twice" if record.id in ids else None)
            tally.count(record, "read")
            if reason is not None:
                tally.count(record, reason)
                continue
            seen.add(content)
            ids.add(record.id)
            kept.append(record)
    tally.bad_rows.close()
    return kept


def write_sides(
    outputs: dict[str, Path], kept: Sequence[Record], sides: Sides, tally: Tally,
    settings: dict[str, Any], inputs: dict[str, str],
) -> None:  # fmt: skip
    """Count the sides, write both files and their manifests."""
    repeated = set(requests_in_train(kept, sides))
    parts = {"train": sides.train, "dev": [number for number in sides.dev if number not in repeated]}
    left_out = {"dev_tool_in_train": sides.dropped, "dev_request_in_train": sorted(repeated)}
    for what, numbers in (parts | left_out).items():
        for number in numbers:
            tally.count(kept[number], what)
    counts = {
        "read": tally.total["read"],
        "left_out": sum(tally.left_out().values()),
        "train": len(parts["train"]),
        "dev": len(parts["dev"]),
        "by_source": {label: dict(counts) for label, counts in sorted(tally.by_label.items())},
        "scarce": tally.scarce(),
    }
    for part, path in outputs.items():
        rows = [kept[number].to_json() for number in parts[part]]
        manifest = Manifest(
            step="split", settings=settings | {"part": part}, inputs=inputs,
            counts=counts | {"written": len(rows)}, left_out=tally.left_out(),
        )  # fmt: skip
        write_output(path, json_lines(rows), manifest)


def print_summary(outputs: dict[str, Path], tally: Tally) -> None:
    written = ", ".join(f"{tally.total[part]} in {path}" for part, path in outputs.items())
    print(f"{tally.total['read']} records read, {written}")
    sources = {label: counts for label, counts in tally.by_label.items() if "/" not in label}
    for reason, count in tally.left_out().items():
        shares = ", ".join(f"{label} {counts[reason]}" for label, counts in sources.items() if counts[reason])
        print(f"  left out {count:6d}  {reason} ({shares})")
    for label, count in tally.scarce().items():
        print(f"  scarce: {label} keeps {count['kept']} of {count['read']}")
    if not tally.total["dev"]:
        print("  dev holds no record: wherever one could be held out, its tools or its request occur in train as well")


if __name__ == "__main__":
    sys.exit(main())
