"""A chat history in the one form that chat templates agree on, and the prompt that a template makes of it.

Knows the OpenAI message format and the variants that clients send. It knows no template: what a family asks for beyond
the common form (ids of nine characters) comes in as a parameter.
"""

from __future__ import annotations

import hashlib
import json
import string
from typing import Any

from schemafill.inference.request import UserError

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Role in a request -> role that templates know."""
ID_LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase


def normalise_messages(messages: list, *, id_length: int | None) -> list[dict]:
    """The history with one spelling for what clients spell in several ways; new dicts, the given ones stay as they are.

    Content is text (null and absent: empty; text parts: joined). A call is `{"id", "type", "function": {"name",
    "arguments"}}` with the arguments as an object; a text that is no JSON object, which a target may have written, is
    kept as that text, so that it renders as written instead of failing. A result carries the id and the name of its
    call; without an id it belongs to the first call not yet answered. Other fields are kept unless null or empty.
    id_length: every id gets so many letters and digits. Ids that fit are kept, others are derived from the id's own
    text, the same each time and different for different ids. None: ids stay, and calls without one get one.
    """
    if not isinstance(messages, list):
        raise UserError(f"messages must be a list, got {type(messages).__name__}")
    normalised = [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]
    _connect_results(normalised)
    if id_length is not None:
        _replace_ids(normalised, id_length)
    return normalised


def render_chat(tokenizer: Any, messages: list[dict], tools: list[dict], **options: object) -> str:
    """The prompt that the tokenizer's chat template makes of normalised messages and the client's tools.

    Tools go to the template as the client wrote them; a bare function is wrapped in the OpenAI form, and only where the
    template cannot do without parameters are missing ones filled in. options: further variables of the template.
    """
    wrapped = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
    completed = [_with_parameters(tool) for tool in wrapped]
    try:
        return _apply_template(tokenizer, messages, wrapped, options)
    except UserError:
        if completed == wrapped:
            raise
        return _apply_template(tokenizer, messages, completed, options)


def request_text(messages: list[dict]) -> str:
    """What normalised messages say that a value may be copied from, newest last: user, results, assistant's text."""
    return "\n".join(message["content"] for message in messages if message["role"] != "system" and message["content"])


def _message(message: object, where: str) -> dict:
    if not isinstance(message, dict):
        raise UserError(f"{where} must be an object, got {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise UserError(f"{where} has the role {role!r}, known are {', '.join(ROLES)}")
    others = {key: value for key, value in message.items() if value not in (None, "", [], {})}
    normalised = {**others, "role": ROLES[role], "content": _content(message.get("content"), where)}
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise UserError(f"{where}: tool_calls must be a list, got {type(calls).__name__}")
        normalised["tool_calls"] = [_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)]
    return normalised


def _content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UserError(f"{where}: content must be text or a list of text parts, got {type(content).__name__}")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise UserError(f"{where}: only text parts are supported, got {kind!r}")
    return "".join(part["text"] for part in content)


def _call(call: object, where: str) -> dict:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise UserError(f"{where} must be an object with a function that has a name")
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": name, "arguments": _arguments(function.get("arguments"))},
    }


def _arguments(arguments: object) -> dict | str:
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    try:
        value = json.loads(arguments, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _connect_results(messages: list[dict]) -> None:
    """Gives every call an id, and every result the id and the name of its call."""
    names: dict[str, str] = {}
    unanswered: list[str] = []
    for number, message in enumerate(messages):
        for place, call in enumerate(message.get("tool_calls", [])):
            call["id"] = call["id"] or f"call_{number}_{place}"
            names[call["id"]] = call["function"]["name"]
            unanswered.append(call["id"])
        if message["role"] == "tool":
            call_id = str(message.get("tool_call_id") or next(iter(unanswered), ""))
            if call_id in unanswered:
                unanswered.remove(call_id)
            known = {"tool_call_id": call_id, "name": message.get("name") or names.get(call_id)}
            message.update({key: value for key, value in known.items() if value})


def _replace_ids(messages: list[dict], length: int) -> None:
    holders = [(call, "id") for message in messages for call in message.get("tool_calls", [])]
    results = [message for message in messages if message["role"] == "tool" and "tool_call_id" in message]
    holders += [(result, "tool_call_id") for result in results]
    given = [holder[key] for holder, key in holders]
    replaced = {call_id: call_id for call_id in given if len(call_id) == length and set(call_id) <= set(ID_LETTERS)}
    for call_id in dict.fromkeys(given):
        attempt = 0
        while call_id not in replaced:
            candidate = _derived_id(f"{call_id}/{attempt}", length)
            if candidate not in replaced.values():
                replaced[call_id] = candidate
            attempt += 1
    for holder, key in holders:
        holder[key] = replaced[holder[key]]


def _derived_id(text: str, length: int) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest())
    return "".join(ID_LETTERS[number // len(ID_LETTERS) ** place % len(ID_LETTERS)] for place in range(length))


def _with_parameters(tool: dict) -> dict:
    parameters = tool["function"].get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    if isinstance(parameters.get("properties"), dict):
        return tool
    return {**tool, "function": {**tool["function"], "parameters": {"type": "object", **parameters, "properties": {}}}}


def _apply_template(tokenizer: Any, messages: list[dict], tools: list[dict], options: dict) -> str:
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=True, **options
        )
        text.encode()
    except Exception as error:  # a template is a program of somebody else's: it may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"the chat template cannot render this request: {reason}") from error
    return text
