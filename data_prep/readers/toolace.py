"""ToolACE as records: `{"system", "conversations": [{"from", "value"}]}`, tools and calls both inside texts.

Of the system text the tool list and the instruction on the output's form are dropped; the rest (the date, whom the
model plays) stays as the system message. How calls are spelled stands in `toolace_calls`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemafill.data_prep.readers import toolace_calls
from schemafill.data_prep.readers.conversation import Conversation, ToolList, as_text, tool_list
from schemafill.data_prep.readers.source_files import SourceFile, decisions_of, row_files
from schemafill.data_prep.readers.strict_json import leading_json, strict_json
from schemafill.data_prep.readers.toolace_calls import read_calls
from schemafill.data_prep.records import LeftOut, Record

NAME = "toolace"
REASONS = (
    "row_form",
    "custom_protocol",  # the row asks for a call syntax of its own, and lists its tools in another form
    "tool_form",
    *toolace_calls.REASONS,
    "tool_declared_twice",
    "no_history",
)
ROLES = ("user", "assistant", "tool")
# What stands before the tool list, in the two languages of the corpus.
MARKERS = (
    "Here is a list of functions in JSON format that you can invoke:",
    "以下是可以调用的工具的JSON格式列表:",
)
# What says how calls are to be spelled: sentences before the list and beginnings of lines after it.
FORM_SENTENCES = (
    "You should only return the function call in tools call sections.",
    "请用<cot></cot>标识你的思考过程。",
)
FORM_LINES = (
    "Should you decide to return the function call",
    "Put it in the form",
    "NO other text MUST be included",
    "如果你决定输出工具调用语句",
    "不得包含其他文字",
)
NO_ROWS = ("upstream_row_indices.json",)


class CustomProtocol(ValueError):
    """The system text has no tool list of the known form."""


def read(source: Path) -> Iterator[Record | LeftOut]:
    """Every decision of the files directly in a folder, or of one file."""
    for file in row_files(source, without=NO_ROWS):
        yield from decisions_of(file, _decisions)


def read_system(system: str) -> tuple[str, ToolList]:
    """The system message to keep and the tools. CustomProtocol where there is no list, ValueError where it is odd."""
    marker = next((marker for marker in MARKERS if marker in system), None)
    if marker is None:
        raise CustomProtocol("no tool list of the known form")
    before, _, rest = system.partition(marker)
    functions, after = leading_json(rest.lstrip())
    if not isinstance(functions, list):
        raise ValueError("the tools are not a list")
    return kept_text(before, after), tool_list(functions)


def kept_text(before: str, after: str) -> str:
    """What stands around the tool list, without the instruction on the output's form."""
    for sentence in FORM_SENTENCES:
        before = before.replace(sentence, "")
    lines = [line.strip() for line in after.lstrip(".。").split("\n")]
    rest = [line for line in lines if line and not line.startswith(FORM_LINES)]
    return "\n".join([before.strip(), *rest]).strip()


def _decisions(file: SourceFile, number: int, row: dict[str, Any]) -> Iterator[Record | LeftOut]:
    """The records of one row's call turns, and a LeftOut for each that gives none."""
    system, turns = row.get("system"), row.get("conversations")
    if not isinstance(system, str) or not _are_turns(turns):
        yield LeftOut(file=file.name, row=number, reason="row_form", detail="needs a system text and turns")
        return
    try:
        kept, tools = read_system(system)
    except ValueError as error:
        reason = "custom_protocol" if isinstance(error, CustomProtocol) else "tool_form"
        yield LeftOut(file=file.name, row=number, reason=reason, detail=str(error)[:200])
        return
    conversation = Conversation(kept)
    for index, turn in enumerate(turns):
        role, text = turn["from"], turn["value"]
        calls = read_calls(text, tools.names) if role == "assistant" and text.startswith("[") else None
        if calls is not None:
            reason = calls if isinstance(calls, str) else _fault(calls, tools, turns[:index])
            if reason:
                yield LeftOut(file=file.name, row=number, turn=index, reason=reason, detail=text[:200])
            else:
                yield Record(
                    id=f"{NAME}/{file.stem}/{number}/{index}", source=NAME, messages=conversation.messages,
                    tools=tools.tools, reference_calls=calls, group=f"{NAME}/{file.stem}/{number}",
                    meta={"file": file.name, "row": number, "turn": index, **tools.flags},
                )  # fmt: skip
        if isinstance(calls, list):
            conversation.call(calls)
        elif role == "tool":
            _answer(conversation, text)
        else:
            conversation.say(role, text)


def _are_turns(turns: Any) -> bool:
    return isinstance(turns, list) and all(
        isinstance(turn, dict) and turn.get("from") in ROLES and isinstance(turn.get("value"), str) for turn in turns
    )


def _fault(calls: list[dict[str, Any]], tools: ToolList, before: list[Any]) -> str | None:
    """Why a turn of readable calls is no decision, or None."""
    return tools.fault(*(call["name"] for call in calls)) or (None if before else "no_history")


def _answer(conversation: Conversation, text: str) -> None:
    """One message of upstream answers every call of the turn before: a result each, where results and calls agree."""
    try:
        results = strict_json(text)
    except ValueError:
        results = None
    parts = results if isinstance(results, list) and all(isinstance(one, dict) for one in results) else []
    names = [part.get("name") for part in parts]
    if names and names == conversation.unanswered and all("results" in part for part in parts):
        for part in parts:
            conversation.answer(as_text(part["results"]))
    else:
        conversation.answer(text)
