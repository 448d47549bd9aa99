"""When an output is over. One rule for every method, applied to committed tokens in order.

The first of these ends it: an end sign, the close of the first outer object (dialects that end there), a stop text,
the token limit. The limit is looked at last and never hides an earlier stop at the same token.
"""

from __future__ import annotations

from schemafill.inference.model.vocabulary import Vocabulary
from schemafill.inference.toolcall.dialects import Dialect


class StopRule:
    """Fed with one committed token after the other. `reason` is empty until the output is over.

    reason: `eos`, `object`, `stop` or `length`. The ending token is part of the output ids; `text` is cut where the
    output ended: before an end sign or stop text, behind the object's closing brace.
    """

    def __init__(
        self, dialect: Dialect, vocabulary: Vocabulary, end_ids: tuple[int, ...], stop: tuple[str, ...], limit: int
    ) -> None:
        self._vocabulary = vocabulary
        self._end_ids = frozenset(end_ids)
        self._stop = [text.encode() for text in stop]
        self._limit = limit
        self._scan = ObjectScan() if dialect.stops_at_object else None
        self._count = 0
        self._data = bytearray()
        self.reason = ""

    @property
    def text(self) -> str:
        return self._data.decode("utf-8", "replace")

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    def take(self, token_id: int) -> bytes:
        """Count a committed token; returns the bytes that it added to the output's text."""
        assert not self.reason, "the output is over"
        self._count += 1
        if token_id in self._end_ids:
            self.reason = "eos"
            return b""
        start = len(self._data)
        new = self._vocabulary.bytes_of(token_id)
        self._data += new
        found = self._first_stop(start)
        closed = self._scan.feed(new) if self._scan else None
        end = None if closed is None else start + closed
        if found is not None and (end is None or found < end):
            self.reason = "stop"
            del self._data[found:]
        elif end is not None:
            self.reason = "object"
            del self._data[end:]
        elif self._count >= self._limit:
            self.reason = "length"
        return bytes(self._data[start:])

    def _first_stop(self, start: int) -> int | None:
        found = [self._data.find(text, max(0, start - len(text) + 1)) for text in self._stop]
        return min((at for at in found if at >= 0), default=None)


class ObjectScan:
    """Finds the end of the first outer JSON object: one whose brace is the first sign on its line."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_line_start = True

    def feed(self, data: bytes) -> int | None:
        """Offset just behind the brace that closes the object, if it is in `data`."""
        for at, byte in enumerate(data):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif byte == 0x5C:  # backslash
                    self._is_escaped = True
                elif byte == 0x22:  # quote
                    self._in_string = False
            elif self._depth:
                if byte == 0x22:
                    self._in_string = True
                elif byte in b"{[":
                    self._depth += 1
                elif byte in b"}]":
                    self._depth -= 1
                    if not self._depth:
                        return at + 1
            elif byte == 0x7B and self._is_line_start:  # {
                self._depth = 1
            elif byte == 0x0A:
                self._is_line_start = True
            elif byte not in b" \t\r":
                self._is_line_start = False
        return None
