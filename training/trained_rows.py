"""Which rows of rollouts are trained, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from schemafill.data_prep.feature_store import TargetStates
from schemafill.training.ttt_loss import TrainedRows


@dataclass(frozen=True)
class Example:
    """A rollout's states, and what each token of its completion counts in the loss: [completion] float32."""

    states: TargetStates
    weights: torch.Tensor


def trained_rows(states: TargetStates, weights: torch.Tensor, horizons: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a sequence that are trained, ascending [R], and how many steps of each [R].

    Row i is trained in step k iff the tokens i + 1 to i + 2 + k are the target's own. Rows that could only be taught
    tokens of weight 0 are not run at all.
    """
    num_taught = len(states.token_ids) - states.num_prompt - 1  # the first token comes from the prompt's pass
    if num_taught < 1:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    is_taught = torch.nn.functional.pad(weights[1:] > 0, (0, horizons - 1))
    taught = is_taught.unfold(0, horizons, 1)  # [num_taught, horizons]
    num_steps = (num_taught - torch.arange(num_taught)).clamp(max=horizons)
    is_run = taught.any(dim=1)
    return (states.num_prompt - 1 + torch.arange(num_taught))[is_run], num_steps[is_run]


def collate(examples: Sequence[Example], horizons: int, device: torch.device | str = "cpu") -> TrainedRows:
    """One batch, padded to its longest sequence, its most trained rows and its longest completion."""
    rows, num_steps = zip(*(trained_rows(one.states, one.weights, horizons) for one in examples), strict=True)
    states = [one.states for one in examples]
    return TrainedRows(
        token_ids=_padded([torch.tensor(one.token_ids) for one in states], device),
        captured=_padded([one.captured for one in states], device),
        final=_padded([one.final for one in states], device),
        weights=_padded([one.weights for one in examples], device),
        rows=_padded(rows, device), num_steps=_padded(num_steps, device),
        first_row=torch.tensor([one.num_prompt - 1 for one in states], device=device),
    )  # fmt: skip


def _padded(parts: Sequence[torch.Tensor], device: torch.device | str) -> torch.Tensor:
    return pad_sequence(list(parts), batch_first=True).to(device)
