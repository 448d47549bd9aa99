"""What an argument's value may be: candidates with probabilities, best first.

Sources: the schema's choices, constants, defaults and booleans; spans of the request; what the previous call wrote
there; numbers and dates in the forms that the schema asks for. Only guesses: the target decides. The weights are set
by hand; only their ratios count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from schemafill.inference.drafting.candidates import Candidate, CandidateWeights
from schemafill.inference.drafting.dates import date_forms
from schemafill.inference.drafting.spans import QUOTED, WORD_PARTS, RequestSpans, Span
from schemafill.inference.drafting.told_lists import Listed
from schemafill.inference.toolcall.schema_node import SchemaNode
from schemafill.inference.toolcall.style import quoted
from schemafill.inference.toolcall.tracker_state import CallRecord

EXAMPLES = re.compile(
    r"(?:e\.g\.|such as|for example|options?(?: are|:)|either|one of|can be)[,:]? ([^.()\n]{2,80})", re.IGNORECASE
)
DATE_WORDS = {"date", "day", "yyyy", "dates"}
TIME_WORDS = {"time", "times", "hour", "start", "end", "clock"}
WORD_LIKE_KEYS = {"unit", "units", "format", "type", "mode"}
"""Keys with one of these take a plain word of the request more often than others."""

Placed = TypeVar("Placed", Span, Listed)


@dataclass(frozen=True)
class Field:
    """The place of a value: its key, its schema, the call it is in and the calls before it."""

    key: str
    node: SchemaNode | None
    call: CallRecord
    calls: tuple[CallRecord, ...]
    is_top_level: bool
    element: int = -1
    """Place in an array; -1 outside arrays."""

    @property
    def types(self) -> tuple[str, ...]:
        return self.node.types if self.node is not None else ()


class ValueGuesser:
    """Guesses values for one request. Results depend on the arguments only and are kept."""

    def __init__(self, request_text: str) -> None:
        self.spans = RequestSpans(request_text)
        self._known: dict[Field, tuple[Candidate, ...]] = {}

    def candidates(self, field: Field) -> tuple[Candidate, ...]:
        """Best first; their probabilities add up to less than 1: the rest is what nothing here guesses."""
        known = self._known.get(field)
        if known is None:
            known = self._known[field] = self._guess(field)
        return known

    def _guess(self, field: Field) -> tuple[Candidate, ...]:
        weights = CandidateWeights()
        self._from_schema(field, weights)
        self._from_previous(field, weights)
        types = field.types
        if not (field.node and field.node.choices):
            used = self._used(field)
            if "string" in types or not types:
                self._strings(field, used, weights)
            if "number" in types or "integer" in types or not types:
                self._numbers(field, used, weights, 1.0 if types else 0.3)
            if "array" in types:
                self._lists(field, used, weights)
            if field.element >= 0:
                self._elements(field, used, weights)
        return weights.candidates()

    def _from_schema(self, field: Field, weights: CandidateWeights) -> None:
        node = field.node
        if node is None:
            return
        request = self.spans.text.lower()
        for rank, text in enumerate(node.choices):
            word = text.strip('"').lower().replace("_", " ")
            weights.add(text, (6.0 if word and word in request else 1.0) / (1 + 0.2 * rank), "choice")
        if "boolean" in node.types and not node.choices:
            weights.add("true", 3.0, "choice")
            weights.add("false", 1.6, "choice")
        if node.default is not None:
            weights.add(node.default, 1.2, "choice")

    def _from_previous(self, field: Field, weights: CandidateWeights) -> None:
        """What calls of the same tool wrote for this key: nearly sure when they all wrote the same."""
        if not field.is_top_level:
            return
        earlier = [dict(call.fields).get(field.key) for call in field.calls if call.tool == field.call.tool]
        earlier = [text for text in earlier if text]
        if not earlier:
            return
        is_steady = len(earlier) > 1 and len(set(earlier)) == 1
        is_closed = bool(field.node and (field.node.choices or "boolean" in field.types))
        weights.add(earlier[-1], 8.0 if is_steady else 4.0 if is_closed else 1.2, "previous")

    def _used(self, field: Field) -> _Used:
        texts = [text for _, text in field.call.fields]
        for call in field.calls:
            texts = [text for key, text in call.fields if key == field.key] + texts
        position = -1
        for text in texts:
            places = self.spans.occurrences(_plain(text), most=3)
            position = next((at for at in places if at > position), position)
        previous = {_plain(dict(call.fields).get(field.key, "")) for call in field.calls}
        return _Used(position, {_plain(text) for _, text in field.call.fields}, previous)

    def _strings(self, field: Field, used: _Used, weights: CandidateWeights) -> None:
        spans = self.spans
        wants = _words(field.key)
        hints = wants | _words(field.node.description if field.node else "")
        if hints & DATE_WORDS or (field.node and field.node.format == "date"):
            self._dates(field, used, weights)
        times = (spans.times, 4.0 if hints & TIME_WORDS else 0.3)
        for kind, weight in ((spans.quoted, 3.0), (spans.codes, 1.6), (spans.names, 2.2), times):
            for rank, span in enumerate(used.unused_first(kind)[:8]):
                share = self._string_weight(span, weight, used, wants)
                weights.add(quoted(span.text), share * 0.85**rank, "copy")
        request = spans.text.lower()
        for rank, text in enumerate(_described(field)):
            weights.add(quoted(text), 1.2 * 0.8**rank * (3.0 if text.lower() in request else 1.0), "choice")
        for span in spans.content_words:
            if not span.text[0].isdigit() and len(span.text) > 2 and self._cue(span, wants) > 1.5:
                weights.add(quoted(span.text), 0.5 * self._string_weight(span, 1.0, used, wants), "copy")
        if wants & WORD_LIKE_KEYS or not spans.names:
            for span in spans.content_words[:12]:
                weights.add(quoted(span.text), 0.1, "copy")

    def _string_weight(self, span: Span, weight: float, used: _Used, wants: set[str]) -> float:
        """`weight`, less for what is used already or looks like no value, more behind the last used place."""
        weight *= 0.15 if span.text in used.in_call else 1.0
        weight *= 0.25 if span.kind == "name" and " " not in span.text and self.spans.starts_sentence(span) else 1.0
        weight *= 0.4 if span.text in used.previous else 1.0
        if used.position >= 0:
            weight *= 2.5 if span.start > used.position else 0.5
        return weight * self._cue(span, wants)

    def _dates(self, field: Field, used: _Used, weights: CandidateWeights) -> None:
        """Dates in the forms that the field may want, and as they are written."""
        for rank, span in enumerate(used.unused_first(self.spans.dates)):
            for form_rank, form in enumerate(_date_forms(field, span.text)):
                weights.add(quoted(form), 5.0 / (1 + rank) / (1 + 2 * form_rank), "copy")
            weights.add(quoted(self.spans.text[span.start : span.end]), 1.5 / (1 + rank), "copy")

    def _cue(self, span: Span, wants: set[str]) -> float:
        """More where a word of the key stands just before or behind the span."""
        before, behind = self.spans.words_around(span)
        plain = {word.rstrip("s") for word in wants}
        return 1.0 + 1.5 * bool(plain & before) + 0.8 * bool(plain & behind)

    def _numbers(self, field: Field, used: _Used, weights: CandidateWeights, share: float) -> None:
        wants = _words(field.key)
        is_whole = field.types == ("integer",)
        for rank, span in enumerate(used.unused_first(self.spans.numbers)[:8]):
            weight = share * 3.0 * 0.6**rank * self._cue(span, wants)
            weight *= 0.3 if span.text in used.in_call else 1.0
            weight *= 0.3 if used.position >= 0 and span.start <= used.position else 1.0
            weight *= 0.3 if is_whole and "." in span.text else 1.0
            if self.spans.text[span.end : span.end + 8].lstrip().startswith(("%", "percent")) and not is_whole:
                weights.add(_hundredth(span.text), weight * 0.8, "copy")
            weights.add(span.text, weight, "copy")
            if field.types == ("number",) and "." not in span.text:
                weights.add(span.text + ".0", weight * 0.12, "copy")

    def _lists(self, field: Field, used: _Used, weights: CandidateWeights) -> None:
        """Whole lists; their layout is the flat one, which is how short lists are written."""
        items = field.node.items if field.node else None
        lists = used.unused_first(self.spans.lists(_is_numeric(items.types if items else ())))
        for rank, found in enumerate(lists[:4]):
            weights.add("[" + ", ".join(found.elements) + "]", 3.0 * 0.6**rank, "copy")

    def _elements(self, field: Field, used: _Used, weights: CandidateWeights) -> None:
        """The element at this place of the lists that the request tells."""
        lists = used.unused_first(self.spans.lists(_is_numeric(field.types)))
        for rank, found in enumerate(lists[:3]):
            if field.element < len(found.elements):
                weights.add(found.elements[field.element], 4.0 * 0.6**rank, "copy")


@dataclass(frozen=True)
class _Used:
    """What of the request stands in the output already, seen from one field."""

    position: int
    """Where in the request the latest value of this key (or of this call) came from; -1: nowhere."""
    in_call: set[str]
    """Texts of the values of this call."""
    previous: set[str]
    """Texts that earlier calls have under this key."""

    def unused_first(self, spans: Sequence[Placed]) -> list[Placed]:
        """In the order in which they are likely next: those behind the last used place first."""
        return [s for s in spans if s.start > self.position] + [s for s in spans if s.start <= self.position]


def _described(field: Field) -> list[str]:
    """Values that the description gives as examples or choices: quoted, or listed behind `e.g.` and the like."""
    text = field.node.description if field.node else ""
    listed = [next(filter(None, m.groups())) for m in QUOTED.finditer(text)]
    if not listed and (told := EXAMPLES.search(text)):
        listed = [part.strip(" .'\"") for part in re.split(r",| or | and ", told[1])]
    return [part for part in listed if 0 < len(part) < 40][:5]


def _date_forms(field: Field, iso: str) -> list[str]:
    """ISO first unless the description or an earlier value shows another form."""
    forms = date_forms(iso)
    shown = field.node.description if field.node else ""
    for call in field.calls:
        shown = dict(call.fields).get(field.key, "") or shown
    if "/" in shown and "-" not in shown:
        return [forms[2], forms[1], forms[0]] if "DD/MM" in shown.upper() else [forms[1], forms[2], forms[0]]
    return forms


def _is_numeric(types: tuple[str, ...]) -> bool:
    return bool(types) and set(types) <= {"integer", "number"}


def _words(text: str) -> set[str]:
    """Lower-case words of a key or description, cut at underscores, digits and camelCase."""
    return {word.lower() for word in WORD_PARTS.findall(text)}


def _plain(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _hundredth(number: str) -> str:
    value = float(number) / 100
    return f"{value:.10f}".rstrip("0").rstrip(".") or "0"
