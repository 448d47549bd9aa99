"""Glaive function calling as records: version 2, version 1, and LLaMA-Factory's conversion of version 2.

    version 2       {"system": "SYSTEM: ... <tools>", "chat": "USER: ... ASSISTANT: <functioncall> ... <|endoftext|>"}
    version 1       one text a row, which holds both; bare, or the only value of an object
    conversion      {"conversations": [{"from", "value"}], "tools": "<JSON list>"}

Rows are told apart by their keys. The corpus's own system text introduces the tools and is dropped. How a call is
spelled stands in `glaive_calls`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemafill.data_prep.readers import glaive_calls
from schemafill.data_prep.readers.conversation import Conversation, ToolList, tool_list
from schemafill.data_prep.readers.glaive_calls import Call, read_call_fragment, read_call_object
from schemafill.data_prep.readers.source_files import SourceFile, row_files, rows_of
from schemafill.data_prep.readers.strict_json import leading_json, strict_json
from schemafill.data_prep.records import LeftOut, Record
from schemafill.inference.request import UserError
from schemafill.inference.row_files import parse_json, read_text

NAME = "glaive"
REASONS = (
    "row_form",  # of none of the three layouts
    "tool_form",  # what introduces the tools is no sequence of tool objects
    *glaive_calls.REASONS,
    "text_before_call",
    "undeclared_tool",
    "tool_declared_twice",
    "stray_end",  # an end marker inside this turn or an earlier one: upstream cut a text in two there
    "no_history",  # the conversation begins with the call
)
END, CALL_SIGN = "<|endoftext|>", "<functioncall>"
ROLES = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
SHARED_ROLES = {"human": "user", "gpt": "assistant", "observation": "tool", "function_call": "call"}
# A header counts at the start and after a blank line; in version 1 after any newline.
HEADER_V2 = re.compile(r"(?:\A\s*|\n\n+)(USER|ASSISTANT|FUNCTION RESPONSE): ?")
HEADER_V1 = re.compile(r"(?:\A\s*|\n+)(USER|ASSISTANT|FUNCTION RESPONSE): ?")
FIRST_USER = re.compile(r"^USER:", re.MULTILINE)
BARE_TEXTS = re.compile(r'\s*\[?\s*"')


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of a row, whatever its layout."""

    role: str
    """user, assistant, tool, or call: an assistant turn that calls."""
    text: str
    """As upstream spells it, without the end marker."""
    call: Call | str | None = None
    """Of a call: name and arguments, or why it has none."""
    words: str | None = None
    """What the assistant says before the call."""

    @property
    def is_stray(self) -> bool:
        return END in self.text

    @property
    def content(self) -> list[Any]:
        """What the turn says, alike for every layout that spells it."""
        return ["call", self.words, *self.call] if isinstance(self.call, tuple) else [self.role, self.text]


def read(source: Path) -> Iterator[Record | LeftOut]:
    """Every decision of the files directly in a folder, or of one file."""
    for file in row_files(source):
        for row in _rows(file):
            if isinstance(row, LeftOut):
                yield row
            else:
                yield from _decisions(file, *row)


def split_turns(chat: str, header: re.Pattern[str] = HEADER_V2) -> list[Turn]:
    """The turns of a chat. ValueError where there is text before the first header."""
    found = list(header.finditer(chat))
    if chat[: found[0].start() if found else None].strip():
        raise ValueError(f"text before the first turn: {chat[:80]!r}")
    ends = [following.start() for following in found[1:]] + [len(chat)]
    return [_turn(ROLES[one[1]], chat[one.end() : end].strip()) for one, end in zip(found, ends, strict=True)]


def system_tools(system: str) -> ToolList:
    """The tools of a system text: pretty-printed objects one after another, no list. ValueError where there is else."""
    functions, rest = [], system[system.find("{") :] if "{" in system else ""
    while rest:
        function, rest = leading_json(rest)
        functions.append(function)
        rest = rest.lstrip()
    return tool_list(functions)


def _rows(file: SourceFile) -> Iterator[tuple[int, Any] | LeftOut]:
    """Rows as `rows_of` gives them, and those of version 1 that are bare texts."""
    text = read_text(file.path)
    if not BARE_TEXTS.match(text):
        yield from rows_of(file)
        return
    is_list = text.lstrip().startswith("[")
    try:
        lines = [json.dumps(one) for one in parse_json(text)] if is_list else text.split("\n")
    except ValueError as error:
        raise UserError(f"{file.path}: {error}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, parse_json(line)
            except ValueError as error:
                yield LeftOut(file=file.name, row=number, reason="row_form", detail=str(error))


def _decisions(file: SourceFile, number: int, row: Any) -> Iterator[Record | LeftOut]:
    """The records of one row's calls, and a LeftOut for each call that gives none."""
    try:
        turns, read_tools = _layout(row)
    except ValueError as error:
        yield LeftOut(file=file.name, row=number, reason="row_form", detail=str(error))
        return
    try:
        tools = read_tools()
    except (ValueError, RecursionError) as error:
        yield LeftOut(file=file.name, row=number, reason="tool_form", detail=str(error))
        return
    key, conversation, is_stray = _content_key(turns), Conversation(), False
    for index, turn in enumerate(turns):
        is_stray = is_stray or turn.is_stray
        if turn.role == "call":
            reason = "stray_end" if is_stray else _fault(turn, tools, conversation)
            if reason:
                yield LeftOut(file=file.name, row=number, turn=index, reason=reason, detail=turn.text[:200])
            else:
                name, arguments = turn.call
                yield Record(
                    id=f"{NAME}/{file.stem}/{number}/{index}", source=NAME, messages=conversation.messages,
                    tools=tools.tools, reference_calls=[{"name": name, "arguments": arguments}], group=key,
                    meta={"file": file.name, "row": number, "turn": index, **tools.flags},
                )  # fmt: skip
        _add(conversation, turn)


def _layout(row: Any) -> tuple[list[Turn], Callable[[], ToolList]]:
    """Turns, and a function that reads the tools. ValueError where the row is of no known layout."""
    if isinstance(row, dict) and len(row) == 1 and isinstance(text := next(iter(row.values())), str):
        row = text
    if isinstance(row, str):
        first = FIRST_USER.search(row)
        if first is None:
            raise ValueError("no USER: turn")
        return split_turns(row[first.start() :], HEADER_V1), lambda: system_tools(row[: first.start()])
    if not isinstance(row, dict):
        raise ValueError(f"a row must be an object or a text, got {type(row).__name__}")
    if isinstance(row.get("chat"), str) and isinstance(row.get("system"), str):
        return split_turns(row["chat"]), lambda: system_tools(row["system"])
    if isinstance(row.get("conversations"), list):
        return [_shared_turn(one) for one in row["conversations"]], lambda: tool_list(_listed_tools(row.get("tools")))
    raise ValueError(f"neither system and chat nor conversations: keys {sorted(row)}")


def _listed_tools(tools: Any) -> list[Any]:
    """The list that `tools` holds as JSON text; a row without tools may have none."""
    listed = strict_json(tools) if isinstance(tools, str) and tools.strip() else tools or []
    if not isinstance(listed, list):
        raise ValueError("tools is not the text of a list")
    return listed


def _turn(role: str, text: str) -> Turn:
    if role != "assistant":
        return Turn(role=role, text=text)
    text = text.removesuffix(END).rstrip()
    words, sign, fragment = text.partition(CALL_SIGN)
    if not sign:
        return Turn(role=role, text=text)
    return Turn(role="call", text=text, call=read_call_fragment(fragment), words=words.strip() or None)


def _shared_turn(turn: Any) -> Turn:
    role = SHARED_ROLES.get(turn.get("from")) if isinstance(turn, dict) and isinstance(turn.get("from"), str) else None
    if role is None or not isinstance(turn.get("value"), str):
        raise ValueError(f"not a turn: {turn!r:.200}")
    text = turn["value"].strip()
    return Turn(role=role, text=text, call=read_call_object(text) if role == "call" else None)


def _fault(turn: Turn, tools: ToolList, conversation: Conversation) -> str | None:
    """Why a call turn is no decision, or None."""
    if turn.words:
        return "text_before_call"
    if not isinstance(turn.call, tuple):
        return turn.call
    return tools.fault(turn.call[0]) or (None if conversation.messages else "no_history")


def _add(conversation: Conversation, turn: Turn) -> None:
    if turn.role == "tool":
        conversation.answer(turn.text)
    elif isinstance(turn.call, tuple):
        name, arguments = turn.call
        conversation.call([{"name": name, "arguments": arguments}], turn.words)
    else:  # a call that cannot be read stays in the history as the text it is
        conversation.say("assistant" if turn.role == "call" else turn.role, turn.text)


def _content_key(turns: list[Turn]) -> str:
    """16 hex digits, the same for every copy of a conversation, in whichever layout and whatever tools it offers."""
    content = json.dumps([turn.content for turn in turns])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
