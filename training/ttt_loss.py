"""The training-time-test loss: the head is run on its own states for several steps, as it will be when it drafts.

Of a row i of a sequence whose completion is tokens P to T - 1, step k (from 0) reads token i + 1 + k and is taught the
target's choice of token i + 2 + k. It is trained iff all tokens from i + 1 to i + 2 + k are the target's own, so rows
P - 1 to T - 3 - k: the first draft behind a prompt, which reads the prompt's last state, is among them.

A head has one layer. What a row sees of others is therefore their first-step keys and values, and nothing of others'
later steps: those keys are computed for all rows, everything else for the trained rows only. Prompts are most of a
tool-calling sequence, so this saves most of the work and changes no number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from schemafill.inference.model.eagle3_head import Eagle3Head


@dataclass(frozen=True, kw_only=True)
class TrainedRows:
    """A batch: B sequences padded to T tokens, and R rows of each that are trained (or run; padded too).

    What a field holds at a padded place does not matter as long as it is a number.
    """

    token_ids: torch.Tensor
    """[B, T] int64."""
    captured: torch.Tensor
    """[B, T - 1, 3H] the target's captured states behind all tokens but the last."""
    rows: torch.Tensor
    """[B, R] int64, the rows that are run."""
    num_steps: torch.Tensor
    """[B, R] int64: how many steps of a row are trained; 0 at a padded place."""
    final: torch.Tensor
    """[B, C, H] the target's states behind its final norm: place c is what the completion's token c was chosen from."""
    weights: torch.Tensor
    """[B, C] what it counts that the completion's token c is right."""
    first_row: torch.Tensor
    """[B] int64: P - 1, the row behind which the completion begins."""


@dataclass(frozen=True)
class Teacher:
    """What a head needs of its target's weights.

    output: [V_draft, H] the output layer's rows of the draft vocabulary; embedding: [V, H].
    """

    output: torch.Tensor
    embedding: torch.Tensor


@dataclass
class LossSums:
    """Sums over the trained (row, step) pairs of a batch. Divide by counts over everything that belongs to one step of
    the optimizer: all batches of an accumulation window, all processes.

    loss: with gradient, each step weighted by decay ** step. rows, known, right [K]: pairs; pairs whose right token is
    in the draft vocabulary; pairs that the head had right. cross_entropy [K]: without decay and weights.
    """

    loss: torch.Tensor
    rows: torch.Tensor
    known: torch.Tensor
    right: torch.Tensor
    cross_entropy: torch.Tensor


def ttt_loss(
    head: Eagle3Head, teacher: Teacher, batch: TrainedRows, *, horizons: int, decay: float, state_weight: float = 0.0
) -> LossSums:
    """Soft cross-entropy against the target's distribution over the draft vocabulary, for `horizons` steps.

    A pair whose right token, the one that the target wrote, cannot be drafted is left out and counted. state_weight:
    how much the squared distance of the head's normed state to the target's, relative to the latter's square, adds.
    """
    sums = LossSums(torch.zeros((), device=batch.rows.device), *(torch.zeros(horizons) for _ in range(4)))
    target_ids = head.target_ids
    for step, (state, trained) in enumerate(draft_steps(head, teacher.embedding, batch, horizons)):
        place = _places(batch, step)[trained]  # [N] in the completion, N trained rows
        sequence = trained.nonzero()[:, 0]
        right_ids = batch.token_ids[sequence, batch.first_row[sequence] + 1 + place]
        is_known = head.t2d[right_ids]
        final = batch.final[sequence, place].to(teacher.output.dtype)
        logits, normed = _scores(head, state[trained])
        with torch.no_grad():
            taught = F.softmax(_precise(F.linear(final, teacher.output)), dim=-1)
        entropy = -(taught * F.log_softmax(logits, dim=-1)).sum(dim=-1)
        weighted = entropy
        if state_weight:
            wanted = _precise(final)
            distance = (_precise(normed) - wanted).square().sum(dim=-1) / wanted.square().sum(dim=-1)
            weighted = entropy + state_weight * distance
        counted = weighted * is_known * batch.weights[sequence, place]
        sums.loss = sums.loss + decay**step * counted.sum()
        sums.rows[step] = len(place)
        sums.known[step] = is_known.sum()
        sums.right[step] = (target_ids[logits.argmax(dim=-1)] == right_ids).sum()
        sums.cross_entropy[step] = (entropy.detach() * is_known).sum()
    return sums


def draft_steps(
    head: Eagle3Head, embedding: torch.Tensor, batch: TrainedRows, horizons: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Run the rows for several steps. Yields for each the states z [B, R, H] and which rows [B, R] are trained."""
    num_keys = batch.token_ids.shape[1] - 1
    dtype = head.fc.weight.dtype
    embedded = F.embedding(batch.token_ids[:, 1:], embedding).to(dtype)
    first_states = head.fuse(batch.captured.to(dtype))
    positions = torch.arange(num_keys, device=batch.rows.device).expand(len(batch.rows), -1)
    keys, values = head.key_value(head.inputs(embedded, first_states), head.rotation(positions, first_states))
    visible = positions[:, None] <= batch.rows[..., None]  # [B, R, T - 1]
    own = torch.eye(batch.rows.shape[1], dtype=torch.bool, device=batch.rows.device).expand(len(batch.rows), -1, -1)
    state = _taken(first_states, batch.rows)
    for step in range(horizons):
        token_at = (batch.rows + step).clamp(max=num_keys - 1)
        inputs = head.inputs(_taken(embedded, token_at), state)
        rotation = head.rotation(batch.rows + step, state)
        if step:
            more_keys, more_values = head.key_value(inputs, rotation)
            keys, values = torch.cat([keys, more_keys], dim=2), torch.cat([values, more_values], dim=2)
            visible = torch.cat([visible, own], dim=2)
        attended = F.scaled_dot_product_attention(
            head.query(inputs, rotation), keys, values, attn_mask=visible[:, None], enable_gqa=True
        )
        state = head.finish(state, attended)
        yield state, batch.num_steps > step


def _places(batch: TrainedRows, step: int) -> torch.Tensor:
    """[B, R] the place in the completion that a row's step is taught."""
    return (batch.rows - batch.first_row[:, None] + 1 + step).clamp(0, batch.final.shape[1] - 1)


def _scores(head: Eagle3Head, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """states [N, H] -> logits [N, V_draft] float32 and the normed states [N, H]."""
    normed = head.norm(states)
    return _precise(head.lm_head(normed)), normed


def _precise(numbers: torch.Tensor) -> torch.Tensor:
    """In float32, or better where they are."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def _taken(states: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """states [B, T, H] at rows [B, R] -> [B, R, H]."""
    return states.gather(1, rows[..., None].expand(-1, -1, states.shape[-1]))
