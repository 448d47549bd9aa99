"""SchemaFill without a head: one drafter that joins every head-free source.

A round: where the output stands (tracker) -> likely continuations as texts (paths, weighed by evidence) -> one token
tree under the row budget (packer). Where no structure is known, what followed the same tokens before (lookup).
"""

from __future__ import annotations

from dataclasses import dataclass

from schemafill.inference.drafting.drafter import DecodeState, Observation
from schemafill.inference.drafting.lookup import lookup_continuation
from schemafill.inference.drafting.options import Expander, cursor_of
from schemafill.inference.drafting.packer import PackedPath, TokenTrie, harvest
from schemafill.inference.drafting.paths import Evidence, search_paths
from schemafill.inference.drafting.values import ValueGuesser
from schemafill.inference.model.tree import Proposal
from schemafill.inference.toolcall.forecast import rank_tools

EXPECTED_LENGTH = 9.0
"""Accepted length that prices a token: seconds of one plain step over this are what an accepted token saves."""


@dataclass(frozen=True, kw_only=True)
class SlotFillConfig:
    """Sources that can be switched off, for ablation."""

    uses_evidence: bool = True
    """The target's own choices behind nodes that were not accepted."""
    uses_lookup: bool = True
    """N-gram copies where no structure is known."""
    uses_siblings: bool = True
    """Alternatives at decision points; off: the likeliest chain only."""


class SlotFill:
    """One request's drafter."""

    def __init__(self, config: SlotFillConfig, state: DecodeState) -> None:
        self.config = config
        self.side_rows = 0
        self._evidence = Evidence()
        ranking = rank_tools(state.catalog, state.request_text) if state.catalog.tools else []
        self._expander = Expander(
            state.dialect, state.catalog, ranking, state.styles.guesses(), ValueGuesser(state.request_text), ""
        )
        self._packed: list[PackedPath] = []

    def propose(self, state: DecodeState) -> Proposal:
        proposal = Proposal(state.root)
        self._packed = []
        trie = TokenTrie(state.vocabulary, state.vocabulary.window(self._tail(state)), state.end_ids)
        tracker = state.tracker
        self._expander.is_style_known = tracker.state.is_style_seen
        cursor = cursor_of(tracker.place, tracker.state.calls, tracker.state.style, state.catalog)
        if cursor is not None and cursor.kind != "done" and (trie.window[1] or not state.output_ids):
            for path in search_paths(self._expander, cursor, tracker.place.partial, self._evidence):
                trie.add(path)
        if self.config.uses_lookup and not any(nodes for _, _, nodes, _ in trie.tracks) and state.output_ids:
            draft = lookup_continuation(
                state.prompt_ids + state.output_ids, longest=6, length=8, needs_full=False, is_latest=True
            )
            trie.add_tokens(draft, [0.55 * 0.8**i for i in range(len(draft))], "ngram")
        is_first = not state.output_ids
        price = (lambda rows: rows * state.latency.prompt_row_s) if is_first else state.latency
        self._packed = trie.pack(
            proposal, price, state.latency(1) / EXPECTED_LENGTH, state.max_nodes,
            is_chain_only=state.is_chain_only or not self.config.uses_siblings,
        )
        return proposal

    def observe(self, state: DecodeState, observation: Observation) -> None:
        if self.config.uses_evidence:
            accepted = {0, *observation.path.nodes}
            harvest(self._packed, observation.proposal, observation.choices, accepted, state.vocabulary, self._evidence)

    def why_rejected(self, state: DecodeState, observation: Observation) -> str:
        """The kind of spot at which the target went another way, and whether anything was proposed there."""
        last = observation.path.nodes[-1] if observation.path.nodes else 0
        proposal = observation.proposal
        spot = next(
            (part.spot[0] for item in self._packed if last in item.nodes or last == 0
             for part in item.path.parts if part.end > _end_of(item, last)), "none",
        )  # fmt: skip
        return f"{spot}: {'other' if proposal.children[last] else 'nothing proposed'}"

    def _tail(self, state: DecodeState) -> list[int]:
        """Committed tokens that a proposal is tokenised with."""
        return (state.prompt_ids + state.output_ids)[-8:]


def _end_of(item: PackedPath, node: int) -> int:
    return item.ends[item.nodes.index(node)] if node in item.nodes else 0
