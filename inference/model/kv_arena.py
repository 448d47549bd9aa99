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
from schemafill.inference.model.static_inputs import StaticInputs
from schemafill.inference.model.tree import Proposal, SideBranch

ATTENTION_NAME = "schemafill_arena"


@dataclass
class ForwardPlan:
    """Where this pass writes and what its rows see. `prompt` rows come first, then the proposal's nodes.

    A proposal's root is the last prompt row in a pass that holds the prompt, else its own first row.
    """

    first_row: int
    num_prompt: int
    stream_start: int
    ids: torch.Tensor  # [rows]
    positions: torch.Tensor  # [rows]
    rows: torch.Tensor  # [rows] where their keys and values go, first_row onwards
    has_nodes: bool = False
    kernels: Kernels | None = None
    # With kernels, what every row sees, those of the prompt too; without, what nodes see.
    context: torch.Tensor | None = None  # [rows] int32: rows of the public stream that a row sees
    more: torch.Tensor | None = None  # [rows, A] int32: further arena rows, in position order
    more_count: torch.Tensor | None = None  # [rows] int32
    mask: torch.Tensor | None = None  # [1, 1, nodes, width] bool

    @property
    def node_row(self) -> int:
        """Arena row of the proposal's root; node i stands i rows behind it."""
        return self.first_row + max(self.num_prompt - 1, 0)

    def see(self, length: int, rows: np.ndarray, context: np.ndarray) -> None:
        """Tell the kernels who sees what. A prompt row sees the stream up to itself, whichever part of it runs now.

        length: rows of the stream before this pass. rows [nodes, A] int32, -1 for none, and context [nodes]: as
        `KVArena._visible` has them.
        """
        own = np.arange(length + 1, length + self.num_prompt + 1, dtype=np.int32)
        more = np.pad(rows, ((self.num_prompt, 0), (0, 0)), constant_values=-1).astype(np.int32)
        self.context = torch.from_numpy(np.concatenate([own, context]).astype(np.int32))
        self.more = torch.from_numpy(more)
        self.more_count = torch.from_numpy((more >= 0).sum(axis=1).astype(np.int32))


def attend(module, query, key, value, attention_mask, scaling=None, plan: ForwardPlan | None = None, **kwargs):
    """The attention function registered with transformers.

    query [1, H, rows, D]; key, value [1, H_kv, side + capacity, D]; returns [1, rows, H, D] and no weights.
    """
    assert plan is not None and attention_mask is None
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if plan.kernels is not None:
        seen = (plan.context, plan.stream_start, plan.more, plan.more_count)
        return plan.kernels.attention(query[0], key[0], value[0], *seen, scale)[None], None
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
    if plan.has_nodes:
        nodes, width = query[:, :, plan.num_prompt :], plan.mask.shape[-1]
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
        self._store = torch.zeros((2 * num_layers, *shape[1:]), dtype=dtype, device=device)
        self.keys = [self._store[2 * layer][None] for layer in range(num_layers)]
        self.values = [self._store[2 * layer + 1][None] for layer in range(num_layers)]
        self.layers = []  # transformers looks at it; the rows live in the lists above
        self.capacity = capacity
        self.side_rows = side_rows
        self.device = torch.device(device)
        self.kernels = kernels
        self.length = 0
        self._inputs = StaticInputs(capacity, side_rows + capacity, self.device) if kernels is None else None
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
        keys, values, rows = self.keys[layer_idx], self.values[layer_idx], self._plan.rows
        keys.index_copy_(2, rows, key_states)
        values.index_copy_(2, rows, value_states)
        return keys, values

    def plan_prompt(self, tokens: list[int], proposal: Proposal | None = None) -> ForwardPlan:
        """The pass over the prompt's rows (those not in the arena yet), with a first proposal under its last row."""
        assert self.length + len(tokens) <= self.capacity, (self.length, len(tokens), self.capacity)
        position = np.arange(self.length, self.length + len(tokens))
        if proposal is None or not proposal.num_nodes:
            return self._plan_pass(len(tokens), tokens, position)
        base = self.length + len(tokens) - 1
        rows, context, node_position = self._visible(proposal, self.side_rows + base, base)
        return self._plan_pass(
            len(tokens), tokens + proposal.tokens[1:], np.concatenate([position, node_position[1:]]),
            (rows[1:], context[1:]),  # the root is the prompt's last row
        )  # fmt: skip

    def plan_round(self, proposal: Proposal, *, pad_to: int = 0, width: int = 0) -> ForwardPlan:
        """The pass over a proposal, root included. `pad_to`: idle rows up to this count; `width`: least K/V width."""
        first, idle = self.side_rows + self.length, max(0, pad_to - len(proposal))
        rows, context, position = self._visible(proposal, first, self.length)
        if idle:  # idle rows see themselves only
            own = np.full((idle, rows.shape[1]), -1, dtype=rows.dtype)
            own[:, 0] = first + len(proposal) + np.arange(idle)
            rows = np.concatenate([rows, own])
            context = np.concatenate([context, np.zeros(idle, np.int32)])
            position = np.concatenate([position, np.zeros(idle, position.dtype)])
        return self._plan_pass(0, proposal.tokens + [0] * idle, position, (rows, context), width)

    def _plan_pass(
        self, num_prompt: int, tokens: list[int], position: np.ndarray,
        seen: tuple[np.ndarray, np.ndarray] | None = None, width: int = 0,
    ) -> ForwardPlan:
        """Put a pass's inputs where it reads them. seen: `rows` and `context` of its nodes, as `_visible` has them."""
        first = self.side_rows + self.length
        assert first + len(tokens) <= self.side_rows + self.capacity, "scratch is full"
        written = np.arange(first, first + len(tokens))
        if self._inputs is None:
            integers = torch.from_numpy(np.stack([np.asarray(tokens), position, written]))
        else:
            integers = self._inputs.place(tokens, position, written)
        plan = ForwardPlan(first, num_prompt, self.side_rows, *integers, kernels=self.kernels)
        plan.has_nodes = seen is not None
        if self.kernels is not None:
            plan.see(self.length, *(seen or (np.empty((0, 1), np.int32), np.empty(0, np.int32))))
        elif seen is not None:
            plan.mask = self._inputs.place_mask(self._mask(*seen, max(first + len(tokens), width)))
        self._plan = plan
        return plan

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
        source_at, target_at = torch.tensor([source, target], device=self.device)
        self._store.index_copy_(2, target_at, self._store.index_select(2, source_at))
