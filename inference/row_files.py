"""Files of rows: JSON lines or one JSON list, plain or gzip, each row a JSON object with its place.

Only a newline ends a line: U+2028 and U+0085 are text, so `str.splitlines` would cut rows in two.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from schemafill.inference.request import UserError


@dataclass(frozen=True)
class Place:
    """Where a row stands, for messages: `file:line`; a list file counts its elements from 1."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def refuse(place: Place, reason: str) -> NoReturn:
    """What is done about a bad row unless the caller knows better."""
    raise UserError(f"{place}: {reason}")


def read_text(path: Path) -> str:
    """The text of a plain or gzip file, without its byte order mark. `NAME.gz` is read where `NAME` is not there."""
    beside = path.with_name(path.name + ".gz")
    if not path.exists() and beside.exists():
        path = beside
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def read_rows(
    path: Path, on_bad: Callable[[Place, str], object] = refuse
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The rows of a file with their places.

    on_bad: told of each row that is no JSON object, with the reason; when it returns, the row is left out. A file that
    cannot be read, or holds no row at all, is a UserError.
    """
    text = read_text(path)
    values = _list_values(path, text) if text.lstrip().startswith("[") else _line_values(text)
    num_rows = 0
    for line, value in values:
        num_rows += 1
        if isinstance(value, dict):
            yield Place(path, line), value
        else:
            on_bad(Place(path, line), str(value) if isinstance(value, ValueError) else "a row must be a JSON object")
    if not num_rows:
        raise UserError(f"{path} holds no rows")


def parse_json(text: str) -> Any:
    """The value that a text spells; ValueError, in one line, where it spells none.

    JSON as the standard has it: Python's own reader takes `NaN`, and of `1e400` makes an infinity.
    """
    try:
        return STRICT.decode(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


def finite_number(text: str) -> float:
    """For `parse_float` of Python's reader."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is beyond all numbers")
    return number


def refuse_constant(name: str) -> NoReturn:
    """For `parse_constant` of Python's reader."""
    raise ValueError(f"{name} is no value")


STRICT = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite_number)


def _list_values(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    try:
        return enumerate(parse_json(text), start=1)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _line_values(text: str) -> Iterator[tuple[int, Any]]:
    """Number and value of each line that is not blank; the ValueError of one that is no JSON."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, parse_json(line)
            except ValueError as error:
                yield number, error
