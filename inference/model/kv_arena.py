"""The static K/V store of one request at a time, and the attention that reads it.

Rows of every layer's keys and values, by owner:

    [0, side)                         pool of rows verified for SIDE branches, handed out singly
    [side, side + length)             the public stream: prompt and committed tokens, contiguous
    [side + length, side + capacity)  scratch: this round's nodes in proposal order, valid for this round only

Who sees what is decided by ownership and ancestry alone, never by what a row still holds: rejected rows are simply
overwritten. This file is one of the two contact points with transformers (the other is target.py): `KVArena` is the
cache object, `attend` the attention function.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface, Cache

from schemafill.inference.model.cpu_kernels import Kernels
from schemafill.inference.model.tree import Proposal, SideBranch

ATTENTION_NAME = "schemafill_arena"


@dataclass
class ForwardPlan:
    """Where this pass writes and what its rows see. `prompt` rows come first, then the proposal's nodes.

    A proposal's root is the last prompt row in a pass that holds the prompt, else its own first row.
    """

    first_row: int
    num_prompt: int
    positions: torch.Tensor  # [rows]
    stream_start: int
    context: torch.Tensor | None = None  # [nodes] int32: rows of the public stream that a node sees
    more: torch.Tensor | None = None  # [nodes, A] int32: further arena rows, in position order
    more_count: torch.Tensor | None = None  # [nodes] int32
    mask: torch.Tensor | None = None  # [1, 1, nodes, width] bool, only without kernels
    kernels: Kernels | None = None

    @property
    def node_row(self) -> int:
        """Arena row of the proposal's root; node i stands i rows behind it."""
        return self.first_row + max(self.num_prompt - 1, 0)


def attend(module, query, key, value, attention_mask, scaling=None, plan: ForwardPlan | None = None, **kwargs):
    """The attention function registered with transformers.

    query [1, H, rows, D]; key, value [1, H_kv, side + capacity, D]; returns [1, rows, H, D] and no weights.
    """
    assert plan is not None and attention_mask is None
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    outputs = []
    if plan.num_prompt:
        end = plan.first_row + plan.num_prompt
        stream_k, stream_v = key[:, :, plan.stream_start : end], value[:, :, plan.stream_start : end]
        prompt = query[:, :, : plan.num_prompt]
        reused = plan.first_row - plan.stream_start
        rows = torch.arange(plan.num_prompt, device=query.device)[:, None] + reused
        mask = None if reused == 0 else rows >= torch.arange(end - plan.stream_start, device=query.device)[None]
        out = F.scaled_dot_product_attention(
            prompt, stream_k, stream_v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        outputs.append(out.transpose(1, 2))
    if plan.context is not None:
        nodes = query[:, :, plan.num_prompt :]
        if plan.kernels is not None:
            out = plan.kernels.attention(
                nodes[0], key[0], value[0], plan.context, plan.stream_start, plan.more, plan.more_count, scale
            )[None]
        else:
            width = plan.mask.shape[-1]
            out = F.scaled_dot_product_attention(
                nodes, key[:, :, :width], value[:, :, :width], attn_mask=plan.mask, scale=scale, enable_gqa=True
            ).transpose(1, 2)
        outputs.append(out)
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), None


AttentionInterface.register(ATTENTION_NAME, attend)


class KVArena(Cache):
    """Owns keys and values of all layers, [1, H_kv, side + capacity, D] each, and who holds which row."""

    def __init__(
        self, num_layers: int, num_kv_heads: int, head_dim: int, *, capacity: int, side_rows: int = 0,
        dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu", kernels: Kernels | None = None,
    ) -> None:
        shape = (1, num_kv_heads, side_rows + capacity, head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.layers = []  # transformers looks at it; the rows live in the lists above
        self.capacity = capacity
        self.side_rows = side_rows
        self.device = torch.device(device)
        self.kernels = kernels
        self.length = 0
        self._plan: ForwardPlan | None = None
        self._free_side = list(range(side_rows))

    def reset(self) -> None:
        """Forget every row. What the buffers still hold is never visible again."""
        self.length = 0
        self._plan = None
        self._free_side = list(range(self.side_rows))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args, **kwargs):
        """Write this pass's rows; returns the whole store of the layer (the plan says what is visible)."""
        keys, values, first = self.keys[layer_idx], self.values[layer_idx], self._plan.first_row
        rows = key_states.shape[2]
        keys[:, :, first : first + rows] = key_states
        values[:, :, first : first + rows] = value_states
        return keys, values

    def plan_prompt(self, num_prompt: int, proposal: Proposal | None = None) -> ForwardPlan:
        """The pass over the prompt's rows (those not in the arena yet), with a first proposal under its last row."""
        first = self.side_rows + self.length
        assert self.length + num_prompt <= self.capacity, (self.length, num_prompt, self.capacity)
        plan = ForwardPlan(first, num_prompt, torch.arange(self.length, self.length + num_prompt), self.side_rows)
        if proposal is not None and proposal.num_nodes:
            self._see(plan, proposal, base=self.length + num_prompt - 1, skip_root=True)
        plan.positions = plan.positions.to(self.device)
        self._plan = plan
        return plan

    def plan_round(self, proposal: Proposal, *, pad_to: int = 0, width: int = 0) -> ForwardPlan:
        """The pass over a proposal, root included. `pad_to`: idle rows up to this count; `width`: least K/V width."""
        first = self.side_rows + self.length
        plan = ForwardPlan(first, 0, torch.empty(0, dtype=torch.long), self.side_rows)
        self._see(plan, proposal, base=self.length, skip_root=False, pad_to=pad_to, width=width)
        plan.positions = plan.positions.to(self.device)
        self._plan = plan
        return plan

    def _see(
        self, plan: ForwardPlan, proposal: Proposal, *, base: int, skip_root: bool, pad_to: int = 0, width: int = 0
    ) -> None:
        """Fill in positions and visibility of a proposal whose root stands at stream position `base`.

        skip_root: the root is the prompt's last row, which the plan holds already.
        """
        first_node = plan.node_row
        assert first_node + max(len(proposal), pad_to) <= self.side_rows + self.capacity, "scratch is full"
        rows, context, position = self._visible(proposal, first_node, base)
        if skip_root:
            rows, context, position = rows[1:], context[1:], position[1:]
        idle = max(0, pad_to - len(proposal))
        if idle:  # idle rows see themselves only
            own = np.full((idle, rows.shape[1]), -1, dtype=rows.dtype)
            own[:, 0] = first_node + len(proposal) + np.arange(idle)
            rows = np.concatenate([rows, own])
            context = np.concatenate([context, np.zeros(idle, np.int32)])
            position = np.concatenate([position, np.zeros(idle, position.dtype)])
        plan.positions = torch.cat([plan.positions, torch.from_numpy(position.astype(np.int64))])
        plan.context = torch.from_numpy(np.ascontiguousarray(context))
        if self.kernels is not None:
            plan.kernels = self.kernels
            plan.more = torch.from_numpy(np.ascontiguousarray(rows))
            plan.more_count = torch.from_numpy((rows >= 0).sum(axis=1).astype(np.int32))
        else:
            mask = self._mask(rows, context, max(first_node + len(proposal) + idle, width))
            plan.mask = torch.from_numpy(mask)[None, None].to(self.device)

    def _visible(self, proposal: Proposal, first_node: int, base: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What each node sees: further rows [N, A] int32 padded with -1, rows of the stream [N], and its position [N].

        first_node: row of node 0. base: stream position of MAIN's root.
        """
        table, depth = proposal.ancestors()
        rows = np.where(table >= 0, table + first_node, -1)
        context = np.full(len(proposal), base, dtype=np.int32)
        position = base + depth
        if proposal.branches:  # a SIDE node: the branch's own context, the rows it holds, then its path in this tree
            most_held = max(len(branch.rows) for branch in proposal.branches)
            rows = np.pad(rows, ((0, 0), (0, most_held)), constant_values=-1)
            owners = np.asarray(proposal.owners)
            for number, branch in enumerate(proposal.branches, start=1):
                nodes, held = owners == number, len(branch.rows)
                context[nodes] = branch.context
                position[nodes] = branch.context + held + depth[nodes]
                rows[nodes, held : held + table.shape[1]] = rows[nodes, : table.shape[1]]
                rows[nodes, :held] = branch.rows
        return rows, context, position

    def _mask(self, rows: np.ndarray, context: np.ndarray, width: int) -> np.ndarray:
        """The same as a mask [N, width] over arena rows."""
        column = np.arange(width)[None] - self.side_rows
        mask = (column >= 0) & (column < context[:, None])
        node, slot = np.nonzero(rows >= 0)
        mask[node, rows[node, slot]] = True
        return mask

    def commit_prompt(self, num_prompt: int) -> None:
        """The prompt's rows, just run, become part of the public stream."""
        self.length += num_prompt

    def commit(self, nodes: list[int], *, root_in_stream: bool = False) -> None:
        """Make the root's row and the accepted nodes' rows the next rows of the public stream, in this order.

        `root_in_stream`: the root was the prompt's last row, which is committed already.
        """
        node_row = self._plan.node_row
        path = list(nodes) if root_in_stream else [0, *nodes]
        source = [node_row + node for node in path]
        first = self.side_rows + self.length
        wanted = list(range(first, first + len(path)))
        moved = [(s, w) for s, w in zip(source, wanted, strict=True) if s != w]
        if moved:
            self._copy([s for s, _ in moved], [w for _, w in moved])
        self.length += len(path)

    def keep_side(self, branch: SideBranch, nodes: list[int]) -> bool:
        """Move a branch's verified nodes from scratch to the pool. False (nothing kept) when the pool is full."""
        if len(nodes) > len(self._free_side):
            return False
        node_row = self._plan.node_row
        rows = [self._free_side.pop() for _ in nodes]
        self._copy([node_row + node for node in nodes], rows)
        branch.rows.extend(rows)
        return True

    def release(self, branch: SideBranch) -> None:
        """Give a branch's rows back to the pool."""
        self._free_side.extend(branch.rows)
        branch.rows.clear()

    def _copy(self, source: list[int], target: list[int]) -> None:
        source_at = torch.tensor(source, device=self.device)
        target_at = torch.tensor(target, device=self.device)
        for store in (*self.keys, *self.values):
            store[0].index_copy_(1, target_at, store[0].index_select(1, source_at))
