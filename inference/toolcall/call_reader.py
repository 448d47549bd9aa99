"""The calls in one JSON container of a target's output, read piece by piece.

Knows which keys of a dialect make an object a call. It does not know what stands around the container, nor the values
inside it: arguments are passed on as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from schemafill.inference.request import UnfinishedCall
from schemafill.inference.toolcall.dialects import Dialect
from schemafill.inference.toolcall.json_literal import LiteralEnd, decoded
from schemafill.inference.toolcall.reply import Call, Reply
from schemafill.inference.toolcall.schema import Catalog

SPACE_COMMAS = re.compile(r"[\s,]*")
SPACE_COLONS = re.compile(r"[\s:]*")


class ContainerReader:
    """Reads one JSON container, an object or a list, and finds the calls in it.

    Its text is undecided until a name (without a marker or a wrapper around it: and arguments) shows that an object is
    a call, or a character that cannot stand there shows that it is content. `is_over`: the container has closed or was
    given up. `_frames` are the containers open at the position: a `Call` for an object, None for a list of calls.
    """

    def __init__(self, dialect: Dialect, catalog: Catalog, reply: Reply, is_trusted: bool, stop: str) -> None:
        self.has_call = False
        self.is_over = False
        self._dialect = dialect
        self._catalog = catalog
        self._reply = reply
        self._is_trusted = is_trusted
        self._stop = stop
        self._frames: list[Call | None] = []
        self._reader = self._open
        self._is_waiting = False
        self._key = ""
        self._captured: list[str] = []
        self._literal: LiteralEnd | None = None
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
        self._frames.append(Call() if text[position] == "{" else None)
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
        self._literal = LiteralEnd(first, self._stop)
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
        self._key = decoded("".join(self._captured))
        self._reader = self._read_value

    def _end_name(self) -> None:
        call = self._frames[-1]
        call.name = decoded("".join(self._captured))
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

    def _start_call(self, call: Call) -> None:
        if call.idx is None:
            self.has_call = True
            self._reply.start_call(call)
