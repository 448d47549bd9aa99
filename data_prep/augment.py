"""Makes copies of training records with other names, tools and values: `python -m schemafill.data_prep.augment`.

A copy is a mix, drawn at random, of: new literal values (`literals`), new names of tools and parameters (`renaming`),
fewer or more tools that are not called (`distractors`), another order of the tools. Every draw depends on the seed, the
record's id, the number of the copy and the kind of change only; which tools are added depends on what the file holds as
well. A copy that `consistency` faults is dropped and counted. Copies are for training alone: `split` refuses them, and
this step refuses dev files.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from schemafill.data_prep.consistency import is_consistent
from schemafill.data_prep.distractors import DistractorPool
from schemafill.data_prep.literals import rewrite_literals
from schemafill.data_prep.manifest import Manifest, is_done, write_output
from schemafill.data_prep.record_calls import called_names
from schemafill.data_prep.records import Record, json_lines
from schemafill.data_prep.renaming import plan_renaming
from schemafill.data_prep.sealed_inputs import input_hashes, input_manifest, refuse_overwriting
from schemafill.data_prep.tool_definitions import tool_name
from schemafill.data_prep.usable_records import BadRows, usable_records
from schemafill.inference.command_line import Parser, positive, run_command
from schemafill.inference.request import UserError

REASONS = ("inconsistent", "nothing_to_change", "bad_row")
SHARES = {"literals": 0.7, "dropped_tools": 0.3, "names": 0.8, "added_tools": 0.5, "order": 0.6}
"""How often each kind of change is tried, in the order in which they are made."""
FALLBACK = "names"
"""Always made where none before it was: more tools, or another order, are too little for a copy."""
MOST_ADDED = 3
LARGEST_CATALOGUE = 16
"""No tool is added to as many."""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("augment", build_parser, argv)


def build_parser() -> Parser:
    parser = Parser(prog="augment", description="Make copies of training records with other names, tools and values.")
    parser.add_argument("--records", type=Path, required=True, metavar="FILE", help="train file of the step split")
    parser.add_argument("--out", type=Path, required=True, help="records file with the copies only")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--copies", type=positive, default=1, help="copies of each record (default: %(default)s)")
    parser.add_argument(
        "--changes", nargs="+", choices=tuple(SHARES), default=list(SHARES), metavar="KIND",
        help=f"only these: {', '.join(SHARES)} (default: all). Copies with other literals only share their catalogue, "
        "and with it most of the work of a rollout",
    )  # fmt: skip
    parser.add_argument("--unsealed", action="store_true", help="take an input file without a manifest")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> None:
    refuse_overwriting([args.out], [args.records])
    found = input_manifest(args.records, ("split",), is_unsealed_allowed=args.unsealed)
    part = "train" if found is None else found.settings.get("part")
    if part != "train":
        raise UserError(f"{args.records}: `part` in its manifest is {part!r}: copies are for training only")
    changes = [kind for kind in SHARES if kind in args.changes]
    settings = {"seed": args.seed, "copies": args.copies, "changes": changes, "is_augmented": True}
    inputs = input_hashes([args.records])
    if is_done(args.out, "augment", settings, inputs):
        print(f"{args.out} is there already")
        return
    left_out: Counter[str] = Counter()
    records = read_originals(args.records, left_out)
    copies = augment(records, seed=args.seed, num_copies=args.copies, left_out=left_out, changes=changes)
    if not copies:
        raise UserError(f"{args.records}: no record of it could be changed ({dict(left_out)})")
    done = Counter(what for copy in copies for what in copy.meta["augmented"])
    counts = {
        "read": len(records) + left_out["bad_row"], "written": len(copies), "left_out": left_out.total(),
        "changes": {what: done[what] for what in SHARES},
    }  # fmt: skip
    manifest = Manifest(step="augment", settings=settings, inputs=inputs, counts=counts, left_out=dict(left_out))
    write_output(args.out, json_lines(copy.to_json() for copy in copies), manifest)
    print(f"{len(copies)} copies of {len(records)} records in {args.out}")
    print("  " + ", ".join(f"{what} {count}" for what, count in counts["changes"].items()))
    for reason in filter(left_out.get, REASONS):
        print(f"  left out {left_out[reason]:6d}  {reason}")


def read_originals(path: Path, left_out: Counter[str]) -> list[Record]:
    """The records of the input. Bad rows are named and counted; a record that is a copy itself is refused."""
    bad_rows = BadRows()
    records = list(usable_records(path, bad_rows.add))
    bad_rows.close()
    left_out.update({"bad_row": bad_rows.count} if bad_rows.count else {})
    copy = next((record for record in records if record.meta.get("augmented")), None)
    if copy is not None:
        raise UserError(f"{path}: {copy.id!r} is a copy already: give the file that it was made from")
    return records


def augment(
    records: Sequence[Record], *, seed: int, num_copies: int, left_out: Counter[str],
    changes: Sequence[str] = tuple(SHARES),
) -> list[Record]:  # fmt: skip
    """The copies of all records that could be made, record by record; the others are counted in `left_out`."""
    pool = DistractorPool(records)
    copies = []
    for record in tqdm(records, desc="augment", unit="record", disable=None, file=sys.stderr):
        for number in range(1, num_copies + 1):
            copy = make_copy(record, seed=seed, number=number, pool=pool, changes=changes)
            if copy is None:
                left_out["nothing_to_change"] += 1
            elif not is_consistent(record, copy):
                left_out["inconsistent"] += 1
            else:
                copies.append(copy)
    return copies


def make_copy(
    record: Record, *, seed: int, number: int, pool: DistractorPool, changes: Sequence[str] = tuple(SHARES)
) -> Record | None:
    """The copy of that number, marked as one; None where the record has nothing to change."""
    copy, done = record, []
    for what in changes:
        rng = generator(seed, record.id, number, what)
        is_wanted = rng.random() < SHARES[what] or len(changes) == 1
        if is_wanted or (what == FALLBACK and not done):
            changed = change(what, record, copy, rng, pool)
            done += [what] if changed != copy else []
            copy = changed
    if not done:
        return None
    meta = record.meta | {"augmented": done, "augmented_from": record.id}
    return replace(copy, id=f"{record.id}/aug{seed}-{number}", meta=meta)


def generator(seed: int, record_id: str, number: int, what: str) -> Random:
    """Random numbers for one change of one copy, the same on every machine."""
    key = "\0".join((str(seed), record_id, str(number), what)).encode("utf-8", "surrogatepass")
    return Random(int.from_bytes(hashlib.sha256(key).digest(), "big"))


def change(what: str, original: Record, record: Record, rng: Random, pool: DistractorPool) -> Record:
    """The record after one change; equal to the given one where there is nothing for it to do."""
    match what:
        case "literals":
            return rewrite_literals(record, rng)
        case "names":
            return plan_renaming(record, rng).apply(record)
        case "dropped_tools":
            return replace(record, tools=_fewer_tools(record, rng))
        case "added_tools":
            return replace(record, tools=_more_tools(original, record, rng, pool))
        case "order":
            return replace(record, tools=rng.sample(record.tools, len(record.tools)))
    raise AssertionError(what)


def _fewer_tools(record: Record, rng: Random) -> list[dict[str, Any]]:
    """The tools without some that are not called; at least one stays, and all where it is not known what is called."""
    called = set(called_names(record))
    idle = [tool for tool in record.tools if tool_name(tool) not in called]
    if record.reference_calls is None or not idle or len(record.tools) < 2:
        return record.tools
    most = min(len(idle), len(record.tools) - 1)
    dropped = {tool_name(tool) for tool in rng.sample(idle, rng.randint(1, most))}
    return [tool for tool in record.tools if tool_name(tool) not in dropped]


def _more_tools(original: Record, record: Record, rng: Random, pool: DistractorPool) -> list[dict[str, Any]]:
    """The tools with some of other records; none has the name of a tool of this record, its first names included."""
    tools = list(record.tools)
    for _ in range(min(rng.randint(1, MOST_ADDED), LARGEST_CATALOGUE - len(tools))):
        taken = [*map(tool_name, (*original.tools, *tools)), *called_names(record)]
        tool = pool.draw(rng, taken)
        if tool is not None:
            tools.append(tool)
    return tools


if __name__ == "__main__":
    sys.exit(main())
