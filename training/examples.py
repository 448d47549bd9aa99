"""Rollouts as sequences to train on: which rows count, and what each token of their completions is part of."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from schemafill.data_prep.rollout_manifests import common_settings
from schemafill.data_prep.target_facts import TargetFacts
from schemafill.data_prep.token_regions import REGIONS, token_regions
from schemafill.inference.request import UserError
from schemafill.inference.row_files import read_rows

# Why a row is left out.
NOT_USABLE, TOO_LONG, NOTHING_TO_TRAIN, NOT_CHOSEN = "not_usable", "too_long", "nothing_to_train", "not_chosen"
IDENTITY = ("files_sha256", "tokenizer_sha256", "template_sha256", "dialect", "vocab_size")
"""What rollouts and target must agree on."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A usable rollout. regions: [completion] uint8 indices into REGIONS."""

    record_id: str
    prompt_ids: list[int]
    completion_ids: list[int]
    regions: torch.Tensor

    @property
    def token_ids(self) -> list[int]:
        return [*self.prompt_ids, *self.completion_ids]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class Rollouts:
    """What rollouts files hold, the settings that they were made with, and what was left out by reason."""

    rows: list[Rollout]
    settings: dict[str, Any]
    left_out: Counter[str] = field(default_factory=Counter)

    def describe(self) -> str:
        shown = ", ".join(f"{count} {reason}" for reason, count in self.left_out.most_common())
        return f"{len(self.rows)} rollouts" + (f", left out {shown}" if shown else "")


def read_rollouts(
    paths: Sequence[Path], facts: TargetFacts, *, limit: int | None = None, max_tokens: int | None = None
) -> Rollouts:
    """The usable rows of some files. limit: only so many, chosen by the content of their prompts, so that more rollouts
    add to fewer. UserError where they are of another target, or none is left."""
    settings = common_settings(paths)
    for name in IDENTITY:
        if settings.get(name) != facts.identity.get(name):
            raise UserError(f"{paths[0]} was made with another target: its {name} differs")
    found = Rollouts([], settings)
    for path in paths:
        for _, row in tqdm(read_rows(path), desc=path.name, unit="row", disable=None, file=sys.stderr):
            reason = _fault(row, max_tokens)
            if reason:
                found.left_out[reason] += 1
            else:
                found.rows.append(_rollout(row, facts))
    if limit is not None and limit < len(found.rows):
        found.left_out[NOT_CHOSEN] = len(found.rows) - limit
        found.rows.sort(key=lambda one: hashlib.sha256(repr(one.prompt_ids).encode()).digest())
        del found.rows[limit:]
    if not found.rows:
        raise UserError(f"{', '.join(map(str, paths))}: nothing to train on ({found.describe()})")
    return found


def token_weights(rollout: Rollout, weights: Mapping[str, float]) -> torch.Tensor:
    """[completion] what each token counts, by its region."""
    by_region = torch.tensor([weights.get(name, 1.0) for name in REGIONS])
    return by_region[rollout.regions.long()]


def _fault(row: dict[str, Any], max_tokens: int | None) -> str | None:
    """Why a row is not trained on, or None."""
    if not row["usable"]:
        return NOT_USABLE
    if len(row["completion_ids"]) < 2:  # the first token comes from the prompt's pass: nobody drafts it
        return NOTHING_TO_TRAIN
    is_long = max_tokens is not None and len(row["prompt_ids"]) + len(row["completion_ids"]) > max_tokens
    return TOO_LONG if is_long else None


def _rollout(row: dict[str, Any], facts: TargetFacts) -> Rollout:
    regions = token_regions(row["completion_ids"], facts.vocabulary, facts.dialect, facts.end_ids)
    return Rollout(
        record_id=row["record_id"], prompt_ids=row["prompt_ids"], completion_ids=row["completion_ids"],
        regions=torch.tensor([REGIONS.index(one) for one in regions], dtype=torch.uint8),
    )  # fmt: skip
