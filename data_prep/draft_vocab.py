"""The vocabulary of a draft head: `python -m schemafill.data_prep.draft_vocab`.

A head drafts few of the target's tokens, those that it will need: what its target wrote in rollouts, most frequent
first, and beside it what JSON is made of, digits, end signs and the words of the tools.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from schemafill.data_prep.manifest import Manifest, is_done, write_output
from schemafill.data_prep.rollout_form import rollout_rows
from schemafill.data_prep.rollout_inputs import read_told
from schemafill.data_prep.rollout_manifests import hashes_with_records, rollout_manifests
from schemafill.data_prep.sealed_inputs import refuse_overwriting
from schemafill.data_prep.tool_words import tool_words
from schemafill.inference.command_line import Parser, positive, run_command
from schemafill.inference.request import UserError

if TYPE_CHECKING:
    from schemafill.data_prep.target_facts import TargetFacts
    from schemafill.data_prep.vocab_choice import VocabChoice

SAME_TARGET = ("tokenizer_sha256", "vocab_size", "end_ids")
"""What a target that is named must have in common with the one that wrote the rollouts."""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("draft_vocab", build_parser, argv)


def build_parser() -> Parser:
    parser = Parser(prog="draft_vocab", description="Choose the tokens that a draft head can propose.")
    parser.add_argument("--rollouts", type=Path, nargs="+", required=True, metavar="FILE", help="rollouts files")
    parser.add_argument("--records", type=Path, nargs="+", default=[], metavar="FILE", help="records, for tools' words")
    parser.add_argument("--size", type=positive, default=8192, help="tokens (default: %(default)s)")
    parser.add_argument("--target", help="where the tokenizer is (default: the target that the rollouts name)")
    parser.add_argument("--out", type=Path, required=True, help="vocabulary, a safetensors file")
    parser.add_argument("--unsealed", action="store_true", help="take records made by hand, or not rolled out")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the target")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> None:
    refuse_overwriting([args.out], [*args.rollouts, *args.records])
    manifests = rollout_manifests(args.rollouts)
    made = manifests[0].settings
    inputs = hashes_with_records(args.rollouts, manifests, args.records, is_unsealed_allowed=args.unsealed)
    settings = {"size": args.size} | {name: made[name] for name in ("target", "revision", "dialect", *SAME_TARGET)}
    if is_done(args.out, "draft_vocab", settings, inputs):
        print(f"{args.out} is there already")
        return
    facts = _facts_of(args, made)
    make_vocab(args.rollouts, args.records, args.size, facts, args.out, settings, inputs)


def make_vocab(
    rollouts: Sequence[Path], records: Sequence[Path], size: int, facts: TargetFacts, out: Path,
    settings: dict[str, Any], inputs: dict[str, str],
) -> None:  # fmt: skip
    """Choose the tokens, write them, and say how much of the rollouts they cover."""
    from schemafill.data_prep.vocab_choice import choose_vocab, vocab_file

    _refuse_other_target(facts, settings)
    completions = [row["completion_ids"] for row in rollout_rows(rollouts) if row["usable"]]
    if not completions:
        raise UserError(f"{', '.join(map(str, rollouts))}: no usable row to count tokens in")
    written = Counter(token_id for ids in completions for token_id in ids)
    choice = choose_vocab(size, facts, written, _word_counts(records, facts))
    coverage = _coverage(completions, choice, facts)
    counts = {"read": len(completions), "written": len(choice.ids), **choice.counts, "coverage": coverage}
    manifest = Manifest(step="draft_vocab", settings=settings, inputs=inputs, counts=counts)
    write_output(out, vocab_file(choice, facts), manifest)
    _print_summary(out, counts, facts.vocab_size)
    if not records:
        print("  no words of tools are forced in: give the records that were rolled out with --records")


def _facts_of(args: argparse.Namespace, made: dict[str, Any]) -> TargetFacts:
    """The target that is named, else the one that the rollouts name."""
    from schemafill.data_prep.target_facts import read_target  # transformers: --help need not wait for it
    from schemafill.inference.fetch import TARGETS

    packaged = {one.folder: name for name, one in TARGETS.items()}
    name = args.target or packaged.get(made["target"], made["target"])
    try:
        return read_target(name, dialect=made["dialect"], trust_remote_code=args.trust_remote_code)
    except UserError as error:
        raise UserError(str(error) if args.target else f"{error}; say with --target where it is") from error


def _refuse_other_target(facts: TargetFacts, settings: dict[str, Any]) -> None:
    for name in SAME_TARGET:
        if facts.identity[name] != settings[name]:
            raise UserError(
                f"target {facts.source} is not the one that wrote the rollouts: {name} is {facts.identity[name]!r}, "
                f"was {settings[name]!r}; name the right one with --target"
            )


def _word_counts(paths: Sequence[Path], facts: TargetFacts) -> Counter[int]:
    """How many tools' words hold each token: names, parameter names, values of enumerations."""
    counts: Counter[int] = Counter()
    seen: set[str] = set()
    items, _ = read_told(paths)
    for item in tqdm(items, desc="words of tools", unit="record", disable=None, file=sys.stderr):
        for spelling in tool_words(item.record.tools):
            if spelling not in seen and _is_text(spelling):
                seen.add(spelling)
                counts.update(set(facts.vocabulary.encode(spelling)))
    return counts


def _is_text(spelling: str) -> bool:
    """No half of a surrogate pair in it, which no vocabulary can split."""
    try:
        spelling.encode()
    except UnicodeEncodeError:
        return False
    return True


def _coverage(completions: Sequence[list[int]], choice: VocabChoice, facts: TargetFacts) -> dict[str, list[int]]:
    """Region -> tokens of the rollouts that can be drafted, and all of them."""
    from schemafill.data_prep.token_regions import REGIONS, token_regions

    known = set(choice.ids)
    coverage = {region: [0, 0] for region in ("all", *REGIONS)}
    for ids in tqdm(completions, desc="coverage", unit="row", disable=None, file=sys.stderr):
        regions = token_regions(ids, facts.vocabulary, facts.dialect, facts.end_ids)
        for token_id, region in zip(ids, regions, strict=True):
            for name in ("all", region):
                coverage[name][0] += token_id in known
                coverage[name][1] += 1
    return coverage


def _print_summary(out: Path, counts: dict[str, Any], vocab_size: int) -> None:
    print(f"{out}: {counts['written']} of {vocab_size} tokens, from {counts['read']} rollouts")
    print(
        f"  forced {counts['structure']} of JSON, {counts['digits']} digits, {counts['end_signs']} end signs, "
        f"{counts['tool_words']} of tools' words ({counts['tool_words_left_out']} rarer ones left out)"
    )
    print(f"  {counts['by_frequency']} more by frequency ({counts['by_frequency_left_out']} rarer ones left out)")
    print(f"  {counts['filled']} filled up with the lowest ids that are plain text and not yet there")
    for region, (inside, total) in counts["coverage"].items():
        if total:
            print(f"  covers {inside / total:7.2%} of {total:8d} tokens  {region}")


if __name__ == "__main__":
    sys.exit(main())
