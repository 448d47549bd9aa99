"""Calls written as `[Name(arg=value, ...), Name2(...)]`, where a name may be any text and a value is Python or JSON.

A name is found by comparing with the names that the row declares, the longest first: spaces, dots, brackets and quotes
are part of names, so Python's own parser reads few of these texts. Values are read as literals and never evaluated.
Knows no corpus; API-Bank's calls have the same form.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable
from typing import Any

from schemafill.data_prep.readers.python_calls import is_json_number
from schemafill.inference.row_files import refuse_constant

REASONS = ("call_form", "undeclared_tool")

OPENING, CLOSING = "([{", ")]}"
ARGUMENT_NAME = re.compile(r"\s*([^\s=,()\[\]{}\"'](?:[^=,()\[\]{}\"']*[^\s=,()\[\]{}\"'])?)\s*=")
NOT_JSON = object()


def read_calls(text: str, names: Iterable[str]) -> list[dict[str, Any]] | str:
    """The calls of a text as `{"name", "arguments"}` in order, or one of `REASONS`. names: the declared tools'."""
    reader = CallReader(text.strip(), sorted(set(names), key=len, reverse=True))
    try:
        return reader.calls()
    except BadCall as bad:
        return bad.reason


class BadCall(Exception):
    """The text is no list of calls: one of `REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CallReader:
    """One pass over the text of a list of calls; `place` is the next character to read."""

    def __init__(self, text: str, names: list[str]) -> None:
        self.text, self.names, self.place = text, names, 0

    def calls(self) -> list[dict[str, Any]]:
        self._take("[")
        calls = [self._call()]
        while self._next() == ",":
            self._take(",")
            calls.append(self._call())
        self._take("]")
        if self._next():
            raise BadCall("call_form")
        return calls

    def _call(self) -> dict[str, Any]:
        name = self._name()
        self._take("(")
        arguments: dict[str, Any] = {}
        while self._next() != ")":
            if arguments:
                self._take(",")
            argument = ARGUMENT_NAME.match(self.text, self.place)
            if argument is None or argument[1] in arguments:
                raise BadCall("call_form")
            self.place = argument.end()
            arguments[argument[1]] = read_value(self._value_text())
        self._take(")")
        return {"name": name, "arguments": arguments}

    def _name(self) -> str:
        """The declared name that stands here before a bracket."""
        self._next()
        for name in self.names:
            end = self.place + len(name)
            if self.text.startswith(name, self.place) and self.text[end:].lstrip(" ").startswith("("):
                self.place = end
                return name
        raise BadCall("undeclared_tool" if re.compile(r"[^\[\](]+\(").match(self.text, self.place) else "call_form")

    def _value_text(self) -> str:
        """The text up to the comma or bracket that ends an argument; those inside quotes and brackets do not."""
        start, depth, before = self.place, 0, "="
        while self.place < len(self.text):
            sign = self.text[self.place]
            if depth == 0 and sign in ",)":
                return self.text[start : self.place].strip()
            if sign in "\"'" and before in "=([{,:":  # only where a value may begin: else it is an apostrophe
                self._skip_quoted(sign)
            elif sign in OPENING:
                depth += 1
            elif sign in CLOSING:
                depth -= 1
            before = before if sign.isspace() else sign
            self.place += 1
        raise BadCall("call_form")

    def _skip_quoted(self, quote: str) -> None:
        """Go on to the quote that closes the one here."""
        self.place += 1
        while self.place < len(self.text) and self.text[self.place] != quote:
            self.place += 2 if self.text[self.place] == "\\" else 1
        if self.place >= len(self.text):
            raise BadCall("call_form")

    def _next(self) -> str:
        """The next character that is no space, or nothing at the end."""
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1
        return self.text[self.place : self.place + 1]

    def _take(self, sign: str) -> None:
        if self._next() != sign:
            raise BadCall("call_form")
        self.place += 1


def read_value(text: str) -> Any:
    """The value that a text spells as a Python literal, else as JSON, else the text itself. A tuple becomes a list."""
    for read in (_literal, json.JSONDecoder(strict=False, parse_constant=refuse_constant).decode):
        try:
            value = _as_json(read(text))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if value is not NOT_JSON:
            return value
    return text


def _literal(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "\d" in a text is a warning of the compiler
        return ast.literal_eval(text)


def _as_json(value: Any) -> Any:
    """A literal as JSON has it; NOT_JSON where it has a part that JSON cannot say (bytes, sets, infinity, int keys)."""
    if isinstance(value, str):
        return _whole_characters(value)
    if value is None or isinstance(value, bool) or isinstance(value, (int, float)) and is_json_number(value):
        return value
    if isinstance(value, (list, tuple)):
        parts = [_as_json(part) for part in value]
        return NOT_JSON if any(part is NOT_JSON for part in parts) else parts
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        entries = {_whole_characters(key): _as_json(part) for key, part in value.items()}
        return NOT_JSON if any(part is NOT_JSON for part in entries.values()) else entries
    return NOT_JSON


def _whole_characters(text: str) -> str:
    """Two escapes that make one character, as JSON writes those beyond 16 bits, joined; Python leaves two halves."""
    if not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
