"""A target's output as calls, content and reasoning, piece by piece as it is written.

Knows brackets, strings and the markers of a dialect. It does not know tokens, validates nothing and repairs nothing:
arguments are passed on as written, text that turns out to be no call is content, and every cut of a text into pieces
gives the same result. Time is linear in the text and nothing recurses.

`OutputParser` reads the text around calls and hands each JSON container that may hold calls to a `_ContainerReader`;
both write into one `_Reply`.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field

from schemafill.inference.request import ToolCall, UnfinishedCall
from schemafill.inference.toolcall.dialects import Dialect
from schemafill.inference.toolcall.schema import Catalog

FENCE = "```"
FENCE_LABEL = re.compile(r"[\w+-]*")
SPACE = re.compile(r"\s*")
SPACE_COMMAS = re.compile(r"[\s,]*")
SPACE_COLONS = re.compile(r"[\s:]*")
SPACE_BRACKETS = re.compile(r"[\s,;\]}]*")
INSIDE_STRING = re.compile(r'["\\]')
OUTSIDE_STRING = re.compile(r'["{}\[\]<`]')
SCALAR_END = re.compile(r'[\s,{}\[\]"<`]')


def new_call_id() -> str:
    """A fresh id of nine letters and digits, the strictest form that a chat template asks for."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


@dataclass(frozen=True)
class Delta:
    """A piece of the reply. kind: `content`, `reasoning`, `call` (the text is its name) or `arguments`."""

    kind: str
    text: str
    call_idx: int | None = None


@dataclass(frozen=True)
class Parsed:
    """The whole reply. `deltas` are the last ones, which only the end of the output released."""

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
        self._reply = _Reply()
        self._reader = self._read_reasoning if reasoning_open else self._read_content
        self._container: _ContainerReader | None = None
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
        self._container = _ContainerReader(self._dialect, self._catalog, self._reply, is_trusted, self._stop)
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


@dataclass
class _Call:
    """An object that may be a call. `idx` is set once it is one; `pending` are arguments not yet passed on."""

    idx: int | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    has_arguments: bool = False
    is_streamed: bool = False  # the first character of the arguments shows that they are not null
    is_whole: bool = False  # the arguments are complete
    is_wrapper: bool = False  # it holds a list of calls instead


class _ContainerReader:
    """Reads one JSON container, an object or a list, and finds the calls in it.

    Its text is undecided until a name (without a marker or a wrapper around it: and arguments) shows that an object is
    a call, or a character that cannot stand there shows that it is content. `is_over`: the container has closed or was
    given up. `_frames` are the containers open at the position: a `_Call` for an object, None for a list of calls.
    """

    def __init__(self, dialect: Dialect, catalog: Catalog, reply: _Reply, is_trusted: bool, stop: str) -> None:
        self.has_call = False
        self.is_over = False
        self._dialect = dialect
        self._catalog = catalog
        self._reply = reply
        self._is_trusted = is_trusted
        self._stop = stop
        self._frames: list[_Call | None] = []
        self._reader = self._open
        self._is_waiting = False
        self._key = ""
        self._captured: list[str] = []
        self._literal: _LiteralEnd | None = None
        self._take: Callable[[str], object] = len
        self._then: Callable[[], None] = self._resume

    def read(self, text: str, position: int) -> int:
        """How far the container goes in this text; short of its end if it is over or waits for the rest of a marker."""
        self._is_waiting = False
        while position < len(text) and not (self.is_over or self._is_waiting):
            position = self._reader(text, position)
        return position

    def cut_off(self, tail: str, is_cut: bool) -> UnfinishedCall | None:
        """Decides at the end of the output: an unfinished call, a whole one, or content after all."""
        call = self._frames[-1]
        self._reply.keep(tail)
        if tail:
            self._take(tail)
        if call is not None and call.idx is not None:
            if call.is_whole and not is_cut:
                self._reply.end_call(call)
                return None
            self._reply.show(call, is_last=True)
            return UnfinishedCall(call.name, "".join(call.arguments))
        is_named = call is not None and (call.name is not None or self._then == self._end_name)
        if is_cut and self._reply.is_undecided and (self._is_trusted or is_named):
            return UnfinishedCall(call.name, "".join(call.arguments)) if call else UnfinishedCall(None, "")
        self._reply.release()
        return None

    def _open(self, text: str, position: int) -> int:
        self._reply.hold(text[position])
        self._frames.append(_Call() if text[position] == "{" else None)
        self._resume()
        return position + 1

    def _resume(self) -> None:
        """Goes on in the innermost open container; none left: over."""
        if self._frames:
            self._reader = self._read_items if self._frames[-1] is None else self._read_members
        else:
            self.is_over = True
            if not self.has_call:
                self._reply.release()

    def _give_up(self) -> None:
        """Something stands here that cannot: ends the call as written, or takes all that is undecided for content."""
        call = self._frames[-1]
        if call is not None and call.idx is not None:
            self._reply.end_call(call)
        self._reply.release()
        self._frames.clear()
        self._resume()

    def _read_items(self, text: str, position: int) -> int:
        end = self._reply.keep_match(SPACE_COMMAS, text, position)
        if end < len(text):
            if text[end] == "{":
                return self._open(text, end)
            if text[end] == "]":
                return self._close(end)
            self._give_up()
        return end

    def _read_members(self, text: str, position: int) -> int:
        end = self._reply.keep_match(SPACE_COMMAS, text, position)
        if end < len(text):
            if text[end] == "}":
                return self._close(end)
            if text[end] == '"':
                self._capture(self._end_key)
            else:
                self._give_up()
        return end

    def _close(self, position: int) -> int:
        call = self._frames.pop()
        self._reply.keep("]" if call is None else "}")
        if call is not None:
            if call.name is not None and (self._is_trusted or self._catalog.get(call.name)):
                self._start_call(call)
            if call.idx is not None:
                self._reply.end_call(call)
            elif not call.is_wrapper:
                self._reply.release()
            if not self.has_call:
                self._reply.hold()
        self._resume()
        return position + 1

    def _read_value(self, text: str, position: int) -> int:
        end = self._reply.keep_match(SPACE_COLONS, text, position)
        if end == len(text):
            return end
        dialect, call, first = self._dialect, self._frames[-1], text[end]
        if first in ",}]":
            self._resume()
        elif first == "[" and self._key == dialect.calls_key != "" and call.name is None:
            call.is_wrapper = self._is_trusted = True
            return self._open(text, end)
        elif first == '"' and self._key == dialect.name_key and call.name is None and not call.is_wrapper:
            self._capture(self._end_name)
        elif self._key in dialect.accepted_arguments_keys and not call.has_arguments and not call.is_wrapper:
            call.has_arguments = True
            call.is_streamed = first in '{["'
            self._begin_literal(first, self._take_arguments, self._end_arguments)
            if call.name is not None:
                self._start_call(call)
        else:
            self._begin_literal(first, len, self._resume)
        return end

    def _begin_literal(self, first: str, take: Callable[[str], object], then: Callable[[], None]) -> None:
        """Reads a value up to its end: every piece goes to `take`, then `then` is called."""
        self._literal = _LiteralEnd(first, self._stop)
        self._take, self._then = take, then
        self._reader = self._read_literal

    def _capture(self, then: Callable[[], None]) -> None:
        self._captured = []
        self._begin_literal('"', self._captured.append, then)

    def _read_literal(self, text: str, position: int) -> int:
        end, state = self._literal.find(text, position)
        self._reply.keep(text[position:end])
        self._take(text[position:end])
        if state == "whole":
            self._then()
        elif state == "broken":
            self._give_up()
        else:
            self._is_waiting = True
        return end

    def _end_key(self) -> None:
        self._key = _decoded("".join(self._captured))
        self._reader = self._read_value

    def _end_name(self) -> None:
        call = self._frames[-1]
        call.name = _decoded("".join(self._captured))
        if self._is_trusted or call.has_arguments:
            self._start_call(call)
        self._resume()

    def _take_arguments(self, piece: str) -> None:
        call = self._frames[-1]
        call.arguments.append(piece)
        call.pending.append(piece)
        self._reply.show(call)

    def _end_arguments(self) -> None:
        call = self._frames[-1]
        call.is_whole = True
        if not call.is_streamed and "".join(call.arguments) == "null":
            call.arguments, call.pending = [], []
        self._reply.show(call)
        self._resume()

    def _start_call(self, call: _Call) -> None:
        if call.idx is None:
            self.has_call = True
            self._reply.start_call(call)


class _LiteralEnd:
    """Finds the end of one JSON value by its brackets and strings alone.

    `stop` is a marker that no JSON holds outside its strings (or empty): where it stands, the value is broken off.
    """

    def __init__(self, first: str, stop: str) -> None:
        self._stop = stop
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self._is_scalar = first not in '"{['

    def find(self, text: str, position: int) -> tuple[int, str]:
        """How far the value goes in this piece, and its state there: `whole`, `broken` or `open`."""
        if self._is_scalar:
            found = SCALAR_END.search(text, position)
            return (found.start(), "whole") if found else (len(text), "open")
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            found = (INSIDE_STRING if self._is_in_string else OUTSIDE_STRING).search(text, position)
            if not found:
                break
            sign, at, position = found[0], found.start(), found.end()
            if sign == "\\":
                self._is_escaped = True
            elif sign == '"':
                self._is_in_string = not self._is_in_string
            elif sign in "<`":
                if self._stop and self._stop.startswith(text[at : at + len(self._stop)]):
                    return at, "broken" if text.startswith(self._stop, at) else "open"
                continue
            else:
                self._depth += 1 if sign in "{[" else -1
            if self._depth == 0 and not self._is_in_string:
                return position, "whole"
        return len(text), "open"


class _Reply:
    """What has been read: content, reasoning and calls, with the deltas not yet handed out.

    Undecided text is held back until it is released as content or dropped as part of a call.
    """

    def __init__(self) -> None:
        self.texts = {"content": _TrimmedText(), "reasoning": _TrimmedText()}
        self.calls: list[ToolCall] = []
        self.num_started = 0
        self._deltas: list[Delta] = []
        self._undecided: list[str] | None = None

    @property
    def is_undecided(self) -> bool:
        return bool(self._undecided)

    def take_deltas(self) -> list[Delta]:
        """The deltas since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def write(self, kind: str, text: str) -> None:
        """Adds to content or reasoning, after what was undecided before it."""
        self.release()
        if piece := self.texts[kind].add(text):
            self._deltas.append(Delta(kind, piece))

    def hold(self, piece: str = "") -> None:
        """From here on text is undecided."""
        if self._undecided is None:
            self._undecided = []
        self._undecided.append(piece)

    def keep(self, piece: str) -> None:
        """Adds to what is undecided; decided text needs no keeping."""
        if self._undecided is not None:
            self._undecided.append(piece)

    def keep_match(self, pattern: re.Pattern, text: str, position: int) -> int:
        """Keeps what matches at the position, and says where that ends."""
        end = pattern.match(text, position).end()
        self.keep(text[position:end])
        return end

    def release(self) -> None:
        """What was undecided is content."""
        held, self._undecided = self._undecided, None
        if held:
            self.write("content", "".join(held))

    def drop(self) -> None:
        """What was undecided belongs to a call."""
        self._undecided = None

    def start_call(self, call: _Call) -> None:
        call.idx = self.num_started
        self.num_started += 1
        self.drop()
        self._deltas.append(Delta("call", call.name, call.idx))
        self.show(call)

    def show(self, call: _Call, is_last: bool = False) -> None:
        """Passes on the arguments so far; what may yet read `null` waits until that is known."""
        if call.idx is not None and (call.is_streamed or call.is_whole or is_last):
            if piece := "".join(call.pending):
                self._deltas.append(Delta("arguments", piece, call.idx))
            call.pending = []

    def end_call(self, call: _Call) -> None:
        if not call.arguments:
            call.arguments, call.pending = ["{}"], ["{}"]
        self.show(call, is_last=True)
        self.calls.append(ToolCall(call.name, "".join(call.arguments)))


class _TrimmedText:
    """Text given in pieces, without the white space at its two ends."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._space: list[str] = []  # white space after the last piece, until text follows

    @property
    def has_begun(self) -> bool:
        return bool(self._pieces)

    def add(self, text: str) -> str:
        """What this text adds to the trimmed whole."""
        body = text.rstrip() if self._pieces else text.strip()
        if not body:
            self._space += [text] if self._pieces else []
            return ""
        piece = "".join([*self._space, body])
        self._pieces.append(piece)
        self._space = [text[len(text.rstrip()) :]]
        return piece

    def whole(self) -> str | None:
        """All of it; None when there is none."""
        return "".join(self._pieces) or None


def _decoded(literal: str) -> str:
    """The text of a JSON string; as written between its quotes where it is no valid one."""
    try:
        text = json.loads(literal, strict=False)
        text.encode()
    except ValueError:
        return literal[1:-1]
    return text
