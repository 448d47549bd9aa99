"""What the tests of corpus readers share: reading a source whole, and where the real corpora are."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from schemafill.data_prep.records import LeftOut, Record, record_of

FIXTURES = Path(__file__).with_name("fixtures")
DATA = Path(os.environ.get("SCHEMAFILL_DATA") or Path(__file__).parents[2] / "shared" / "data")


def needs_corpus(folder: str) -> pytest.MarkDecorator:
    """Skips a test where the real corpus is not there."""
    there = (DATA / folder).is_dir()
    return pytest.mark.skipif(not there, reason=f"no corpus in {DATA / folder}: set SCHEMAFILL_DATA")


def read_all(reader: ModuleType, source: Path) -> tuple[list[Record], list[LeftOut]]:
    """Everything a reader gives, with what holds for each reader checked: ids, reasons, the records' form."""
    rows = list(reader.read(source))
    records = [one for one in rows if isinstance(one, Record)]
    left_out = [one for one in rows if not isinstance(one, Record)]
    assert all(isinstance(one, LeftOut) for one in left_out)
    assert {one.reason for one in left_out} <= set(reader.REASONS)
    assert len({one.id for one in records}) == len(records)
    for record in records:
        assert record == record_of(json.loads(json.dumps(record.to_json())))
        assert record.source == reader.NAME and record.id.startswith(f"{reader.NAME}/")
        assert {"file", "row", "turn"} <= set(record.meta)
        check_history(record)
    return records, left_out


def check_history(record: Record) -> None:
    """Ids are counted through the history, and every result with an id has its call before it."""
    ids = [call["id"] for message in record.messages for call in message.get("tool_calls", ())]
    assert ids == [f"call_{number}" for number in range(1, len(ids) + 1)]
    seen: set[str] = set()
    for message in record.messages:
        seen.update(call["id"] for call in message.get("tool_calls", ()))
        if "tool_call_id" in message:
            seen.remove(message["tool_call_id"])
        is_call = "tool_calls" in message
        assert isinstance(message["content"], str) or (is_call and message["content"] is None)


def num_fields(records: list[Record]) -> int:
    return sum(len(call["arguments"]) for record in records for call in record.reference_calls)


def num_calls(records: list[Record]) -> int:
    return sum(len(record.reference_calls) for record in records)


def reasons(left_out: list[LeftOut]) -> dict[str, int]:
    return dict(Counter(one.reason for one in left_out))


def write_lines(path: Path, *rows: object) -> Path:
    """A file of JSON lines; a row that is a text is written as the line it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
