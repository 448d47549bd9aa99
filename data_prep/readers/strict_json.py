"""JSON inside texts, as the standard has it, and no deeper than walks over it can go. Knows no corpus."""

from __future__ import annotations

from typing import Any

from schemafill.data_prep.json_values import MOST_LEVELS, is_deeper_than
from schemafill.inference.row_files import STRICT


def strict_json(text: str) -> Any:
    """The value that a text spells. ValueError where it spells none."""
    try:
        return _flat_enough(STRICT.decode(text))
    except RecursionError:
        raise ValueError("nested too deep") from None


def leading_json(text: str) -> tuple[Any, str]:
    """The value that a text begins with, and the rest of it. ValueError where it begins with none."""
    try:
        value, end = STRICT.raw_decode(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return _flat_enough(value), text[end:]


def _flat_enough(value: Any) -> Any:
    if is_deeper_than(value, MOST_LEVELS):
        raise ValueError("nested too deep")
    return value
