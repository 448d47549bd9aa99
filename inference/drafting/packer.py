"""Paths of text -> one token tree under a row budget, and what the target's answers say about the paths.

A path is tokenised as a whole together with the committed tail, so that every token is the one the target would see
there; paths that share a beginning share its nodes. Nodes are kept by value: the chance that a node is accepted, times
what an accepted token saves, against what its row costs on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from schemafill.inference.drafting.cursor import Cursor
from schemafill.inference.drafting.paths import Evidence, Part, Path
from schemafill.inference.model.tree import Proposal
from schemafill.inference.model.vocabulary import Vocabulary


@dataclass
class _Node:
    """One token of the trie. `parent` is a number in `TokenTrie.nodes`, -1 under the root."""

    token: int
    parent: int
    source: str
    parts: dict[int, float]
    """Probability of each distinct part that covers it: parts of different paths exclude each other."""

    @property
    def probability(self) -> float:
        return min(1.0, sum(self.parts.values()))


@dataclass
class PackedPath:
    """A path as far as it is in the trie, later in the proposal: its nodes and where in its text each of them ends."""

    path: Path
    data: bytes
    """The path's text in UTF-8."""
    nodes: list[int]
    ends: list[int]
    """In bytes; the last may lie behind the text's end by what was read ahead."""

    def holds(self, node: int) -> bool:
        """Whether the path goes through a node of the proposal (all go through the root)."""
        return node == 0 or node in self.nodes

    def spot_behind(self, node: int) -> str:
        """The kind of spot to which the first text behind a node belongs."""
        end = self.ends[self.nodes.index(node)] if node else 0
        return next((part.cursor.kind for part in self.path.parts if part.end > end), "end")

    def byte_at(self, char: int) -> int:
        """Characters of the path's text -> bytes; places before the text count as its start."""
        char = max(0, char)
        return char if len(self.data) == len(self.path.text) else len(self.path.text[:char].encode())

    def char_at(self, byte: int) -> int:
        """Bytes of the path's text -> whole characters."""
        return byte if len(self.data) == len(self.path.text) else len(self.data[:byte].decode("utf-8", "ignore"))


class TokenTrie:
    """All paths of a round as one trie of tokens, before the budget cuts it."""

    def __init__(self, vocabulary: Vocabulary, window: tuple[str, list[int]], end_ids: Sequence[int]) -> None:
        self.vocabulary, self.window, self.end_ids = vocabulary, window, end_ids
        self.nodes: list[_Node] = []
        self.children: dict[tuple[int, int], int] = {}
        self.tracks: list[PackedPath] = []
        self.kept_probes: set[int] = set()

    def add(self, path: Path) -> None:
        """Tokenise a path and merge it in."""
        tokens = self.vocabulary.continuation(self.window, path.text + _lookahead(path))
        spelt = list(map(self.vocabulary.bytes_of, tokens))
        ends = list(accumulate(map(len, spelt)))
        track = PackedPath(path, path.text.encode(), [], ends)
        if not b"".join(spelt).startswith(track.data):
            return
        keep = len(tokens)
        if not path.is_whole:
            while keep and (ends[keep - 1] > len(track.data) + 1 or not _is_stable(spelt[keep - 1])):
                keep -= 1
        del ends[keep:]
        part_ends = [track.byte_at(part.end) for part in path.parts]
        parent, index = -1, 0
        for token, end in zip(tokens, ends, strict=False):
            while index + 1 < len(path.parts) and part_ends[index] < end:
                index += 1
            part = path.parts[index]
            is_marked = part.marks[0] < track.char_at(end) <= part.marks[1]
            parent = self._node(token, parent, part.source if is_marked else "structure", part)
            track.nodes.append(parent)
        if path.is_whole and self.end_ids:
            track.nodes.append(self._node(self.end_ids[0], parent, "close", path.parts[-1]))
            ends.append(len(track.data))
        self.tracks.append(track)

    def add_tokens(self, tokens: list[int], probabilities: Sequence[float], source: str) -> None:
        """Merge in a chain of tokens that comes from no path, node by node with its own probability."""
        parent = -1
        for token, probability in zip(tokens, probabilities, strict=True):
            known = self.children.get((parent, token))
            if known is None:
                known = self._make(token, parent, source)
                self.nodes[known].parts[-1] = probability
            parent = known

    def _node(self, token: int, parent: int, source: str, part: Part) -> int:
        known = self.children.get((parent, token))
        if known is None:
            known = self._make(token, parent, source)
        self.nodes[known].parts[part.number] = part.probability
        return known

    def _make(self, token: int, parent: int, source: str) -> int:
        node = len(self.nodes)
        self.nodes.append(_Node(token, parent, source, {}))
        self.children[parent, token] = node
        return node

    def probe(self, text: str) -> list[int]:
        """Merge in a text whose last node is there to be answered, not to be accepted; returns its nodes.

        New nodes have no probability: they are placed only by `keep_probe`.
        """
        parent, nodes = -1, []
        for token in self.vocabulary.continuation(self.window, text):
            known = self.children.get((parent, token))
            parent = self._make(token, parent, "probe") if known is None else known
            nodes.append(parent)
        return nodes

    def keep_probe(self, nodes: list[int], text: str, start: int, value: Cursor) -> None:
        """Place a probe's nodes whatever their probability. `start`: where in the text the value's spot begins."""
        self.kept_probes.update(nodes)
        part = Part(-1, start, len(text), 0.0, "probe", (start, len(text)), value)
        ends = list(accumulate(len(self.vocabulary.bytes_of(self.nodes[node].token)) for node in nodes))
        self.tracks.append(PackedPath(Path(text, (part,), None, 0.0), text.encode(), nodes, ends))

    def pack(
        self, proposal: Proposal, price: Callable[[int], float], token_value_s: float, most: int, *,
        is_chain_only: bool = False,
    ) -> list[PackedPath]:
        """Put the nodes worth their rows into the proposal, likeliest first; returns each path as far as it is in it.

        price: seconds of a pass with so many rows (the root included). token_value_s: seconds an accepted token saves.
        most: nodes that the proposal may hold, probes included.
        """
        probability: list[float] = []
        for node in self.nodes:  # a child is never likelier than its parent
            probability.append(min(node.probability, probability[node.parent] if node.parent >= 0 else 1.0))
        if is_chain_only:
            ranked = _likeliest_chain(self.nodes, probability)
        else:
            ranked = sorted(range(len(self.nodes)), key=lambda number: -probability[number])
        probes = self.kept_probes if len(self.kept_probes) <= most else set()
        best_count, best_gain, gain = 0, 0.0, 0.0
        for count, number in enumerate(ranked[: most - len(probes)], start=1):
            gain += probability[number] * token_value_s
            net = gain - (price(1 + count) - price(1))
            if net > best_gain:
                best_count, best_gain = count, net
        placed = self._place({*ranked[:best_count], *probes}, proposal)
        packed = []
        for track in self.tracks:
            kept = [placed[number] for number in track.nodes if number in placed]
            packed.append(PackedPath(track.path, track.data, kept, track.ends[: len(kept)]))
        return packed

    def _place(self, chosen: set[int], proposal: Proposal) -> dict[int, int]:
        """Add the chosen nodes to the proposal; returns where each of them stands there."""
        placed = {-1: 0}
        for number in sorted(chosen):  # creation order: parents first, the best path's nodes side by side
            node = self.nodes[number]
            placed[number] = proposal.add(node.token, placed[node.parent], node.source)
        return placed


def harvest(
    packed: Sequence[PackedPath], proposal: Proposal, choices: Sequence[int], accepted: set[int],
    vocabulary: Vocabulary, evidence: Evidence,
) -> None:
    """Note what the target chose behind nodes that were not accepted: what it would write at spots further on.

    accepted: the nodes that the target accepted, the root included.
    """
    for item in packed:
        nodes, ends = [0, *item.nodes], [0, *item.ends]
        for part in item.path.parts:
            start, part_end = item.byte_at(part.start), item.byte_at(part.end)
            first = next((i for i, end in enumerate(ends) if end >= start), None)
            if first is None or nodes[first] in accepted:
                continue
            last = first
            while last + 1 < len(nodes) and ends[last] < part_end:
                if choices[nodes[last]] != proposal.tokens[nodes[last + 1]]:
                    break
                last += 1
            text = item.data[start : ends[last]] + vocabulary.bytes_of(choices[nodes[last]])
            try:
                evidence.add(part.cursor.key, text.decode("utf-8"))
            except UnicodeDecodeError:  # the choice ends inside a character
                continue


def _lookahead(path: Path) -> str:
    """What surely follows a path's text, so that its last token is split as it will be."""
    return ":" if path.cursor is not None and path.cursor.kind == "value" else ""


def _is_stable(data: bytes) -> bool:
    """Whether a token at the end of a text stays the same token whatever follows."""
    return data[-1:].isalnum() or data.endswith(b'":') or data[-1:] >= b"\x80"


def _likeliest_chain(nodes: list[_Node], probability: list[float]) -> list[int]:
    """The single chain that follows the likeliest child at every node."""
    best: dict[int, int] = {}
    for number, node in enumerate(nodes):
        if node.parent not in best or probability[number] > probability[best[node.parent]]:
            best[node.parent] = number
    chain, at = [], best.get(-1)
    while at is not None:
        chain.append(at)
        at = best.get(at)
    return chain
