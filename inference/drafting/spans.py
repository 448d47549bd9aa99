"""The request's text cut into spans that may become argument values: where values start and where they may end.

Knows text only: quotes, numbers, names, dates, words. What a span is worth for a given argument is decided in
`values.py`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from schemafill.inference.drafting.dates import find_dates
from schemafill.inference.drafting.told_lists import Listed, bracketed, told, told_words
from schemafill.inference.toolcall.style import quoted

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+")
QUOTED = re.compile(r"\"([^\"\n]{1,200})\"|(?<!\w)'([^'\n]{1,200}?)'(?!\w)|“([^”\n]{1,200})”|`([^`\n]{1,200})`")
WORD = re.compile(r"[^\s\"“”`()\[\]{}<>=]+")
CODE_LIKE = re.compile(r"(?=\S*[\d@/_])(?=\S*[A-Za-z])\S+|\S+@\S+|\w+://\S+")
TIME = re.compile(
    r"(?<![\d:])\d{1,2}:\d{2}(?::\d{2})?(?: ?[AaPp]\.?[Mm]\b\.?)?|(?<![\w:])\d{1,2} ?[AaPp]\.?[Mm]\b"
)
WORD_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
CLAUSE_END = re.compile(r"[.,;:!?\n\"”]")
NAME_TAIL = re.compile(r", (?:[A-Z]{2}\b|[A-Z][a-z]+(?: [A-Z][a-z]+)?)")
"""What may follow a place's name as a part of it: `, CA`, `, New York`."""
NAME_LINK = {"of", "the", "and", "de", "del", "la", "le", "von", "van", "der", "&", "for", "in", "at"}
NAME_BREAK = {"and", "&", "in", "at", "for"}
PLAIN_WORDS = """
a an the and or of in on at to for from by with is are was were be been am i me my you your we us our they their it its
this that these those can could would should will shall may might must do does did have has had what which who when
where why how please find get give tell show calculate compute also then both all need want like let if as into about
between using use per each one ones not no so than there here them his her he she after before
"""
STOP_WORDS = frozenset(PLAIN_WORDS.split())
COUNT_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBER_WORDS = {word: str(number) for number, word in enumerate(COUNT_WORDS.split())}


@dataclass(frozen=True)
class Span:
    """A piece of the request: [start, end) in its text, and as `text` what a value would be.

    kind: `quoted`, `date`, `time`, `code`, `name`, `number` or `word`.
    """

    start: int
    end: int
    text: str
    kind: str


class RequestSpans:
    """All spans of one request's text, worked out once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._around: dict[tuple[int, int], tuple[frozenset[str], frozenset[str]]] = {}

    @cached_property
    def words(self) -> list[Span]:
        """Words without the punctuation behind them, in order."""
        found = []
        for match in WORD.finditer(self.text):
            word = match[0].rstrip(".,;:!?")
            lead = len(word) - len(word.lstrip("'*"))
            word = word.lstrip("'*").rstrip("'*")
            if word:
                found.append(Span(match.start() + lead, match.start() + lead + len(word), word, "word"))
        return found

    @cached_property
    def content_words(self) -> list[Span]:
        """Words that are not among the commonest."""
        return [word for word in self.words if word.text.lower() not in STOP_WORDS]

    @cached_property
    def _word_starts(self) -> list[int]:
        return [word.start for word in self.words]

    @cached_property
    def numbers(self) -> list[Span]:
        """Numbers as JSON writes them, in order; small numbers in words too."""
        found = []
        for match in NUMBER.finditer(self.text):
            digits = match[0].replace(",", "").lstrip("+")
            digits = "0" + digits if digits.startswith(".") else digits
            found.append(Span(match.start(), match.end(), re.sub(r"^(-?)0+(?=\d)", r"\1", digits), "number"))
        for word in self.words:
            if word.text.lower() in NUMBER_WORDS:
                found.append(Span(word.start, word.end, NUMBER_WORDS[word.text.lower()], "number"))
        return sorted(found, key=lambda span: span.start)

    @cached_property
    def quoted(self) -> list[Span]:
        spans = []
        for match in QUOTED.finditer(self.text):
            group = next(i for i in range(1, 5) if match[i] is not None)
            if match.end() - match.start() < 0.8 * len(self.text):  # not a request that is quoted as a whole
                spans.append(Span(match.start(group), match.end(group), match[group].strip(), "quoted"))
        return spans

    @cached_property
    def dates(self) -> list[Span]:
        """Dates in the form of ISO 8601; `dates.date_forms` gives the others."""
        return [Span(start, end, iso, "date") for start, end, iso in find_dates(self.text)]

    @cached_property
    def times(self) -> list[Span]:
        """Times of day as they are written."""
        return [Span(m.start(), m.end(), m[0], "time") for m in TIME.finditer(self.text)]

    @cached_property
    def codes(self) -> list[Span]:
        """Words with digits and letters mixed, addresses, paths."""
        return [Span(w.start, w.end, w.text, "code") for w in self.words if CODE_LIKE.fullmatch(w.text)]

    @cached_property
    def names(self) -> list[Span]:
        """Runs of capitalised words, joined over `of`, `the` and the like; a run over `and` in its parts as well."""
        found, words, i = [], self.words, 0
        while i < len(words):
            if not _is_capital(words[i]) or (words[i].text.lower() in STOP_WORDS):
                i += 1
                continue
            last = i
            j = i + 1
            while j < len(words) and self.text[words[j - 1].end : words[j].start].strip(" ") == "":
                if _is_capital(words[j]) or words[j].text.isdigit():
                    last = j
                elif words[j].text.lower() not in NAME_LINK or j - last > 2:
                    break
                j += 1
            found += self._name_parts(words[i : last + 1])
            i = last + 1
        return found

    def _name_parts(self, words: list[Span]) -> list[Span]:
        """The run as a whole and, where it holds linking words that may also separate, its parts; likelier first."""
        cuts = [k for k, word in enumerate(words) if word.text.lower() in NAME_BREAK]
        bounds = [-1, *cuts, len(words)]
        parts = [words[a + 1 : b] for a, b in zip(bounds, bounds[1:], strict=False) if b > a + 1]
        runs = [*parts, words] if cuts else [words]
        return [Span(r[0].start, r[-1].end, self.text[r[0].start : r[-1].end], "name") for r in runs]

    def words_around(self, span: Span) -> tuple[frozenset[str], frozenset[str]]:
        """Words that stand just before and just behind a span, in lower case and without a plural's `s`."""
        known = self._around.get((span.start, span.end))
        if known is None:
            before, behind = self.text[max(0, span.start - 30) : span.start], self.text[span.end : span.end + 20]
            known = tuple(frozenset(w.lower().rstrip("s") for w in WORD_PARTS.findall(s)) for s in (before, behind))
            self._around[span.start, span.end] = known
        return known

    def starts_sentence(self, span: Span) -> bool:
        """Whether the span is the first word of a sentence, where a capital says nothing."""
        before = self.text[: span.start].rstrip(" \"'“")
        return not before or before[-1] in ".!?\n:"

    def lists(self, is_number: bool) -> list[Listed]:
        """Lists in the request, of numbers or of strings: in brackets, or told one after the other."""
        return self._number_lists if is_number else self._string_lists

    @cached_property
    def _number_lists(self) -> list[Listed]:
        return sorted(bracketed(self.text, str) + told(self.text, self.numbers, str), key=lambda found: found.start)

    @cached_property
    def _string_lists(self) -> list[Listed]:
        spans = sorted(self.quoted or self.names, key=lambda span: span.start)
        found = bracketed(self.text, quoted) + told_words(self.text) + told(self.text, spans, quoted)
        return sorted(found, key=lambda found: found.start)

    def occurrences(self, text: str, most: int = 8) -> list[int]:
        """Where `text` stands in the request at the start of a word."""
        found, at = [], self.text.find(text)
        while at >= 0 and len(found) < most:
            if at == 0 or not (self.text[at - 1].isalnum() and text[:1].isalnum()):
                found.append(at)
            at = self.text.find(text, at + 1)
        return found

    def ends_from(self, start: int) -> list[tuple[int, float]]:
        """Where a value that starts at `start` may end, with weights that add up to 1."""
        weights: dict[int, float] = {}

        def add(end: int, weight: float) -> None:
            while end > start and self.text[end - 1] in " ,.;:!?":
                end -= 1
            if end > start:
                weights[end] = weights.get(end, 0.0) + weight

        first = bisect_left(self._word_starts, start + 1) - 1
        if first < 0 or self.words[first].end <= start:
            return []
        for span in self.quoted:
            if span.start <= start < span.end:
                add(span.end, 4.0 if span.start == start else 2.0)
        for span in self.names:
            if span.start <= start < span.end:
                add(span.end, 3.0)
                if tail := NAME_TAIL.match(self.text, span.end):
                    add(tail.end(), 1.0)
        for span in self.numbers:
            if span.start <= start < span.end:
                add(span.end, 3.0)
        for end, weight in self._word_ends(first):
            add(end, weight)
        clause = CLAUSE_END.search(self.text, start)
        if clause and clause.start() - start < 120:
            add(clause.start(), 0.5)
        total = sum(weights.values())
        return sorted(((end, w / total) for end, w in weights.items()), key=lambda pair: -pair[1])

    def _word_ends(self, first: int) -> list[tuple[int, float]]:
        """Ends of one to four words from word number `first` on; the last before a stop word or a gap weighs more."""
        words = self.words
        ends = [(words[first].end, 1.2)]
        for last, weight in enumerate((0.7, 0.35, 0.2), start=first + 1):
            is_joined = last < len(words) and self.text[words[last - 1].end : words[last].start] == " "
            if not is_joined or words[last].text.lower() in STOP_WORDS:
                ends.append((words[last - 1].end, 0.8))
                break
            ends.append((words[last].end, weight))
        return ends


def _is_capital(word: Span) -> bool:
    return word.text[0].isupper() or (word.text[0].isdigit() and any(c.isupper() for c in word.text))
