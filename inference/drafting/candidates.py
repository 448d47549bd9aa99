"""Candidates for an argument's value, weighed: what every source of values hands over."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 6
"""Candidates kept for a value."""
UNGUESSED = 0.8
"""Weight of a value that no source names, beside the sources' weights."""


@dataclass(frozen=True)
class Candidate:
    """A whole JSON value as text, how likely it is, and where it comes from (one of SOURCES)."""

    text: str
    probability: float
    source: str


class CandidateWeights:
    """Weights of a field's candidates by their text, as the sources add them up."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, str]] = {}

    def add(self, text: str, weight: float, source: str) -> None:
        """A text that two sources name has both weights, and the name of the one that gave more."""
        known, named = self._known.get(text, (0.0, source))
        self._known[text] = (weight + known, named if known > weight else source)

    def candidates(self) -> tuple[Candidate, ...]:
        """The heaviest, their weights as shares of all and of what nothing names."""
        total = sum(weight for weight, _ in self._known.values()) + UNGUESSED
        ranked = sorted(self._known.items(), key=lambda item: -item[1][0])[:MOST]
        return tuple(Candidate(text, weight / total, source) for text, (weight, source) in ranked)
