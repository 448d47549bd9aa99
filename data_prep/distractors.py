"""Tools of other records that can stand in a catalogue without being called."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from random import Random
from typing import Any

from schemafill.data_prep.records import Record
from schemafill.data_prep.tool_definitions import definition_key, tool_name


class DistractorPool:
    """The different tools of a records file, in the order of their content hashes.

    A draw is a place among the hashes, so what it gives depends on what the file holds and not on the order of its
    rows, and a further tool changes only the draws that fall just before it.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        tools = {definition_key(tool): tool for record in records for tool in record.tools}
        self._keys = sorted(tools)
        self._tools = [tools[key] for key in self._keys]

    def draw(self, rng: Random, taken_names: Iterable[str]) -> dict[str, Any] | None:
        """A tool of another name than any taken one; None where the pool has none."""
        start = bisect_left(self._keys, f"{rng.getrandbits(256):064x}")
        taken = set(taken_names)
        around = (*range(start, len(self._keys)), *range(start))
        return next((self._tools[at] for at in around if tool_name(self._tools[at]) not in taken), None)
