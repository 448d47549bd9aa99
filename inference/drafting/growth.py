"""Values that go on from a text which is begun already: copies from where it stands in the request, or as it is.

Weights are first guesses set by hand, scaled to shares at the end.
"""

from __future__ import annotations

import re

from schemafill.inference.drafting.candidates import MOST, Candidate
from schemafill.inference.drafting.spans import RequestSpans
from schemafill.inference.toolcall.style import quoted

WHOLE_VALUE = re.compile(r'("(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?=[,\s\]}])|true|false|null)')
NUMBER_START = re.compile(r"-?\d*\.?\d*")


def grow(spans: RequestSpans, begun: str) -> list[Candidate]:
    """Values that begin with the text `begun` (not empty); a text that holds a whole value gives that value."""
    whole = WHOLE_VALUE.match(begun)
    if whole:
        return [Candidate(whole[1], 0.9, "evidence")]
    if begun[0] in "-0123456789" and NUMBER_START.fullmatch(begun):
        longer = [span.text for span in spans.numbers if span.text.startswith(begun)]
        texts = list(dict.fromkeys([*longer, begun]))
        return [Candidate(text, 0.6 / len(texts), "copy") for text in texts[:4]]
    return _grow_string(spans, begun[1:]) if begun[0] == '"' else []


def _grow_string(spans: RequestSpans, start: str) -> list[Candidate]:
    """Copies from where `start` stands in the request, else from where its last word does; or it ends here."""
    if not start.strip() or start.endswith("\\"):
        return []
    head, blank, last_word = start.rpartition(" ")
    copies = _copies(spans, start, "")
    if not copies and blank and last_word:
        copies = _copies(spans, last_word, head + " ")
    scale = 0.85 / max(1e-9, sum(copies.values()))
    grown = [Candidate(text, weight * scale, "copy") for text, weight in copies.items()]
    here = f'"{start}"'
    if here not in copies:
        grown.append(Candidate(here, 0.12 if copies else 0.3, "guess"))
    return sorted(grown, key=lambda candidate: -candidate.probability)[:MOST]


def _copies(spans: RequestSpans, anchor: str, head: str) -> dict[str, float]:
    """JSON strings of `head` and the request's text from each place of `anchor` on, with weights; first place first."""
    weights: dict[str, float] = {}
    for rank, at in enumerate(spans.occurrences(anchor)):
        for end, weight in spans.ends_from(at)[:4]:
            if end >= at + len(anchor):
                text = quoted(head + spans.text[at:end])
                weights[text] = weights.get(text, 0.0) + weight * (0.7 if rank == 0 else 0.4)
    return weights
