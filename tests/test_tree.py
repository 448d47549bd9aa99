"""The proposed forest: merging, order, ownership and the table of paths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemafill.inference.model.tree import MAIN, Proposal, SideBranch

STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1_000_000)), max_size=40)


def grown(steps: list[tuple[int, int]]) -> Proposal:
    """A tree from (token, parent modulo size)."""
    proposal = Proposal(9)
    for token, parent in steps:
        proposal.add(token, parent % len(proposal), "guess")
    return proposal


def test_a_new_proposal_is_its_root_alone():
    proposal = Proposal(7)
    assert (len(proposal), proposal.num_nodes, proposal.tokens, proposal.parents) == (1, 0, [7], [-1])


def test_the_same_token_under_the_same_parent_is_one_node_with_its_first_source():
    proposal = Proposal(0)
    first = proposal.add(5, 0, "copy")
    assert proposal.add(5, 0, "guess") == first
    assert proposal.sources[first] == "copy"
    assert proposal.add(5, first, "guess") != first
    assert proposal.num_nodes == 2


def test_chains_share_their_beginning():
    proposal = Proposal(0)
    last = proposal.add_chain([1, 2, 3], 0, "copy")
    other = proposal.add_chain([1, 2, 4], 0, "key")
    assert proposal.num_nodes == 4
    assert proposal.parents[last] == proposal.parents[other]
    assert proposal.sources == ["root", "copy", "copy", "copy", "key"]
    assert proposal.add_chain([], other, "key") == other


@given(STEPS)
def test_parents_come_before_children_and_no_siblings_are_alike(steps):
    proposal = grown(steps)
    assert all(parent < node for node, parent in enumerate(proposal.parents))
    pairs = list(zip(proposal.parents, proposal.tokens, strict=True))
    assert len(set(pairs)) == len(pairs)
    for node, children in enumerate(proposal.children):
        expected = {proposal.tokens[c]: c for c in range(len(proposal)) if proposal.parents[c] == node}
        assert children == expected


@given(STEPS, st.lists(st.integers(1, 4), max_size=3))
def test_table_of_ancestors_equals_walking_up(steps, forced_lengths):
    proposal = grown(steps)
    for number, length in enumerate(forced_lengths):
        last = proposal.add_side(SideBranch(number, context=1), list(range(length)))
        proposal.add_chain([1, 2], last, "side")
    table, depth = proposal.ancestors()
    for node in range(len(proposal)):
        path = [node]
        while proposal.parents[path[0]] >= 0:
            path.insert(0, proposal.parents[path[0]])
        assert depth[node] == proposal.depths[node] == len(path) - 1
        assert table[node].tolist() == path + [-1] * (table.shape[1] - len(path))


def test_side_trees_have_owners_forced_nodes_and_a_place_where_the_verdict_starts():
    proposal = Proposal(0)
    main = proposal.add(1, 0, "copy")
    first, second = SideBranch("a", context=3), SideBranch("b", context=2)
    a = proposal.add_side(first, [10, 11])
    b = proposal.add_side(second, [10])
    child = proposal.add(12, a, "side")
    assert proposal.owners == [MAIN, MAIN, 1, 1, 2, 1]
    assert proposal.branches == [first, second]
    assert proposal.side_roots == [2, 4]
    assert proposal.side_walk_from == [a, b] == [3, 4]
    assert [proposal.parents[node] for node in (main, 2, a, b, child)] == [0, -1, 2, -1, a]
    assert proposal.add(1, 0, "guess") == main
