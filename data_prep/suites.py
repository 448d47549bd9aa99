"""The two fixed test sets as records files: `python -m schemafill.data_prep.suites`.

bfcl450: the exec_parallel, parallel and parallel_multiple questions of BFCL in file order. The corpus was changed after
the published figures were counted, so another state of it is refused unless asked for.
glaive650: one decision each of 650 Glaive conversations, drawn by content, so that a shuffled file gives the same set.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from schemafill.data_prep.corpora import refuse_source, source_hashes
from schemafill.data_prep.hub import described_source, locate_source
from schemafill.data_prep.manifest import Manifest, file_sha256, is_done, read_manifest, write_output
from schemafill.data_prep.readers import bfcl, glaive
from schemafill.data_prep.records import LeftOut, Record, json_lines
from schemafill.data_prep.tool_definitions import content_hash
from schemafill.inference.command_line import Parser, positive, run_command
from schemafill.inference.request import UserError


@dataclass(frozen=True)
class Workload:
    """What a set of requests asks for, by its references: the published way of counting."""

    requests: int
    calls: int
    fields: int

    def __str__(self) -> str:
        return f"{self.requests:,} requests, {self.calls:,} calls, {self.fields:,} fields"


# Category -> what it holds in BFCL v3 as of 2024-12-21 to 2025-10-12.
BFCL450 = {
    "exec_parallel": Workload(50, 188, 354),
    "parallel": Workload(200, 538, 1440),
    "parallel_multiple": Workload(200, 607, 1562),
}
# What `parallel` holds in other states of the corpus.
OTHER_STATES = {
    Workload(200, 540, 1444): "these are the v4 files",
    Workload(200, 539, 1442): "these are files from before 2024-12-21",
}
GLAIVE650 = 650
SALT = "glaive650"  # fixes the draw: another salt is another sample


@dataclass(frozen=True)
class Suite:
    """A drawn test set. counts: what the manifest says beyond `written`, `left_out`, `calls` and `fields`."""

    records: list[Record]
    left_out: Counter[str]
    counts: dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("suites", build_parser, argv)


def build_parser() -> Parser:
    parser = Parser(prog="suites", description="Write a fixed test set as a records file.")
    parser.add_argument("--suite", required=True, choices=("bfcl450", "glaive650"))
    parser.add_argument("--source", required=True, metavar="DIR|hub", help="the corpus in upstream form, or hub")
    parser.add_argument("--out", type=Path, required=True, help="records file")
    parser.add_argument(
        "--limit", type=positive, help="glaive650: draw only so many; of a partial corpus the rest stays for training"
    )
    parser.add_argument(
        "--allow-other-counts", action="store_true", help="bfcl450: write another state of the corpus all the same"
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> None:
    if args.suite == "bfcl450":
        run_bfcl450(args)
    else:
        run_glaive650(args)


def run_bfcl450(args: argparse.Namespace) -> None:
    if args.limit:
        raise UserError("--limit belongs to --suite glaive650")
    source = locate_source("bfcl", args.source)
    refuse_source(args.out, source)
    files = bfcl450_files(source)
    settings = {"suite": args.suite, "source": described_source(args.source, source)}
    parts = [part for file in files for part in (file.questions, file.answers) if part is not None]
    inputs = {part.name: file_sha256(part.path) for part in parts}
    if is_done(args.out, "suites", settings, inputs):
        if not read_manifest(args.out).counts.get("is_expected") and not args.allow_other_counts:
            raise UserError(f"{args.out} is there already and was written with --allow-other-counts: give it again")
        print(f"{args.out} is there already")
        return
    write_suite(args.out, settings, inputs, bfcl450(files, args.allow_other_counts))


def run_glaive650(args: argparse.Namespace) -> None:
    if args.allow_other_counts:
        raise UserError("--allow-other-counts belongs to --suite bfcl450")
    source = locate_source("glaive", args.source)
    refuse_source(args.out, source)
    settings = {"suite": args.suite, "source": described_source(args.source, source)}
    settings |= {"salt": SALT, "num_records": args.limit or GLAIVE650}
    inputs = source_hashes(source)
    if is_done(args.out, "suites", settings, inputs):
        print(f"{args.out} is there already")
        return
    rows = tqdm(glaive.read(source), desc="glaive", unit="row", disable=None, file=sys.stderr)
    write_suite(args.out, settings, inputs, glaive650(rows, settings["num_records"]))


def write_suite(out: Path, settings: dict[str, Any], inputs: dict[str, str], suite: Suite) -> None:
    """Write the records with their manifest and say what they are."""
    num_left_out = suite.left_out.total()
    if not suite.records:
        raise UserError(f"the source holds no decision for {settings['suite']} ({num_left_out} rows left out)")
    total = workload(suite.records)
    counts = {"written": len(suite.records), "left_out": num_left_out, "calls": total.calls, "fields": total.fields}
    manifest = Manifest(
        step="suites", settings=settings, inputs=inputs, counts=suite.counts | counts, left_out=dict(suite.left_out)
    )
    write_output(out, json_lines(record.to_json() for record in suite.records), manifest)
    print(f"{out}: {total}; read {suite.counts['read']:,}, left out {num_left_out:,}")
    for reason, count in suite.left_out.most_common():
        print(f"  left out {count:6d}  {reason}")


def workload(records: Iterable[Record]) -> Workload:
    calls = [record.reference_calls or [] for record in records]
    fields = sum(len(call["arguments"]) for one in calls for call in one)
    return Workload(len(calls), sum(map(len, calls)), fields)


def bfcl450_files(source: Path) -> list[bfcl.QuestionFile]:
    """The three question files. UserError names a category that is missing, or is there in two versions."""
    files = bfcl.question_files(source)
    chosen = []
    for category in BFCL450:
        found = [file for file in files if file.category == category]
        if len(found) != 1:
            names = " and ".join(file.questions.name for file in found) or f"no BFCL_v3_{category}.json"
            raise UserError(f"{source} holds {names}: bfcl450 needs one file of {category}")
        chosen += found
    return chosen


def bfcl450(files: Iterable[bfcl.QuestionFile], allow_other_counts: bool) -> Suite:
    """Every decision of the three categories in file order. UserError where they are not the published 450."""
    records: list[Record] = []
    left_out: Counter[str] = Counter()
    found: dict[str, Workload] = {}
    for file in files:
        rows = list(bfcl.read_file(file))
        left_out.update(one.reason for one in rows if isinstance(one, LeftOut))
        decisions = [one for one in rows if isinstance(one, Record)]
        found[file.category] = workload(decisions)
        records += decisions
    fault = other_counts(found)
    if fault and not allow_other_counts:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        told = f"; left out: {reasons}" if reasons else ""
        raise UserError(f"{fault}{told}; use the v3 files, or write these all the same with --allow-other-counts")
    if fault:
        print(f"suites: {fault}", file=sys.stderr)
    by_category = {category: asdict(one) for category, one in found.items()}
    read = len(records) + left_out.total()
    return Suite(records, left_out, {"read": read, "is_expected": fault is None, "categories": by_category})


def other_counts(found: dict[str, Workload]) -> str | None:
    """How the categories differ from the published ones; None where they do not."""
    differing = [
        f"{category} holds {found[category]}, expected {expected}"
        for category, expected in BFCL450.items()
        if found[category] != expected
    ]
    if not differing:
        return None
    state = OTHER_STATES.get(found["parallel"], "these are not the files of BFCL v3")
    whole = f"in all {total_of(found.values())}, expected {total_of(BFCL450.values())}"
    return f"{state}: {'; '.join(differing)}; {whole}"


def total_of(parts: Iterable[Workload]) -> Workload:
    parts = list(parts)
    return Workload(*(sum(getattr(part, name) for part in parts) for name in ("requests", "calls", "fields")))


def glaive650(rows: Iterable[Record | LeftOut], num_records: int = GLAIVE650) -> Suite:
    """One decision each of so many conversations, in the order of the draw; of all where there are fewer.

    The draw sorts salted content hashes: first those of the conversations, then those of the decisions in each. A
    conversation is what the reader groups, so an exact repeat adds nothing.
    """
    left_out: Counter[str] = Counter()
    conversations: dict[str, dict[str, Record]] = {}
    num_decisions = 0
    for one in rows:
        if isinstance(one, LeftOut):
            left_out[one.reason] += 1
        elif one.reference_calls:
            num_decisions += 1
            conversations.setdefault(one.group, {}).setdefault(request_key(one), one)
    drawn: dict[str, Record] = {}
    for decisions in sorted(conversations.values(), key=lambda decisions: content_hash([SALT, sorted(decisions)])):
        first = min(decisions)
        drawn.setdefault(first, decisions[first])  # conversations that part later may share it
    records = list(drawn.values())[:num_records]
    is_partial = len(drawn) < GLAIVE650
    if is_partial:
        print(f"suites: a partial corpus: {len(drawn)} records can be drawn, not {GLAIVE650}", file=sys.stderr)
    counts = {
        "read": num_decisions + left_out.total(),
        "decisions": num_decisions,
        "different_decisions": len({key for decisions in conversations.values() for key in decisions}),
        "conversations": len(conversations),
        "is_partial": is_partial,
    }
    return Suite(records, left_out, counts)


def request_key(record: Record) -> str:
    """Salted hash of what a decision is, wherever it stands in a file."""
    return content_hash([SALT, record.messages, record.tools, record.reference_calls])


if __name__ == "__main__":
    sys.exit(main())
