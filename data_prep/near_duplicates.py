"""Request texts that are equal, or nearly so.

Texts are compared after Unicode NFKC, in lower case, with white space collapsed; near duplicates by the Jaccard
similarity of their word triples. MinHash with locality-sensitive hashing (the library `datasketch`) only finds the
candidates, the similarity itself is computed exactly. Source: Broder 1997, On the resemblance and containment of
documents; banding as in Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, chapter 3.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from datasketch import MinHash, MinHashLSH

NUM_PERM = 128
MISSED = 1e-4
"""Highest chance that a text exactly at the threshold is not among the candidates."""
SHINGLE_WORDS = 3
OWN_TEXT_WORDS = 6
"""A user message of a longer dialogue is compared by itself from this length on: a short one (`yes, please do that`)
stands in many dialogues that have nothing to do with each other."""

# Scripts that put no spaces between words count every character as a word.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
WORD = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}_])\w)+")


def normalized(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def words_of(text: str) -> list[str]:
    return WORD.findall(normalized(text))


def shingles(text: str) -> frozenset[str]:
    """The word triples of a text; none where it has fewer than three words."""
    words = words_of(text)
    return frozenset(" ".join(words[at : at + SHINGLE_WORDS]) for at in range(len(words) - SHINGLE_WORDS + 1))


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """|A and B| / |A or B|; 0 for two empty sets."""
    return len(first & second) / (len(first | second) or 1)


def content_text(content: Any) -> str:
    """The text of a message's content: a text, or a list of parts of which only the texts count."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def request_texts(messages: Iterable[dict[str, Any]]) -> list[str]:
    """The texts by which a row's request is compared: all user messages as one, and each that is long enough."""
    said = [content_text(message.get("content")) for message in messages if message.get("role") == "user"]
    own = [text for text in said if len(words_of(text)) >= OWN_TEXT_WORDS]
    return list(dict.fromkeys(text for text in ("\n".join(said), *own) if text.strip()))


def band_shape(threshold: float) -> tuple[int, int]:
    """Number of bands and rows a band: the longest bands that miss a text at the threshold with at most `MISSED`.

    A pair of similarity s shares a band of r rows with s^r, and none of b bands with (1 - s^r)^b.
    """
    fitting = (rows for rows in range(1, NUM_PERM // 2 + 1) if (1 - threshold**rows) ** (NUM_PERM // rows) <= MISSED)
    rows = max(fitting, default=1)
    return NUM_PERM // rows, rows


class RequestIndex:
    """Request texts to look others up against."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._texts: set[str] = set()
        self._shingles: list[frozenset[str]] = []
        self._candidates = MinHashLSH(num_perm=NUM_PERM, params=band_shape(threshold))
        self._empty = MinHash(num_perm=NUM_PERM)  # copied, so that its permutations are drawn once

    def add(self, text: str) -> None:
        text = normalized(text)
        if text in self._texts:
            return
        self._texts.add(text)
        if own := shingles(text):
            self._candidates.insert(len(self._shingles), self._min_hash(own))
            self._shingles.append(own)

    def holds(self, text: str) -> bool:
        """Whether the same text was added."""
        return normalized(text) in self._texts

    def holds_near(self, text: str) -> bool:
        """Whether a text was added whose word triples are those of `text` to the threshold or above."""
        own = shingles(text)
        if not own:
            return False
        candidates = self._candidates.query(self._min_hash(own))
        return any(jaccard(own, self._shingles[number]) >= self._threshold for number in candidates)

    def _min_hash(self, own: frozenset[str]) -> MinHash:
        min_hash = self._empty.copy()
        min_hash.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in own])
        return min_hash
