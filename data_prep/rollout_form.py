"""What a row of a rollouts file holds, why one is not usable, and the rows of files. Knows nothing of targets."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from schemafill.inference.request import UserError
from schemafill.inference.row_files import read_rows

FIELDS = {
    "record_id": str, "prompt_ids": list, "completion_ids": list, "text": str, "finish_reason": str | None,
    "usable": bool, "why_not": str | None,
}  # fmt: skip
# Why a row is not usable, by its first word.
PROMPT_TOO_LONG = "prompt_too_long"
PROMPT_FAILED = "prompt_failed"
FAILED = "failed"
"""No answer came; the row is tried again when the job goes on, and by the same command when it has ended."""
LENGTH = "length"
EMPTY = "empty"
NO_END = "no_end"
NOT_REENCODABLE = "not_reencodable"
PROMPT_DIFFERS = "prompt_differs"
IDS_DIFFER = "ids_differ"
NOT_ASKED = (PROMPT_TOO_LONG, PROMPT_FAILED)


def reason_of(row: dict[str, Any]) -> str:
    """The word that says why a row is not usable; empty where it is."""
    return row["why_not"].partition(":")[0] if row["why_not"] else ""


def check_row(row: Any) -> None:
    """ValueError, naming the field, where a value is no row of a rollouts file."""
    if not isinstance(row, dict):
        raise ValueError("row must be a JSON object")
    differing = sorted(FIELDS.keys() ^ row.keys())
    if differing:
        raise ValueError(f"{differing[0]} is {'missing' if differing[0] in FIELDS else 'no field of a row'}")
    for name, kind in FIELDS.items():
        if not isinstance(row[name], kind):
            raise ValueError(f"{name} must be {getattr(kind, '__name__', kind)}, is {_shown(row[name])}")
    for name in ("prompt_ids", "completion_ids"):
        if set(map(type, row[name])) - {int} or min(row[name], default=0) < 0:
            raise ValueError(f"{name} must hold whole numbers from 0")
    if row["usable"] is not (row["why_not"] is None):
        raise ValueError(f"usable is {row['usable']}, but why_not is {_shown(row['why_not'])}")
    if row["usable"] and not (row["prompt_ids"] and row["completion_ids"]):
        raise ValueError("usable is True, but prompt_ids or completion_ids are empty")


def rollout_rows(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """The rows of finished files, with a progress bar for each; UserError names the first line that is none."""
    for path in paths:
        for place, row in tqdm(read_rows(path), desc=path.name, unit="row", disable=None, file=sys.stderr):
            try:
                check_row(row)
            except ValueError as error:
                raise UserError(f"{place}: not a row of a rollouts file: {error}") from None
            yield row


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:40]}..."
