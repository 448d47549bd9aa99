"""A target's output as calls, content and reasoning, piece by piece as it is written.

Knows the markers of a dialect. It does not know tokens, validates nothing and repairs nothing: arguments are passed on
as written, text that turns out to be no call is content, and every cut of a text into pieces gives the same result.
Time is linear in the text and nothing recurses.

`OutputParser` reads the text around calls and hands each JSON container that may hold calls to a `ContainerReader`;
both write into one `Reply`.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass

from schemafill.inference.request import ToolCall, UnfinishedCall
from schemafill.inference.toolcall.call_reader import ContainerReader
from schemafill.inference.toolcall.dialects import Dialect
from schemafill.inference.toolcall.reply import Delta, Reply
from schemafill.inference.toolcall.schema import Catalog

FENCE = "```"
FENCE_LABEL = re.compile(r"[\w+-]*")
SPACE = re.compile(r"\s*")
SPACE_BRACKETS = re.compile(r"[\s,;\]}]*")


def new_call_id() -> str:
    """A fresh id of nine letters and digits, the strictest form that a chat template asks for."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


@dataclass(frozen=True)
class Parsed:
    """The whole reply. finish_reason: `tool_calls`, `stop` or `length`. `deltas`: those that only the end released."""

    tool_calls: list[ToolCall]
    content: str | None
    reasoning: str | None
    unfinished: UnfinishedCall | None
    finish_reason: str
    deltas: list[Delta]


def parse_output(dialect: Dialect, catalog: Catalog, text: str, finish: str, reasoning_open: bool = False) -> Parsed:
    """The reply in a whole text. finish: why the text ended, see `OutputParser.finish`."""
    parser = OutputParser(dialect, catalog, reasoning_open)
    parser.feed(text)
    return parser.finish(finish)


class OutputParser:
    """Reads one output: `feed` it the text in pieces of any size, then `finish` it once.

    A reader (`_read_*`) takes the text from a position on and returns how far it came; `_reader` is the one in charge.
    """

    def __init__(self, dialect: Dialect, catalog: Catalog, reasoning_open: bool = False) -> None:
        self._dialect = dialect
        self._catalog = catalog
        self._reply = Reply()
        self._reader = self._read_reasoning if reasoning_open else self._read_content
        self._container: ContainerReader | None = None
        self._tail = ""  # what may be the start of a marker; the next piece tells
        self._marker = ""  # the last marker of a block
        self._stop = ""  # what ends the block around the container at hand
        self._block_end = ""  # what ends the block that holds the last call
        signs = {"<", dialect.call_marker[:1] or "<"} | set("" if dialect.needs_call_marker else "{[`")
        self._signs = re.compile("[" + re.escape("".join(sorted(signs))) + "]")

    def feed(self, text: str) -> list[Delta]:
        """What this piece of text adds to the reply."""
        text, self._tail = self._tail + text, ""
        position = 0
        while position < len(text):
            position = self._reader(text, position)
        return self._reply.take_deltas()

    def finish(self, reason: str) -> Parsed:
        """The whole reply. reason: `eos`, `length` (cut off by a limit) or `object` (the dialect's own end)."""
        reply, is_cut = self._reply, reason == "length"
        unfinished = None
        if self._container is not None:
            unfinished = self._container.cut_off(self._tail, is_cut)
        elif self._reader == self._read_reasoning:
            reply.write("reasoning", self._tail)
        elif self._reader in (self._read_lead, self._read_fence):
            if is_cut and self._marker != FENCE:
                unfinished = UnfinishedCall(None, "")
            else:
                reply.release()
        elif self._tail and not self._block_end.startswith(self._tail):
            reply.write("content", self._tail)
        finish_reason = "length" if is_cut else "tool_calls" if reply.calls else "stop"
        content, reasoning = reply.texts["content"].whole(), reply.texts["reasoning"].whole()
        return Parsed(reply.calls, content, reasoning, unfinished, finish_reason, reply.take_deltas())

    def _read_reasoning(self, text: str, position: int) -> int:
        closing = self._dialect.reasoning_closing
        at = text.find(closing, position)
        if at >= 0:
            self._reply.write("reasoning", text[position:at])
            self._reader = self._read_content
            return at + len(closing)
        lengths = range(len(closing) - 1, -1, -1)
        end = len(text) - next(length for length in lengths if text.endswith(closing[:length], position))
        self._reply.write("reasoning", text[position:end])
        return self._wait(text, end)

    def _read_content(self, text: str, position: int) -> int:
        sign = self._signs.search(text, position)
        at = sign.start() if sign else len(text)
        if at > position:
            self._reply.write("content", text[position:at])
            return at
        markers = self._markers()
        for marker, begin in markers.items():
            if text.startswith(marker, at):
                begin(marker)
                return at + len(marker)
        if any(marker.startswith(text[at : at + len(marker)]) for marker in markers):
            return self._wait(text, at)
        if text[at] in "{[" and not self._dialect.needs_call_marker:
            self._begin_container(marker="")
            return at
        self._reply.write("content", text[at])
        return at + 1

    def _markers(self) -> dict[str, Callable[[str], None]]:
        """The markers that count at this place, and what each begins."""
        markers = {self._dialect.call_marker: self._begin_block}
        if not self._dialect.needs_call_marker:
            markers[FENCE] = self._begin_block
        if not self._reply.num_started and not self._reply.texts["content"].has_begun:
            markers[self._dialect.reasoning_opening] = self._begin_reasoning
        markers[self._block_end] = self._end_block
        markers.pop("", None)
        return markers

    def _begin_reasoning(self, _marker: str) -> None:
        self._reader = self._read_reasoning

    def _begin_block(self, marker: str) -> None:
        self._reply.hold(marker)
        self._marker = marker
        self._reader = self._read_fence if marker == FENCE else self._read_lead

    def _end_block(self, _marker: str) -> None:
        self._reply.drop()
        self._block_end = ""

    def _read_fence(self, text: str, position: int) -> int:
        """The label of a fence, such as `json`."""
        end = self._reply.keep_match(FENCE_LABEL, text, position)
        if end < len(text):
            self._reader = self._read_lead
        return end

    def _read_lead(self, text: str, position: int) -> int:
        """From a marker to the bracket that must follow it."""
        end = self._reply.keep_match(SPACE, text, position)
        if end < len(text) and text[end] in "{[":
            self._begin_container(self._marker)
        elif end < len(text):
            self._reply.release()
            self._reader = self._read_content
        return end

    def _begin_container(self, marker: str) -> None:
        self._stop = {"": self._block_end, FENCE: FENCE}.get(marker, self._dialect.end_marker)
        is_trusted = marker not in ("", FENCE)
        self._container = ContainerReader(self._dialect, self._catalog, self._reply, is_trusted, self._stop)
        self._reader = self._read_container

    def _read_container(self, text: str, position: int) -> int:
        end = self._container.read(text, position)
        if not self._container.is_over:
            return self._wait(text, end)
        self._reader = self._read_content
        if self._container.has_call:
            self._block_end = self._stop
            self._reply.hold()
            self._reader = self._read_gap
        self._container = None
        return end

    def _read_gap(self, text: str, position: int) -> int:
        """Separators and surplus brackets: they mean nothing between calls and where a block or the output ends."""
        end = self._reply.keep_match(SPACE_BRACKETS, text, position)
        if end < len(text):
            self._reader = self._read_content
        return end

    def _wait(self, text: str, position: int) -> int:
        self._tail = text[position:]
        return len(text)
