"""Paths of text -> one token tree under a row budget, and what the target's answers say about the paths.

A path is tokenised as a whole together with the committed tail, so that every token is the one the target would see
there; paths that share a beginning share its nodes. Nodes are kept by value: the chance that a node is accepted, times
what an accepted token saves, against what its row costs on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemafill.inference.drafting.options import Cursor
from schemafill.inference.drafting.paths import Evidence, Part, Path
from schemafill.inference.model.tree import Proposal
from schemafill.inference.model.vocabulary import Vocabulary


@dataclass
class _Node:
    token: int
    parent: int
    source: str
    parts: dict[int, float]
    """Probability of each distinct part that covers it: parts of different paths exclude each other."""
    order: int

    @property
    def probability(self) -> float:
        return min(1.0, sum(self.parts.values()))


@dataclass
class PackedPath:
    """A path as far as it is in the proposal: its nodes and where in the path's text each of them ends (bytes)."""

    path: Path
    data: bytes
    nodes: list[int]
    ends: list[int]

    def holds(self, node: int) -> bool:
        """Whether the path goes through a node of the proposal (all go through the root)."""
        return node == 0 or node in self.nodes

    def spot_behind(self, node: int) -> str:
        """The kind of spot to which the first text behind a node belongs."""
        end = self.ends[self.nodes.index(node)] if node else 0
        return next((part.cursor.kind for part in self.path.parts if part.end > end), "end")


class TokenTrie:
    """All paths of a round as one trie of tokens, before the budget cuts it."""

    def __init__(self, vocabulary: Vocabulary, window: tuple[str, list[int]], end_ids: Sequence[int]) -> None:
        self.vocabulary, self.window, self.end_ids = vocabulary, window, end_ids
        self.nodes: list[_Node] = []
        self.children: dict[tuple[int, int], int] = {}
        self.tracks: list[tuple[Path, bytes, list[int], list[int]]] = []
        self.kept_probes: set[int] = set()

    def add(self, path: Path) -> None:
        """Tokenise a path and merge it in."""
        tokens = self.vocabulary.continuation(self.window, path.text + _lookahead(path))
        data = path.text.encode()
        ends, at = [], 0
        for token in tokens:
            at += len(self.vocabulary.bytes_of(token))
            ends.append(at)
        if b"".join(map(self.vocabulary.bytes_of, tokens))[: len(data)] != data:
            return
        keep = len(tokens)
        if not path.is_whole:
            spelt = [self.vocabulary.bytes_of(token) for token in tokens]
            while keep and (ends[keep - 1] > len(data) + 1 or not _is_stable(spelt[keep - 1])):
                keep -= 1
        offsets = _byte_offsets(path)
        ends_at = _char_counter(path.text, data)
        parent, index, nodes = -1, 0, []
        for token, end in zip(tokens[:keep], ends[:keep], strict=True):
            while index + 1 < len(path.parts) and offsets[index] < end:
                index += 1
            part = path.parts[index]
            is_marked = part.marks[0] < ends_at(end) <= part.marks[1]
            parent = self._node(token, parent, part.source if is_marked else "structure", part)
            nodes.append(parent)
        if path.is_whole and self.end_ids:
            parent = self._node(self.end_ids[0], parent, "close", path.parts[-1])
            nodes.append(parent)
            ends = [*ends[:keep], len(data)]
        self.tracks.append((path, data, nodes, ends[: len(nodes)]))

    def add_tokens(self, tokens: list[int], probabilities: Sequence[float], source: str) -> None:
        """Merge in a chain of tokens that comes from no path, node by node with its own probability."""
        parent = -1
        for token, probability in zip(tokens, probabilities, strict=True):
            known = self.children.get((parent, token))
            if known is None:
                known = self._make(token, parent, source)
                self.nodes[known].parts[-1] = probability
            parent = known

    def _node(self, token: int, parent: int, source: str, part) -> int:
        known = self.children.get((parent, token))
        if known is None:
            known = self._make(token, parent, source)
        self.nodes[known].parts[part.number] = part.probability
        return known

    def _make(self, token: int, parent: int, source: str) -> int:
        node = len(self.nodes)
        self.nodes.append(_Node(token, parent, source, {}, node))
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
        ends, at = [], 0
        for node in nodes:
            at += len(self.vocabulary.bytes_of(self.nodes[node].token))
            ends.append(at)
        self.tracks.append((Path(text, (part,), None, 0.0), text.encode(), nodes, ends))

    def pack(
        self, proposal: Proposal, price: Callable[[int], float], token_value_s: float, most: int, *,
        is_chain_only: bool = False,
    ) -> list[PackedPath]:
        """Put the nodes worth their rows into the proposal, likeliest first.

        price: seconds of a pass with so many rows (the root included). token_value_s: seconds an accepted token saves.
        """
        probability = [0.0] * len(self.nodes)
        for node in self.nodes:  # a child is never likelier than its parent
            above = probability[node.parent] if node.parent >= 0 else 1.0
            probability[node.order] = min(node.probability, above)
        ranked = sorted(range(len(self.nodes)), key=lambda i: (-probability[i], i))
        if is_chain_only:
            ranked = _likeliest_chain(self.nodes, probability)
        best_count, best_gain, gain = 0, 0.0, 0.0
        for count, node in enumerate(ranked[:most], start=1):
            gain += probability[node] * token_value_s
            net = gain - (price(1 + count) - price(1))
            if net > best_gain:
                best_count, best_gain = count, net
        placed: dict[int, int] = {-1: 0}
        chosen = {*ranked[:best_count], *self.kept_probes}
        for node in sorted(chosen):  # creation order: parents first, the best path's nodes side by side
            item = self.nodes[node]
            placed[node] = proposal.add(item.token, placed[item.parent], item.source)
        packed = []
        for path, data, nodes, ends in self.tracks:
            kept = [placed[n] for n in nodes if n in placed]
            packed.append(PackedPath(path, data, kept, ends[: len(kept)]))
        return packed


def harvest(
    packed: Sequence[PackedPath], proposal: Proposal, choices: Sequence[int], accepted: set[int],
    vocabulary: Vocabulary, evidence: Evidence,
) -> None:
    """Note what the target chose behind nodes that were not accepted: what it would write at spots further on."""
    for item in packed:
        nodes, ends = [0, *item.nodes], [0, *item.ends]
        offsets = _byte_offsets(item.path)
        for part, part_end in zip(item.path.parts, offsets, strict=True):
            start = _part_start(item.path, part)
            first = next((i for i, end in enumerate(ends) if end >= start), None)
            if first is None or nodes[first] in accepted:
                continue
            last = first
            for i in range(first, len(nodes) - 1):
                if ends[i] >= part_end or choices[nodes[i]] != proposal.tokens[nodes[i + 1]]:
                    break
                last = i + 1
            text = item.data[start : ends[last]] + vocabulary.bytes_of(choices[nodes[last]])
            try:
                evidence.add(part.cursor.key, text.decode("utf-8"))
            except UnicodeDecodeError:
                continue


def _lookahead(path: Path) -> str:
    """What surely follows a path's text, so that its last token is split as it will be."""
    return ":" if path.cursor is not None and path.cursor.kind == "value" else ""


def _is_stable(data: bytes) -> bool:
    """Whether a token at the end of a text stays the same token whatever follows."""
    return data[-1:].isalnum() or data.endswith(b'":') or data[-1:] >= b"\x80"


def _byte_offsets(path: Path) -> list[int]:
    """Where each part ends in the path's text, in bytes."""
    if path.text.isascii():
        return [max(0, part.end) for part in path.parts]
    return [len(path.text[: max(0, part.end)].encode()) for part in path.parts]


def _char_counter(text: str, data: bytes) -> Callable[[int], int]:
    """Byte offset -> how many characters stand before it."""
    return (lambda at: at) if len(data) == len(text) else lambda at: len(data[:at].decode("utf-8", "ignore"))


def _part_start(path: Path, part) -> int:
    return len(path.text[: max(0, part.start)].encode())


def _likeliest_chain(nodes: list[_Node], probability: list[float]) -> list[int]:
    """The single chain that follows the likeliest child at every node."""
    best: dict[int, int] = {}
    for node in nodes:
        if node.parent not in best or probability[node.order] > probability[best[node.parent]]:
            best[node.parent] = node.order
    chain, at = [], best.get(-1)
    while at is not None:
        chain.append(at)
        at = best.get(at)
    return chain
