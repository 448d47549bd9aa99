"""How each model family writes a tool call, as data.

Knows the texts around and between calls and the keys of a call object. Reading an output is the job of
`toolcall.output`, which takes all its knowledge of formats from here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from schemafill.inference.request import ToolCall, UserError


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The form of an output with tool calls. Every call is one JSON object with a name and its arguments."""

    name: str
    """What users and target configurations call it."""
    call_depth: int
    """How many JSON containers stand open around a call object."""
    opening: str
    """Text before the first call, as the family usually writes it."""
    separator: str
    """Text between two calls."""
    closing: str
    """Text after the last call."""
    name_key: str = "name"
    """Key of the tool's name in a call object."""
    arguments_key: str = "arguments"
    """Key of the arguments, as the family usually writes it."""
    accepted_arguments_keys: tuple[str, ...] = ("arguments", "parameters")
    """Keys that a parser takes for the arguments."""
    calls_key: str = ""
    """Key of the list of calls in an object around it; empty: there is no such object."""
    call_marker: str = ""
    """Text that announces a call or a list of calls; empty: the family has none."""
    needs_call_marker: bool = False
    """JSON without the marker is ordinary text."""
    end_marker: str = ""
    """Text that ends what the call marker began; empty: the JSON itself ends it."""
    reasoning_opening: str = "<think>"
    """Text at the start of an output that opens its reasoning."""
    reasoning_closing: str = "</think>"
    """Text that ends the reasoning."""
    stops_at_object: bool = False
    """The output is over when its first outer JSON object closes."""


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            name="json",
            call_depth=2,
            opening='{"tool_calls": [',
            separator=", ",
            closing="]}",
            calls_key="tool_calls",
            stops_at_object=True,
        ),
        Dialect(
            name="hermes",
            call_depth=0,
            opening="<tool_call>\n",
            separator="\n</tool_call>\n<tool_call>\n",
            closing="\n</tool_call>",
            call_marker="<tool_call>",
            needs_call_marker=True,
            end_marker="</tool_call>",
        ),
        Dialect(
            name="mistral",
            call_depth=1,
            opening="[TOOL_CALLS] [",
            separator=", ",
            closing="]",
            call_marker="[TOOL_CALLS]",
            needs_call_marker=True,
        ),
        Dialect(
            name="llama3",
            call_depth=0,
            opening="",
            separator="; ",
            closing="",
            arguments_key="parameters",
            call_marker="<|python_tag|>",
        ),
    )
}


def get_dialect(name: str) -> Dialect:
    """The dialect of this name."""
    if name not in DIALECTS:
        raise UserError(f"unknown dialect {name!r}, known are {', '.join(DIALECTS)}")
    return DIALECTS[name]


def render_calls(dialect: Dialect, calls: Sequence[ToolCall]) -> str:
    """The calls as the family writes them, the arguments' texts unchanged; no call gives an empty text."""
    if not calls:
        return ""
    return dialect.opening + dialect.separator.join(_render_call(dialect, call) for call in calls) + dialect.closing


def _render_call(dialect: Dialect, call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    return f'{{"{dialect.name_key}": {name}, "{dialect.arguments_key}": {call.arguments}}}'


def dialect_from_template(chat_template: str) -> str:
    """Name of the dialect that a chat template asks its model to write."""
    if "<tool_call>" in chat_template:
        return "hermes"
    if "[TOOL_CALLS]" in chat_template:
        return "mistral"
    if "<|python_tag|>" in chat_template or ("ipython" in chat_template and '"parameters":' in chat_template):
        return "llama3"
    return "json"
