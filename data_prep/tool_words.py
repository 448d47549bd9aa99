"""The words that calls of some tools can be made of: names, parameter names and listed values, spelt as in a call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from schemafill.inference.toolcall.schema import iter_slots, parse_tools
from schemafill.inference.toolcall.style import quoted

ANY_PLACE = ("[]", "{}")
"""Steps that name no property: any element of a list, any free key of a map."""


def tool_words(tools: list[dict[str, Any]]) -> Iterator[str]:
    """Each word with the signs that stand around it in a call, because a vocabulary may join them with it."""
    for tool in parse_tools(tools).tools:
        yield f': {quoted(tool.name)}, "'
        for slot in iter_slots(tool):
            yield from (f', {quoted(step)}: "' for step in slot.steps if step not in ANY_PLACE and step[:1] != "[")
            yield from (f": {choice}, " for choice in slot.node.choices if _is_short(choice))


def _is_short(choice: str) -> bool:
    """A listed object or list is no word."""
    return not isinstance(json.loads(choice), dict | list)
