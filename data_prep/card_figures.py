"""The figures of a data card: what a set of rollouts holds, by corpus, and how its answers compare with the corpora's.

Knows rows and records; computes nothing with a model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemafill.data_prep.record_calls import read_arguments
from schemafill.data_prep.records import Record
from schemafill.data_prep.rollout_form import reason_of
from schemafill.data_prep.tool_definitions import canonical_json
from schemafill.inference.request import ToolCall
from schemafill.inference.toolcall.dialects import Dialect
from schemafill.inference.toolcall.output import parse_output
from schemafill.inference.toolcall.schema import parse_tools

PERCENTILES = (50, 90, 99, 100)
UNKNOWN_SOURCE = "no record"


@dataclass
class SourceFigures:
    """What the rollouts of one corpus, originals or copies, hold."""

    rows: int = 0
    usable: int = 0
    with_calls: int = 0
    """Usable rows in which at least one call can be read."""
    compared: int = 0
    """Usable rows whose record has reference calls."""
    same_names: int = 0
    """Of those: rows that call the same tools equally often, in any order."""
    same_calls: int = 0
    """Of those: rows whose calls are the same with their arguments as JSON, in any order."""


@dataclass
class CardFigures:
    """Everything that a card shows."""

    sources: dict[str, SourceFigures] = field(default_factory=dict)
    """`corpus` for its own records, `corpus, copies` for augmented ones."""
    changes: Counter[str] = field(default_factory=Counter)
    """Kind of change -> copies that were made with it."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why rows are not usable."""
    prompt_lengths: list[int] = field(default_factory=list)
    completion_lengths: list[int] = field(default_factory=list)
    """Both in tokens, of usable rows."""

    @property
    def total(self) -> SourceFigures:
        names = SourceFigures.__dataclass_fields__
        return SourceFigures(**{name: sum(getattr(one, name) for one in self.sources.values()) for name in names})


def figures_of(rows: Iterable[dict[str, Any]], records: dict[str, Record], dialect: Dialect) -> CardFigures:
    """Count rows. records: by id; a row whose record is not among them counts under a source of its own."""
    figures = CardFigures()
    for row in rows:
        record = records.get(row["record_id"])
        source = figures.sources.setdefault(_source_of(record), SourceFigures())
        source.rows += 1
        if record is not None:
            figures.changes.update(_changes_of(record))
        if not row["usable"]:
            figures.reasons[reason_of(row)] += 1
            continue
        source.usable += 1
        figures.prompt_lengths.append(len(row["prompt_ids"]))
        figures.completion_lengths.append(len(row["completion_ids"]))
        source.with_calls += row["finish_reason"] == "tool_calls"
        if record is not None and record.reference_calls:
            _compare(source, _calls_in(row["text"], record, dialect), record.reference_calls)
    return figures


def percentiles(lengths: Sequence[int]) -> dict[str, int]:
    """`p50` and so on, and `max`: the smallest length that so many percent of the rows do not exceed."""
    ranked = sorted(lengths)
    at = {percent: max(0, -(-len(ranked) * percent // 100) - 1) for percent in PERCENTILES}
    if not ranked:
        return {}
    return {"max" if percent == 100 else f"p{percent}": ranked[at[percent]] for percent in PERCENTILES}


def _source_of(record: Record | None) -> str:
    if record is None:
        return UNKNOWN_SOURCE
    return f"{record.source}, copies" if _changes_of(record) else record.source


def _changes_of(record: Record) -> list[str]:
    changes = record.meta.get("augmented") or []
    return [str(change) for change in changes] if isinstance(changes, list) else ["unnamed"]


def _calls_in(text: str, record: Record, dialect: Dialect) -> list[ToolCall]:
    """The calls in an output; where only the end of reasoning is seen, the prompt has opened it."""
    opened = dialect.reasoning_closing in text and dialect.reasoning_opening not in text
    return parse_output(dialect, parse_tools(record.tools), text, "eos", opened).tool_calls


def _compare(source: SourceFigures, calls: list[ToolCall], reference: list[dict[str, Any]]) -> None:
    source.compared += 1
    source.same_names += Counter(call.name for call in calls) == Counter(call.get("name") for call in reference)
    ours = Counter(_canonical(call.name, call.arguments) for call in calls)
    source.same_calls += ours == Counter(_canonical(call.get("name"), call.get("arguments")) for call in reference)


def _canonical(name: str | None, arguments: Any) -> str:
    """One spelling for equal calls. Numbers keep their kind: 1 and 1.0 differ."""
    read = read_arguments(arguments)
    return json.dumps([name, str(arguments)]) if read is None else canonical_json([name, read])
