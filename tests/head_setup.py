"""Heads of tiny targets as a training run leaves them, in folders, and a tiny target beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from models import byte_level_tokenizer, tiny_model
from safetensors.torch import load_file, save_file

from schemafill.inference.model.eagle3_head import Eagle3Head, head_config
from schemafill.inference.model.head_facts import HeadFacts
from schemafill.inference.model.head_files import CONFIG, WEIGHTS, save_head

DRAFT = 40
LAYERS = (2, 3, 4)  # of a target with seven layers
IDENTITY = {
    "target": "tiny/Target", "revision": "abc", "files_sha256": None, "tokenizer_sha256": "1f", "prompt": "plain",
    "template_sha256": "2e", "template_options": {}, "dialect": "json", "vocab_size": 90, "end_ids": [1],
}  # fmt: skip


def made_head(config: Any, *, seed: int = 0) -> Eagle3Head:
    """A random head of a target's configuration; its draft vocabulary is every other token."""
    torch.manual_seed(seed)
    head = Eagle3Head(head_config(config, draft_vocab_size=DRAFT, intermediate_size=48))
    ids = torch.arange(DRAFT) * 2
    known = torch.zeros(config.vocab_size, dtype=torch.bool)
    known[ids] = True
    head.set_vocabulary(ids - torch.arange(DRAFT), known)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return head


def saved_head(folder: Path, family: str = "llama", **facts: Any) -> Path:
    """The folder of a random head."""
    head = made_head(tiny_model(family, 90).config)
    save_head(folder, head, HeadFacts.of_target(IDENTITY, LAYERS, **facts))
    return folder


def saved_target(folder: Path, family: str = "llama", *, is_sharded: bool = False) -> Path:
    """A tiny target with weights and tokenizer, as `transformers` saves one."""
    tokenizer = byte_level_tokenizer()
    model = tiny_model(family, len(tokenizer), attention="sdpa")
    model.save_pretrained(folder, max_shard_size="60KB" if is_sharded else "1GB")
    tokenizer.save_pretrained(folder)
    return folder


def change_config(folder: Path, **fields: Any) -> None:
    """Set fields of `config.json`; a field that is Ellipsis goes."""
    told = json.loads((folder / CONFIG).read_text()) | fields
    (folder / CONFIG).write_text(json.dumps({name: value for name, value in told.items() if value is not ...}))


def change_tensors(folder: Path, **tensors: Any) -> None:
    """Put tensors into `model.safetensors`; one that is None goes. `__` stands for a point in a name."""
    found = load_file(folder / WEIGHTS) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({name: tensor for name, tensor in found.items() if tensor is not None}, folder / WEIGHTS)
