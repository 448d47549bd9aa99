"""Who sees which row: worked out here by hand for random forests, in both forms that a plan may have."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import visible_rows

from schemafill.inference.model.kv_arena import KVArena
from schemafill.inference.model.tree import Proposal, SideBranch

HEADS, SIZE, LAYERS = 2, 3, 2
STAND_IN = object()
"""For kernels where only the form of the plan matters."""


def arena(capacity: int = 64, side_rows: int = 0, kernels=None) -> KVArena:
    return KVArena(LAYERS, HEADS, SIZE, capacity=capacity, side_rows=side_rows, kernels=kernels)


def write(store: KVArena, tags: list[int]) -> None:
    """Write one row a tag: tag + head / 10 + layer / 100, values negative."""
    base = torch.tensor(tags, dtype=torch.float32)[None, None, :, None]
    heads = torch.arange(HEADS)[None, :, None, None] / 10
    for layer in range(LAYERS):
        rows = (base + heads + layer / 100).expand(1, HEADS, len(tags), SIZE)
        store.update(rows, -rows, layer)


def stream_tags(store: KVArena) -> list[int]:
    """Tags of the public stream, equal in every layer, head and column."""
    return row_tags(store, range(store.side_rows, store.side_rows + store.length))


def row_tags(store: KVArena, rows) -> list[int]:
    tags = set()
    for layer in range(LAYERS):
        for head in range(HEADS):
            for sign, kept in ((1, store.keys), (-1, store.values)):
                part = sign * kept[layer][0, head, list(rows)] - head / 10 - layer / 100
                tags |= {tuple(part[:, column].round().int().tolist()) for column in range(SIZE)}
    assert len(tags) <= 1, "layers, heads or columns went different ways"
    return list(tags.pop()) if tags else []


def prefilled(tokens: int, **options) -> KVArena:
    store = arena(**options)
    store.plan_prompt([0] * tokens)
    write(store, list(range(100, 100 + tokens)))
    store.commit_prompt(tokens)
    return store


def random_forest(seed: int, length: int, branches: list[SideBranch]) -> Proposal:
    """A tree of MAIN and trees of the branches, their nodes in mixed order."""
    draw = random.Random(seed)
    proposal = Proposal(0)
    for branch in branches:
        proposal.add_side(branch, draw.choices(range(9), k=draw.randint(1, 3)))
    for _ in range(draw.randint(0, 20)):
        node = draw.randrange(len(proposal))
        is_forced_inside = any(
            root <= node < walk for root, walk in zip(proposal.side_roots, proposal.side_walk_from, strict=True)
        )
        if not is_forced_inside:
            proposal.add(draw.randrange(9), node, "guess")
    return proposal


def seen_by_hand(proposal: Proposal, node: int, first_row: int, stream_start: int, base: int) -> tuple[set[int], int]:
    """(rows that a node sees, its position): its stream, its branch's rows, its path."""
    path = [node]
    while proposal.parents[path[0]] >= 0:
        path.insert(0, proposal.parents[path[0]])
    owner = proposal.owners[node]
    own = [] if owner == 0 else proposal.branches[owner - 1].rows
    context = base if owner == 0 else proposal.branches[owner - 1].context
    rows = {*range(stream_start, stream_start + context), *own, *(first_row + n for n in path)}
    return rows, context + len(own) + len(path) - 1


@given(st.integers(0, 10_000), st.booleans())
def test_a_node_sees_its_stream_its_branch_and_its_path_and_nothing_else(seed, has_kernels):
    draw = random.Random(seed)
    length, side_rows = draw.randint(1, 12), draw.choice([0, 10])
    store = prefilled(length, side_rows=side_rows, kernels=STAND_IN if has_kernels else None)
    branches = []
    for number in range(draw.randint(0, 3) if side_rows else 0):
        branch = SideBranch(number, context=draw.randint(0, length))
        branch.rows = draw.sample(range(3 * number, 3 * number + 3), draw.randint(0, 3))
        branches.append(branch)
    proposal = random_forest(seed, length, branches)
    plan = store.plan_round(proposal)
    assert plan.first_row == side_rows + length
    visible = visible_rows(plan, side_rows + 64, len(proposal))
    for node in range(len(proposal)):
        rows, position = seen_by_hand(proposal, node, plan.first_row, side_rows, length)
        assert set(np.flatnonzero(visible[node])) == rows
        assert plan.positions[node] == position


@given(st.integers(0, 10_000), st.booleans())
def test_a_proposal_in_the_prompts_pass_hangs_under_its_last_row(seed, has_kernels):
    draw = random.Random(seed)
    reused, fresh = draw.randint(0, 5), draw.randint(1, 6)
    store = arena(side_rows=4, kernels=STAND_IN if has_kernels else None)
    store.length = reused
    branches = [SideBranch(0, context=draw.randint(0, reused + fresh))] if draw.random() < 0.5 else []
    proposal = random_forest(seed, reused + fresh, branches)
    plan = store.plan_prompt([0] * fresh, proposal)
    assert plan.positions[:fresh].tolist() == list(range(reused, reused + fresh))
    if not proposal.num_nodes:
        assert not plan.has_nodes
        return
    last_prompt_row = 4 + reused + fresh - 1
    visible = visible_rows(plan, 4 + 64, len(proposal))
    for node in range(1, len(proposal)):
        rows, position = seen_by_hand(proposal, node, last_prompt_row, 4, reused + fresh - 1)
        assert set(np.flatnonzero(visible[node])) == rows
        assert plan.positions[fresh + node - 1] == position


def test_idle_rows_see_themselves_only_and_change_nobodys_view():
    proposal = Proposal(0)
    proposal.add_chain([1, 2], 0, "guess")
    for kernels in (None, STAND_IN):
        store = prefilled(5, kernels=kernels)
        plain = visible_rows(store.plan_round(proposal), 64, 3)
        plan = store.plan_round(proposal, pad_to=8, width=64)
        padded = visible_rows(plan, 64, 8)
        assert (padded[:3] == plain).all()
        assert [np.flatnonzero(row).tolist() for row in padded[3:]] == [[8], [9], [10], [11], [12]]
        assert plan.positions.shape == (8,)
        if kernels is None:
            assert plan.mask.shape == (1, 1, 8, 64)


def test_inputs_of_passes_of_one_shape_lie_at_the_same_addresses():
    """What a captured graph replays. Rounds differ in every value and in nothing else."""
    store = prefilled(5)
    addresses, inputs = set(), []
    for first_token in (1, 2):
        proposal = Proposal(first_token)
        proposal.add(first_token + 5, proposal.add(first_token + 3, 0, "guess") * (first_token - 1), "guess")
        plan = store.plan_round(proposal, pad_to=4, width=32)
        views = (plan.ids, plan.positions, plan.rows, plan.mask)
        addresses.add(tuple((view.data_ptr(), view.shape, view.stride()) for view in views))
        inputs.append([view.clone() for view in views])
        write(store, [200, 201, 202, 203])
        store.commit([])
    assert len(addresses) == 1
    assert inputs[0][0].tolist() == [1, 4, 6, 0] and inputs[1][0].tolist() == [2, 5, 7, 0]
    assert inputs[0][2].tolist() == [5, 6, 7, 8] and inputs[1][2].tolist() == [6, 7, 8, 9]
    assert not any(torch.equal(one, other) for one, other in zip(*inputs, strict=True))


def test_commit_moves_the_roots_row_and_the_path_behind_the_stream():
    store = prefilled(4, side_rows=3)
    tree = Proposal(0)
    tree.add_chain([1, 2, 3, 4, 5], 0, "guess")
    store.plan_round(tree)
    write(store, [200, 201, 202, 203, 204, 205])
    store.commit([2, 3, 5])
    assert stream_tags(store) == [100, 101, 102, 103, 200, 202, 203, 205]
    store.plan_round(Proposal(0))
    write(store, [300])
    store.commit([])
    assert stream_tags(store)[-2:] == [205, 300]


def test_commit_after_the_prompts_pass_does_not_commit_its_last_row_twice():
    store = arena(side_rows=2)
    tree = Proposal(0)
    tree.add_chain([1, 2, 3], 0, "guess")
    store.plan_prompt([7, 8, 9], tree)
    write(store, [100, 101, 102, 201, 202, 203])
    store.commit_prompt(3)
    store.commit([2, 3], root_in_stream=True)
    assert stream_tags(store) == [100, 101, 102, 202, 203]


@given(st.lists(st.integers(1, 11), unique=True).map(sorted))
def test_commit_of_any_path_keeps_its_rows_in_order(nodes):
    """Rows move onto rows that move themselves; they are read before they are overwritten."""
    store = prefilled(2)
    tree = Proposal(0)
    tree.add_chain(list(range(11)), 0, "guess")
    store.plan_round(tree)
    write(store, list(range(200, 212)))
    store.commit(nodes)
    assert stream_tags(store) == [100, 101, 200, *(200 + node for node in nodes)]


def test_side_rows_are_handed_out_kept_and_given_back():
    store = prefilled(3, side_rows=4)
    first, second = SideBranch("a", context=3), SideBranch("b", context=2)
    proposal = Proposal(0)
    proposal.add_side(first, [1, 2])
    proposal.add_side(second, [3])
    store.plan_round(proposal)
    write(store, [200, 201, 202, 203])
    assert store.keep_side(first, [1, 2]) and store.keep_side(second, [3])
    assert row_tags(store, first.rows) == [201, 202] and row_tags(store, second.rows) == [203]
    assert len({*first.rows, *second.rows}) == 3 and set(first.rows + second.rows) <= set(range(4))
    store.commit([])
    assert stream_tags(store) == [100, 101, 102, 200]
    assert row_tags(store, first.rows) == [201, 202]

    store.release(first)
    assert first.rows == []
    third = SideBranch("c", context=1)
    proposal = Proposal(0)
    proposal.add_side(third, [7, 8, 9])
    store.plan_round(proposal)
    write(store, [300, 301, 302, 303])
    assert store.keep_side(third, [1, 2, 3])
    assert row_tags(store, third.rows) == [301, 302, 303]
    assert row_tags(store, second.rows) == [203]
    assert not set(second.rows) & set(third.rows)


def test_a_full_pool_keeps_nothing_of_a_branch():
    store = prefilled(3, side_rows=2)
    branch = SideBranch("a", context=3)
    proposal = Proposal(0)
    proposal.add_side(branch, [1, 2, 3])
    store.plan_round(proposal)
    write(store, [200, 201, 202, 203])
    assert not store.keep_side(branch, [1, 2, 3])
    assert branch.rows == []
    assert store.keep_side(branch, [1, 2])
    assert not store.keep_side(branch, [3])
    assert row_tags(store, branch.rows) == [201, 202]


def test_branches_do_not_see_each_other_nor_main():
    store = prefilled(3, side_rows=6)
    first, second = SideBranch("a", context=3), SideBranch("b", context=3)
    first.rows, second.rows = [0, 1], [2]
    proposal = Proposal(0)
    proposal.add(5, 0, "copy")
    a = proposal.add_side(first, [1])
    b = proposal.add_side(second, [1])
    visible = visible_rows(store.plan_round(proposal), 70, len(proposal))
    stream, root = {6, 7, 8}, 9
    assert set(np.flatnonzero(visible[a])) == stream | {0, 1, root + a}
    assert set(np.flatnonzero(visible[b])) == stream | {2, root + b}
    assert set(np.flatnonzero(visible[1])) == stream | {root, root + 1}


def test_reset_forgets_the_stream_and_the_branches():
    store = prefilled(5, side_rows=3)
    branch = SideBranch("a", context=2)
    proposal = Proposal(0)
    proposal.add_side(branch, [1, 2, 3])
    store.plan_round(proposal)
    write(store, [1, 2, 3, 4])
    assert store.keep_side(branch, [1, 2, 3])
    store.reset()
    assert store.length == store.get_seq_length() == 0
    fresh = SideBranch("b", context=0)
    store.plan_prompt([0])
    write(store, [9])
    store.commit_prompt(1)
    proposal = Proposal(0)
    proposal.add_side(fresh, [1, 2, 3])
    store.plan_round(proposal)
    write(store, [5, 6, 7, 8])
    assert store.keep_side(fresh, [1, 2, 3])


def test_a_pass_that_does_not_fit_is_refused_before_it_writes():
    store = prefilled(6, capacity=8)
    tree = Proposal(0)
    tree.add(1, 0, "guess")
    store.plan_round(tree)
    tree.add(2, 0, "guess")
    with pytest.raises(AssertionError, match="scratch is full"):
        store.plan_round(tree)
    with pytest.raises(AssertionError, match="scratch is full"):
        store.plan_round(Proposal(0), pad_to=3)
    with pytest.raises(AssertionError):
        store.plan_prompt([0] * 3)
