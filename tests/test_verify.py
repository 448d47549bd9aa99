"""Who chooses a token, and how far a proposal is accepted."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import kernels_or_none

from schemafill.inference.decoding.verify import accept, accept_side, greedy_choice, make_choice, sampled_choice
from schemafill.inference.model.tree import Proposal, SideBranch
from schemafill.inference.request import SamplingParams

LOGITS = torch.tensor([0.3, -0.7, 1.1, 0.0, -2.0, 0.8])
BACKENDS = pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])
SURE = [10.0] * 100


def draws(count: int, *, logits: torch.Tensor = LOGITS, seed: int = 0, **settings) -> list[int]:
    """Tokens drawn at output positions 0, 1, 2, ... from one distribution."""
    choose = sampled_choice(SamplingParams(temperature=settings.pop("temperature", 1.0), seed=seed, **settings))
    return choose(logits.expand(count, -1).contiguous(), range(count))[0]


# -------------------------------------------------------------------------------------------------------------- choices


@BACKENDS
def test_greedy_takes_the_lowest_id_on_ties(has_kernels):
    choose = greedy_choice(kernels_or_none(has_kernels))
    logits = torch.zeros(3, 400)
    logits[0, [399, 17, 250]] = 5.0
    logits[1, [8, 9]] = torch.tensor([2.0, 2.5])
    choices, margins = choose(logits, [0, 1, 2])
    assert choices == [17, 9, 0]
    assert margins == [0.0, 0.5, 0.0]


def test_temperature_zero_is_greedy_and_ignores_the_seed():
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    for seed in (0, 1):
        choices, _ = make_choice(SamplingParams(seed=seed), None)(logits, range(5))
        assert choices == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_sampled_tokens_follow_the_softmax(temperature):
    """Chi-square with five degrees of freedom; 20.5 is passed by chance once in a thousand times."""
    count = 6000
    found = np.bincount(draws(count, temperature=temperature), minlength=6)
    expected = count * torch.softmax(LOGITS.double() / temperature, -1).numpy()
    assert ((found - expected) ** 2 / expected).sum() < 20.5


def test_draws_at_neighbouring_positions_are_independent():
    """Chi-square of pairs (position i, i + 1) against the product; 24 degrees of freedom of 5 x 5, 0.1% at 52."""
    tokens = draws(8000, logits=torch.tensor([0.5, 0.0, -0.5, 0.3, 0.1]))
    pairs = np.zeros((5, 5))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    shares = torch.softmax(torch.tensor([0.5, 0.0, -0.5, 0.3, 0.1]).double(), -1).numpy()
    expected = pairs.sum() * np.outer(shares, shares)
    assert ((pairs - expected) ** 2 / expected).sum() < 52


def test_a_draw_is_fixed_by_seed_and_position_whatever_stands_beside_it():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    choose = sampled_choice(SamplingParams(temperature=1.5, seed=11))
    together, margins = choose(logits, [5, 6, 6, 7])
    for row, position in enumerate([5, 6, 6, 7]):
        choice, margin = choose(logits[row : row + 1], [position])
        assert (choice[0], margin[0]) == (together[row], pytest.approx(margins[row], abs=1e-5))
    assert draws(30) == draws(30)
    assert draws(30) != draws(30, seed=1)
    assert len(set(draws(30, logits=torch.zeros(1000)))) > 20


def test_any_whole_number_is_a_seed_of_its_own():
    """Seeds below zero and beyond 2**63 were once rounded to a float, so that many gave the same draws."""
    seeds = [0, -1, -2, 2**63, 2**63 + 1, 2**64 - 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [tuple(draws(40, seed=seed)) for seed in seeds]
    assert len(set(found)) == len(seeds)
    assert draws(40, seed=-2) == list(found[2])


def test_top_k_keeps_the_likeliest_tokens_in_proportion():
    found = np.bincount(draws(4000, top_k=2), minlength=6)
    assert set(np.flatnonzero(found)) == {2, 5}
    share = torch.softmax(LOGITS[[2, 5]], -1)[0].item()
    assert found[2] / 4000 == pytest.approx(share, abs=0.03)
    assert set(draws(50, top_k=1)) == {2}
    assert draws(200, top_k=6) == draws(200) == draws(200, top_k=600)


@pytest.mark.parametrize(("top_p", "kept"), [(0.3, {2}), (0.6, {2, 5}), (0.7, {2, 5, 0}), (1e-9, {2})])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    """The probabilities are 0.38, 0.28, 0.17, 0.13, 0.06 and 0.02 for tokens 2, 5, 0, 3, 1 and 4."""
    assert set(draws(1500, top_p=top_p)) == kept


def test_top_p_counts_what_top_k_and_temperature_left():
    assert set(draws(1500, top_k=2, top_p=0.55)) == {2}  # 0.57 of the two
    assert set(draws(1500, top_k=2, top_p=0.6)) == {2, 5}
    assert set(draws(1500, temperature=0.2, top_p=0.75)) == {2}


def test_margin_of_a_draw_is_measured_in_logits():
    """The margin tells how much the logits must change for another draw."""
    choose = sampled_choice(SamplingParams(temperature=2.0, seed=4))
    (choice,), (margin,) = choose(LOGITS[None], [3])
    for change, stays in ((0.98 * margin, True), (1.02 * margin, False)):
        changed = LOGITS.clone()
        changed[choice] -= change
        assert (choose(changed[None], [3])[0][0] == choice) == stays


# ---------------------------------------- acceptance


def walk(proposal: Proposal, choices: list[int]) -> tuple[list[int], int]:
    """The slow twin: go on as long as some node carries the choice under the last one."""
    node, nodes = 0, []
    while True:
        wanted = (node, choices[node])
        following = [n for n, pair in enumerate(zip(proposal.parents, proposal.tokens, strict=True)) if pair == wanted]
        if not following:
            return nodes, choices[node]
        nodes.append(following[0])
        node = following[0]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000)), max_size=30),
    st.lists(st.integers(0, 3), min_size=31, max_size=31),
)
def test_the_accepted_path_follows_the_targets_choices(steps, choices):
    proposal = Proposal(0)
    for token, parent in steps:
        proposal.add(token, parent % len(proposal), "guess")
    path = accept(proposal, choices, SURE, 0.0)
    assert (path.nodes, path.bonus) == walk(proposal, choices)


def test_an_empty_proposal_gives_one_token():
    path = accept(Proposal(4), [9], [0.0], 0.0)
    assert (path.nodes, path.bonus) == ([], 9)


def test_a_right_token_under_a_wrong_parent_is_not_accepted():
    proposal = Proposal(0)
    wrong = proposal.add(1, 0, "guess")
    proposal.add(7, wrong, "guess")
    path = accept(proposal, [7, 7, 7], SURE, 0.0)
    assert (path.nodes, path.bonus) == ([], 7)


@pytest.mark.parametrize(
    ("doubtful", "nodes", "bonus"),
    [(0, [], None), (1, [1], None), (2, [1, 2], None), (3, [1, 2, 3], None), (4, [1, 2, 3], 9)],
)
def test_a_close_choice_ends_the_path_without_a_bonus_token(doubtful, nodes, bonus):
    """Also where the doubtful choice happens to agree with a child; a doubtful node off the path changes nothing."""
    proposal = Proposal(0)
    proposal.add_chain([1, 2, 3], 0, "copy")
    proposal.add(8, 0, "guess")
    margins = [0.01 if node == doubtful else 1.0 for node in range(5)]
    path = accept(proposal, [1, 2, 3, 9, 5], margins, 0.05)
    assert (path.nodes, path.bonus) == (nodes, bonus)


def test_a_margin_equal_to_the_threshold_is_trusted():
    assert accept(Proposal(0), [3], [0.5], 0.5).bonus == 3


def test_side_verdicts_start_behind_the_forced_tokens():
    proposal = Proposal(0)
    last = proposal.add_side(SideBranch("a", context=0), [5, 6])
    right = proposal.add(1, last, "side")
    proposal.add(2, last, "side")
    further = proposal.add(3, right, "side")
    other = proposal.add_side(SideBranch("b", context=0), [5])
    choices = [0] * len(proposal)
    choices[1] = 99  # what the target chose behind a forced token does not count
    choices[last], choices[right], choices[further], choices[other] = 1, 3, 4, 8
    assert accept_side(proposal, 0, choices) == ([right, further], [1, 3], 4)
    assert accept_side(proposal, 1, choices) == ([], [], 8)
