"""Which records train and which are held out, without a leak through a conversation or through a tool.

Groups that share a tool definition (name and parameters) hang together. A set of groups that hang together and hold at
most `SMALL_SHARE` of the records goes to one side as a whole. In some corpora a few popular tools tie nearly everything
into one set: there each group is drawn by itself, and dev records one of whose tools occurs in train are dropped (they
cannot go to train: the rest of their conversation is in dev). Once the sides are chosen, dev loses the records whose
request is trained on with other tools.

A side is drawn from a hash of the seed and a name: the group's, or for a set the name of one of its groups, chosen by a
hash of its own. So a further record moves no other, unless it ties sets together, makes one outgrow the limit, or is
itself the one that speaks for its set.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import networkx

from schemafill.data_prep.near_duplicates import normalized, request_texts
from schemafill.data_prep.records import Record
from schemafill.data_prep.tool_definitions import interface_key

SMALL_SHARE = 0.02
"""Largest share of the records that a set of groups may hold and still be kept together."""


@dataclass(frozen=True)
class Sides:
    """Indices of the records on each side, in their order; dropped are on neither."""

    train: list[int]
    dev: list[int]
    dropped: list[int]


def choose_sides(records: Sequence[Record], *, dev_share: float, seed: int) -> Sides:
    """Train, dev and dropped records.

    Dev is empty only where every possible dev record shares its tools with train; train never is.
    """
    tools = [frozenset(map(interface_key, record.tools)) for record in records]
    units = _units(records, tools)
    drawn = {unit: draw(str(seed), unit) for unit in units}
    last = max(drawn, key=lambda unit: (drawn[unit], unit))  # trains, whatever it draws
    sides = _sides(units, tools, {unit for unit in drawn if drawn[unit] < dev_share and unit != last})
    if not sides.dev and (unit := _nearest_clean_unit(units, tools, drawn)) is not None:
        sides = _sides(units, tools, {unit})
    return sides


def requests_in_train(records: Sequence[Record], sides: Sides) -> list[int]:
    """Indices of the dev records one of whose request texts, white space and case aside, is also one of train's."""
    texts = [frozenset(map(normalized, request_texts(record.messages))) for record in records]
    trained = frozenset().union(*(texts[at] for at in sides.train))
    return [at for at in sides.dev if texts[at] & trained]


def draw(*names: str) -> float:
    """A number in [0, 1) that depends on the names and on nothing else."""
    digest = hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _units(records: Sequence[Record], tools: Sequence[frozenset[str]]) -> list[str]:
    """For each record the name of what goes to one side with it: its group, or the group that speaks for its set."""
    graph = networkx.Graph()
    for record, keys in zip(records, tools, strict=True):
        graph.add_node(("group", record.group))
        graph.add_edges_from((("group", record.group), ("tool", key)) for key in keys)
    sizes = Counter(record.group for record in records)
    unit_of = {group: group for group in sizes}
    for members in networkx.connected_components(graph):
        groups = [name for kind, name in members if kind == "group"]
        if sum(sizes[group] for group in groups) <= SMALL_SHARE * len(records):
            speaker = min(groups, key=lambda group: (draw("speaker", group), group))
            unit_of |= dict.fromkeys(groups, speaker)
    return [unit_of[record.group] for record in records]


def _sides(units: Sequence[str], tools: Sequence[frozenset[str]], dev_units: set[str]) -> Sides:
    train = [at for at, unit in enumerate(units) if unit not in dev_units]
    trained = frozenset().union(*(tools[at] for at in train))
    held_out = [at for at, unit in enumerate(units) if unit in dev_units]
    dev = [at for at in held_out if not tools[at] & trained]
    return Sides(train, dev, [at for at in held_out if tools[at] & trained])


def _nearest_clean_unit(units: Sequence[str], tools: Sequence[frozenset[str]], drawn: dict[str, float]) -> str | None:
    """Of the units with a record whose tools no other unit has, the one with the lowest draw."""
    owners: dict[str, set[str]] = defaultdict(set)
    for unit, keys in zip(units, tools, strict=True):
        for key in keys:
            owners[key].add(unit)
    clean = {unit for unit, keys in zip(units, tools, strict=True) if all(len(owners[key]) == 1 for key in keys)}
    return min(clean, key=lambda unit: (drawn[unit], unit)) if clean and len(drawn) > 1 else None
