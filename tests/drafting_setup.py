"""What the tests of the drafter's parts share: requests, catalogues and cursors at any place of an output."""

from __future__ import annotations

from schemafill.inference.drafting.cursor import Cursor, cursor_of
from schemafill.inference.drafting.options import Expander
from schemafill.inference.drafting.tool_choice import ToolChooser
from schemafill.inference.drafting.values import Field, ValueGuesser
from schemafill.inference.toolcall.dialects import get_dialect
from schemafill.inference.toolcall.schema import parse_tools
from schemafill.inference.toolcall.style import BARE, Style, StyleMemory
from schemafill.inference.toolcall.tracker import Tracker
from schemafill.inference.toolcall.tracker_state import CallRecord

REQUEST = 'Weather in Oslo and in "São Paulo" for 3 days from March 7, 2025? Mail it to ann@x.org, urgently.'


class Setup:
    """A dialect with a catalogue and a request: where an output stands, and what may come next there."""

    def __init__(self, dialect: str, tools: list[dict], request: str = REQUEST, style: Style = BARE) -> None:
        self.dialect, self.catalog, self.style = get_dialect(dialect), parse_tools(tools), style
        chooser = ToolChooser(self.catalog, range(len(self.catalog.tools)))
        self.expander = Expander(self.dialect, chooser, StyleMemory(dialect).guesses(), ValueGuesser(request))

    def read(self, text: str) -> Tracker:
        tracker = Tracker(self.dialect, self.catalog, self.style)
        tracker.advance(text.encode())
        return tracker

    def cursor(self, text: str) -> Cursor | None:
        return cursor_of(self.read(text))

    def header(self, name: str) -> str:
        """All text up to the arguments of a first call."""
        key = self.dialect.arguments_key
        return f'{self.dialect.opening}{{"name": "{name}", "{key}": {{'


def schema_node(schema: dict):
    """The node of one argument `a` with this schema."""
    tool = {"name": "t", "parameters": {"type": "object", "properties": {"a": schema}}}
    return parse_tools([tool]).tools[0].parameters.properties["a"]


def field(
    schema: dict | None, key: str = "a", *, written: dict | None = None, earlier: list[dict] = (), element: int = -1
) -> Field:
    """The place of an argument in a call of `t` that has the `written` arguments, behind `earlier` calls of it."""
    calls = tuple(CallRecord("t", tuple(fields.items())) for fields in earlier)
    call = CallRecord("t", tuple((written or {}).items()))
    node = None if schema is None else schema_node(schema)
    return Field(key, node, call, calls, element < 0, element)
