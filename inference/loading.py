"""What is found out of a target before its weights are loaded: where it lies, its tokenizer, how it writes calls."""

from __future__ import annotations

from pathlib import Path

import yaml
from transformers import AutoTokenizer

from schemafill.inference.request import UserError, first_line
from schemafill.inference.toolcall.dialects import dialect_from_template

# What cannot be derived of a target, one YAML file each, named by the last part of its name in lower case.
TARGET_FACTS = Path(__file__).parents[1] / "configs" / "targets"


def locate_target(target: str) -> str:
    """The folder of the embedded target; a Hub id or folder as it is."""
    if target != "embedded":
        return target
    from schemafill.inference.fetch import target_folder  # needs what only fetching needs

    folder = target_folder("embedded")
    if not folder.exists():
        raise UserError("target embedded is not here yet: run `schemafill fetch-target embedded` first")
    return str(folder)


def load_tokenizer(source: str, trust_remote_code: bool):
    """The fast tokenizer that lies beside a target. Raises UserError where there is none."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except Exception as error:  # files of strangers: transformers raises whatever their faults lead to
        raise UserError(f"cannot load the tokenizer of {source!r}: {first_line(error)}") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes up where the files are missing
        raise UserError(f"the tokenizer of {source!r} is empty: its files are missing")
    if not tokenizer.is_fast:
        raise UserError(f"the tokenizer of {source!r} has no fast form, which drafting needs")
    return tokenizer


def choose_dialect(source: str, tokenizer) -> str:
    """What `configs/targets/` says of the target, else what its chat template asks for."""
    facts = TARGET_FACTS / f"{Path(source).name.lower()}.yaml"
    if facts.is_file():
        return yaml.safe_load(facts.read_text())["dialect"]
    return dialect_from_template(tokenizer.chat_template or "")
