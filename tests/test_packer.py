"""Paths as one token tree: the target's own tokens, within the rows that they are worth, and what answers teach."""

from __future__ import annotations

import pytest
from drafting_setup import Setup
from models import byte_level_tokenizer, sentencepiece_tokenizer, weather_tools

from schemafill.inference.drafting.cursor import cursor_of
from schemafill.inference.drafting.packer import TokenTrie, harvest
from schemafill.inference.drafting.paths import Evidence, Part, Path, search_paths
from schemafill.inference.model.tree import Proposal
from schemafill.inference.model.vocabulary import Vocabulary
from schemafill.inference.request import SOURCES
from schemafill.inference.toolcall.dialects import DIALECTS

VOCABULARIES = {
    "split": Vocabulary(byte_level_tokenizer()),
    "joining": Vocabulary(byte_level_tokenizer(is_split=False)),
    "sentencepiece": Vocabulary(sentencepiece_tokenizer()),
}
SETUP = Setup("json", weather_tools())
CURSOR = SETUP.cursor("")
END = 1000
"""An end sign outside the vocabulary."""


def free(rows: int) -> float:
    return 0.0


def path(*parts: tuple[str, float], is_whole: bool = False, number: int = 0) -> Path:
    """A path of (text, probability); parts of the same place and text are the same part."""
    made, text = [], ""
    for part, probability in parts:
        end = len(text) + len(part)
        marks = (len(text), end)
        made.append(Part(hash((number, text, part)), len(text), end, probability, "key", marks, CURSOR))
        text += part
    return Path(text, tuple(made), None, made[-1].probability, is_whole)


def trie(vocabulary: Vocabulary = VOCABULARIES["split"], window: tuple[str, list[int]] = ("", [])) -> TokenTrie:
    return TokenTrie(vocabulary, window, (END,))


def chains(proposal: Proposal) -> list[list[int]]:
    """Tokens of every path from below the root to a leaf."""
    leaves = [node for node in range(len(proposal)) if not proposal.children[node]]
    found = []
    for node in leaves:
        tokens = []
        while node > 0:
            tokens.insert(0, proposal.tokens[node])
            node = proposal.parents[node]
        found.append(tokens)
    return found


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_tree_spells_beginnings_of_the_paths_as_the_target_would_write_them(name, dialect):
    """From every token of an output: each chain joined to what is committed is how the vocabulary splits the whole."""
    vocabulary, setup = VOCABULARIES[name], Setup(dialect, weather_tools())
    whole = setup.header("get_weather") + '"city": "Oslo", "unit": "kelvin", "tags": ["a", "b"]}}'
    ids = vocabulary.continuation(("", []), whole)
    hits = 0
    for at in range(len(ids)):
        tracker = setup.read(vocabulary.text_of(ids[:at]))
        cursor = cursor_of(tracker)
        if cursor is None:
            continue
        tree = trie(vocabulary, vocabulary.window(ids[:at]))
        paths = search_paths(setup.expander, cursor, tracker.place.partial, Evidence())
        for one in paths:
            tree.add(one)
        proposal = Proposal(7)
        packed = tree.pack(proposal, free, 1.0, 96)
        assert len(packed) == len(tree.tracks)
        written = [one.text.encode() for one in paths]
        for tokens in filter(None, chains(proposal)):
            data = b"".join(map(vocabulary.bytes_of, tokens[: len(tokens) - (tokens[-1] == END)]))
            assert any(text.startswith(data[:-1]) for text in written)
        assert set(proposal.sources[1:]) <= set(SOURCES)
        hits += any(tokens[:1] == ids[at : at + 1] for tokens in chains(proposal))
    assert hits > 0.5 * len(ids)


def test_paths_that_begin_alike_share_nodes_and_an_end_sign_closes_a_whole_path():
    tree = trie()
    tree.add(path(('"city": "Oslo"', 0.6), is_whole=True))
    tree.add(path(('"city": "Lisbon"', 0.3), is_whole=True))
    proposal = Proposal(7)
    tree.pack(proposal, free, 1.0, 96)
    found = chains(proposal)
    assert len(found) == 2 and all(tokens[-1] == END for tokens in found)
    assert found[0][:3] == found[1][:3]
    assert proposal.num_nodes < sum(map(len, found))
    assert {VOCABULARIES["split"].text_of(tokens[:-1]) for tokens in found} == {'"city": "Oslo"', '"city": "Lisbon"'}


def test_a_token_that_may_go_on_otherwise_is_not_proposed():
    """Behind `celsius"` more signs may join the quote; behind letters nothing does."""
    for text, kept in (('"unit": "celsius"', '"unit": "celsius'), ('"unit": "celsius', '"unit": "celsius')):
        tree = trie()
        tree.add(path((text, 0.9)))
        proposal = Proposal(7)
        tree.pack(proposal, free, 1.0, 96)
        assert VOCABULARIES["split"].text_of(chains(proposal)[0]) == kept


def test_no_more_nodes_than_allowed_and_the_likeliest_first():
    tree = trie()
    tree.add(path(("The north gate is open", 0.5)))
    tree.add(path(("Oslo and Lisbon", 0.4), number=1))
    sizes = []
    for most in (0, 1, 2, 3, 96):
        proposal = Proposal(7)
        tree.pack(proposal, free, 1.0, most)
        sizes.append(proposal.num_nodes)
        if most == 2:
            assert len(chains(proposal)) == 1
    assert sizes[:4] == [0, 1, 2, 3] and sizes[4] == len(tree.nodes)


def test_nodes_that_cost_more_than_they_save_are_left_out():
    tree = trie()
    tree.add(path(('"city": ', 0.9), ('"Oslo"', 0.2), is_whole=True))
    counts = []
    for row_cost in (0.0, 0.5, 0.95):
        proposal = Proposal(7)
        tree.pack(proposal, lambda rows, cost=row_cost: rows * cost, 1.0, 96)
        counts.append(proposal.num_nodes)
    assert counts[0] == len(tree.nodes) > counts[1] > counts[2] == 0


def test_a_step_in_the_price_is_crossed_where_the_nodes_behind_it_pay_for_it():
    tree = trie()
    tree.add(path(("The north gate is open", 0.9)))
    proposal = Proposal(7)
    tree.pack(proposal, lambda rows: 0.0 if rows < 3 else 2.0, 1.0, 96)
    assert proposal.num_nodes == len(tree.nodes) > 2


def test_chain_only_follows_the_likeliest_child():
    tree = trie()
    tree.add(path(('"city": ', 0.9), ('"Oslo"', 0.3), is_whole=True))
    tree.add(path(('"city": ', 0.9), ('"Lisbon"', 0.5), is_whole=True))
    proposal = Proposal(7)
    tree.pack(proposal, free, 1.0, 96, is_chain_only=True)
    (tokens,) = chains(proposal)
    assert VOCABULARIES["split"].text_of(tokens[:-1]) == '"city": "Lisbon"'


def test_probabilities_of_paths_through_one_node_add_up():
    """Two paths of 0.3 share a beginning that is worth its rows only for both together."""
    tree = trie()
    for city in ("Oslo", "Lisbon"):
        tree.add(path((f'"city": "{city}"', 0.3), is_whole=True))
    proposal = Proposal(7)
    tree.pack(proposal, lambda rows: rows * 0.45, 1.0, 96)
    assert 0 < proposal.num_nodes < len(tree.nodes)


def test_token_chains_carry_their_own_probabilities():
    tree = trie()
    tree.add_tokens([5, 6, 7], [0.9, 0.5, 0.1], "ngram")
    proposal = Proposal(1)
    tree.pack(proposal, lambda rows: rows * 0.3, 1.0, 96)
    assert (proposal.tokens, proposal.sources) == ([1, 5, 6], ["root", "ngram", "ngram"])


def test_probes_are_placed_whole_within_the_limit_or_not_at_all():
    vocabulary = VOCABULARIES["split"]
    value = SETUP.cursor(SETUP.header("get_weather") + '"unit"')
    for most in (0, 2, 4, 8, 96):
        tree = trie()
        tree.add(path(('"city": "Oslo", "days": 3', 0.9)))
        probe = tree.probe('"unit": "')
        tree.keep_probe(probe, '"unit": "', 6, value)
        proposal = Proposal(7)
        tree.pack(proposal, free, 1.0, most)
        assert proposal.num_nodes <= most
        placed = '"unit": "' in map(vocabulary.text_of, chains(proposal))
        assert placed == (most >= len(probe)) and ("probe" in proposal.sources) == placed


def test_answers_behind_rejected_nodes_and_probes_are_noted_as_evidence():
    vocabulary = VOCABULARIES["split"]
    setup = Setup("hermes", weather_tools())
    header = setup.header("get_weather")
    cursor = setup.cursor(header + '"city": "x"')
    value = setup.cursor(header + '"city": "x", "unit"')
    tree = trie()
    probe = tree.probe(', "unit": "')
    tree.keep_probe(probe, ', "unit": "', len(', "unit"'), value)
    proposal = Proposal(7)
    packed = tree.pack(proposal, free, 1.0, 96)
    answer = vocabulary.encode("kelvin")[0]
    choices = [*proposal.tokens[1:], answer]
    evidence = Evidence()
    harvest(packed, proposal, choices, {0}, vocabulary, evidence)
    assert evidence.texts == {value.key: ': "' + vocabulary.text_of([answer])}
    harvest(packed, proposal, choices, set(range(len(proposal))), vocabulary, other := Evidence())
    assert other.texts == {}
    assert cursor.kind == "object"
