"""What is known of an output that was read so far: the open containers, the calls written, the place it stands at.

Values only; tracker.py makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemafill.inference.toolcall.schema_node import SchemaNode
from schemafill.inference.toolcall.style import Style


@dataclass(frozen=True)
class Frame:
    """One open container. state: `first` nothing in it yet, `next` after a comma, `colon`, `value`, `after` a value."""

    role: str
    state: str = "first"
    keys: tuple[str, ...] = ()
    num_values: int = 0
    node: SchemaNode | None = None
    start: int = 0
    """Where its opening sign stands in the text."""

    @property
    def is_object(self) -> bool:
        return self.role not in ("list", "array")


@dataclass(frozen=True)
class CallRecord:
    """A call as far as it was written: its tool and its top-level arguments as (key, JSON text)."""

    tool: str | None = None
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Place:
    """The last spot at which the output stood between two parts, and what was written since.

    kind: `open` before the first call's arguments, `call` at a call's brace before its arguments, `object` before a key
    or the end of an object, `value` before a value (its colon included), `array` before an element or the end,
    `after_args` behind a call's arguments, `done`, `lost`. `partial` is the text since that spot.
    """

    kind: str
    partial: str
    frames: tuple[Frame, ...]
    call: CallRecord
    call_index: int


@dataclass(frozen=True)
class TrackerState:
    text: str = ""
    pending: bytes = b""
    """Bytes of a character that is not complete yet."""
    frames: tuple[Frame, ...] = ()
    kind: str = "open"
    """See `Place`."""
    anchor: int = 0
    """Where in `text` the current place begins."""
    literal: str = ""
    """`"` inside a string, `\\` behind a backslash in one, `0` inside another scalar, empty outside."""
    literal_start: int = 0
    space_start: int = 0
    """Where the white space before the next sign begins."""
    key_end: int = 0
    """Where the last key ends."""
    call: CallRecord = field(default_factory=CallRecord)
    calls: tuple[CallRecord, ...] = ()
    style: Style = field(default_factory=Style)
    is_style_seen: bool = False
    lost_at: int = 0


def node_of_child(frame: Frame) -> SchemaNode | None:
    """The schema of the value that the frame expects next, None where nothing is known."""
    node = frame.node
    if node is None:
        return None
    if frame.is_object:
        return node.properties.get(frame.keys[-1]) or node.additional if frame.keys else None
    if frame.num_values < len(node.prefix_items):
        return node.prefix_items[frame.num_values]
    return node.items
