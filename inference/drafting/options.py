"""What may come next in an output with tool calls: texts with probabilities, and where each would leave the output.

`expand` is the one place that knows how a call goes on: tools, keys, values, nesting, closing, the next call. It reads
a cursor (a spot between two parts, real or planned) and never looks at tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix

from schemafill.inference.drafting.values import Candidate, Field, ValueGuesser
from schemafill.inference.toolcall.dialects import Dialect
from schemafill.inference.toolcall.schema import Catalog, Tool, parse_tools
from schemafill.inference.toolcall.schema_node import SchemaNode
from schemafill.inference.toolcall.style import (
    Style,
    between_calls,
    call_end,
    call_header,
    closing,
    opening,
    quoted,
)  # fmt: skip
from schemafill.inference.toolcall.tracker import CallRecord, Frame, Place, node_of_child

EMPTY = parse_tools([{"name": "none"}]).tools[0].parameters
OPTIONAL_SHARE = 0.5
REQUIRED_SHARE = 0.97
MOST_TOOLS = 6


@dataclass(frozen=True)
class Cursor:
    """A spot between two parts of an output. kinds as in `Place`; `end` is behind the last call.

    frames: the open containers from the arguments object inward; empty outside arguments.
    """

    kind: str
    frames: tuple[Frame, ...]
    call: CallRecord
    calls: tuple[CallRecord, ...]
    style: Style

    @property
    def key(self) -> tuple:
        """Names the spot by its place in the output's structure, whatever the values before it.

        A value is named by the keys that lead to it alone: it does not matter which fields stand before.
        """
        if self.kind == "value":
            inside = tuple(frame.keys[-1] if frame.is_object else frame.num_values for frame in self.frames)
        else:
            inside = tuple(frame.keys if frame.is_object else frame.num_values for frame in self.frames)
        tool = self.call.tool if self.frames else None
        return (self.kind, len(self.calls), tool, inside)


@dataclass(frozen=True)
class Option:
    """One way to go on from a cursor. `following` is None where nothing is known behind the text."""

    text: str
    probability: float
    source: str
    """What proposes the text between the two marks; what stands around it is structure."""
    following: Cursor | None
    marks: tuple[int, int]


def cursor_of(place: Place, calls: tuple[CallRecord, ...], style: Style, catalog: Catalog) -> Cursor | None:
    """The cursor of a tracker's place; None where no structure is known.

    A tool that is not in the catalogue gets the schema of the one that is named most like it.
    """
    outside = sum(frame.role in ("outer", "list", "call") for frame in place.frames)
    at = outside if outside < len(place.frames) and place.frames[outside - 1].role == "call" else None
    if place.kind in ("open", "call", "done"):
        return Cursor(place.kind, (), CallRecord(), calls, style)
    if place.kind == "after_args":
        is_open = any(frame.role == "call" for frame in place.frames)
        return Cursor("after_args", (), CallRecord(), (*calls, place.call) if is_open else calls, style)
    if place.kind == "lost" or at is None:
        return None
    frames = place.frames[at:]
    like = most_like(catalog, place.call.tool) if frames[0].role == "args" and frames[0].node is None else None
    if like is not None:
        frames = (replace(frames[0], node=like.parameters), *frames[1:])
        for i in range(1, len(frames)):
            frames = (*frames[:i], replace(frames[i], node=node_of_child(frames[i - 1])), *frames[i + 1 :])
    return Cursor(place.kind, frames, place.call, calls, style)


def most_like(catalog: Catalog, name: str | None) -> Tool | None:
    """The tool of this name, else the one whose name shares the longest beginning or end, at least four signs."""
    if name is None or not catalog.tools:
        return None
    best = max(catalog.tools, key=lambda tool: (tool.name == name, _likeness(tool.name, name)))
    return best if best.name == name or _likeness(best.name, name) >= 4 else None


def _short(tool: Tool) -> str:
    """The last part of a dotted name, as which some targets write it; empty for other names."""
    return tool.name.rpartition(".")[2] if "." in tool.name else ""


def _ends_like(name: str, begun: str) -> bool:
    """Whether a part of the name behind a dot or underscore begins so."""
    return any(name.startswith(begun, at + 1) for at, sign in enumerate(name) if sign in "._")


def _likeness(one: str, other: str) -> int:
    return max(len(commonprefix([one, other])), len(commonprefix([one[::-1], other[::-1]])))


class Expander:
    """Options for one request."""

    def __init__(
        self, dialect: Dialect, catalog: Catalog, ranking: Sequence[int], styles: Sequence[tuple[Style, float]],
        values: ValueGuesser,
    ) -> None:
        self.dialect, self.catalog, self.ranking = dialect, catalog, ranking
        self.styles, self.values = styles, values
        self.is_style_known = False

    def expand(self, cursor: Cursor, begun: str = "") -> list[Option]:
        """The options at a cursor. `begun`: text that stands there already, or that the target is known to write."""
        match cursor.kind:
            case "open":
                return self._openings(cursor) + self._unknown_tool(cursor, opening(cursor.style, self.dialect), begun)
            case "call":
                known = [self._header(cursor, "", cursor.style, tool, p) for tool, p in self._tools(cursor)]
                return known + self._unknown_tool(cursor, "", begun)
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

    def _openings(self, cursor: Cursor) -> list[Option]:
        styles = [(cursor.style, 1.0)] if self.is_style_known else self.styles
        return [
            self._header(cursor, opening(style, self.dialect), style, tool, share * p)
            for style, share in styles
            for tool, p in self._tools(cursor)
        ]

    def _tools(self, cursor: Cursor) -> list[tuple[Tool, float]]:
        """Tools of the next call: by rank for the first, then the same again or the next one not used yet.

        A name that the target wrote and that is in no catalogue is likely to be written again.
        """
        used = [call.tool for call in cursor.calls]
        if used and used[-1] and self.catalog.get(used[-1]) is None:
            like = most_like(self.catalog, used[-1])
            again = [(self._nameless(used[-1], like), 0.6 if len(self.catalog.tools) == 1 else 0.35)]
            return again + [(tool, p * 0.4) for tool, p in self._known_tools(cursor, used)]
        known = self._known_tools(cursor, used)
        shortened = [(self._nameless(_short(tool), tool), 0.08 * p) for tool, p in known if _short(tool)]
        return known + shortened[:2]

    @staticmethod
    def _nameless(name: str, like: Tool | None) -> Tool:
        """A tool of a name that is in no catalogue, with the schema of the one it is like."""
        return replace(like, name=name) if like else Tool(name, "", EMPTY, {})

    def _known_tools(self, cursor: Cursor, used: list[str | None]) -> list[tuple[Tool, float]]:
        tools = self.catalog.tools
        order = [tools[i] for i in self.ranking]
        if len(order) < 2:
            return [(tool, 0.9 if _short(tool) and not used else 0.97) for tool in order]
        weights: dict[int, float] = {}
        for rank, tool in enumerate(order):
            weights[id(tool)] = 0.75**rank * (0.5 if tool.name in used else 1.0)
        if used:
            for tool in tools:  # calls often follow the catalogue's order
                if tool.name not in used:
                    weights[id(tool)] += 1.0
                    break
            last = self.catalog.get(used[-1]) if used[-1] else None
            if last is not None:
                weights[id(last)] += 0.5
        elif tools:
            weights[id(tools[0])] += 0.6
        total = sum(weights.values()) * 1.05
        ranked = sorted(order, key=lambda tool: -weights[id(tool)])[:MOST_TOOLS]
        return [(tool, weights[id(tool)] / total) for tool in ranked]

    def _header(self, cursor: Cursor, before: str, style: Style, tool: Tool, probability: float) -> Option:
        frame = Frame("args", node=tool.parameters)
        following = Cursor("object", (frame,), CallRecord(tool.name), cursor.calls, style)
        return self._named(before, style, tool.name, probability, following)

    def _named(self, before: str, style: Style, name: str, probability: float, following: Cursor) -> Option:
        header = before + call_header(style, self.dialect, name)
        start = header.index(quoted(name), len(before) + len(quoted(self.dialect.name_key)))
        return Option(header, probability, "name", following, (start, start + len(quoted(name))))

    def _unknown_tool(self, cursor: Cursor, before: str, begun: str) -> list[Option]:
        """A header for a name that was written and is in no catalogue: as far as it goes, or as a whole."""
        key = re.escape(quoted(self.dialect.name_key))
        named = re.search(key + r'\s*:\s*"((?:[^"\\]|\\.)+)("?)', begun)
        if named is None or self.catalog.get(named[1]) is not None:
            return []
        known = [tool.name for tool in self.catalog.tools]
        if not named[2] and any(name.startswith(named[1]) or _ends_like(name, named[1]) for name in known):
            whole = next((n[n.rindex(named[1]) :] for n in known if _ends_like(n, named[1])), "")
            if not whole or any(name.startswith(named[1]) for name in known):
                return []
            named = re.match("(.*)()", whole)
        like = most_like(self.catalog, named[1])
        frame = Frame("args", node=like.parameters if like else None)
        following = Cursor("object", (frame,), CallRecord(named[1]), cursor.calls, cursor.style)
        return [self._named(before, cursor.style, named[1], 0.5, following)]

    def _keys(self, cursor: Cursor) -> list[Option]:
        """The next key or the end of the object, in the schema's order."""
        frame = cursor.frames[-1]
        depth = self._depth(cursor)
        comma = "," if frame.num_values else ""
        space = cursor.style.space(frame.role, "item" if comma else "open", depth)
        options, left = [], 0.99
        for name, share in self._fields(cursor, frame):
            opened = replace(frame, state="value", keys=(*frame.keys, name))
            following = replace(cursor, kind="value", frames=(*cursor.frames[:-1], opened))
            text = comma + space + quoted(name)
            options.append(Option(text, left * share, "key", following, (len(comma + space), len(text))))
            left *= 1 - share
            if left < 0.02:
                break
        unknown = comma + space + '"'  # a key that nothing here knows
        options.append(Option(unknown, left * 0.03, "structure", None, (0, len(unknown))))
        end = "}" if not comma else cursor.style.space(frame.role, "close", depth) + "}"
        options.append(Option(end, left, "close", self._leave(cursor), (0, len(end))))
        return options

    def later_fields(self, cursor: Cursor) -> list[Cursor]:
        """Value cursors of the fields that may still come in the innermost object, in the schema's order."""
        frame = cursor.frames[-1]
        names = [name for name, share in self._fields(cursor, frame) if share >= OPTIONAL_SHARE]
        opened = [replace(frame, state="value", keys=(*frame.keys, name)) for name in names]
        return [replace(cursor, kind="value", frames=(*cursor.frames[:-1], field)) for field in opened]

    def probe_text(self, cursor: Cursor, value: Cursor) -> str:
        """From the object cursor to where the value of a later field begins, the fields between left out."""
        frame = cursor.frames[-1]
        comma = "," if frame.num_values else ""
        space = cursor.style.space(frame.role, "item" if comma else "open", self._depth(cursor))
        node = node_of_child(value.frames[-1])
        sign = '"' if node is not None and node.types == ("string",) else ""
        return comma + space + quoted(value.frames[-1].keys[-1]) + cursor.style.colon + sign

    def confidence(self, value: Cursor) -> float:
        """Probability of the best guess for a value."""
        frame = value.frames[-1]
        field = Field(frame.keys[-1], node_of_child(frame), value.call, value.calls, frame.role == "args")
        return max((candidate.probability for candidate in self.values.candidates(field)), default=0.0)

    def _fields(self, cursor: Cursor, frame: Frame) -> list[tuple[str, float]]:
        """Keys that may come next with the chance that each is taken when those before it are not."""
        node = frame.node
        if node is None:
            return []
        names = list(node.properties)
        seen = [names.index(key) for key in frame.keys if key in node.properties]
        behind = names[max(seen) + 1 :] if seen else names
        earlier = [list(dict(call.fields)) for call in cursor.calls if call.tool == cursor.call.tool]
        fields = []
        for name in behind:
            share = REQUIRED_SHARE if name in node.required else OPTIONAL_SHARE
            if earlier and frame.role == "args" and name not in node.required:
                share = 0.93 if name in earlier[-1] else 0.06
            elif name not in node.required and node.properties[name].default is not None:
                share = 0.4
            fields.append((name, share))
        if earlier and frame.role == "args":  # keys outside the schema that a call of this tool had before
            fields += [(name, 0.9) for name in earlier[-1] if name not in node.properties and name not in frame.keys]
        return fields

    def _values(self, cursor: Cursor, before: str, begun: str) -> list[Option]:
        frame = cursor.frames[-1]
        node = node_of_child(frame)
        key = frame.keys[-1] if frame.is_object and frame.keys else ""
        is_top = frame.role == "args"
        index = -1 if frame.is_object else frame.num_values
        field = Field(key or self._key_around(cursor), node, cursor.call, cursor.calls, is_top, index)
        candidates = self.values.candidates(field)
        options = [self._value_option(cursor, before, key, c) for c in candidates]
        options += self._containers(cursor, before, node, 1.0 - sum(c.probability for c in candidates))
        return options + self._grown(cursor, before, key, begun, candidates)

    def _grown(
        self, cursor: Cursor, before: str, key: str, begun: str, known: Sequence[Candidate]
    ) -> list[Option]:
        """Values that go on from one which is begun already: copies from where its beginning stands in the request."""
        if not begun.startswith(before) or len(begun) == len(before):
            return []
        grown = self.values.grow(begun[len(before) :])
        texts = {candidate.text for candidate in known}
        return [self._value_option(cursor, before, key, c) for c in grown if c.text not in texts]

    def _value_option(self, cursor: Cursor, before: str, key: str, candidate: Candidate) -> Option:
        text = before + candidate.text
        following = self._written(cursor, key, candidate.text)
        return Option(text, candidate.probability, candidate.source, following, (len(before), len(text)))

    def _written(self, cursor: Cursor, key: str, text: str) -> Cursor:
        """The cursor behind a value."""
        frame = cursor.frames[-1]
        done = replace(frame, state="after", num_values=frame.num_values + 1)
        call = cursor.call
        if frame.role == "args":
            call = replace(call, fields=(*call.fields, (key, text)))
        kind = "object" if frame.is_object else "array"
        return replace(cursor, kind=kind, frames=(*cursor.frames[:-1], done), call=call)

    def _containers(self, cursor: Cursor, before: str, node: SchemaNode | None, share: float) -> list[Option]:
        """Opening a nested object or array whose parts are known."""
        if node is None or share <= 0:
            return []
        options = []
        if node.properties and ("object" in node.types or not node.types):
            frame = Frame("object", node=node)
            options.append(("{", replace(cursor, kind="object", frames=(*cursor.frames, frame))))
        if node.items is not None and "array" in node.types:
            frame = Frame("array", node=node)
            options.append(("[", replace(cursor, kind="array", frames=(*cursor.frames, frame))))
        each = min(0.95, share) / max(1, len(options))
        marks = (0, len(before) + 1)
        return [Option(before + sign, each, "structure", following, marks) for sign, following in options]

    def _elements(self, cursor: Cursor, begun: str) -> list[Option]:
        frame = cursor.frames[-1]
        depth = self._depth(cursor)
        comma = "," if frame.num_values else ""
        space = cursor.style.space("array", "item" if comma else "open", depth)
        share = 0.6 if comma else 0.95
        elements = self._values(cursor, comma + space, begun)
        options = [replace(option, probability=option.probability * share) for option in elements]
        end = (cursor.style.space("array", "close", depth) if comma else "") + "]"
        options.append(Option(end, 1 - share, "close", self._leave(cursor), (0, len(end))))
        return options

    def _leave(self, cursor: Cursor) -> Cursor:
        """The cursor behind the container that the innermost frame closes."""
        outer = cursor.frames[:-1]
        if not outer:
            return Cursor("after_args", (), CallRecord(), (*cursor.calls, cursor.call), cursor.style)
        parent = outer[-1]
        done = replace(parent, state="after", num_values=parent.num_values + 1)
        kind = "object" if parent.is_object else "array"
        call = cursor.call
        if parent.role == "args":
            call = replace(call, fields=(*call.fields, (parent.keys[-1], "")))
        return replace(cursor, kind=kind, frames=(*outer[:-1], done), call=call)

    def _next_calls(self, cursor: Cursor, between: str) -> list[Option]:
        more = self._share_of_more(cursor)
        options = [self._header(cursor, between, cursor.style, tool, more * p) for tool, p in self._tools(cursor)]
        finish = call_end(cursor.style, self.dialect) + closing(cursor.style, self.dialect)
        end = Cursor("end", (), CallRecord(), cursor.calls, cursor.style)
        options.append(Option(finish, 1 - more, "close", end, (0, len(finish))))
        return options

    def _share_of_more(self, cursor: Cursor) -> float:
        """How likely another call is: high while the request holds values behind the last one used."""
        last_tool = self.catalog.get(cursor.calls[-1].tool or "") if cursor.calls else None
        if last_tool is None:
            return 0.5
        ends = [0]
        for _, text in cursor.calls[-1].fields:
            plain = text.strip('"')
            ends += [at + len(plain) for at in self.values.spans.occurrences(plain, most=4)] if plain else []
        behind = [
            span for kind in ("names", "quoted", "numbers", "dates") for span in getattr(self.values.spans, kind)
            if span.start >= max(ends)
        ]  # fmt: skip
        unused = sum(tool.name not in {call.tool for call in cursor.calls} for tool in self.catalog.tools)
        if len(self.catalog.tools) > 1 and unused == 0:
            return 0.25 if not behind else 0.4
        return min(0.9, 0.3 + 0.25 * len(behind) + 0.2 * bool(unused and len(cursor.calls) < 3))

    def _key_around(self, cursor: Cursor) -> str:
        """The key under which an array's elements stand."""
        return next((f.keys[-1] for f in reversed(cursor.frames[:-1]) if f.is_object and f.keys), "")

    def _depth(self, cursor: Cursor) -> int:
        """Open containers in the output, those around the arguments included."""
        return self.dialect.call_depth + 1 + len(cursor.frames)
