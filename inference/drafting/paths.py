"""Best-first search over what the output may become: likely continuations as texts, each cut into known parts.

Evidence is what the target itself showed at a spot in an earlier round (its choice after nodes that were not
accepted, or after probe nodes): the text that it would write there. It outweighs every guess.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from itertools import count

from schemafill.inference.drafting.cursor import Cursor
from schemafill.inference.drafting.options import Expander, Option

LEAST_PROBABILITY = 0.03
FALLBACK_PROBABILITY = LEAST_PROBABILITY / 3
"""Paths below the first are not followed, below the second not even where nothing likelier goes on from a spot."""
MOST_EXPANDED = 28
MOST_LEAVES = 14
MOST_CHARS = 420
"""Bounds of one search: spots looked at, paths returned, length of a path before it is taken as it is."""
EVIDENCE_SHARE = 0.9
"""What the options that agree with the evidence have together."""
STARTED_SHARE = 0.85
"""What the options that agree with the text written so far have at least together."""


@dataclass(frozen=True)
class Part:
    """One option taken on a path. `start`..`end` in the path's text (before 0: already written)."""

    number: int
    """Same number, same choice: paths that share a beginning share its parts."""
    start: int
    end: int
    probability: float
    """Of the whole path up to and with this part."""
    source: str
    marks: tuple[int, int]
    """Where in the path's text the part stands that `source` proposes; around it is structure."""
    cursor: Cursor
    """Where it was chosen."""


@dataclass
class Path:
    """A continuation of the committed text. `is_whole`: what follows the text does not change how it is tokenised."""

    text: str
    parts: tuple[Part, ...]
    cursor: Cursor | None
    probability: float
    is_whole: bool = False


@dataclass
class Evidence:
    """What the target would write at spots not reached yet, by the spot's key."""

    texts: dict[tuple, str] = field(default_factory=dict)

    def add(self, spot: tuple, text: str) -> None:
        """Keep the newest word on a spot; the longer one where both agree."""
        known = self.texts.get(spot, "")
        if text and not known.startswith(text):
            self.texts[spot] = text


def search_paths(expander: Expander, cursor: Cursor, partial: str, evidence: Evidence) -> list[Path]:
    """Likely continuations behind `partial` (what stands at the cursor already), best first."""
    numbers, ties = count(), count()
    start = Path("", (), cursor, 1.0)
    heap = [(-1.0, next(ties), start, -len(partial))]  # the last: where the next option begins in the path's text
    leaves: list[Path] = []
    expanded = 0
    while heap and len(leaves) < MOST_LEAVES:
        _, _, path, offset = heapq.heappop(heap)
        written = partial[len(partial) + offset :] if offset < 0 else ""
        is_long = len(path.text) >= MOST_CHARS
        options = []
        if path.cursor is not None and expanded < MOST_EXPANDED and not is_long:
            expanded += 1
            hint = evidence.texts.get(path.cursor.key, "")
            begun = hint if hint.startswith(written) else written
            options = _weighed(expander.expand(path.cursor, begun), written, hint)
        is_leaf = True
        for option, probability in options:
            total = path.probability * probability
            if total < (FALLBACK_PROBABILITY if is_leaf else LEAST_PROBABILITY):
                continue
            end = offset + len(option.text)
            marks = (offset + option.marks[0], offset + option.marks[1])
            part = Part(next(numbers), offset, end, total, option.source, marks, path.cursor)
            text = path.text + (option.text[max(0, -offset) :] if end > 0 else "")
            is_end = option.following is not None and option.following.kind == "end"
            child = Path(text, (*path.parts, part), option.following, total, is_end)
            heapq.heappush(heap, (-total, next(ties), child, end))
            is_leaf = False
        if is_leaf and path.text:
            leaves.append(path)
    return leaves


def _weighed(options: list[Option], written: str, hint: str) -> list[tuple[Option, float]]:
    """The options that agree with what is written, their probabilities scaled up to what they stood for together.

    Those that agree with the evidence `hint` share EVIDENCE_SHARE of it.
    """
    fitting = [
        o for o in options if o.text.startswith(written) or (o.following is not None and written.startswith(o.text))
    ]
    if written:
        total = sum(o.probability for o in fitting)
        scale = (STARTED_SHARE + (1 - STARTED_SHARE) * min(1.0, total)) / total if total else 0.0
    else:
        scale = 1.0
    weighed = [(o, o.probability * scale) for o in fitting]
    if len(hint) <= len(written) or not hint.startswith(written):
        return sorted(weighed, key=lambda pair: -pair[1])
    agreeing = [o.text.startswith(hint) or (hint.startswith(o.text) and o.following is not None) for o, _ in weighed]
    mass = sum(p for (_, p), agrees in zip(weighed, agreeing, strict=True) if agrees)
    best = max((p for _, p in weighed), default=0.0)
    scaled = []
    for (option, p), agrees in zip(weighed, agreeing, strict=True):
        share = EVIDENCE_SHARE / mass if agrees else 1 - EVIDENCE_SHARE
        if agrees and p < best:
            option = replace(option, source="evidence")
        scaled.append((option, p * share))
    return sorted(scaled, key=lambda pair: -pair[1])
