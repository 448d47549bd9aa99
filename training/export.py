"""A head in other programs' forms, and back: `python -m schemafill.training.export`.

    --head DIR --format vllm --out DIR         our folder -> theirs
    --head DIR --from-format vllm --out DIR    theirs -> our folder

No number changes on the way: a head that went there and back has the bits it had.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError, safe_open

from schemafill.inference.command_line import Parser, run_command
from schemafill.inference.model.architectures import eagle3_layers
from schemafill.inference.model.head_facts import BLOCK, HeadFacts, facts_from_json
from schemafill.inference.model.head_files import (
    CONFIG,
    WEIGHTS,
    HeadFiles,
    locate_head,
    read_head_files,
    read_json,
    read_tensors,
    write_checkpoint,
    write_head_files,
)
from schemafill.inference.model.head_form import DTYPE, check_target, check_tensors, check_trained
from schemafill.inference.request import UserError, first_line
from schemafill.training.head_formats import EMBEDDING, FORMATS, HeadFormat, Verifier

TARGET_TABLE = "model.embed_tokens.weight"
"""Name of the embeddings in the checkpoints of all supported families."""


@dataclass(frozen=True, kw_only=True)
class TargetParts:
    """What a form takes from the target."""

    config: Any
    """Its `transformers` configuration."""
    embedding: torch.Tensor
    """[V, H] bfloat16."""
    identity: dict[str, Any]
    verifier: Verifier


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("export", build_parser, argv)


def build_parser() -> Parser:
    parser = Parser(prog="export", description="Write a trained head in another program's form, or read one.")
    parser.add_argument("--head", required=True, metavar="DIR", help="folder or Hub id of the head")
    direction = parser.add_mutually_exclusive_group(required=True)
    direction.add_argument("--format", choices=FORMATS, help="write this form")
    direction.add_argument("--from-format", choices=FORMATS, help="read this form, write a folder of ours")
    parser.add_argument("--target", help="the head's target: vllm keeps its embeddings, a foreign head needs it")
    parser.add_argument("--base-model", metavar="ID", help="Hub id of the target in vllm's form (default: --target)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> None:
    folder = locate_head(args.head)
    if os.path.realpath(folder) == os.path.realpath(args.out):
        raise UserError(f"--out {args.out} is the head itself: choose another folder")
    parts = read_target_parts(args.target, args.base_model) if args.target else None
    if args.format:
        export_head(read_head_files(folder), FORMATS[args.format], args.out, parts)
    else:
        write_head_files(args.out, import_head(folder, FORMATS[args.from_format], parts))
    print(args.out)


def export_head(head: HeadFiles, form: HeadFormat, out: Path, target: TargetParts | None = None) -> None:
    """Write a head in a form. UserError for what the form cannot say, and for a target that is not the head's."""
    if form.has_embedding and target is None:
        raise UserError(f"form {form.name} holds the target's embeddings: say with --target where it is")
    if target is not None:
        _refuse_other_target(head, target)
    fields = form.fields_of(head.config, head.facts, target.verifier if target is not None else None)
    tensors = {form.name_of(name): tensor for name, tensor in head.tensors.items()}
    if form.has_embedding and target is not None:
        tensors[EMBEDDING] = target.embedding
    check_tensors(out / WEIGHTS, tensors, form.expected(head.config))
    write_checkpoint(out, tensors, fields)


def import_head(folder: Path, form: HeadFormat, target: TargetParts | None = None) -> HeadFiles:
    """A head that a folder holds in a form. UserError for what a head of ours cannot say.

    target: needed where the folder does not come from here, and so does not say what the head was made for.
    """
    path = folder / CONFIG
    fields = read_json(path)
    config, layers = form.read(path, fields)
    if BLOCK in fields:
        facts = facts_from_json(str(path), fields[BLOCK])
    elif target is None:
        raise UserError(f"{path}: does not say what it was made for: name its target with --target")
    else:
        facts = HeadFacts.of_target(target.identity, _capture_layers(path, layers, target))
    if layers is not None and layers != facts.capture_layers:
        raise UserError(f"{path}: captures hidden_states {list(layers)}, {BLOCK} says {list(facts.capture_layers)}")
    found = read_tensors(folder / WEIGHTS)
    check_tensors(folder / WEIGHTS, found, form.expected(config))
    if form.has_embedding and target is not None and not torch.equal(found[EMBEDDING], target.embedding):
        raise UserError(f"{folder / WEIGHTS}: {EMBEDDING} is not the target's: a head of ours has none of its own")
    head = HeadFiles(config, {name: found[form.name_of(name)] for name in _our_names(config)}, facts)
    check_trained(folder / WEIGHTS, head.tensors)
    if target is not None:
        check_target(path, config, facts, target.config)
    return head


def _our_names(config: Any) -> list[str]:
    return list(FORMATS["sglang"].expected(config))


def _capture_layers(path: Path, layers: tuple[int, ...] | None, target: TargetParts) -> tuple[int, ...]:
    if layers is None:
        return eagle3_layers(target.config.num_hidden_layers)  # what every reader takes where nothing is said
    if len(layers) != 3:
        raise UserError(f"{path}: captures {len(layers)} layers, a head of ours reads 3")
    return layers


def _refuse_other_target(head: HeadFiles, target: TargetParts) -> None:
    """Tables of equal shape may be another target's, so files are compared where both sides know their hash."""
    check_target(Path(CONFIG), head.config, head.facts, target.config)
    for name in ("files_sha256", "tokenizer_sha256"):
        was, found = getattr(head.facts, name), target.identity[name]
        if was is not None and found is not None and was != found:
            raise UserError(f"target {target.verifier.name} is not the one the head was made for: another {name}")


# ----------------------------------------------------------------------------------------------------------- the target


def read_target_parts(target: str, base_model: str | None = None) -> TargetParts:
    """target: a Hub id, a folder, or `embedded`. Of its weights only the embeddings are read."""
    from transformers import AutoConfig

    from schemafill.data_prep.target_facts import read_target

    facts = read_target(target)
    config = AutoConfig.from_pretrained(facts.source)
    verifier = Verifier(name=base_model or facts.source, architectures=tuple(config.architectures or ()))
    return TargetParts(
        config=config, embedding=read_embedding(facts.source), identity=facts.identity, verifier=verifier
    )


def read_embedding(source: str) -> torch.Tensor:
    """The input embeddings of a target's checkpoint, of one file or of several, as bfloat16."""
    index = _file_of(source, WEIGHTS + ".index.json")
    name = WEIGHTS
    if index is not None:
        name = json.loads(index.read_bytes()).get("weight_map", {}).get(TARGET_TABLE, WEIGHTS)
    path = _file_of(source, name)
    if path is None:
        raise UserError(f"target {source} has no {name}: its embeddings are read from safetensors only")
    try:
        with safe_open(path, framework="pt") as file:
            if TARGET_TABLE not in file.keys():  # noqa: SIM118 (the file is no mapping)
                raise UserError(f"{path}: holds no {TARGET_TABLE}")
            return file.get_tensor(TARGET_TABLE).to(DTYPE).contiguous()
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read: {first_line(error)}") from None


def _file_of(source: str, name: str) -> Path | None:
    """A file of a target, None where it has no such file."""
    if os.path.isdir(source):
        path = Path(source) / name
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(source, name))
    except EntryNotFoundError:
        return None
    except Exception as error:  # network, rights: the Hub's client has a class for each
        raise UserError(f"cannot fetch {name} of {source}: {' '.join(str(error).split())[:300]}") from error


if __name__ == "__main__":
    sys.exit(main())
