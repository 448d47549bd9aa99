"""A head on disk: a folder with `model.safetensors` and `config.json`, in the form that SGLang and SpecForge read.

A folder is read strictly or not at all; what its files must say stands in `head_form`. Only safetensors are read,
never pickles.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from transformers import LlamaConfig

from schemafill.inference.model.eagle3_head import Eagle3Head
from schemafill.inference.model.head_facts import BLOCK, HeadFacts, facts_from_json
from schemafill.inference.model.head_form import (
    DTYPE,
    check_target,
    check_tensors,
    check_trained,
    config_fields,
    config_from_fields,
    expected_tensors,
)
from schemafill.inference.request import UserError, first_line

WEIGHTS, CONFIG = "model.safetensors", "config.json"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class HeadFiles:
    """What a head's folder holds. tensors: by their names in the file, weights in bfloat16."""

    config: LlamaConfig
    tensors: dict[str, torch.Tensor]
    facts: HeadFacts


def save_head(folder: Path, head: Eagle3Head, facts: HeadFacts) -> None:
    """Write a head, rounded to bfloat16. Each file is whole or not there, and `config.json` is the last to come.

    UserError for numbers that are none and for a vocabulary that was not set. A head that was hardly trained is
    written; `load_head` refuses it.
    """
    tensors = {
        name: tensor.detach().to("cpu", DTYPE if tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in head.state_dict().items()
    }  # fmt: skip
    write_head_files(folder, HeadFiles(head.config, tensors, facts))


def load_head(
    source: str | Path, *, target: Any = None, revision: str | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Eagle3Head, HeadFacts]:
    """A head from a folder or a Hub id, its weights in `dtype`, on the CPU.

    target: the target's `transformers` configuration; a head that cannot be its head is refused. UserError, in one
    line with file and tensor, for whatever is missing, left over, misshapen, not finite or never trained.
    """
    folder = locate_head(source, revision)
    files = read_head_files(folder)
    if target is not None:
        check_target(folder / CONFIG, files.config, files.facts, target)
    head = Eagle3Head(files.config)
    head.load_state_dict(files.tensors)
    for parameter in head.parameters():  # head.to(dtype) would round the rotation's frequencies too
        parameter.data = parameter.data.to(dtype)
    return head, files.facts


def locate_head(source: str | Path, revision: str | None = None) -> Path:
    """The folder that is named, or the Hub's two files in its own cache."""
    folder = Path(os.path.expanduser(source))
    if os.path.exists(folder):
        return folder
    if not HUB_ID.fullmatch(str(source)):
        raise UserError(f"no such head: {source} is no folder and no Hub id")
    try:
        return Path(snapshot_download(str(source), revision=revision, allow_patterns=[WEIGHTS, CONFIG]))
    except Exception as error:  # network, rights, unknown revision: the Hub's client has a class for each
        told = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"no folder {source}, and the Hub does not give head {source}: {told}") from error


def read_head_files(folder: Path) -> HeadFiles:
    """The files of a head, checked, without a module."""
    path = folder / CONFIG
    fields = read_json(path)
    facts = facts_from_json(str(path), fields.get(BLOCK))
    config = config_from_fields(path, fields)
    told = fields.get("eagle_config")
    layers = told.get("eagle_aux_hidden_state_layer_ids") if isinstance(told, dict) else None
    if layers != facts.output_layers:
        raise UserError(
            f"{path}: eagle_config captures the outputs of layers {layers}, {BLOCK} those of {facts.output_layers}"
        )
    tensors = read_tensors(folder / WEIGHTS)
    check_tensors(folder / WEIGHTS, tensors, expected_tensors(config))
    check_trained(folder / WEIGHTS, tensors)
    return HeadFiles(config, tensors, facts)


def write_head_files(folder: Path, files: HeadFiles) -> None:
    check_tensors(folder / WEIGHTS, files.tensors, expected_tensors(files.config))
    write_checkpoint(folder, files.tensors, config_fields(files.config, files.facts))


def write_checkpoint(folder: Path, tensors: dict[str, torch.Tensor], fields: dict[str, Any]) -> None:
    """Write both files of a folder, each whole or not at all; while weights change no configuration stands by them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).unlink(missing_ok=True)
        _write_whole(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
        _write_whole(folder / CONFIG, (json.dumps(fields, indent=2) + "\n").encode())
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}") from None


def _write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else f"not JSON: {first_line(error)}"
        raise UserError(f"cannot read {path}: {told}") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path}: must be a JSON object")
    return fields


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        beside = [other.name for other in path.parent.glob("*") if other.suffix in (".bin", ".pt", ".pth", ".ckpt")]
        pickles = f" ({', '.join(sorted(beside))} is a pickle, which is never read)" if beside else ""
        raise UserError(f"no such file: {path}{pickles}")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read: {first_line(error)}") from None
