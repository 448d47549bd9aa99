"""Which tools a request is likely to call, guessed from words alone before the target has said anything.

Knows the catalogue's texts and the request's. A wrong guess costs draft positions, never the output.
"""

from __future__ import annotations

import re

from rank_bm25 import BM25Plus

from schemafill.inference.toolcall.schema import Catalog, Tool

WORD = re.compile(r"[^\W_]+")
SEAM = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\d)(?=\D)|(?<=\D)(?=\d)")


def rank_tools(catalog: Catalog, query: str) -> list[int]:
    """Indices of the catalogue's tools, the likeliest first; ties keep the catalogue's order.

    BM25 with k1 1.5 and b 0.75. BM25Plus with delta 0 is Okapi's formula with an idf that is never negative, so a word
    that most tools share still counts for those that have it. Source: Trotman et al. 2014, Improvements to BM25.
    """
    if not catalog.tools:
        return []
    documents = [split_words(_tool_text(tool)) for tool in catalog.tools]
    index = BM25Plus(documents, k1=1.5, b=0.75, delta=0)
    scores = index.get_scores([word for word in split_words(query) if word in index.idf])
    return sorted(range(len(scores)), key=lambda tool_idx: -scores[tool_idx])


def forecast_groups(ranking: list[int], size: int = 3) -> list[int]:
    """One tool index for each of the next `size` calls: the ranking, repeated from its start as often as it takes."""
    return [ranking[group % len(ranking)] for group in range(size)] if ranking else []


def split_words(text: str) -> list[str]:
    """Lower-case words, cut at underscores, digits and camelCase; words of other scripts stay whole."""
    return [part.lower() for word in WORD.findall(text) for part in SEAM.split(word)]


def _tool_text(tool: Tool) -> str:
    fields = [text for name, node in tool.parameters.properties.items() for text in (name, node.description)]
    return " ".join([tool.name, tool.description, *fields])
