"""The only hot loop: propose, forward, accept, commit, observe. Every lossless method runs through it.

The output is the target's for every drafter; a drafter can only change speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from schemafill.inference.decoding.stop import StopRule
from schemafill.inference.decoding.verify import Choose, accept, accept_side
from schemafill.inference.drafting.drafter import DecodeState, Drafter, Observation
from schemafill.inference.model.kv_arena import KVArena
from schemafill.inference.model.target import TargetModel
from schemafill.inference.model.tree import MAIN, AcceptedPath, Proposal, SideVerdict
from schemafill.inference.request import DecodeStats, RoundTrace


def decode(
    target: TargetModel, arena: KVArena, drafter: Drafter, choose: Choose, state: DecodeState, stop: StopRule,
    stats: DecodeStats, *, threshold: float = 0.0, keep_trace: bool = False,
) -> Iterator[bytes]:
    """Yield the bytes that each round adds to the output's text, until `stop` says that it is over.

    threshold: margins below it are looked at again in AR's own shape (a pass with the root alone, which is never
    doubted). The arena holds the prompt's reused rows, or nothing. Counts into `stats`.
    """
    phases = stats.seconds_by_phase
    is_first, is_recheck = True, False
    while not stop.reason:
        started = perf_counter()  # five readings a round: seconds by phase are part of every result
        wants_draft = not is_recheck and (not is_first or target.shares_prompt_pass)
        proposal = drafter.propose(state) if wants_draft else Proposal(state.root)
        drafted = perf_counter()
        # Output position that each node predicts: the root the next one, a node at depth d the one d further.
        positions = [len(state.output_ids) + depth for depth in proposal.depths]
        if is_first:
            scored = target.forward_prompt(arena, state.prompt_ids, proposal)
        else:
            scored = target.forward(arena, proposal)
        choices, margins = choose(scored.logits, positions)
        verified = perf_counter()
        doubt = threshold if len(proposal) > 1 and not target.is_row_invariant else 0.0
        path = accept(proposal, choices, margins, doubt)
        side = _commit(arena, proposal, path, choices, is_first)
        text, kept = _take(path, proposal, state, stop)
        committed = perf_counter()
        observation = Observation(proposal, path, choices, side, kept)
        rejected = ""
        if wants_draft:  # a drafter hears of its own proposals only
            drafter.observe(state, observation)
            rejected = "" if stop.reason else drafter.why_rejected(state, observation)
        for branch in proposal.branches:
            if branch.is_closed:
                arena.release(branch)
        observed = perf_counter()

        phases["draft"] += drafted - started + observed - committed
        phases["prefill" if is_first else "verify"] += verified - drafted
        phases["other"] += committed - verified
        sources = [*(proposal.sources[node] for node in path.nodes), "target"][:kept]
        _count(stats, proposal, sources, is_recheck, rejected)
        if keep_trace:
            stats.rounds.append(_trace(state, proposal, sources, observed - started, rejected))
        is_first, is_recheck = False, path.bonus is None
        yield text


def _commit(
    arena: KVArena, proposal: Proposal, path: AcceptedPath, choices: list[int], is_prompt: bool
) -> tuple[SideVerdict, ...]:
    """Keep the rows of accepted nodes. The last known token never has a row yet: it is the next round's root."""
    side = []
    for number, branch in enumerate(proposal.branches):
        nodes, tokens, following = accept_side(proposal, number, choices)
        forced = list(range(proposal.side_roots[number], proposal.side_walk_from[number] + 1))
        if arena.keep_side(branch, forced + nodes):
            branch.pending = following
            side.append(SideVerdict(branch, [*tokens, following], forced + nodes))
    if path.bonus is not None:
        arena.commit(path.nodes, root_in_stream=is_prompt)
    elif path.nodes:  # the last accepted token is to be looked at again: it becomes the root
        arena.commit(path.nodes[:-1], root_in_stream=is_prompt)
    return tuple(side)


def _take(path: AcceptedPath, proposal: Proposal, state: DecodeState, stop: StopRule) -> tuple[bytes, int]:
    """Append the path's tokens to the output until it ends; returns the text they add and how many were kept."""
    tokens = [proposal.tokens[node] for node in path.nodes]
    tokens += [] if path.bonus is None else [path.bonus]
    text, kept = b"", 0
    for token in tokens:
        new = stop.take(token)
        state.output_ids.append(token)
        text, kept = text + new, kept + 1
        if stop.reason:
            break
    state.tracker.advance(text)
    return text, kept


def _count(stats: DecodeStats, proposal: Proposal, sources: list[str], is_recheck: bool, rejected: str) -> None:
    """Count a round. sources: where each token that became output came from."""
    stats.verify_calls += 1
    stats.rechecks += is_recheck
    stats.tokens += len(sources)
    stats.nodes += proposal.num_nodes
    for source in sources:
        stats.accepted_by_source[source] = stats.accepted_by_source.get(source, 0) + 1
    if rejected:
        stats.rejections[rejected] = stats.rejections.get(rejected, 0) + 1


def _trace(
    state: DecodeState, proposal: Proposal, sources: list[str], seconds: float, rejected: str
) -> RoundTrace:
    """What a round did, after its tokens became output."""
    token_ids = state.output_ids[len(state.output_ids) - len(sources) :]
    num_side = sum(owner != MAIN for owner in proposal.owners)
    return RoundTrace(token_ids, sources, proposal.num_nodes, num_side, seconds, rejected)
