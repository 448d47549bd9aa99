"""Who chooses a token, and how far a proposal is accepted. Pure functions of logits and trees.

The rule is the same for every method: at a node the target's own token is determined (argmax, or a draw fixed by seed
and position), the walk goes to the child that carries it, and where no child does, that token is committed.
For proposals that are fixed before the draw this is the accept/residual rule of speculative sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from schemafill.inference.model.cpu_kernels import Kernels
from schemafill.inference.model.tree import AcceptedPath, Proposal
from schemafill.inference.request import SamplingParams

Choose = Callable[[torch.Tensor, Sequence[int]], tuple[list[int], list[float]]]
"""logits [N, V] float32 and the output position that each row predicts -> token ids and margins to the runner-up."""


def greedy_choice(kernels: Kernels | None) -> Choose:
    """argmax, lowest id on ties; one device-to-host transfer."""

    def choose(logits: torch.Tensor, positions: Sequence[int]) -> tuple[list[int], list[float]]:
        if kernels is not None:
            choice, margin = kernels.top_two(logits)
            return choice.tolist(), margin.tolist()
        first = logits.argmax(dim=-1)  # of equal values the first, which topk does not promise
        values = logits.topk(2, dim=-1).values
        packed = torch.stack([first.double(), (values[:, 0] - values[:, 1]).double()]).tolist()
        return [int(index) for index in packed[0]], packed[1]

    return choose


def sampled_choice(params: SamplingParams) -> Choose:
    """A draw from the target's distribution after temperature, top-k and top-p, fixed by (seed, position).

    Gumbel-max: the token with the largest logit / T + g, where g depends on seed, position and token only. So every
    method draws the same token at a position, whatever it proposed before.
    Margins are differences of those sums times T: comparable with differences of logits.
    """

    def choose(logits: torch.Tensor, positions: Sequence[int]) -> tuple[list[int], list[float]]:
        vocab = logits.shape[-1]
        scores = (logits - logits.max(dim=-1, keepdim=True).values) / params.temperature  # best 0: no overflow
        scores = _filtered(scores, params.top_k, params.top_p)
        noise = {position: _gumbel(params.seed, position, vocab) for position in set(positions)}
        stacked = torch.from_numpy(np.stack([noise[position] for position in positions]))
        values, ids = (scores + stacked.to(scores.device)).topk(2, dim=-1)
        margin = (values[:, 0] - values[:, 1]) * params.temperature
        packed = torch.stack([ids[:, 0].double(), margin.double()]).tolist()
        return [int(index) for index in packed[0]], packed[1]

    return choose


def make_choice(params: SamplingParams, kernels: Kernels | None) -> Choose:
    return sampled_choice(params) if params.temperature > 0 else greedy_choice(kernels)


def _gumbel(seed: int, position: int, vocab: int) -> np.ndarray:
    key = np.array([seed & (2**64 - 1), position], dtype=np.uint64)  # without the type, large seeds become floats
    generator = np.random.Generator(np.random.Philox(key=key))
    uniform = generator.random(vocab, dtype=np.float32)
    return -np.log(-np.log(np.clip(uniform, 1e-20, 1 - 1e-7)))


def _filtered(scores: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """scores [N, V] with everything outside the top k and the smallest set of mass top_p at minus infinity."""
    if top_k and top_k < scores.shape[-1]:
        least = scores.topk(top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, float("-inf"))
    if top_p < 1:
        ranked, order = scores.sort(dim=-1, descending=True)
        mass_before = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1)
        outside = mass_before >= top_p
        outside[:, 0] = False  # the best token stays, however small top_p is
        drop = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, outside)
        scores = scores.masked_fill(drop, float("-inf"))
    return scores


def accept(proposal: Proposal, choices: Sequence[int], margins: Sequence[float], threshold: float) -> AcceptedPath:
    """The longest path from MAIN's root on which every token is the target's own choice, and the token after it.

    A choice whose margin is below `threshold` is not trusted: the path ends there without a bonus token.
    Source: Leviathan et al. 2023, arXiv 2211.17192; trees as in SpecInfer, arXiv 2305.09781.
    """
    node, nodes = 0, []
    while True:
        if margins[node] < threshold:
            return AcceptedPath(nodes, None)
        child = proposal.children[node].get(choices[node])
        if child is None:
            return AcceptedPath(nodes, choices[node])
        nodes.append(child)
        node = child


def accept_side(proposal: Proposal, branch: int, choices: Sequence[int]) -> tuple[list[int], list[int], int]:
    """Verdict on the tree of SIDE branch number `branch`: accepted nodes, their tokens, the target's next token."""
    node, nodes = proposal.side_walk_from[branch], []
    while (child := proposal.children[node].get(choices[node])) is not None:
        nodes.append(child)
        node = child
    return nodes, [proposal.tokens[n] for n in nodes], choices[node]
