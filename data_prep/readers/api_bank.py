"""API-Bank as records: its dialogues, the prompt-and-answer records made of them, and the layout of its Hub files.

A dialogue is a file of JSON lines, one turn a line: `{"role": "User" | "AI", "text"}` or `{"role": "API", "api_name",
"param_dict", "result"}`. At levels 1 and 2 of the benchmark's description a model is given the tools, or finds them
with `ToolSearcher`; file names count the levels otherwise. Rows of the other layouts stand in `api_bank_records`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from schemafill.data_prep.readers import api_bank_records
from schemafill.data_prep.readers.api_bank_records import SEARCHER, row_decision
from schemafill.data_prep.readers.api_bank_tools import SCHEMAS, dialogue_tools, found_functions
from schemafill.data_prep.readers.conversation import Conversation, ToolList, as_text, tool_list
from schemafill.data_prep.readers.source_files import SourceFile, decisions_of, row_files, rows_of
from schemafill.data_prep.records import LeftOut, Record
from schemafill.inference.row_files import read_text

NAME = api_bank_records.NAME
REASONS = (
    *api_bank_records.REASONS,
    "tool_not_yet_found",  # no earlier result of ToolSearcher in the dialogue has it
    "broken_history",  # an earlier line of the dialogue is no turn
)
SPEAKERS = {"User": "user", "AI": "assistant"}


def read(source: Path) -> Iterator[Record | LeftOut]:
    """Every decision of a folder and the folders below it, or of one file; dialogues first.

    A record that was made of a dialogue which is there as well is left out as `repeats_a_dialogue`.
    """
    files = row_files(source, pattern="**/*", without=(SCHEMAS,))
    empty = [file for file in files if not read_text(file.path).strip()]  # upstream has one
    yield from (LeftOut(file=file.name, row=1, reason="row_form", detail="the file is empty") for file in empty)
    files = [file for file in files if file not in empty]
    dialogues = [file for file in files if _is_dialogue(file)]
    if dialogues:
        functions = dialogue_tools(source if source.is_dir() else source.parent)
        for file in dialogues:
            yield from _dialogue_decisions(file, functions)
    names = {file.name for file in dialogues}
    for file in files:
        if file not in dialogues:
            yield from decisions_of(file, partial(row_decision, dialogues=names))


def _is_dialogue(file: SourceFile) -> bool:
    first = next((row[1] for row in rows_of(file) if not isinstance(row, LeftOut)), {})
    return "role" in first


def _dialogue_decisions(file: SourceFile, functions: dict[str, dict[str, Any]]) -> Iterator[Record | LeftOut]:
    """The records of a dialogue's calls, and a LeftOut for each call or line that gives none."""
    rows = list(rows_of(file))
    called = [row[1]["api_name"] for row in rows if not isinstance(row, LeftOut) and _is_call(row[1])]
    is_search = _is_search(file, called)
    known = [SEARCHER] if is_search else dict.fromkeys(called)
    offered = {name: functions[name] for name in known if name in functions}
    conversation, is_broken = Conversation(), False
    for row in rows:
        if isinstance(row, LeftOut):
            yield row
            is_broken = True
            continue
        number, turn = row
        if _is_call(turn):
            tools = tool_list(offered.values())
            reason = "broken_history" if is_broken else _fault(turn["api_name"], tools, conversation, is_search)
            if reason:
                yield LeftOut(file=file.name, row=number, turn=number - 1, reason=reason, detail=turn["api_name"])
            else:
                yield _record(file, number, turn, tools, conversation)
            output = _add_call(conversation, turn)
            if turn["api_name"] == SEARCHER:
                for found in found_functions(output):
                    offered.setdefault(found["name"], found)
        elif (speaker := _speaker(turn)) and isinstance(turn.get("text"), str):
            conversation.say(speaker, turn["text"])
        else:
            yield LeftOut(file=file.name, row=number, turn=number - 1, reason="row_form", detail=str(turn)[:200])
            is_broken = True


def _record(file: SourceFile, number: int, turn: dict, tools: ToolList, conversation: Conversation) -> Record:
    return Record(
        id=f"{NAME}/{file.stem}/{number}", source=NAME, messages=conversation.messages, tools=tools.tools,
        reference_calls=[{"name": turn["api_name"], "arguments": turn["param_dict"]}],
        group=api_bank_records.dialogue_group(file.name),
        meta={"file": file.name, "row": number, "turn": number - 1},
    )  # fmt: skip


def _fault(name: str, tools: ToolList, conversation: Conversation, is_search: bool) -> str | None:
    """Why a call is no decision, or None."""
    fault = tools.fault(name)
    if fault == "undeclared_tool" and is_search and name != SEARCHER:
        return "tool_not_yet_found"
    return fault or (None if conversation.messages else "no_history")


def _add_call(conversation: Conversation, turn: dict[str, Any]) -> Any:
    """The call and its result as two messages; returns what the tool put out."""
    result = turn.get("result")
    output = result.get("output") if isinstance(result, dict) else result
    conversation.call([{"name": turn["api_name"], "arguments": turn["param_dict"]}])
    conversation.answer(as_text(output))
    return output


def _speaker(turn: dict[str, Any]) -> str | None:
    role = turn.get("role")
    return SPEAKERS.get(role) if isinstance(role, str) else None


def _is_call(turn: dict[str, Any]) -> bool:
    has_call = isinstance(turn.get("api_name"), str) and isinstance(turn.get("param_dict"), dict)
    return has_call and turn.get("role") == "API"


def _is_search(file: SourceFile, called: list[str]) -> bool:
    """Whether the model finds its tools itself. Five such dialogues upstream never search: their names tell."""
    return "toolsearcher" in file.path.parent.name or "-level-3-" in file.stem or SEARCHER in called
