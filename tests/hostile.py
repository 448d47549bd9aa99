"""Drafters that no method would use: random trees, right tokens among wrong ones, SIDE branches, ends inside drafts."""

from __future__ import annotations

import random

import pytest

from schemafill.inference.decoding.methods import METHODS, Method
from schemafill.inference.drafting.drafter import DecodeState, Observation
from schemafill.inference.model.tree import Proposal, SideBranch

SHAPES = ("random", "deep", "wide", "mixed", "ends")


class HostileDrafter:
    """Draws a new tree every round. `right_ids` is the target's own output as far as it is known.

    shape: `random` any tree of any tokens; `deep` one long chain of right tokens, wrong from some depth on; `wide`
    many children of every node on the right path; `mixed` all of these, right tokens under wrong parents too; `ends`
    end signs on, beside and behind the right path.
    """

    def __init__(
        self, right_ids: list[int], vocab_size: int, *, shape: str, seed: int = 0, has_side: bool = True
    ) -> None:
        self.right_ids, self.vocab_size, self.shape = right_ids, vocab_size, shape
        self.has_side = has_side
        self.random = random.Random(f"{shape}/{seed}")
        self.branches: list[SideBranch] = []
        self.histories: dict[int, list[int]] = {}
        """Whole token text of each branch by its place in `branches`, the pending token included."""
        self.verdicts: list[tuple[list[int], list[int]]] = []
        """(everything a branch saw before, tokens that the target gave it), one entry a verdict."""
        self.observations: list[Observation] = []

    def propose(self, state: DecodeState) -> Proposal:
        proposal = Proposal(state.root)
        right = self.right_ids[len(state.output_ids) :]
        if state.is_chain_only:
            self._chain(proposal, right, state.max_nodes)
            return proposal
        room = self.random.choice((1, 2, 7, 16, 40, state.max_nodes))
        side_room = min(room // 3, 12) if self.has_side else 0
        self._tree(proposal, right, room - side_room, state)
        while side_room > 0 and proposal.num_nodes < state.max_nodes:
            side_room -= self._side(proposal, state, side_room)
        assert proposal.num_nodes <= state.max_nodes
        return proposal

    def observe(self, state: DecodeState, observation: Observation) -> None:
        self.observations.append(observation)
        for verdict in observation.side:
            place = self.branches.index(verdict.branch)
            self.verdicts.append((list(self.histories[place]), list(verdict.tokens)))
            self.histories[place] += verdict.tokens
            verdict.branch.is_closed = self.random.random() < 0.2

    def why_rejected(self, state: DecodeState, observation: Observation) -> str:
        last = observation.path.nodes[-1] if observation.path.nodes else 0
        return "hostile" if observation.proposal.children[last] else ""

    def _token(self) -> int:
        return self.random.randrange(self.vocab_size)

    def _chain(self, proposal: Proposal, right: list[int], most: int) -> None:
        length = self.random.randint(0, most)
        wrong_from = self.random.randint(0, max(1, length))
        chain = [*right[:wrong_from], *(self._token() for _ in range(length))][:length]
        proposal.add_chain(chain, 0, "guess")

    def _tree(self, proposal: Proposal, right: list[int], room: int, state: DecodeState) -> None:
        shape = self.random.choice(SHAPES[:3]) if self.shape == "mixed" else self.shape
        if shape == "deep":
            self._chain(proposal, right, room)
        elif shape == "wide":
            node = 0
            for token in [*right[: room // 6], None]:
                for _ in range(5):
                    if proposal.num_nodes < room:
                        proposal.add(self._token(), node, "guess")
                if token is not None and proposal.num_nodes < room:
                    node = proposal.add(token, node, "copy")
        elif shape == "ends":
            node = 0
            for token in [*right[: room // 3], *state.end_ids]:
                if proposal.num_nodes + 3 > room:
                    break
                behind = proposal.add(self.random.choice(state.end_ids), node, "close")
                proposal.add(self.random.choice([token, self._token()]), behind, "guess")
                node = proposal.add(token, node, "copy")
        if shape == "random" or self.shape == "mixed":
            for _ in range(room - proposal.num_nodes):
                token = self.random.choice([self._token(), *right[:4], *state.end_ids])
                proposal.add(token, self.random.randrange(len(proposal)), "ngram")

    def _side(self, proposal: Proposal, state: DecodeState, room: int) -> int:
        """Add a branch's tree, a known branch or a new one; returns how many nodes it took."""
        before = len(proposal)
        stream = state.prompt_ids + state.output_ids
        known = [place for place, branch in enumerate(self.branches) if branch.pending is not None]
        known = [place for place in known if not self.branches[place].is_closed]
        known = [place for place in known if self.branches[place] not in proposal.branches]
        if known and self.random.random() < 0.6:
            place = self.random.choice(known)
            branch, forced = self.branches[place], [self.branches[place].pending]
        else:
            context = self.random.randrange(len(stream))  # the root's row is not in the stream yet
            branch = SideBranch(key=len(self.branches), context=context)
            forced = [self._token() for _ in range(self.random.randint(1, max(1, room // 2)))]
            self.branches.append(branch)
            self.histories[len(self.branches) - 1] = stream[:context] + forced
        last = proposal.add_side(branch, forced)
        for _ in range(min(2, room - len(forced))):
            last = proposal.add(self._token(), last, "side")
        return len(proposal) - before


def install_hostile(
    monkeypatch: pytest.MonkeyPatch, right_ids: list[int], vocab_size: int, *, shape: str, seed: int = 0,
    has_side: bool = True,
) -> list[HostileDrafter]:  # fmt: skip
    """Make a hostile drafter available as the method `hostile`; the list fills with one drafter a request."""
    made: list[HostileDrafter] = []

    def make(state: DecodeState) -> HostileDrafter:
        made.append(HostileDrafter(right_ids, vocab_size, shape=shape, seed=seed, has_side=has_side))
        return made[-1]

    monkeypatch.setitem(METHODS, "hostile", Method("test", make))
    return made


class BlockDrafter:
    """Proposes a fixed continuation in blocks of `length` tokens, whatever was accepted of it before."""

    def __init__(self, draft_ids: list[int], length: int) -> None:
        self.draft_ids, self.length = draft_ids, length

    def propose(self, state: DecodeState) -> Proposal:
        proposal = Proposal(state.root)
        start = len(state.output_ids)
        proposal.add_chain(self.draft_ids[start : start + self.length], 0, "copy")
        return proposal

    def observe(self, state: DecodeState, observation: Observation) -> None:
        return None

    def why_rejected(self, state: DecodeState, observation: Observation) -> str:
        return ""


def install_blocks(monkeypatch: pytest.MonkeyPatch, draft_ids: list[int], length: int) -> None:
    """Make a `BlockDrafter` available as the method `blocks`."""
    monkeypatch.setitem(METHODS, "blocks", Method("test", lambda state: BlockDrafter(draft_ids, length)))
