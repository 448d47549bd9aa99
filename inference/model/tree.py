"""What the stages of a round hand over: the proposed token forest and the path the target accepted.

A forest is one tree owned by MAIN (the committed stream) and any number of trees owned by SIDE branches. Knows token
ids, not text, and no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MAIN = 0


@dataclass
class SideBranch:
    """A private continuation that the target verifies beside MAIN; its tokens never reach the output.

    It sees the first `context` rows of the public stream (prompt and committed tokens) and its own rows, nothing of
    any other branch. Owned by the drafter that opened it; `rows` is kept by the arena.
    """

    key: object
    """The drafter's own name for it."""
    context: int
    """How many rows of the public stream it sees, fixed when it is opened."""
    rows: list[int] = field(default_factory=list)
    """Arena rows of its verified tokens, in order."""
    pending: int | None = None
    """The target's last token for it: known, but not yet in the arena. None before its first round."""
    is_closed: bool = False
    """Set by its drafter when it is not needed any more; the loop gives its rows back then."""


class Proposal:
    """Token nodes in creation order, parents before children. Node 0 is MAIN's root: the last committed token.

    `add` merges: a child with the same token under the same parent is one node, its first source is kept.
    One entry a node: tokens, parents (-1 for the root of a tree), sources, owners (MAIN, or a branch's number in
    `branches` plus one), depths (from 0 at the root of its tree), children (token -> node). One entry a branch:
    side_roots (the first forced node), side_walk_from (the last one).
    """

    def __init__(self, root: int) -> None:
        self.tokens: list[int] = [root]
        self.parents: list[int] = [-1]
        self.sources: list[str] = ["root"]
        self.owners: list[int] = [MAIN]
        self.depths: list[int] = [0]
        self.children: list[dict[int, int]] = [{}]
        self.branches: list[SideBranch] = []
        self.side_roots: list[int] = []
        self.side_walk_from: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_nodes(self) -> int:
        """Proposed nodes: all but MAIN's root."""
        return len(self.tokens) - 1

    def add(self, token: int, parent: int, source: str) -> int:
        """The node that carries `token` under `parent`; made if it is not there yet."""
        known = self.children[parent].get(token)
        return known if known is not None else self._append(token, parent, source, self.owners[parent])

    def add_chain(self, tokens: list[int], parent: int, source: str) -> int:
        """Add tokens one below the other; returns the last node (`parent` when there are none)."""
        for token in tokens:
            parent = self.add(token, parent, source)
        return parent

    def add_side(self, branch: SideBranch, forced: list[int]) -> int:
        """Open the tree of `branch`: `forced` tokens that need no verdict (its prefix, or its pending token).

        Returns the last forced node, from which the target's verdict starts.
        """
        assert forced, "a branch needs at least one token that is not in the arena yet"
        owner = len(self.branches) + 1
        self.branches.append(branch)
        node = self._append(forced[0], -1, "side", owner)
        self.side_roots.append(node)
        for token in forced[1:]:
            node = self._append(token, node, "side", owner)
        self.side_walk_from.append(node)
        return node

    def _append(self, token: int, parent: int, source: str, owner: int) -> int:
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.sources.append(source)
        self.owners.append(owner)
        self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        self.children.append({})
        if parent >= 0:
            self.children[parent][token] = node
        return node

    def ancestors(self) -> tuple[np.ndarray, np.ndarray]:
        """Table [N, D] of each node's path from its tree's root to itself, padded with -1, and depths [N] from 0.

        Built level by level for all nodes at once.
        """
        parents = np.asarray(self.parents, dtype=np.int32)
        levels = [np.arange(len(parents), dtype=np.int32)]
        while (levels[-1] >= 0).any():
            last = levels[-1]
            levels.append(np.where(last >= 0, parents[last], -1))
        upward = np.stack(levels[:-1], axis=1)  # [N, D], self first, then parent, ...
        depth = np.asarray(self.depths, dtype=np.int32)
        column = depth[:, None] - np.arange(upward.shape[1])[None, :]  # root first
        table = np.where(column >= 0, np.take_along_axis(upward, np.maximum(column, 0), axis=1), -1)
        return table.astype(np.int32), depth


@dataclass(frozen=True)
class AcceptedPath:
    """The verdict on MAIN's tree.

    nodes: accepted nodes in depth order, root excluded. bonus: the target's own token after them, None when the
    position must be looked at again in AR's own shape first (its margin is inside the numeric noise).
    """

    nodes: list[int]
    bonus: int | None


@dataclass(frozen=True)
class SideVerdict:
    """What a SIDE branch gained in a round: accepted tokens and the target's own next one."""

    branch: SideBranch
    tokens: list[int]
    nodes: list[int]
    """Nodes whose rows now belong to the branch: the forced ones and the accepted ones."""
