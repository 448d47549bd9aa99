"""Walks over JSON values: their keys, their scalars, and the same value with other scalars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

MOST_LEVELS = 100
"""Of objects and lists inside each other, so that walks over a value need not fear its depth. A record counts too; a
parameter inside another takes two."""


def keys_in(value: Any) -> Iterator[str]:
    """Every key of every object inside a value, the value itself included."""
    if isinstance(value, dict):
        yield from value
    for one in parts_of(value):
        yield from keys_in(one)


def leaves_in(value: Any) -> Iterator[Any]:
    """Every value inside a value that is neither object nor list; of such a value itself, only that."""
    if isinstance(value, dict | list):
        for one in parts_of(value):
            yield from leaves_in(one)
    else:
        yield value


def parts_of(value: Any) -> list[Any]:
    """The values directly inside an object or a list; none inside anything else."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def is_deeper_than(value: Any, levels: int) -> bool:
    """Whether more than so many objects and lists stand inside each other. Does not recurse: any depth will do."""
    layer = [value]
    for _ in range(levels):
        layer = [part for one in layer for part in parts_of(one)]
    return any(isinstance(one, dict | list) for one in layer)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with `change` applied to everything in it that is neither object nor list."""
    if isinstance(value, dict):
        return {key: map_leaves(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [map_leaves(one, change) for one in value]
    return change(value)
