"""Prompt lookup: which earlier occurrence is copied, and how far."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from schemafill.inference.drafting.lookup import PromptLookup, lookup_continuation


def test_what_followed_the_same_tokens_is_copied():
    assert lookup_continuation([1, 2, 3, 4, 5, 6, 1, 2, 3], length=2) == [4, 5]


def test_the_longest_ending_is_tried_first():
    ids = [9, 3, 70, 70, 1, 2, 3, 80, 80, 1, 2, 3]
    assert lookup_continuation(ids, length=2) == [80, 80]
    assert lookup_continuation(ids, length=2, longest=1) == [70, 70]
    assert lookup_continuation(ids, length=2, shortest=3, longest=3) == [80, 80]


def test_the_first_or_the_latest_occurrence():
    ids = [5, 1, 1, 5, 2, 2, 5]
    assert lookup_continuation(ids, longest=1, length=2) == [1, 1]
    assert lookup_continuation(ids, longest=1, length=2, is_latest=True) == [2, 2]


def test_short_continuations_count_only_where_they_are_asked_for():
    ids = [5, 1, 5]
    assert lookup_continuation(ids, length=4) == []
    assert lookup_continuation(ids, length=4, needs_full=False) == [1, 5]


def test_the_ending_does_not_find_itself():
    assert lookup_continuation([1, 2, 3, 4], needs_full=False) == []
    assert lookup_continuation([], needs_full=False) == []
    assert lookup_continuation([1]) == []
    assert lookup_continuation([7, 7], length=1, needs_full=False) == [7]


@given(
    st.lists(st.integers(0, 3), max_size=30), st.integers(1, 5), st.booleans(), st.booleans(), st.integers(1, 4)
)
def test_lookup_equals_trying_every_place(ids, length, needs_full, is_latest, longest):
    expected = []
    for size in range(longest, 0, -1):
        places = [
            start
            for start in range(len(ids) - size)
            if ids[start : start + size] == ids[-size:] and len(ids) - start - size >= (length if needs_full else 1)
        ]
        if places:
            start = places[-1] if is_latest else places[0]
            expected = ids[start + size : start + size + length]
            break
    found = lookup_continuation(ids, length=length, needs_full=needs_full, is_latest=is_latest, longest=longest)
    assert found == expected


def test_the_method_proposes_one_chain_of_ten_tokens_over_prompt_and_output():
    state = SimpleNamespace(prompt_ids=[*range(20), 50], output_ids=[51, 3], root=3, max_nodes=96)
    proposal = PromptLookup().propose(state)
    assert proposal.tokens == [3, *range(4, 14)]
    assert proposal.parents == list(range(-1, 10))
    state.max_nodes = 4
    assert PromptLookup().propose(state).num_nodes == 4
