"""Keys and values of many requests at once, so that one pass computes the next token of each of them.

    slot s: rows [s * slot_rows, (s + 1) * slot_rows)     its prompt, then its answer, contiguous

A pass holds the prompt of one slot that was just opened, or one token of each of several other slots, or both. With
the row-invariant kernels every row has the bits that it would have alone; without them slots are computed as a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from schemafill.inference.model.kv_arena import ForwardPlan, KVArena, attend
from schemafill.inference.model.target import TargetModel

SLOT_ATTENTION_NAME = "schemafill_slots"
STATE_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class SlotStep:
    """The next token of several slots: what a `TargetModel` runs in place of a proposal.

    slots: ascending. lengths: how many rows each holds before. behind_prompt: it rides in the pass of another slot's
    prompt, whose last row then comes first in the result.
    """

    slots: list[int]
    tokens: list[int]
    lengths: list[int]
    behind_prompt: bool = False

    def __len__(self) -> int:
        return len(self.slots) + self.behind_prompt


@dataclass
class SlotPlan(ForwardPlan):
    """A pass with rows of several slots. `slots` and `slot_mask` are there without kernels only."""

    slots: torch.Tensor | None = None  # [nodes] int64
    slot_mask: torch.Tensor | None = None  # [nodes, 1, 1, width] bool: which rows of its slot a node sees
    num_slots: int = 0


def attend_slots(module, query, key, value, attention_mask, scaling=None, plan: ForwardPlan | None = None, **kwargs):
    """`attend`, but without kernels each row looks into its own slot only instead of masking all others.

    query [1, H, rows, D]; key, value [1, H_kv, num_slots * slot_rows, D]; returns [1, rows, H, D] and no weights.
    """
    if not isinstance(plan, SlotPlan) or plan.kernels is not None:
        return attend(module, query, key, value, attention_mask, scaling, plan, **kwargs)
    outputs = []
    if plan.num_prompt:
        prompt, only_prompt = query[:, :, : plan.num_prompt], replace(plan, has_nodes=False)
        outputs.append(attend(module, prompt, key, value, attention_mask, scaling, only_prompt)[0])
    nodes = query[0, :, plan.num_prompt :]
    heads, count, size = nodes.shape
    kv_heads, width = key.shape[1], plan.slot_mask.shape[-1]
    # The query heads that share a key head stand where a longer query would have its rows.
    grouped = nodes.reshape(kv_heads, heads // kv_heads, count, size).permute(2, 0, 1, 3)  # [nodes, H_kv, group, D]
    out = F.scaled_dot_product_attention(
        grouped, _of_slots(key, plan, width), _of_slots(value, plan, width), attn_mask=plan.slot_mask,
        scale=scaling if scaling is not None else size**-0.5,
    )  # fmt: skip
    outputs.append(out.reshape(1, count, heads, size))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), None


def _of_slots(store: torch.Tensor, plan: SlotPlan, width: int) -> torch.Tensor:
    """store [1, H_kv, num_slots * slot_rows, D] -> [nodes, H_kv, width, D]; copied only while some slots are idle."""
    by_slot = store.view(store.shape[1], plan.num_slots, -1, store.shape[-1])[:, :, :width].transpose(0, 1)
    return by_slot if len(plan.slots) == plan.num_slots else by_slot.index_select(0, plan.slots)


AttentionInterface.register(SLOT_ATTENTION_NAME, attend_slots)


class SlotArena(KVArena):
    """The arena of a batch. `open` chooses the slot that the next prompt goes into.

    A slot keeps its prompt's rows until another prompt is opened there, and lends them to prompts that begin alike.
    """

    def __init__(self, target: TargetModel, num_slots: int, slot_rows: int, *, keeps_states: bool = False) -> None:
        """keeps_states: of a target that captures, what it captured of each row is kept beside keys and values."""
        config = target.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        super().__init__(
            config.num_hidden_layers, config.num_key_value_heads, head_dim, capacity=num_slots * slot_rows,
            dtype=target.dtype, device=target.device, kernels=target.kernels,
        )  # fmt: skip
        self.num_slots = num_slots
        self.slot_rows = slot_rows
        self.capacity = slot_rows  # what the base class may use: it sees the open slot only
        self._prompts: dict[int, np.ndarray] = {}  # slot -> the prompt whose rows it holds
        self._target = target
        self._states: tuple[torch.Tensor, torch.Tensor] | None = None  # captured [rows, 3H], final [rows, H]
        if keeps_states:
            sizes = (len(target.capture_layers) * config.hidden_size, config.hidden_size)
            self._states = tuple(torch.zeros(num_slots * slot_rows, size, dtype=STATE_DTYPE) for size in sizes)

    def open(self, slot: int, prompt_ids: list[int]) -> None:
        """Give the slot to a prompt; its next pass runs what no slot holds of it, the last token at least."""
        assert 0 <= slot < self.num_slots, slot
        prompt = np.asarray(prompt_ids)
        shared = {other: _num_shared(held, prompt) for other, held in self._prompts.items()}
        lender = max(shared, key=shared.__getitem__, default=slot)
        self.side_rows = slot * self.slot_rows  # to the base class everything before is somebody else's
        self.length = min(shared.get(lender, 0), len(prompt) - 1)
        if lender != slot and self.length:
            source = lender * self.slot_rows
            lent, taken = slice(source, source + self.length), slice(self.side_rows, self.side_rows + self.length)
            self._store[:, :, taken] = self._store[:, :, lent]
            for kept in self._states or ():
                kept[taken] = kept[lent]
        self._prompts[slot] = prompt

    def keep_states(self) -> None:
        """Put aside what the target captured in the pass that was just run."""
        rows = self._plan.rows.cpu()
        computed = (self._target.captured_states(), self._target.final_states())
        for kept, fresh in zip(self._states, computed, strict=True):
            kept.index_copy_(0, rows, fresh[: len(rows)].to("cpu", STATE_DTYPE))

    def states_of(self, slot: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Captured [num_rows, 3H] and final [num_rows, H] states of a slot's first rows, as copies."""
        first = slot * self.slot_rows
        captured, final = (kept[first : first + num_rows].clone() for kept in self._states)
        return captured, final

    def plan_prompt(self, tokens: list[int], step: SlotStep | None = None) -> ForwardPlan:
        """The pass over the prompt of the open slot, with the next token of other slots."""
        if step is None:
            return super().plan_prompt(tokens)
        assert self.length + len(tokens) <= self.slot_rows, (self.length, len(tokens), self.slot_rows)
        return self._plan_slots(tokens, step)

    def plan_round(self, step: SlotStep, *, pad_to: int = 0, width: int = 0) -> ForwardPlan:
        """The pass over the next token of several slots. Padding would be a row of some request: there is none."""
        return self._plan_slots([], step)

    def _plan_slots(self, prompt: list[int], step: SlotStep) -> SlotPlan:
        first = self.side_rows + self.length
        slots, lengths = np.asarray(step.slots), np.asarray(step.lengths)
        assert step.slots == sorted(set(step.slots)) and (lengths < self.slot_rows).all(), (step, self.slot_rows)
        positions = np.concatenate([self.length + np.arange(len(prompt)), lengths])
        rows = np.concatenate([first + np.arange(len(prompt)), slots * self.slot_rows + lengths])
        if self._inputs is None:
            integers = torch.from_numpy(np.stack([np.asarray([*prompt, *step.tokens]), positions, rows]))
        else:
            integers = self._inputs.place([*prompt, *step.tokens], positions, rows)
        plan = SlotPlan(first, len(prompt), self.side_rows, *integers, has_nodes=True, kernels=self.kernels)
        seen = lengths + 1  # its own row too
        width = int(seen.max())
        if self.kernels is not None:
            table = slots[:, None] * self.slot_rows + np.arange(width)
            plan.see(self.length, np.where(np.arange(width) < seen[:, None], table, -1), np.zeros(len(slots)))
        else:
            mask = np.arange(width)[None] < seen[:, None]
            plan.slot_mask = torch.from_numpy(mask)[:, None, None].to(self.device)
            plan.slots = torch.from_numpy(slots).to(self.device)
            plan.num_slots = self.num_slots
        self._plan = plan
        return plan


def _num_shared(held: np.ndarray, prompt: np.ndarray) -> int:
    """Tokens that both begin with."""
    size = min(len(held), len(prompt))
    differing = np.flatnonzero(held[:size] != prompt[:size])
    return int(differing[0]) if len(differing) else size
