"""The records of a file that a step can work on, and what becomes of the rows that are none.

Beside what `record_of` refuses, a record that nests too deeply is no use: walks over it would end in a RecursionError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from schemafill.data_prep.json_values import MOST_LEVELS, is_deeper_than
from schemafill.data_prep.record_calls import calls_of, read_arguments
from schemafill.data_prep.records import Record, record_of
from schemafill.inference.row_files import Place, read_rows, refuse

MOST_SHOWN = 20


def usable_records(path: Path, on_bad: Callable[[Place, str], object] = refuse) -> Iterator[Record]:
    """The records of a file. on_bad: told of each row that is none, with the reason; if it returns, it is left out."""
    ids: set[str] = set()
    for place, row in read_rows(path, on_bad):
        try:
            record = _usable_record(row)
            if record.id in ids:
                raise ValueError(f"id {record.id!r} stands twice")
        except ValueError as error:
            on_bad(place, str(error))
            continue
        ids.add(record.id)
        yield record


def _usable_record(row: dict[str, Any]) -> Record:
    record = record_of(row)
    arguments = [read_arguments(call.get("arguments")) for call in calls_of(record)]  # some are JSON text
    if any(is_deeper_than(part, MOST_LEVELS) for part in (row, *arguments)):
        raise ValueError(f"nests deeper than {MOST_LEVELS} levels")
    return record


class BadRows:
    """Names the rows that were left out, the first ones one by one, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, place: Place, reason: str) -> None:
        self.count += 1
        if self.count <= MOST_SHOWN:
            print(f"left out {place}: {reason}", file=sys.stderr)

    def close(self) -> None:
        """Say how many more there were; call it once, after the last row."""
        if self.count > MOST_SHOWN:
            print(f"... and {self.count - MOST_SHOWN} more", file=sys.stderr)
