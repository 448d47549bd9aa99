"""BFCL ground truth as reference calls, and the oddities of a reference that are worth a flag.

Two kinds: calls with a list of allowed values per parameter, of which the first represents the argument, and Python
call expressions. Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from schemafill.data_prep.readers.python_calls import parse_call

FLAGS = ("undeclared_tool", "argument_outside_schema", "missing_required")
ABSENT = object()


class NoRecord(Exception):
    """A row, or a turn of one, that gives no record: one word of the reader's REASONS, and a detail for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def reference_calls(ground_truth: Any, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of a ground truth in order, arguments as JSON objects in the reference's own order.

    tools: OpenAI form; they name the arguments that an expression gives by place. NoRecord where the ground truth is
    no list of calls, or one of its calls cannot be read.
    """
    if isinstance(ground_truth, str):
        raise NoRecord("recorded_response", "the ground truth is a response, not a call")
    if not isinstance(ground_truth, list):
        raise NoRecord("reference_form", f"the ground truth is a {type(ground_truth).__name__}")
    if not ground_truth:
        raise NoRecord("no_call_expected", "the ground truth is an empty list")
    schemas = parameter_schemas(tools)
    return [_expression_call(one, schemas) if isinstance(one, str) else _allowed_call(one) for one in ground_truth]


def representative(allowed: list[Any]) -> Any:
    """What stands for a list of allowed values: the first, or ABSENT where that is the empty text or there is none.

    Only the empty text means "left out": an empty list or object, null, 0 and false are values.
    """
    if not allowed or (isinstance(allowed[0], str) and not allowed[0]):
        return ABSENT
    return _settled(allowed[0])


def reference_flags(calls: Iterable[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[str]:
    """Which of FLAGS hold for any of the calls."""
    schemas, found = parameter_schemas(tools), set()
    for call in calls:
        schema = schemas.get(call["name"])
        if schema is None:
            found.add("undeclared_tool")
            continue
        if any(name not in _properties(schema) for name in call["arguments"]):
            found.add("argument_outside_schema")
        required = schema.get("required")
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        if any(name not in call["arguments"] for name in names):
            found.add("missing_required")
    return [flag for flag in FLAGS if flag in found]


def parameter_schemas(tools: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tool name -> the schema of its arguments, an empty one where it has none."""
    functions = [tool["function"] for tool in tools]
    found = {function["name"]: function.get("parameters") for function in functions}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in found.items()}


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _expression_call(text: str, schemas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    try:
        call = parse_call(text)
        return {"name": call.name, "arguments": call.arguments(list(_properties(schemas.get(call.name, {}))))}
    except ValueError as error:
        raise NoRecord("call_form", f"{error}: {text}") from None


def _allowed_call(call: Any) -> dict[str, Any]:
    """A call written `{tool: {parameter: [allowed value, ...]}}`."""
    if not isinstance(call, dict) or len(call) != 1:
        raise NoRecord("reference_form", f"not an object of one tool: {call!r:.200}")
    [(name, parameters)] = call.items()
    if not isinstance(parameters, dict) or not all(isinstance(allowed, list) for allowed in parameters.values()):
        raise NoRecord("reference_form", f"{name}: not lists of allowed values: {parameters!r:.200}")
    return {"name": name, "arguments": _first_values(parameters)}


def _first_values(parameters: dict[str, list[Any]]) -> dict[str, Any]:
    chosen = {name: representative(allowed) for name, allowed in parameters.items()}
    return {name: value for name, value in chosen.items() if value is not ABSENT}


def _settled(value: Any) -> Any:
    """An allowed value with the lists of allowed values inside its objects settled too, at every depth."""
    if isinstance(value, list):
        return [_settled(one) for one in value]
    if isinstance(value, dict) and all(isinstance(inner, list) for inner in value.values()):
        return _first_values(value)
    return value  # an object whose values are no lists is the value itself
