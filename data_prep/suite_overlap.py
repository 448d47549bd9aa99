"""What a record shares with the fixed test sets, so that no test request and no test tool is trained on."""

from __future__ import annotations

from schemafill.data_prep.near_duplicates import RequestIndex, request_texts
from schemafill.data_prep.records import Record
from schemafill.data_prep.tool_definitions import definition_key, interface_key

REASONS = ("suite_question_id", "suite_request", "suite_near_duplicate", "suite_tool", "suite_tool_reworded")
"""In the order in which they are looked for; a record counts under the first that holds.

suite_tool: a tool of the record is defined word for word in a suite. suite_tool_reworded: its name, and the names and
types of its parameters are; what is said of them differs, as in a translation.
"""


class SuiteOverlap:
    """Everything by which a record could be known from the suites."""

    def __init__(self, near_duplicate_threshold: float) -> None:
        self._requests = RequestIndex(near_duplicate_threshold)
        self._ids: set[str] = set()
        self._questions: set[str] = set()
        self._definitions: set[str] = set()
        self._interfaces: set[str] = set()

    def add(self, item: Record) -> None:
        """Take in one request of a suite."""
        self._ids.add(item.id)
        if (question := question_id(item)) is not None:
            self._questions.add(question)
        for text in request_texts(item.messages):
            self._requests.add(text)
        self._definitions.update(map(definition_key, item.tools))
        self._interfaces.update(map(interface_key, item.tools))

    def reason(self, record: Record) -> str | None:
        """The first of `REASONS` that holds for a record, None where it shares nothing with a suite."""
        if record.id in self._ids or (record.source == "bfcl" and question_id(record) in self._questions):
            return "suite_question_id"
        texts = request_texts(record.messages)
        if any(map(self._requests.holds, texts)):
            return "suite_request"
        if any(map(self._requests.holds_near, texts)):
            return "suite_near_duplicate"
        if any(definition_key(tool) in self._definitions for tool in record.tools):
            return "suite_tool"
        if any(interface_key(tool) in self._interfaces for tool in record.tools):
            return "suite_tool_reworded"
        return None


def question_id(record: Record) -> str | None:
    """BFCL's own id of a question, the same in all its layouts; the id itself where a row was made by hand.

    Records spell it `bfcl/FILE/QUESTION`. None for the records of other corpora.
    """
    parts = record.id.split("/")
    if len(parts) == 1:
        return record.id
    return parts[2] if parts[0] == "bfcl" and len(parts) > 2 else None
