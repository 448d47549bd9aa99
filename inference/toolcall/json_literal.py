"""Where one JSON value ends in a text that comes in pieces, and what a JSON string says.

Knows brackets, quotes and escapes. It validates nothing: what is wrong inside a value stays as written.
"""

from __future__ import annotations

import json
import re

INSIDE_STRING = re.compile(r'["\\]')
OUTSIDE_STRING = re.compile(r'["{}\[\]<`]')
SCALAR_END = re.compile(r'[\s,{}\[\]"<`]')


class LiteralEnd:
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


def decoded(literal: str) -> str:
    """The text of a JSON string; as written between its quotes where it is no valid one."""
    try:
        text = json.loads(literal, strict=False)
        text.encode()
    except ValueError:
        return literal[1:-1]
    return text
