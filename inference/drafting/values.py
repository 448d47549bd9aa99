"""What an argument's value may be: candidates with probabilities, best first.

Sources: the schema's choices, constants, defaults and booleans; spans of the request; what the previous call wrote
there; numbers and dates in the forms that the schema asks for. Only guesses: the target decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from schemafill.inference.drafting.spans import QUOTED, STOP_WORDS, RequestSpans, Span, date_forms, quote
from schemafill.inference.toolcall.schema_node import SchemaNode
from schemafill.inference.toolcall.tracker import CallRecord

MOST = 6
"""Candidates kept for a value."""
WHOLE_VALUE = re.compile(r'("(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?=[,\s\]}])|true|false|null)')
EXAMPLES = re.compile(
    r"(?:e\.g\.|such as|for example|options?(?: are|:)|either|one of|can be)[,:]? ([^.()\n]{2,80})", re.IGNORECASE
)
NUMBER_START = re.compile(r"-?\d*\.?\d*")
WORD_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


@dataclass(frozen=True)
class Candidate:
    """A whole JSON value as text, how likely it is, and where it comes from (one of SOURCES)."""

    text: str
    probability: float
    source: str


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
        """Candidates whose probabilities add up to less than 1: the rest is what nothing here guesses."""
        known = self._known.get(field)
        if known is None:
            known = self._known[field] = self._guess(field)
        return known

    def _guess(self, field: Field) -> tuple[Candidate, ...]:
        weights: dict[str, tuple[float, str]] = {}

        def add(text: str, weight: float, source: str) -> None:
            old = weights.get(text)
            weights[text] = (weight + (old[0] if old else 0.0), old[1] if old and old[0] > weight else source)

        self._from_schema(field, add)
        self._from_previous(field, add)
        types = field.types
        if not (field.node and field.node.choices):
            if "string" in types or not types:
                self._strings(field, add)
            if "number" in types or "integer" in types or not types:
                self._numbers(field, add, 1.0 if types else 0.3)
            if "array" in types:
                self._lists(field, add)
            if field.element >= 0:
                self._elements(field, add)
        ranked = sorted(weights.items(), key=lambda item: -item[1][0])[:MOST]
        total = sum(weight for weight, _ in weights.values()) + 0.8
        return tuple(Candidate(text, weight / total, source) for text, (weight, source) in ranked)

    def _from_schema(self, field: Field, add) -> None:
        node = field.node
        if node is None:
            return
        request = self.spans.text.lower()
        for rank, text in enumerate(node.choices):
            word = text.strip('"').lower().replace("_", " ")
            add(text, (6.0 if word and word in request else 1.0) / (1 + 0.2 * rank), "choice")
        if "boolean" in node.types and not node.choices:
            add("true", 3.0, "choice")
            add("false", 1.6, "choice")
        if node.default is not None:
            add(node.default, 1.2, "choice")

    def _from_previous(self, field: Field, add) -> None:
        """What calls of the same tool wrote for this key: nearly sure when they all wrote the same."""
        if not field.is_top_level:
            return
        earlier = [dict(call.fields).get(field.key) for call in field.calls if call.tool == field.call.tool]
        earlier = [text for text in earlier if text]
        if not earlier:
            return
        is_steady = len(earlier) > 1 and len(set(earlier)) == 1
        is_closed = bool(field.node and (field.node.choices or "boolean" in field.types))
        add(earlier[-1], 8.0 if is_steady else 4.0 if is_closed else 1.2, "previous")

    def _used(self, field: Field) -> tuple[int, set[str]]:
        """Where in the request the latest value of this key (or of this call) came from, and the texts in use."""
        in_call = {_plain(text) for _, text in field.call.fields}
        position = -1
        texts = [text for key, text in field.call.fields]
        for call in field.calls:
            texts = [text for key, text in call.fields if key == field.key] + texts
        for text in texts:
            for at in self.spans.occurrences(_plain(text), most=3):
                if at > position:
                    position = at
                    break
        return position, in_call

    def _strings(self, field: Field, add) -> None:
        spans = self.spans
        wants = set(w.lower() for w in WORD_PARTS.findall(field.key))
        hints = wants | {w.lower() for w in WORD_PARTS.findall(field.node.description if field.node else "")}
        last, in_call = self._used(field)
        previous = {_plain(dict(c.fields).get(field.key, "")) for c in field.calls}

        def weigh(span: Span, weight: float) -> float:
            weight *= 0.15 if span.text in in_call else 1.0
            weight *= 0.25 if span.kind == "name" and " " not in span.text and spans.starts_sentence(span) else 1.0
            weight *= 0.4 if span.text in previous else 1.0
            if last >= 0:
                weight *= 2.5 if span.start > last else 0.5
            return weight * self._cue(span, wants)

        is_date = bool(hints & {"date", "day", "yyyy", "dates"})
        for rank, span in enumerate(self._after(spans.dates, last)):
            if is_date or (field.node and field.node.format == "date"):
                for form_rank, form in enumerate(self._date_forms(field, span.text)):
                    add(quote(form), 5.0 / (1 + rank) / (1 + 2 * form_rank), "copy")
                verbatim = spans.text[span.start : span.end]
                add(quote(verbatim), 1.5 / (1 + rank), "copy")
        is_time = bool(hints & {"time", "times", "hour", "start", "end", "clock"})
        for kind, weight in (
            ("quoted", 3.0), ("codes", 1.6), ("names", 2.2), ("times", 4.0 if is_time else 0.3),
        ):  # fmt: skip
            for rank, span in enumerate(self._after(getattr(spans, kind), last)[:8]):
                add(quote(span.text), weigh(span, weight) * 0.85**rank, "copy")
        for rank, text in enumerate(self._described(field)):
            add(quote(text), 1.2 * 0.8**rank * (3.0 if text.lower() in spans.text.lower() else 1.0), "choice")
        for span in spans.words:
            if span.text.lower() not in STOP_WORDS and not span.text[0].isdigit() and len(span.text) > 2:
                cue = self._cue(span, wants)
                if cue > 1.5:
                    add(quote(span.text), 0.5 * weigh(span, 1.0), "copy")
        if wants & {"unit", "units", "format", "type", "mode"} or not spans.names:
            for rank, span in enumerate(w for w in spans.words if w.text.lower() not in STOP_WORDS):
                if rank < 12:
                    add(quote(span.text), 0.1, "copy")

    @staticmethod
    def _described(field: Field) -> list[str]:
        """Values that the description gives as examples or choices: quoted, or listed behind `e.g.` and the like."""
        text = field.node.description if field.node else ""
        listed = [next(filter(None, m.groups())) for m in QUOTED.finditer(text)]
        if not listed and (told := EXAMPLES.search(text)):
            listed = [part.strip(" .'\"") for part in re.split(r",| or | and ", told[1])]
        return [part for part in listed if 0 < len(part) < 40][:5]

    def _date_forms(self, field: Field, iso: str) -> list[str]:
        """ISO first unless the description or an earlier value shows another form."""
        forms = date_forms(iso)
        shown = field.node.description if field.node else ""
        for call in field.calls:
            shown = dict(call.fields).get(field.key, "") or shown
        if "/" in shown and "-" not in shown:
            return [forms[2], forms[1], forms[0]] if "DD/MM" in shown.upper() else [forms[1], forms[2], forms[0]]
        return forms

    def _cue(self, span: Span, wants: set[str]) -> float:
        """More where a word of the key stands just before or behind the span."""
        text = self.spans.text
        before, behind = (
            {word.lower().rstrip("s") for word in WORD_PARTS.findall(piece)}
            for piece in (text[max(0, span.start - 30) : span.start], text[span.end : span.end + 20])
        )
        plain = {word.rstrip("s") for word in wants}
        return 1.0 + 1.5 * bool(plain & before) + 0.8 * bool(plain & behind)

    @staticmethod
    def _after(spans: Sequence[Span], last: int) -> list[Span]:
        """In the order in which they are likely next: those behind the last used place first."""
        return [s for s in spans if s.start > last] + [s for s in spans if s.start <= last]

    def _numbers(self, field: Field, add, share: float) -> None:
        last, in_call = self._used(field)
        wants = set(w.lower() for w in WORD_PARTS.findall(field.key))
        is_whole = field.types == ("integer",)
        for rank, span in enumerate(self._after(self.spans.numbers, last)[:8]):
            weight = share * 3.0 * 0.6**rank * self._cue(span, wants)
            weight *= 0.3 if span.text in in_call else 1.0
            weight *= 0.3 if last >= 0 and span.start <= last else 1.0
            weight *= 0.3 if is_whole and "." in span.text else 1.0
            if self.spans.text[span.end : span.end + 8].lstrip().startswith(("%", "percent")) and not is_whole:
                add(_hundredth(span.text), weight * 0.8, "copy")
            add(span.text, weight, "copy")
            if field.types == ("number",) and "." not in span.text:
                add(span.text + ".0", weight * 0.12, "copy")

    def _lists(self, field: Field, add) -> None:
        """Whole lists; their layout is the flat one, which is how short lists are written."""
        items = field.node.items if field.node else None
        is_number = bool(items and items.types and set(items.types) <= {"integer", "number"})
        last, _ = self._used(field)
        lists = self.spans.list_literals(is_number)
        ordered = [x for x in lists if x[0] > last] + [x for x in lists if x[0] <= last]
        for rank, (_, elements) in enumerate(ordered[:4]):
            add("[" + ", ".join(elements) + "]", 3.0 * 0.6**rank, "copy")

    def _elements(self, field: Field, add) -> None:
        """The element at this place of the lists that the request tells."""
        is_number = bool(field.types) and set(field.types) <= {"integer", "number"}
        last, _ = self._used(field)
        lists = self.spans.list_literals(is_number)
        ordered = [x for x in lists if x[0] > last] + [x for x in lists if x[0] <= last]
        for rank, (_, elements) in enumerate(ordered[:3]):
            if field.element < len(elements):
                add(elements[field.element], 4.0 * 0.6**rank, "copy")

    def grow(self, begun: str) -> list[Candidate]:
        """Values that begin with the text `begun`; a text that holds a whole value gives that value."""
        whole = WHOLE_VALUE.match(begun)
        if whole:
            return [Candidate(whole[1], 0.9, "evidence")]
        if begun[0] in "-0123456789" and NUMBER_START.fullmatch(begun):
            longer = [span.text for span in self.spans.numbers if span.text.startswith(begun)]
            texts = list(dict.fromkeys([*longer, begun]))
            return [Candidate(text, 0.6 / len(texts), "copy") for text in texts[:4]]
        return self._grow_string(begun[1:]) if begun[0] == '"' else []

    def _grow_string(self, start: str) -> list[Candidate]:
        """Copies from where `start` stands in the request, else from where its last word does; or it ends here."""
        spans, out = self.spans, {}
        if not start.strip() or start.endswith("\\"):
            return []
        words = start.rsplit(" ", 1)
        anchors = [(start, "")] + ([(words[1], words[0] + " ")] if len(words) > 1 and words[1] else [])
        for anchor, head in anchors:
            places = spans.occurrences(anchor)
            for rank, at in enumerate(places):
                for end, weight in spans.ends_from(at)[:4]:
                    if end >= at + len(anchor):
                        text = quote(head + spans.text[at:end])
                        out[text] = out.get(text, 0.0) + weight * (0.7 if rank == 0 else 0.4)
            if out:
                break
        scale = 0.85 / max(1e-9, sum(out.values()))
        grown = [Candidate(text, weight * scale, "copy") for text, weight in out.items()]
        here = f'"{start}"'
        if here not in out:
            grown.append(Candidate(here, 0.12 if out else 0.3, "guess"))
        return sorted(grown, key=lambda candidate: -candidate.probability)[:MOST]


def _plain(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _hundredth(number: str) -> str:
    value = float(number) / 100
    return f"{value:.10f}".rstrip("0").rstrip(".") or "0"
