"""How far a head drafts right on held-out rollouts: acceptance by depth and by region, and what length that makes.

The head starts behind every token of a completion with the target's own states, as it does when it drafts, and is given
the right tokens at each depth: what counts there is whether it goes on right after having been right so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from schemafill.data_prep.token_regions import REGIONS
from schemafill.inference.model.eagle3_head import Eagle3Head
from schemafill.training.ttt_loss import TrainedRows, draft_steps

NUM_BINS = 10


@dataclass
class Acceptance:
    """Counts over starts of drafts.

    tried, right [depth, regions]: drafts that were right so far, and of them those that are right at this depth, by
    what the token is part of. known [depth]: tries whose token is in the draft vocabulary. bins [2, NUM_BINS]: at the
    first depth, tries and rights by the head's own probability of its choice.
    """

    tried: torch.Tensor
    right: torch.Tensor
    known: torch.Tensor
    bins: torch.Tensor

    @classmethod
    def empty(cls, depths: int) -> Acceptance:
        counts = torch.zeros(depths, len(REGIONS), dtype=torch.float64)
        bins = torch.zeros(2, NUM_BINS, dtype=torch.float64)
        return cls(counts, counts.clone(), torch.zeros(depths, dtype=torch.float64), bins)

    def by_depth(self) -> list[float]:
        """Share that is right at each depth among those that were right before."""
        return _shares(self.right.sum(dim=1), self.tried.sum(dim=1))

    def by_region(self, depth: int = 0) -> dict[str, float]:
        shares = _shares(self.right[depth], self.tried[depth])
        return {name: share for name, share, count in zip(REGIONS, shares, self.tried[depth], strict=True) if count}

    def accepted_length(self) -> float:
        """Tokens per pass of the target where each round drafts a chain as deep as was looked: 1 + sum of products."""
        length, alive = 1.0, 1.0
        for share in self.by_depth():
            alive *= share
            length += alive
        return length

    def figures(self) -> dict[str, Any]:
        """As JSON holds them."""
        tried, right = self.bins
        return {
            "accepted_length": self.accepted_length(),
            "acceptance": self.by_depth(),
            "acceptance_by_region": [self.by_region(depth) for depth in range(len(self.tried))],
            "share_in_vocabulary": _shares(self.known, self.tried.sum(dim=1)),
            "starts": int(self.tried[0].sum()),
            "calibration": [
                {"from": at / NUM_BINS, "tried": int(tried[at]), "right": int(right[at])} for at in range(NUM_BINS)
            ],
        }  # fmt: skip


@torch.no_grad()
def measure(
    head: Eagle3Head, embedding: torch.Tensor, batches: Iterable[tuple[TrainedRows, torch.Tensor]], depths: int
) -> Acceptance:
    """Run a head over batches, each with the regions [B, C] of its completions' tokens. The batches' `num_steps` must
    have been made for as many horizons as `depths`."""
    counts = Acceptance.empty(depths)
    for batch, regions in batches:
        alive = torch.ones_like(batch.num_steps, dtype=torch.bool)
        for depth, (state, is_there) in enumerate(draft_steps(head, embedding, batch, depths)):
            place = (batch.rows - batch.first_row[:, None] + 1 + depth).clamp(0, batch.final.shape[1] - 1)
            is_tried = alive & is_there
            sequence = is_tried.nonzero()[:, 0]
            place = place[is_tried]
            right_ids = batch.token_ids[sequence, batch.first_row[sequence] + 1 + place]
            logits = head.logits(state[is_tried]).float()
            is_right = head.target_ids[logits.argmax(dim=-1)] == right_ids
            region = regions[sequence, place].long()
            counts.tried[depth] += _histogram(region, len(REGIONS))
            counts.right[depth] += _histogram(region[is_right], len(REGIONS))
            counts.known[depth] += float(head.t2d[right_ids].sum())
            if depth == 0:
                top = logits.softmax(dim=-1).amax(dim=-1)
                bins = (top * NUM_BINS).long().clamp(max=NUM_BINS - 1)
                counts.bins[0] += _histogram(bins, NUM_BINS)
                counts.bins[1] += _histogram(bins[is_right], NUM_BINS)
            alive = alive.clone()
            alive[is_tried] = is_right
    return counts


def _histogram(values: torch.Tensor, size: int) -> torch.Tensor:
    return torch.bincount(values, minlength=size).double().cpu()


def _shares(part: torch.Tensor, whole: torch.Tensor) -> list[float]:
    return [float(a / b) if b else 0.0 for a, b in zip(part, whole, strict=True)]
