"""Which tool the next call names: tools with probabilities, and names that stand in no catalogue.

Knows names and their order, no layout. All shares are first guesses set by hand: a wrong one costs draft rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os.path import commonprefix

from schemafill.inference.toolcall.schema import Catalog, Tool, parse_tools

MOST_TOOLS = 6
"""Tools of a catalogue that are proposed for one call."""
LEAST_LIKENESS = 4
"""Characters that two names share at their beginning or end before one stands for the other."""
ONLY_TOOL = 0.97
ONLY_TOOL_DOTTED = 0.9
"""The same where a target may write the short form of the name, which the first call shows."""
SHORT_FORM = 0.08
"""Share of a dotted name's last part, relative to the name as a whole."""
UNKNOWN_AGAIN = 0.35
UNKNOWN_AGAIN_ONLY_TOOL = 0.6
"""A name from no catalogue is written again: among several tools, and where there is one."""
KNOWN_AFTER_UNKNOWN = 0.4
"""What is left of a catalogue's tool's share after a name from no catalogue."""
RANK_DECAY = 0.75
USED_WEIGHT = 0.5
"""Tools that were called already keep this part of their rank's weight."""
NEXT_UNUSED, SAME_AGAIN, FIRST_LISTED = 1.0, 0.5, 0.6
"""Weights added to the catalogue's next tool not called yet, to the last one called, to the first before any call."""
UNRANKED_SHARE = 1.05
"""Weights are divided by this much more than their sum: something else may be written."""

NO_PARAMETERS = parse_tools([{"name": "none"}]).tools[0].parameters


class ToolChooser:
    """The tools of one request, as they are likely to be called."""

    def __init__(self, catalog: Catalog, ranking: Sequence[int]) -> None:
        """ranking: indices of the catalogue's tools, the likeliest for the request first."""
        self.catalog = catalog
        self._ranked = [catalog.tools[i] for i in ranking]

    def next_tools(self, used: list[str | None]) -> list[tuple[Tool, float]]:
        """Tools of the next call by their probability. used: names of the calls so far, in order.

        By rank for the first call, then the same again or the next one not used yet. A name that the target wrote and
        that is in no catalogue is likely to be written again.
        """
        known = self._known_tools(used)
        if used and used[-1] and self.catalog.get(used[-1]) is None:
            share = UNKNOWN_AGAIN_ONLY_TOOL if len(self.catalog.tools) == 1 else UNKNOWN_AGAIN
            again = [(_renamed(most_like(self.catalog, used[-1]), used[-1]), share)]
            return again + [(tool, p * KNOWN_AFTER_UNKNOWN) for tool, p in known]
        shortened = [(_renamed(tool, _short(tool)), SHORT_FORM * p) for tool, p in known if _short(tool)]
        return known + shortened[:2]

    def _known_tools(self, used: list[str | None]) -> list[tuple[Tool, float]]:
        order = self._ranked
        if len(order) < 2:
            return [(tool, ONLY_TOOL_DOTTED if _short(tool) and not used else ONLY_TOOL) for tool in order]
        weights: dict[str, float] = {}
        for rank, tool in enumerate(order):
            weights[tool.name] = RANK_DECAY**rank * (USED_WEIGHT if tool.name in used else 1.0)
        if used:
            unused = next((tool for tool in self.catalog.tools if tool.name not in used), None)
            if unused is not None:  # calls often follow the catalogue's order
                weights[unused.name] += NEXT_UNUSED
            if used[-1] in weights:
                weights[used[-1]] += SAME_AGAIN
        else:
            weights[self.catalog.tools[0].name] += FIRST_LISTED
        total = sum(weights.values()) * UNRANKED_SHARE
        ranked = sorted(order, key=lambda tool: -weights[tool.name])[:MOST_TOOLS]
        return [(tool, weights[tool.name] / total) for tool in ranked]

    def unknown_name(self, begun: str, *, is_whole: bool) -> str | None:
        """The name that a call goes on to have where it began as `begun` and is no tool of the catalogue.

        None where it is (or may become) one. A begun name that is the start of a tool's last part becomes that part.
        """
        known = [tool.name for tool in self.catalog.tools]
        if begun in known:
            return None
        if not is_whole and any(name.startswith(begun) for name in known):
            return None
        parts = [] if is_whole else [part for name in known if (part := _part(name, begun))]
        return parts[0] if parts else begun


def most_like(catalog: Catalog, name: str | None) -> Tool | None:
    """The tool of this name, else the one whose name shares the longest beginning or end, if that is long enough."""
    if name is None or not catalog.tools:
        return None
    best = max(catalog.tools, key=lambda tool: (tool.name == name, _likeness(tool.name, name)))
    return best if best.name == name or _likeness(best.name, name) >= LEAST_LIKENESS else None


def _renamed(tool: Tool | None, name: str) -> Tool:
    """A tool of a name that is in no catalogue, with the schema of the one it is like."""
    return replace(tool, name=name) if tool else Tool(name, "", NO_PARAMETERS, {})


def _short(tool: Tool) -> str:
    """The last part of a dotted name, as which some targets write it; empty for other names."""
    return tool.name.rpartition(".")[2] if "." in tool.name else ""


def _part(name: str, begun: str) -> str:
    """The end of the name, from behind a dot or underscore, that begins so; empty where there is none."""
    return next((name[at + 1 :] for at, sign in enumerate(name) if sign in "._" and name.startswith(begun, at + 1)), "")


def _likeness(one: str, other: str) -> int:
    """Characters that two names share at their beginning or at their end, whichever is more."""
    return max(len(commonprefix([one, other])), len(commonprefix([one[::-1], other[::-1]])))
