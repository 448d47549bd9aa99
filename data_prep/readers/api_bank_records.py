"""API-Bank's prompt-and-answer rows as records, one decision a row, in two layouts told apart by their keys.

    processed   {"system": "... <tools> ...", "user": "<user> ... </user> <response> ...", "answer", "other"}
    Hub files   {"instruction", "input": "<tools> User: ... AI: ...", "output" or "expected_output": "API-Request: []"}

The Hub layout was written from descriptions of it, without files at hand.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from schemafill.data_prep.readers import toolace_calls
from schemafill.data_prep.readers.api_bank_tools import api_function, found_functions
from schemafill.data_prep.readers.conversation import Conversation, ToolList, as_text, tool_list
from schemafill.data_prep.readers.source_files import SourceFile
from schemafill.data_prep.readers.strict_json import leading_json
from schemafill.data_prep.readers.toolace_calls import read_calls, read_value
from schemafill.data_prep.records import LeftOut, Record

NAME = "api-bank"
REASONS = (
    "row_form",
    "tool_form",
    *toolace_calls.REASONS,
    "tool_declared_twice",
    "no_history",
    "repeats_a_dialogue",
)
SEARCHER = "ToolSearcher"
TOOLS_START, TOOLS_END = "you can use the following tools:\n", "\n\n**"
TOOL = re.compile(
    r"\d+\. (?:Name: (?P<name>[^\n]+)\nDescription: ?|(?P<short_name>[^:\n]+): ?)(?P<description>.*?)"
    r"\nParameters: (?P<parameters>\{[^\n]*\})(?:\n+|\Z)",
    re.DOTALL,
)
TAGGED = re.compile(r"<(user|response|tool_call|obs)>(.*?)</\1>", re.DOTALL)
# The last user tag of a processed record asks for the answer's form and is no part of the dialogue.
FIXED_REQUEST = "please only make one tool call"
LABEL = re.compile(r"^(User|AI|API-Request|Generate API Request|Generate AI Response): ?", re.MULTILINE)
REQUEST = "API-Request:"
RESULT = re.compile(r"\]\s*->")


@dataclass(frozen=True)
class Decision:
    """What a row asks for, and its answer as upstream spells it. calls None: the answer is prose."""

    tools: ToolList
    conversation: Conversation
    calls: list[dict[str, Any]] | str | None
    answer: str


class BadTools(ValueError):
    """The row's tool definitions cannot be read."""


def row_decision(
    file: SourceFile, number: int, row: dict[str, Any], dialogues: Set[str]
) -> Iterator[Record | LeftOut]:
    """The record of a row, the reason for which it gives none, or nothing where its answer is prose.

    dialogues: names of the dialogue files that are read as well.
    """
    other = row.get("other") if isinstance(row.get("other"), dict) else {}
    dialogue = other.get("file") if isinstance(other.get("file"), str) else None
    if dialogue in dialogues:
        yield LeftOut(file=file.name, row=number, reason="repeats_a_dialogue", detail=dialogue)
        return
    try:
        decision = _processed(row) if "answer" in row else _hub(row)
    except ValueError as error:
        reason = "tool_form" if isinstance(error, BadTools) else "row_form"
        yield LeftOut(file=file.name, row=number, reason=reason, detail=str(error)[:200])
        return
    if decision.calls is None:
        return
    if reason := _fault(decision):
        yield LeftOut(file=file.name, row=number, turn=0, reason=reason, detail=decision.answer[:200])
        return
    messages = decision.conversation.messages
    yield Record(
        id=f"{NAME}/{file.stem}/{number}", source=NAME, messages=messages, tools=decision.tools.tools,
        reference_calls=decision.calls, group=dialogue_group(dialogue) if dialogue else _opening_group(messages),
        meta={"file": file.name, "row": number, "turn": 0, **decision.tools.flags},
    )  # fmt: skip


def dialogue_group(file_name: str) -> str:
    return f"{NAME}/{file_name.removesuffix('.jsonl')}"


def _opening_group(messages: list[dict[str, Any]]) -> str:
    """A key that rows of one dialogue share, since it begins alike in all of them."""
    return f"{NAME}/{hashlib.sha256(json.dumps(messages[0]).encode()).hexdigest()[:16]}"


def _fault(decision: Decision) -> str | None:
    if isinstance(decision.calls, str):
        return decision.calls
    fault = decision.tools.fault(*(call["name"] for call in decision.calls))
    return fault or (None if decision.conversation.messages else "no_history")


def _processed(row: dict[str, Any]) -> Decision:
    if not isinstance(row.get("system"), str) or not isinstance(row.get("user"), str):
        raise ValueError("needs system and user as texts")
    answer = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    calls = [_named_call(one) for one in answer]
    tools, conversation = _numbered_tools(row["system"]), _tagged_history(row["user"])
    return Decision(tools, conversation, calls if calls and all(calls) else "call_form", as_text(row["answer"]))


def _named_call(call: Any) -> dict[str, Any] | None:
    if isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("parameters"), dict):
        return {"name": call["name"], "arguments": call["parameters"]}
    return None


def _numbered_tools(system: str) -> ToolList:
    """The numbered tools of a system text; their parameters are Python literals."""
    _, start, rest = system.partition(TOOLS_START)
    if not start:
        raise BadTools("no tool list in the system text")
    text, place, functions = rest.partition(TOOLS_END)[0], 0, []
    while place < len(text):
        tool = TOOL.match(text, place)
        if tool is None:
            raise BadTools(f"not a numbered tool: {text[place : place + 100]!r}")
        try:
            parameters = ast.literal_eval(tool["parameters"])
            json.dumps(parameters)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise BadTools(f"parameters are no Python literal that JSON can say: {error}") from None
        definition = {"description": tool["description"], "input_parameters": parameters}
        functions.append(api_function(tool["name"] or tool["short_name"], definition))
        place = tool.end()
    return tool_list(functions)


def _tagged_history(text: str) -> Conversation:
    tagged = [(tag[1], tag[2].strip()) for tag in TAGGED.finditer(text)]
    if tagged and tagged[-1][0] == "user" and FIXED_REQUEST in tagged[-1][1]:
        tagged.pop()
    conversation = Conversation()
    for tag, said in tagged:
        if tag == "obs":
            conversation.answer(said)
        elif tag == "tool_call" and (calls := _call_objects(said)):
            conversation.call(calls)
        else:  # a call that cannot be read stays in the history as the text it is
            conversation.say("user" if tag == "user" else "assistant", said)
    return conversation


def _call_objects(text: str) -> list[dict[str, Any]] | None:
    """The calls of a tag, JSON objects one after another, or None where it holds something else."""
    calls = []
    while text:
        try:
            value, text = leading_json(text)
        except ValueError:
            return None
        calls.append(_named_call(value))
        text = text.lstrip()
    return calls if all(calls) else None


def _hub(row: dict[str, Any]) -> Decision:
    expected = row.get("expected_output", row.get("output"))
    texts = (row.get("instruction"), row.get("input"), expected)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"neither a dialogue turn nor a record of a known layout: keys {sorted(row)}")
    instruction, dialogue, expected = texts
    labels = list(LABEL.finditer(dialogue))
    before = dialogue[: labels[0].start()] if labels else dialogue
    functions = {one["name"]: one for one in _listed_functions(f"{instruction}\n{before}")}
    ends = [label.start() for label in labels[1:]] + [len(dialogue)]
    conversation = Conversation()
    for label, end in zip(labels, ends, strict=True):
        said = dialogue[label.end() : end].strip()
        if label[1] in ("User", "AI"):
            conversation.say("user" if label[1] == "User" else "assistant", said)
        elif label[1] == "API-Request":
            for found in _add_request(conversation, said):
                functions.setdefault(found["name"], found)
    tools = tool_list(functions.values())
    answer = expected.strip().removeprefix(REQUEST).strip()
    calls = read_calls(answer, tools.names) if answer.startswith("[") else None
    return Decision(tools, conversation, calls, expected)


def _listed_functions(text: str) -> Iterator[dict[str, Any]]:
    """The tools of a text: every line that is a JSON object."""
    for line in text.split("\n"):
        if line.lstrip().startswith("{"):
            try:
                definition, _ = leading_json(line.lstrip())
            except ValueError as error:
                raise BadTools(f"not a tool: {error}") from None
            name = definition.get("name", definition.get("apiCode"))
            if not isinstance(name, str) or not name:
                raise BadTools(f"a tool without a name: {line[:100]!r}")
            yield api_function(name, definition)


def _add_request(conversation: Conversation, text: str) -> list[dict[str, Any]]:
    """An earlier request and its result, `[Name(...)]->{...}`, as messages; returns the tools that it found."""
    arrow = RESULT.search(text)
    request, result = (text[: arrow.start() + 1], text[arrow.end() :].strip()) if arrow else (text, None)
    calls = read_calls(request, re.findall(r"\w+(?=\()", request))
    if isinstance(calls, str):
        conversation.say("assistant", f"{REQUEST} {request}")
    else:
        conversation.call(calls)
    if result is None:
        return []
    value = read_value(result)
    output = value["output"] if isinstance(value, dict) and "output" in value else value
    conversation.answer(as_text(output))
    is_search = isinstance(calls, list) and calls[0]["name"] == SEARCHER
    return list(found_functions(output)) if is_search else []
