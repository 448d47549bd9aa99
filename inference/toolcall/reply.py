"""What has been read of an output so far: content, reasoning and calls, and the deltas that tell of them.

Knows what is decided and what is still held back. It does not know how an output is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from schemafill.inference.request import ToolCall


@dataclass(frozen=True)
class Delta:
    """A piece of the reply. kind: `content`, `reasoning`, `call` (the text is its name) or `arguments`."""

    kind: str
    text: str
    call_idx: int | None = None


@dataclass
class Call:
    """An object that may be a call. `idx` is set once it is one; `pending` are arguments not yet passed on."""

    idx: int | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    has_arguments: bool = False
    is_streamed: bool = False  # the first character of the arguments shows that they are not null
    is_whole: bool = False  # the arguments are complete
    is_wrapper: bool = False  # it holds a list of calls instead


class Reply:
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

    def start_call(self, call: Call) -> None:
        call.idx = self.num_started
        self.num_started += 1
        self.drop()
        self._deltas.append(Delta("call", call.name, call.idx))
        self.show(call)

    def show(self, call: Call, is_last: bool = False) -> None:
        """Passes on the arguments so far; what may yet read `null` waits until that is known."""
        if call.idx is not None and (call.is_streamed or call.is_whole or is_last):
            if piece := "".join(call.pending):
                self._deltas.append(Delta("arguments", piece, call.idx))
            call.pending = []

    def end_call(self, call: Call) -> None:
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
