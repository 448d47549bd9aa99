"""Reads a public corpus in its upstream form and writes records: `python -m schemafill.data_prep.corpora`.

A new corpus is one module in readers/ with `NAME`, `REASONS` and `read`, and its line in `CORPORA`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tqdm import tqdm

from schemafill.data_prep.hub import described_source, locate_source
from schemafill.data_prep.manifest import Manifest, file_sha256, is_done, remove_file, write_output
from schemafill.data_prep.readers import api_bank, bfcl, glaive, toolace, toolalpaca
from schemafill.data_prep.records import LeftOut, Record, json_lines
from schemafill.data_prep.sealed_inputs import refuse_output
from schemafill.inference.command_line import Parser, run_command
from schemafill.inference.request import UserError
from schemafill.inference.results import make_folder, write_atomically

READ_SUFFIXES = (".json", ".jsonl", ".gz", ".csv")


@dataclass(frozen=True)
class Corpus:
    """One corpus: its name on the command line, its reader, and every reason for which a row may be left out."""

    name: str
    read: Callable[[Path], Iterator[Record | LeftOut]]
    reasons: tuple[str, ...]


def _corpus(module: ModuleType) -> Corpus:
    return Corpus(module.NAME, module.read, module.REASONS)


CORPORA = {module.NAME: _corpus(module) for module in (bfcl, glaive, api_bank, toolace, toolalpaca)}


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("corpora", build_parser, argv)


def build_parser() -> Parser:
    parser = Parser(prog="corpora", description="Read a public corpus in its upstream form and write records.")
    parser.add_argument("--corpus", required=True, choices=tuple(CORPORA))
    parser.add_argument("--source", required=True, metavar="DIR|hub", help="folder or file in upstream form, or hub")
    parser.add_argument("--revision", help="commit of the Hub's repository (default: the pinned one)")
    parser.add_argument("--out", type=Path, required=True, help="records file")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> None:
    corpus = CORPORA[args.corpus]
    source = locate_source(corpus.name, args.source, args.revision)
    refuse_source(args.out, source)
    settings = {"corpus": corpus.name, "source": described_source(args.source, source)}
    inputs = source_hashes(source)
    if is_done(args.out, "corpora", settings, inputs):
        print(f"{args.out} is there already")
        return
    records, left_out = read_corpus(corpus, source)
    if not records:
        raise UserError(f"{source} holds no decision of {corpus.name} ({len(left_out)} rows left out)")
    reasons = Counter(one.reason for one in left_out)
    counts = {"read": len(records) + len(left_out), "written": len(records), "left_out": len(left_out)} | statistics(
        records
    )
    manifest = Manifest(step="corpora", settings=settings, inputs=inputs, counts=counts, left_out=dict(reasons))
    if left_out:
        make_folder(left_out_path(args.out).parent)
        write_atomically(left_out_path(args.out), json_lines(one.to_json() for one in left_out))
    else:
        remove_file(left_out_path(args.out))  # of an earlier run, whose rows these are not
    write_output(args.out, json_lines(record.to_json() for record in records), manifest)
    print_summary(args.out, counts, reasons)


def refuse_source(out: Path, source: Path) -> None:
    """Raise UserError where no output can be written, or it would replace the source or be part of it the next time."""
    refuse_output(out)
    if out.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{out} lies in the source {source}: choose another --out")


def read_corpus(corpus: Corpus, source: Path) -> tuple[list[Record], list[LeftOut]]:
    """Every record of a corpus in its order, and everything that gave none."""
    records, left_out, seen = [], [], set()
    bar = tqdm(corpus.read(source), desc=corpus.name, unit="row", disable=None, file=sys.stderr)
    for one in bar:
        if isinstance(one, LeftOut):
            assert one.reason in corpus.reasons, (one, corpus.reasons)
            left_out.append(one)
            continue
        assert one.id not in seen, one.id
        seen.add(one.id)
        records.append(one)
    return records, left_out


def statistics(records: list[Record]) -> dict[str, int]:
    """Reference calls and their top-level fields."""
    calls = [call for record in records for call in record.reference_calls or []]
    return {"calls": len(calls), "fields": sum(len(call["arguments"]) for call in calls)}


def source_hashes(source: Path) -> dict[str, str]:
    """Content hash of every file that a reader may read."""
    if source.is_file():
        return {source.name: file_sha256(source)}
    files = sorted(path for path in source.rglob("*") if path.suffix in READ_SUFFIXES and path.is_file())
    return {str(path.relative_to(source)): file_sha256(path) for path in files}


def left_out_path(out: Path) -> Path:
    """Every row that gave no record, with file, row, turn and reason."""
    return out.parent / "left_out" / out.name


def print_summary(out: Path, counts: dict[str, int], reasons: Counter[str]) -> None:
    print(f"{out}: {counts['written']} records, {counts['calls']} calls, {counts['fields']} fields")
    for reason, count in reasons.most_common():
        print(f"  left out {count:6d}  {reason}")
    if reasons:
        print(f"  each of them with file, row and reason: {left_out_path(out)}")


if __name__ == "__main__":
    sys.exit(main())
