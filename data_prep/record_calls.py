"""The calls inside a record: those of earlier turns and the reference calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from schemafill.data_prep.records import Record


def called_functions(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The `function` objects (`name`, `arguments`) of the calls in a message."""
    calls = message.get("tool_calls") if isinstance(message.get("tool_calls"), list) else ()
    return [call["function"] for call in calls if isinstance(call, dict) and isinstance(call.get("function"), dict)]


def calls_of(record: Record) -> list[dict[str, Any]]:
    """Every call of a record, `name` and `arguments` each: those of earlier turns, then the reference calls."""
    earlier = [function for message in record.messages for function in called_functions(message)]
    return [*earlier, *(record.reference_calls or ())]


def called_names(record: Record) -> Iterator[str]:
    """The name in every call of a record, declared or not."""
    yield from (call["name"] for call in calls_of(record) if isinstance(call.get("name"), str))


def read_arguments(value: Any) -> dict[str, Any] | None:
    """The object that the arguments of a call are, or spell as JSON text; None where they are none."""
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
