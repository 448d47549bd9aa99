"""ToolAlpaca as records: a list of APIs, each with its functions, requests, and answers or recorded traces.

An evaluation file has answers without results, so only the first call of each request can be asked for. A training file
has traces, `Instances`: each step is a decision with the steps before it as its history. Where an API has both, as in
files that others completed, its answers count and its traces, which repeat them, do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from schemafill.data_prep.readers.conversation import Conversation, ToolList, as_text, tool_list
from schemafill.data_prep.readers.source_files import SourceFile, decisions_of, row_files
from schemafill.data_prep.readers.strict_json import leading_json, strict_json
from schemafill.data_prep.records import LeftOut, Record

NAME = "toolalpaca"
REASONS = (
    "row_form",
    "no_functions",  # the API's functions are not described
    "no_requests",  # the API has neither answers nor traces
    "no_call",  # the answer to a request is empty
    "failed_trace",  # an error stands in the trace's place
    "call_form",
    "undeclared_tool",
    "input_not_json",
    "arguments_not_object",
)
PARAMETERS = re.compile(r"(?:\A|\n)Parameters:\s*")
HINT = "\nHint: "  # what follows was for the simulation that recorded the trace
REQUIRED = "Required."
CHOICES = re.compile(r"One of: \[([^\[\]]+)\]\.\s*")
TYPE_WORD = re.compile(r"([A-Za-z]+)(?=[.\[{]|\Z)")
TYPES = ("string", "integer", "number", "boolean")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request of an API: what the user says and the calls that answer it."""

    file: SourceFile
    number: int
    """Of the API in its file, from 1."""
    turn: int
    """Of the request among those of the API."""
    api: str
    tools: ToolList

    def left_out(self, reason: str, detail: Any = "") -> LeftOut:
        text = as_text(detail)[:200]
        return LeftOut(file=self.file.name, row=self.number, turn=self.turn, reason=reason, detail=text)

    def record(self, conversation: Conversation, call: dict[str, Any], step: int | None = None) -> Record:
        meta = {"file": self.file.name, "row": self.number, "turn": self.turn}
        return Record(
            id=f"{NAME}/{self.file.stem}/{self.number}/{self.turn}" + ("" if step is None else f"/{step}"),
            source=NAME, messages=conversation.messages, tools=self.tools.tools, reference_calls=[call],
            group=f"{NAME}/{self.api}", meta=meta | ({} if step is None else {"step": step}),
        )  # fmt: skip


def read(source: Path) -> Iterator[Record | LeftOut]:
    """Every decision of the files directly in a folder, or of one file."""
    for file in row_files(source):
        yield from decisions_of(file, _api_decisions)


def api_tools(api: dict[str, Any]) -> ToolList:
    """The functions of an API. `Function_Description` has further entries that are none (`components`).

    ValueError where the API does not tell them.
    """
    projection, described = api.get("Function_Projection"), api.get("Function_Description")
    if not isinstance(projection, dict) or not projection or not isinstance(described, dict):
        raise ValueError("no functions, or none of them described")
    return tool_list(_function(name, described.get(name)) for name in projection)


def parameter_schema(text: str) -> tuple[dict[str, Any], bool]:
    """Schema of a parameter out of `Required. string. One of: [a, b]. What it means.`, and whether it is required."""
    is_required = text.startswith(REQUIRED)
    text = text.removeprefix(REQUIRED).strip()
    word = match[1].lower() if (match := TYPE_WORD.match(text)) else ""
    if word in ("array", "object"):  # what they hold is told in words of several levels: those stay
        items = {"items": {"type": "string"}} if text.startswith("Array[string]") else {}
        return {"type": word, "description": text, **items}, is_required
    if word not in TYPES:
        return {"description": text}, is_required
    text = text[len(word) :].removeprefix(".").strip()
    choices = CHOICES.match(text) if word == "string" else None  # of numbers it does not say how they are spelled
    if choices is None:
        return {"type": word, "description": text}, is_required
    values = [choice.strip() for choice in choices[1].split(",")]
    return {"type": word, "description": text[choices.end() :], "enum": values}, is_required


def _api_decisions(file: SourceFile, number: int, api: dict[str, Any]) -> Iterator[Record | LeftOut]:
    name, instructions, answers = api.get("Name"), api.get("Instructions"), api.get("Golden_Answers")
    if not isinstance(name, str) or not name:
        yield LeftOut(file=file.name, row=number, reason="row_form", detail="an API without a name")
        return
    try:
        tools = api_tools(api)
    except ValueError as error:
        yield LeftOut(file=file.name, row=number, reason="no_functions", detail=f"{name}: {error}")
        return
    api_requests = partial(Request, file=file, number=number, api=name, tools=tools)
    if isinstance(answers, list) and isinstance(instructions, list):
        for turn, instruction in enumerate(instructions):
            answer = answers[turn] if turn < len(answers) else None
            yield _first_call(api_requests(turn=turn), instruction, answer)
    elif isinstance(api.get("Instances"), list):
        for turn, instance in enumerate(api["Instances"]):
            yield from _trace(api_requests(turn=turn), instance)
    else:
        yield LeftOut(file=file.name, row=number, reason="no_requests", detail=name)


def _first_call(request: Request, instruction: Any, answer: Any) -> Record | LeftOut:
    """The decision that an answer's first call makes. Later ones depend on results that are not there."""
    if not isinstance(instruction, str) or not isinstance(answer, list):
        return request.left_out("row_form", instruction)
    if not answer:
        return request.left_out("no_call", instruction)
    first = answer[0] if isinstance(answer[0], dict) else {}
    call = _call(request.tools, first.get("Action"), first.get("Action_Input"))
    if isinstance(call, str):
        return request.left_out(call, answer[0])
    conversation = Conversation()
    conversation.say("user", instruction)
    return request.record(conversation, call)


def _trace(request: Request, instance: Any) -> Iterator[Record | LeftOut]:
    """The decisions of a trace's steps, `[[action, input, log], observation]`. The log is thought, not prompt."""
    said = instance.get("input") if isinstance(instance, dict) else None
    steps = instance.get("intermediate_steps") if isinstance(said, str) else None
    if not isinstance(steps, list):
        is_error = isinstance(instance, dict) and "error" in instance
        yield request.left_out("failed_trace" if is_error else "row_form", instance)
        return
    conversation = Conversation()
    conversation.say("user", said.rsplit(HINT, 1)[0])
    for number, step in enumerate(steps):
        if not _is_step(step):
            yield request.left_out("call_form", step)
            return  # what follows was said after a step that is not known
        (action, given, *_), observation = step
        call = _call(request.tools, action, given)
        yield request.left_out(call, step[0]) if isinstance(call, str) else request.record(conversation, call, number)
        conversation.call([call if isinstance(call, dict) else {"name": action, "arguments": given}])
        conversation.answer(as_text(observation))


def _is_step(step: Any) -> bool:
    is_pair = isinstance(step, list) and len(step) == 2 and isinstance(step[0], list) and len(step[0]) >= 2
    return is_pair and isinstance(step[0][0], str)


def _call(tools: ToolList, action: Any, given: Any) -> dict[str, Any] | str:
    """The call, or the reason why it cannot be asked for. given: its arguments, JSON as a text."""
    if not isinstance(action, str) or given is None:
        return "call_form"
    if fault := tools.fault(action):
        return fault
    try:
        arguments = strict_json(given) if isinstance(given, str) else given
    except ValueError:
        return "input_not_json"
    return {"name": action, "arguments": arguments} if isinstance(arguments, dict) else "arguments_not_object"


def _function(name: str, described: Any) -> dict[str, Any]:
    """A function out of `text\\nParameters: {json}\\nOutput: ...`; what it puts out is left away."""
    text = described if isinstance(described, str) else ""
    sign = PARAMETERS.search(text)
    function = {"name": name, "description": text[: sign.start()].strip() if sign else text.strip()}
    try:
        given = leading_json(text[sign.end() :])[0] if sign else None
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return function | {"parameters": {}}  # nothing is known of them
    schemas = {one: parameter_schema(as_text(said)) for one, said in given.items()}
    properties = {one: schema for one, (schema, _) in schemas.items()}
    required = [one for one, (_, is_required) in schemas.items() if is_required]
    return function | {"parameters": {"type": "object", "properties": properties, "required": required}}
