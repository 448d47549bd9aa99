"""The records that are to be rolled out, in order, each under a key that tells what it is rather than where it stands.

So a job that was stopped goes on with the right rows although rows were put in between, and two rows with the same
text are still two rows.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from schemafill.data_prep.records import Record, record_of
from schemafill.data_prep.usable_records import BadRows
from schemafill.inference.row_files import Place, read_rows

RECORD_STEPS = ("corpora", "split", "augment", "suites")
"""Steps whose outputs can be rolled out."""


@dataclass(frozen=True)
class RolloutInput:
    """A record and its key: its id and a hash of what the target is asked."""

    key: str
    record: Record


def read_inputs(paths: Iterable[Path], on_bad: Callable[[Place, str], object]) -> list[RolloutInput]:
    """The records of all files. on_bad: told of each row that is none, with the reason; if it returns, it is left out.

    A row without an id is named by its content, and counted where several have the same.
    """
    inputs: list[RolloutInput] = []
    seen: set[str] = set()
    nameless: Counter[str] = Counter()
    for path in paths:
        for place, row in read_rows(path, on_bad):
            is_nameless = row.get("id") is None
            try:
                record = record_of({**row, "id": "nameless"} if is_nameless else row)
            except ValueError as error:
                on_bad(place, str(error))
                continue
            digest = content_sha256(record)
            if is_nameless:
                nameless[digest] += 1
                record = record_of({**row, "id": f"{digest[:16]}-{nameless[digest]}"})
            if record.id in seen:
                on_bad(place, f"id {record.id!r} stands twice")
                continue
            seen.add(record.id)
            inputs.append(RolloutInput(f"{record.id} {digest[:32]}", record))
    return inputs


def read_told(paths: Sequence[Path]) -> tuple[list[RolloutInput], int]:
    """The records of all files, and how many rows were none; the first of those are named on stderr."""
    bad = BadRows()
    inputs = read_inputs(paths, bad.add)
    bad.close()
    return inputs, bad.count


def content_sha256(record: Record) -> str:
    """Hash of what the target sees of a record: messages and tools, the order of keys included."""
    return hashlib.sha256(json.dumps([record.messages, record.tools]).encode()).hexdigest()
