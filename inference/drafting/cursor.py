"""A spot between two parts of an output, real or planned, and the spots behind what may be written there.

Knows the structure of calls. It knows neither how likely a way on is nor how it is spelt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from schemafill.inference.drafting.tool_choice import most_like
from schemafill.inference.toolcall.schema import Tool
from schemafill.inference.toolcall.schema_node import SchemaNode
from schemafill.inference.toolcall.style import Style
from schemafill.inference.toolcall.tracker import Tracker
from schemafill.inference.toolcall.tracker_state import CallRecord, Frame, node_of_child


@dataclass(frozen=True)
class Cursor:
    """A spot. kinds as in `Place`; `end` is behind the last call.

    frames: the open containers from the arguments object inward; empty outside arguments.
    call: the call whose arguments are open, as far as it is written. calls: those that are whole.
    """

    kind: str
    frames: tuple[Frame, ...]
    call: CallRecord
    calls: tuple[CallRecord, ...]
    style: Style
    is_style_known: bool = True
    """False while the output shows no layout yet: the style is a guess, and others are possible."""

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

    @property
    def tools(self) -> list[str | None]:
        """Names of the tools of the calls before."""
        return [call.tool for call in self.calls]

    @property
    def field_name(self) -> str:
        """The key of the value that comes next; for an array's element the key under which the array stands."""
        return next((frame.keys[-1] for frame in reversed(self.frames) if frame.is_object and frame.keys), "")

    def in_call(self, tool: Tool | None, name: str, style: Style) -> Cursor:
        """At the start of the arguments of a call named `name`, with the schema of `tool`."""
        frame = Frame("args", node=tool.parameters if tool else None)
        return Cursor("object", (frame,), CallRecord(name), self.calls, style)

    def behind_key(self, name: str) -> Cursor:
        """Before the value of `name` in the innermost object."""
        frame = self.frames[-1]
        opened = replace(frame, state="value", keys=(*frame.keys, name))
        return replace(self, kind="value", frames=(*self.frames[:-1], opened))

    def behind_value(self, text: str) -> Cursor:
        """Behind a value, spelt `text`, of the innermost container."""
        return self._behind(self.frames, text)

    def in_container(self, role: str, node: SchemaNode) -> Cursor:
        """At the start of a nested `object` or `array`, which is also the kind of the spot."""
        return replace(self, kind=role, frames=(*self.frames, Frame(role, node=node)))

    def behind_container(self) -> Cursor:
        """Behind the closing sign of the innermost container."""
        outer = self.frames[:-1]
        if not outer:
            return Cursor("after_args", (), CallRecord(), (*self.calls, self.call), self.style)
        return self._behind(outer, "")

    def at_end(self) -> Cursor:
        """Behind all calls."""
        return Cursor("end", (), CallRecord(), self.calls, self.style)

    def _behind(self, frames: tuple[Frame, ...], text: str) -> Cursor:
        frame = frames[-1]
        done = replace(frame, state="after", num_values=frame.num_values + 1)
        call = self.call
        if frame.role == "args":
            call = replace(call, fields=(*call.fields, (frame.keys[-1], text)))
        return replace(self, kind="object" if frame.is_object else "array", frames=(*frames[:-1], done), call=call)


def cursor_of(tracker: Tracker) -> Cursor | None:
    """The cursor of the tracker's place; None where no structure is known.

    A tool that is not in the catalogue gets the schema of the one that is named most like it.
    """
    place, calls, style = tracker.place, tracker.state.calls, tracker.state.style
    if place.kind in ("open", "call", "done"):
        return Cursor(place.kind, (), CallRecord(), calls, style, tracker.state.is_style_seen)
    if place.kind == "after_args":
        is_open = any(frame.role == "call" for frame in place.frames)
        return Cursor("after_args", (), CallRecord(), (*calls, place.call) if is_open else calls, style)
    outside = sum(frame.role in ("outer", "list", "call") for frame in place.frames)
    is_in_call = outside < len(place.frames) and place.frames[outside - 1].role == "call"
    if place.kind == "lost" or not is_in_call:
        return None
    frames = place.frames[outside:]
    like = most_like(tracker.catalog, place.call.tool) if frames[0].role == "args" and frames[0].node is None else None
    if like is not None:
        frames = _with_schema(frames, like.parameters)
    return Cursor(place.kind, frames, place.call, calls, style)


def _with_schema(frames: tuple[Frame, ...], node: SchemaNode) -> tuple[Frame, ...]:
    """The frames with the schema of the outermost set, and those inside it worked out from there."""
    known = [replace(frames[0], node=node)]
    for frame in frames[1:]:
        known.append(replace(frame, node=node_of_child(known[-1])))
    return tuple(known)
