"""The request's text cut into spans that may become argument values: where values start and where they may end.

Knows text only: quotes, numbers, names, dates, words. What a span is worth for a given argument is decided in
`values.py`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+")
QUOTED = re.compile(r"\"([^\"\n]{1,200})\"|(?<!\w)'([^'\n]{1,200}?)'(?!\w)|“([^”\n]{1,200})”|`([^`\n]{1,200})`")
WORD = re.compile(r"[^\s\"“”`()\[\]{}<>=]+")
CODE_LIKE = re.compile(r"(?=\S*[\d@/_])(?=\S*[A-Za-z])\S+|\S+@\S+|\w+://\S+")
TIME = re.compile(
    r"(?<![\d:])\d{1,2}:\d{2}(?::\d{2})?(?: ?[AaPp]\.?[Mm]\b\.?)?|(?<![\w:])\d{1,2} ?[AaPp]\.?[Mm]\b"
)
BRACKETED = re.compile(r"\[[^\[\]\n]{1,200}\]")
NAME_LINK = {"of", "the", "and", "de", "del", "la", "le", "von", "van", "der", "&", "for", "in", "at"}
NAME_BREAK = {"and", "&", "in", "at", "for"}
PLAIN_WORDS = """
a an the and or of in on at to for from by with is are was were be been am i me my you your we us our they their it its
this that these those can could would should will shall may might must do does did have has had what which who when
where why how please find get give tell show calculate compute also then both all need want like let if as into about
between using use per each one ones not no so than there here them his her he she after before
"""
STOP_WORDS = frozenset(PLAIN_WORDS.split())
MONTH_NAMES = "january february march april may june july august september october november december"
MONTHS = {name: number for number, name in enumerate(MONTH_NAMES.split(), 1)}
MONTHS |= {name[:3]: number for name, number in MONTHS.items()}
DATE = re.compile(
    r"(?P<iso>\d{4}-\d{1,2}-\d{1,2})|(?P<us>\d{1,2}/\d{1,2}/\d{4})"
    r"|(?P<m1>[A-Z][a-z]{2,8})\.? (?P<d1>\d{1,2})(?:st|nd|rd|th)?,? (?P<y1>\d{4})"
    r"|(?P<d2>\d{1,2})(?:st|nd|rd|th)?(?: of)? (?P<m2>[A-Z][a-z]{2,8}),? (?P<y2>\d{4})"
)
COUNT_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBER_WORDS = {word: str(number) for number, word in enumerate(COUNT_WORDS.split())}


@dataclass(frozen=True)
class Span:
    """A piece of the request. kind: `quoted`, `date`, `time`, `code`, `name`, `number`, `word`. text: what would be written."""

    start: int
    end: int
    text: str
    kind: str


class RequestSpans:
    """All spans of one request's text, worked out once."""

    def __init__(self, text: str) -> None:
        self.text = text

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
        """Dates in the form of ISO 8601; `date_forms` gives the others."""
        found = []
        for match in DATE.finditer(self.text):
            iso = _iso(match)
            if iso:
                found.append(Span(match.start(), match.end(), iso, "date"))
        return found

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

    def starts_sentence(self, span: Span) -> bool:
        """Whether the span is the first word of a sentence, where a capital says nothing."""
        before = self.text[: span.start].rstrip(" \"'“")
        return not before or before[-1] in ".!?\n:"

    def list_literals(self, is_number: bool) -> list[tuple[int, list[str]]]:
        """Lists in the request as (position, JSON texts of the elements): in brackets, or told one after the other."""
        found = []
        for match in BRACKETED.finditer(self.text):
            elements = [part.strip().strip("'\"") for part in match[0][1:-1].split(",")]
            found.append((match.start(), [e if is_number else quote(e) for e in elements]))
        if not is_number:
            found += self._word_lists()
        spans = self.numbers if is_number else sorted(self.quoted or self.names, key=lambda span: span.start)
        run: list[Span] = []
        for span in [*spans, None]:
            link = self.text[run[-1].end : span.start].strip("\"'” ") if run and span else None
            if link is not None and re.fullmatch(r",? ?(and|or|&)?|,", link):
                run.append(span)
                continue
            if len(run) > 1:
                found.append((run[0].start, [s.text if is_number else quote(s.text) for s in run]))
            run = [span] if span else []
        return sorted(found, key=lambda pair: pair[0])

    def _word_lists(self) -> list[tuple[int, list[str]]]:
        """Plain words told one after the other with commas: at least three."""
        pattern = re.compile(r"(?:[\w-]+, ){2,}(?:and |or )?[\w-]+|(?:[\w-]+, )+(?:and |or )[\w-]+")
        return [
            (m.start(), [quote(word) for word in re.split(r",? (?:and |or )?", m[0])])
            for m in pattern.finditer(self.text)
        ]

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
                tail = re.match(r", (?:[A-Z]{2}\b|[A-Z][a-z]+(?: [A-Z][a-z]+)?)", self.text[span.end :])
                if tail:
                    add(span.end + tail.end(), 1.0)
        for span in self.numbers:
            if span.start <= start < span.end:
                add(span.end, 3.0)
        add(self.words[first].end, 1.2)
        last = first
        for count, weight in ((2, 0.7), (3, 0.35), (4, 0.2)):
            nxt = first + count - 1
            if nxt >= len(self.words) or self.text[self.words[nxt - 1].end : self.words[nxt].start] != " ":
                add(self.words[last].end, 0.8)
                break
            if self.words[nxt].text.lower() in STOP_WORDS:
                add(self.words[last].end, 0.8)
                break
            last = nxt
            add(self.words[nxt].end, weight)
        clause = re.compile(r"[.,;:!?\n\"”]").search(self.text, start)
        if clause and clause.start() - start < 120:
            add(clause.start(), 0.5)
        total = sum(weights.values())
        return sorted(((end, w / total) for end, w in weights.items()), key=lambda pair: -pair[1])


def date_forms(iso: str) -> list[str]:
    """The ISO date and the other forms in which tools ask for it."""
    year, month, day = iso.split("-")
    long_month = MONTH_NAMES.split()[int(month) - 1]
    return [iso, f"{month}/{day}/{year}", f"{day}/{month}/{year}", f"{long_month.capitalize()} {int(day)}, {year}"]


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_capital(word: Span) -> bool:
    return word.text[0].isupper() or (word.text[0].isdigit() and any(c.isupper() for c in word.text))


def _iso(match: re.Match) -> str | None:
    if match["iso"]:
        year, month, day = match["iso"].split("-")
    elif match["us"]:
        month, day, year = match["us"].split("/")
    else:
        name = (match["m1"] or match["m2"]).lower()
        month = str(MONTHS.get(name) or MONTHS.get(name[:3], 0) if name in MONTHS or len(name) <= 4 else 0)
        day, year = match["d1"] or match["d2"], match["y1"] or match["y2"]
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    return f"{year}-{int(month):02d}-{int(day):02d}"
