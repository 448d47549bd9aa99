"""Prompt lookup: what followed the last tokens when they stood earlier in the prompt or the output.

Source: Saxena, prompt lookup decoding; parameters of Spec-Bench (n-gram 3 down to 1, ten tokens, first match).
"""

from __future__ import annotations

from schemafill.inference.drafting.drafter import DecodeState, Observation
from schemafill.inference.model.tree import Proposal


def lookup_continuation(
    token_ids: list[int], *, longest: int = 3, shortest: int = 1, length: int = 10, needs_full: bool = True,
    is_latest: bool = False,
) -> list[int]:
    """The tokens behind an earlier occurrence of the list's own end; empty when there is none.

    Longer ends are tried first. `needs_full`: only occurrences with `length` tokens behind them count. The first
    occurrence wins, the last one with `is_latest`.
    """
    for size in range(longest, shortest - 1, -1):
        if len(token_ids) <= size:
            continue
        tail = token_ids[-size:]
        last_start = len(token_ids) - size - (length if needs_full else 1)
        starts = range(last_start, -1, -1) if is_latest else range(last_start + 1)
        for start in starts:
            if token_ids[start] == tail[0] and token_ids[start : start + size] == tail:
                return token_ids[start + size : start + size + length]
    return []


class PromptLookup:
    """The baseline `pld`: one chain, nothing learned."""

    def propose(self, state: DecodeState) -> Proposal:
        proposal = Proposal(state.root)
        draft = lookup_continuation(state.prompt_ids + state.output_ids)
        proposal.add_chain(draft[: state.max_nodes], 0, "ngram")
        return proposal

    def observe(self, state: DecodeState, observation: Observation) -> None:
        return None

    def why_rejected(self, state: DecodeState, observation: Observation) -> str:
        end = observation.path.nodes[-1] if observation.path.nodes else 0
        return "copy differs" if observation.proposal.children[end] else ""
