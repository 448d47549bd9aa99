"""What may come next in an output with tool calls: texts with probabilities, and where each would leave the output.

`expand` is the one place that knows how a call goes on: tools, keys, values, nesting, closing, the next call. It reads
a cursor (a spot between two parts, real or planned) and never looks at tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from schemafill.inference.drafting.candidates import Candidate
from schemafill.inference.drafting.cursor import Cursor
from schemafill.inference.drafting.growth import grow
from schemafill.inference.drafting.tool_choice import ToolChooser, most_like
from schemafill.inference.drafting.values import Field, ValueGuesser
from schemafill.inference.toolcall.dialects import Dialect
from schemafill.inference.toolcall.schema import Tool
from schemafill.inference.toolcall.style import Style, between_calls, call_end, call_header, closing, opening, quoted
from schemafill.inference.toolcall.tracker_state import node_of_child

# Shares are first guesses set by hand. A wrong one costs draft rows or a shorter accepted path, never output.
REQUIRED_SHARE = 0.97
OPTIONAL_SHARE = 0.5
DEFAULTED_SHARE = 0.4
"""An optional field that has a default."""
REPEATED_SHARE, DROPPED_SHARE = 0.93, 0.06
"""An optional field that the previous call of the same tool had, or did not have."""
UNLISTED_SHARE = 0.9
"""A key outside the schema that the previous call of the same tool had."""
KNOWN_STRUCTURE = 0.99
"""What the schema's keys and the end of the object share; the rest is for what nothing here knows."""
UNKNOWN_KEY = 0.03
"""A key that nothing here knows, relative to what the known keys leave."""
LEAST_LEFT = 0.02
"""No further keys are listed once those before leave less than this."""
CONTAINER_SHARE = 0.95
FIRST_ELEMENT, NEXT_ELEMENT = 0.95, 0.6
"""An element comes rather than the end: in an array with nothing in it yet, and behind an element."""
UNKNOWN_NAME = 0.5


@dataclass(frozen=True)
class Option:
    """One way to go on from a cursor. `following` is None where nothing is known behind the text."""

    text: str
    probability: float
    source: str
    """What proposes the text between the two marks; what stands around it is structure."""
    following: Cursor | None
    marks: tuple[int, int]


class Expander:
    """Options for one request."""

    def __init__(
        self, dialect: Dialect, tools: ToolChooser, styles: Sequence[tuple[Style, float]], values: ValueGuesser
    ) -> None:
        """styles: layouts that an output may turn out to have, with their probabilities."""
        self.dialect, self.tools, self.styles, self.values = dialect, tools, styles, values

    def expand(self, cursor: Cursor, begun: str = "") -> list[Option]:
        """The options at a cursor. `begun`: text that stands there already, or that the target is known to write."""
        match cursor.kind:
            case "open":
                before = opening(cursor.style, self.dialect)
                return self._openings(cursor) + self._unknown_tool(cursor, before, begun)
            case "call":
                return self._headers(cursor, "", 1.0) + self._unknown_tool(cursor, "", begun)
            case "object":
                return self._keys(cursor)
            case "value":
                return self._values(cursor, cursor.style.colon, begun)
            case "array":
                return self._elements(cursor, begun)
            case "after_args":
                between = call_end(cursor.style, self.dialect) + between_calls(cursor.style, self.dialect)
                return self._next_calls(cursor, between) + self._unknown_tool(cursor, between, begun)
        return []

    def later_fields(self, cursor: Cursor) -> list[Cursor]:
        """Value cursors of the fields that may still come in the innermost object, in the schema's order."""
        return [cursor.behind_key(name) for name, share in self._fields(cursor) if share >= OPTIONAL_SHARE]

    def probe_text(self, cursor: Cursor, value: Cursor) -> str:
        """From the object cursor to where the value of a later field begins, the fields between left out."""
        node = node_of_child(value.frames[-1])
        sign = '"' if node is not None and node.types == ("string",) else ""
        return self._before_part(cursor) + quoted(value.field_name) + cursor.style.colon + sign

    def confidence(self, value: Cursor) -> float:
        """Probability of the best guess for a value."""
        return max((candidate.probability for candidate in self.values.candidates(_field(value))), default=0.0)

    def _openings(self, cursor: Cursor) -> list[Option]:
        styles = [(cursor.style, 1.0)] if cursor.is_style_known else self.styles
        tools = self.tools.next_tools(cursor.tools)
        return [
            self._header(cursor, opening(style, self.dialect), style, tool, tool.name, share * p)
            for style, share in styles
            for tool, p in tools
        ]

    def _headers(self, cursor: Cursor, before: str, share: float) -> list[Option]:
        """A call of each likely tool, in the cursor's style; `share` is what all of them have together."""
        tools = self.tools.next_tools(cursor.tools)
        return [self._header(cursor, before, cursor.style, tool, tool.name, share * p) for tool, p in tools]

    def _header(
        self, cursor: Cursor, before: str, style: Style, tool: Tool | None, name: str, probability: float
    ) -> Option:
        """`before` and a call's header with this name; its arguments follow the schema of `tool`."""
        header = before + call_header(style, self.dialect, name)
        start = header.index(quoted(name), len(before) + len(quoted(self.dialect.name_key)))
        marks = (start, start + len(quoted(name)))
        return Option(header, probability, "name", cursor.in_call(tool, name, style), marks)

    def _unknown_tool(self, cursor: Cursor, before: str, begun: str) -> list[Option]:
        """A header for a name that was written and is in no catalogue: as far as it goes, or as a whole."""
        key = re.escape(quoted(self.dialect.name_key))
        named = re.search(key + r'\s*:\s*"((?:[^"\\]|\\.)+)("?)', begun)
        name = self.tools.unknown_name(named[1], is_whole=bool(named[2])) if named else None
        if name is None:
            return []
        return [self._header(cursor, before, cursor.style, most_like(self.tools.catalog, name), name, UNKNOWN_NAME)]

    def _keys(self, cursor: Cursor) -> list[Option]:
        """The next key or the end of the object, in the schema's order."""
        before = self._before_part(cursor)
        options, left = [], KNOWN_STRUCTURE
        for name, share in self._fields(cursor):
            text = before + quoted(name)
            options.append(Option(text, left * share, "key", cursor.behind_key(name), (len(before), len(text))))
            left *= 1 - share
            if left < LEAST_LEFT:
                break
        unknown = before + '"'
        options.append(Option(unknown, left * UNKNOWN_KEY, "structure", None, (0, len(unknown))))
        return [*options, self._end(cursor, "}", left)]

    def _fields(self, cursor: Cursor) -> list[tuple[str, float]]:
        """Keys that may come next with the chance that each is taken when those before it are not."""
        frame = cursor.frames[-1]
        node = frame.node
        if node is None:
            return []
        names = list(node.properties)
        seen = [names.index(key) for key in frame.keys if key in node.properties]
        previous = _previous_keys(cursor) if frame.role == "args" else None
        fields = []
        for name in names[max(seen) + 1 :] if seen else names:
            if name in node.required:
                share = REQUIRED_SHARE
            elif previous is not None:
                share = REPEATED_SHARE if name in previous else DROPPED_SHARE
            else:
                share = OPTIONAL_SHARE if node.properties[name].default is None else DEFAULTED_SHARE
            fields.append((name, share))
        unlisted = [name for name in previous or () if name not in node.properties and name not in frame.keys]
        return fields + [(name, UNLISTED_SHARE) for name in unlisted]

    def _values(self, cursor: Cursor, before: str, begun: str) -> list[Option]:
        candidates = self.values.candidates(_field(cursor))
        options = [self._value_option(cursor, before, c) for c in candidates]
        options += self._containers(cursor, before, 1.0 - sum(c.probability for c in candidates))
        return options + self._grown(cursor, before, begun, candidates)

    def _grown(self, cursor: Cursor, before: str, begun: str, known: Sequence[Candidate]) -> list[Option]:
        """Values that go on from one which is begun already: copies from where its beginning stands in the request."""
        if not begun.startswith(before) or len(begun) == len(before):
            return []
        grown = grow(self.values.spans, begun[len(before) :])
        texts = {candidate.text for candidate in known}
        return [self._value_option(cursor, before, c) for c in grown if c.text not in texts]

    def _value_option(self, cursor: Cursor, before: str, candidate: Candidate) -> Option:
        text = before + candidate.text
        following = cursor.behind_value(candidate.text)
        return Option(text, candidate.probability, candidate.source, following, (len(before), len(text)))

    def _containers(self, cursor: Cursor, before: str, share: float) -> list[Option]:
        """Opening a nested object or array whose parts are known."""
        node = node_of_child(cursor.frames[-1])
        if node is None or share <= 0:
            return []
        openings = []
        if node.properties and ("object" in node.types or not node.types):
            openings.append(("{", "object"))
        if node.items is not None and "array" in node.types:
            openings.append(("[", "array"))
        each = min(CONTAINER_SHARE, share) / max(1, len(openings))
        marks = (0, len(before) + 1)
        return [
            Option(before + sign, each, "structure", cursor.in_container(role, node), marks) for sign, role in openings
        ]

    def _elements(self, cursor: Cursor, begun: str) -> list[Option]:
        share = NEXT_ELEMENT if cursor.frames[-1].num_values else FIRST_ELEMENT
        elements = self._values(cursor, self._before_part(cursor), begun)
        options = [replace(option, probability=option.probability * share) for option in elements]
        return [*options, self._end(cursor, "]", 1 - share)]

    def _before_part(self, cursor: Cursor) -> str:
        """Comma and white space before the next key or element of the innermost container."""
        frame = cursor.frames[-1]
        comma, place = (",", "item") if frame.num_values else ("", "open")
        return comma + cursor.style.space(frame.role, place, self._depth(cursor))

    def _end(self, cursor: Cursor, sign: str, probability: float) -> Option:
        """The closing sign of the innermost container; an empty one closes at once."""
        frame = cursor.frames[-1]
        space = cursor.style.space(frame.role, "close", self._depth(cursor)) if frame.num_values else ""
        return Option(space + sign, probability, "close", cursor.behind_container(), (0, len(space + sign)))

    def _next_calls(self, cursor: Cursor, between: str) -> list[Option]:
        more = self._share_of_more(cursor)
        finish = call_end(cursor.style, self.dialect) + closing(cursor.style, self.dialect)
        end = Option(finish, 1 - more, "close", cursor.at_end(), (0, len(finish)))
        return [*self._headers(cursor, between, more), end]

    def _share_of_more(self, cursor: Cursor) -> float:
        """How likely another call is: high while the request holds values behind the last one used.

        Set by hand like the shares above.
        """
        catalog, spans = self.tools.catalog, self.values.spans
        if not cursor.calls or catalog.get(cursor.calls[-1].tool or "") is None:
            return 0.5
        last_end = 0
        for _, text in cursor.calls[-1].fields:
            plain = text.strip('"')
            places = spans.occurrences(plain, most=4) if plain else []
            last_end = max([last_end, *(at + len(plain) for at in places)])
        kinds = (spans.names, spans.quoted, spans.numbers, spans.dates)
        num_behind = sum(span.start >= last_end for kind in kinds for span in kind)
        num_unused = sum(tool.name not in cursor.tools for tool in catalog.tools)
        if len(catalog.tools) > 1 and num_unused == 0:
            return 0.4 if num_behind else 0.25
        return min(0.9, 0.3 + 0.25 * num_behind + 0.2 * (num_unused > 0 and len(cursor.calls) < 3))

    def _depth(self, cursor: Cursor) -> int:
        """Open containers in the output, those around the arguments included."""
        return self.dialect.call_depth + 1 + len(cursor.frames)


def _previous_keys(cursor: Cursor) -> list[str] | None:
    """Argument names of the latest call of the same tool; None where there was none."""
    earlier = [call for call in cursor.calls if call.tool == cursor.call.tool]
    return list(dict(earlier[-1].fields)) if earlier else None


def _field(cursor: Cursor) -> Field:
    """The place of the value that comes next at a cursor."""
    frame = cursor.frames[-1]
    element = -1 if frame.is_object else frame.num_values
    node = node_of_child(frame)
    return Field(cursor.field_name, node, cursor.call, cursor.calls, frame.role == "args", element)
