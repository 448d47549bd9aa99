"""Where an output stands: fed with committed bytes, it knows the open containers, the tool, the keys and values so far.

Reads what the target wrote, well-formed or not; proposes nothing. State is one immutable value, so a snapshot costs
nothing and going back is exact.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import replace

from schemafill.inference.toolcall.dialects import Dialect
from schemafill.inference.toolcall.schema import Catalog
from schemafill.inference.toolcall.schema_node import SchemaNode
from schemafill.inference.toolcall.style import Style
from schemafill.inference.toolcall.tracker_state import CallRecord, Frame, Place, TrackerState, node_of_child

SPACE = " \t\r\n"
MAX_DEPTH = 64
HEADER = re.compile(r'\{\s*"name"\s*:\s*"')


class Tracker:
    """Follows one output. `advance` takes committed bytes only."""

    def __init__(self, dialect: Dialect, catalog: Catalog, style: Style) -> None:
        self.dialect = dialect
        self.catalog = catalog
        self.state = TrackerState(style=replace(style, arguments_key=style.arguments_key or dialect.arguments_key))

    def snapshot(self) -> TrackerState:
        return self.state

    def restore(self, state: TrackerState) -> None:
        self.state = state

    def advance(self, data: bytes) -> None:
        """Read on. Broken UTF-8 becomes replacement characters, an unfinished character waits for its rest."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        raw = self.state.pending + data
        new = decoder.decode(raw)
        pending = decoder.getstate()[0]
        self.state = replace(self.state, text=self.state.text + new, pending=pending)
        self._read(len(self.state.text) - len(new))

    @property
    def place(self) -> Place:
        """Where the output stands now."""
        state = self.state
        kind = "lost" if state.pending else state.kind
        return Place(kind, state.text[state.anchor :], state.frames, state.call, len(state.calls))

    def _read(self, at: int) -> None:
        """Read the text from `at` on; a text that fits no JSON loses track until the next call's header."""
        while at < len(self.state.text):
            if self.state.kind == "lost":
                found = HEADER.search(self.state.text, self.state.lost_at)
                if found is None:
                    return
                at = self._enter_call(found.start())
            else:
                at = self._read_char(at)

    def _read_char(self, at: int) -> int:
        """Take in one character (or one run of a literal); returns where to go on."""
        state = self.state
        char = state.text[at]
        if state.literal:
            return self._in_literal(at, char)
        if not state.frames:
            return self._outside(at, char)
        frame = state.frames[-1]
        if char in SPACE:
            return at + 1
        if char in "}])":
            return self._close(at, char)
        if char == "," and frame.state == "after":
            self._top(replace(frame, state="next"), space_start=at + 1)
        elif char == ":" and frame.state == "colon":
            self._top(replace(frame, state="value"), space_start=at)
        elif frame.is_object and frame.state in ("first", "next"):
            if char != '"':
                return self._lose(at)
            self._learn(frame, "open" if frame.state == "first" else "item", at)
            self.state = replace(self.state, literal='"', literal_start=at)
        elif frame.state == "value" or (not frame.is_object and frame.state in ("first", "next")):
            if not frame.is_object:
                self._learn(frame, "open" if frame.state == "first" else "item", at)
            return self._start_value(at, char)
        else:
            return self._lose(at)
        return at + 1

    def _outside(self, at: int, char: str) -> int:
        """Outside every container: the first one opens the calls, if the dialect allows it here."""
        state, dialect = self.state, self.dialect
        if state.kind == "done" or char not in "{[":
            return at + 1
        before = state.text[state.anchor : at]
        if dialect.reasoning_opening in before and dialect.reasoning_closing not in before:
            return at + 1
        if dialect.needs_call_marker and dialect.call_marker not in before:
            return at + 1
        if not dialect.needs_call_marker and not _may_precede_calls(before):
            return at + 1
        role = {0: "call", 1: "list", 2: "outer"}[dialect.call_depth]
        if (char == "[") != (role == "list"):
            if char == "[" and role == "outer":
                return at + 1
            role = "call"
        style = state.style if state.calls or dialect.call_depth < 2 else replace(state.style, prefix=before)
        self.state = replace(state, frames=(Frame(role, start=at),), space_start=at + 1, style=style)
        return at + 1

    def _enter_call(self, at: int) -> int:
        """Take up the call whose brace stands at `at`, whatever came before; returns where to go on."""
        around = (Frame("outer", "value", ("tool_calls",)), Frame("list", "next"))
        frames = (*around[2 - self.dialect.call_depth :], Frame("call", start=at))
        self.state = replace(
            self.state, frames=frames, kind="call", anchor=at, literal="", call=CallRecord(), space_start=at + 1
        )
        return at + 1

    def _start_value(self, at: int, char: str) -> int:
        state, frame = self.state, self.state.frames[-1]
        if frame.is_object:
            colon = state.text[state.key_end : at]
            if colon != state.style.colon and colon.strip(SPACE) == ":":
                state = replace(state, style=replace(state.style, colon=colon))
        if char not in "{[(":
            self.state = replace(state, literal='"' if char == '"' else "0", literal_start=at)
            return at + 1
        if len(state.frames) >= MAX_DEPTH:
            return self._lose(at)
        child = Frame(self._child_role(frame, char), node=self._child_node(frame), start=at)
        state = replace(state, frames=(*state.frames, child), space_start=at + 1)
        if child.role in ("args", "object", "array"):
            state = replace(state, kind="array" if child.role == "array" else "object", anchor=at + 1)
        self.state = state
        return at + 1

    def _child_role(self, frame: Frame, char: str) -> str:
        if frame.role == "outer":
            return "list" if char == "[" else "object"
        if frame.role == "list":
            return "call" if char == "{" else "array"
        if frame.role == "call" and char == "{" and frame.keys[-1] in self.dialect.accepted_arguments_keys:
            return "args"
        return "object" if char == "{" else "array"

    def _child_node(self, frame: Frame) -> SchemaNode | None:
        if frame.role == "call":
            tool = self.catalog.get(self.state.call.tool) if self.state.call.tool is not None else None
            return tool.parameters if tool else None
        return node_of_child(frame)

    def _in_literal(self, at: int, char: str) -> int:
        state = self.state
        if state.literal == "\\":
            self.state = replace(state, literal='"')
            return at + 1
        if state.literal == '"':
            end = at
            text = state.text
            while end < len(text) and text[end] not in '"\\':
                end += 1
            if end == len(text):
                return end
            if text[end] == "\\":
                self.state = replace(state, literal="\\")
            else:
                self._end_literal(end + 1)
            return end + 1
        if char in SPACE or char in ",}])":
            self._end_literal(at)
            return at
        return at + 1

    def _end_literal(self, end: int) -> None:
        """A string or scalar ended before `end`."""
        state = self.state
        frame = state.frames[-1]
        text = state.text[state.literal_start : end]
        self.state = replace(state, literal="", space_start=end)
        if frame.is_object and frame.state in ("first", "next"):
            key = _unquoted(text)
            new = replace(frame, state="colon", keys=(*frame.keys, key))
            self.state = replace(self.state, key_end=end)
            if frame.role == "outer" and key == self.dialect.name_key:
                new = replace(new, role="call")
            if frame.role == "call" and key in self.dialect.accepted_arguments_keys:
                self.state = replace(self.state, style=replace(self.state.style, arguments_key=key))
            self._top(new)
            if new.role in ("args", "object"):
                self.state = replace(self.state, kind="value", anchor=end)
            return
        self._value_done(text, end)

    def _value_done(self, text: str, end: int) -> None:
        """A value of the top frame, spelt `text`, ended before `end`."""
        frame = self.state.frames[-1]
        self._top(replace(frame, state="after", num_values=frame.num_values + 1), space_start=end)
        state = self.state
        if frame.role == "args":
            fields = (*state.call.fields, (frame.keys[-1], text))
            self.state = replace(state, call=replace(state.call, fields=fields), kind="object", anchor=end)
        elif frame.role in ("object", "array"):
            self.state = replace(state, kind=frame.role, anchor=end)
        elif frame.role == "call" and frame.keys[-1] == self.dialect.name_key:
            self.state = replace(state, call=replace(state.call, tool=_unquoted(text)))
        elif frame.role == "call" and frame.keys[-1] in self.dialect.accepted_arguments_keys:
            self.state = replace(state, kind="after_args", anchor=end)

    def _close(self, at: int, char: str) -> int:
        frame = self.state.frames[-1]
        if frame.state not in ("first", "after") or (char == "}") != frame.is_object:
            return self._lose(at)
        if frame.state == "after":
            self._learn(frame, "close", at)
        state = replace(self.state, frames=self.state.frames[:-1], space_start=at + 1)
        if frame.role == "call":
            state = replace(state, calls=(*state.calls, state.call), call=CallRecord())
            if state.kind != "after_args":
                state = replace(state, kind="after_args", anchor=at)
        self.state = state
        if state.frames:
            self._value_done(state.text[frame.start : at + 1], at + 1)
        elif frame.role != "call" or self.dialect.stops_at_object:
            self.state = replace(state, kind="done", anchor=at + 1)
        return at + 1

    def _learn(self, frame: Frame, place: str, at: int) -> None:
        state = self.state
        text = state.text[state.space_start : at]
        if text.strip(SPACE):
            return
        style = state.style.learn(frame.role, place, text, len(state.frames))
        self.state = replace(state, style=style, is_style_seen=True)

    def _top(self, frame: Frame, space_start: int | None = None) -> None:
        state = self.state
        start = state.space_start if space_start is None else space_start
        self.state = replace(state, frames=(*state.frames[:-1], frame), space_start=start)

    def _lose(self, at: int) -> int:
        self.state = replace(self.state, kind="lost", anchor=at, lost_at=at + 1, frames=(), literal="")
        return at + 1


def _may_precede_calls(text: str) -> bool:
    """Calls without a marker start the output or a fence, or follow an earlier call."""
    stripped = text.strip(SPACE + ";")
    return not stripped or stripped.endswith(("```json", "```", "}", ":", "<|python_tag|>", "</think>"))


def _unquoted(text: str) -> str:
    try:
        value = json.loads(text)
        str(value).encode()  # half of a pair, spelt as an escape, can stand in no draft
    except ValueError:
        return text.strip('"')
    return value if isinstance(value, str) else text
