"""A Glaive call's text as name and arguments, or the reason why it is none. Knows no conversation and no tools.

The original's calls are not JSON: `{"name": "f", "arguments": '{"a": 1}'}` holds the arguments as JSON between single
quotes in which nothing is escaped, so an apostrophe inside a value stands bare. Some hold an object instead.
"""

from __future__ import annotations

import re
from typing import Any

from schemafill.data_prep.readers.strict_json import leading_json, strict_json

REASONS = ("call_form", "arguments_not_json", "arguments_not_object")

Call = tuple[str, dict[str, Any]]
HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')


def read_call_fragment(text: str) -> Call | str:
    """Name and arguments of what stands between `<functioncall>` and the end marker, or one of `REASONS`."""
    header = HEADER.match(text)
    if header is None:
        return "call_form"
    try:
        name = strict_json(header[1])
    except ValueError:
        return "call_form"
    if not name:
        return "call_form"
    rest = text[header.end() :].rstrip()
    arguments = _quoted_arguments(rest) if rest.startswith("'") else _object_arguments(rest)
    return arguments if isinstance(arguments, str) else (name, arguments)


def read_call_object(text: str) -> Call | str:
    """The same for a call that is JSON as a whole, `{"name", "arguments"}`, as the ShareGPT conversion has it."""
    try:
        call = strict_json(text)
    except ValueError:
        return "call_form"
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name or "arguments" not in call:
        return "call_form"
    return (name, call["arguments"]) if isinstance(call["arguments"], dict) else "arguments_not_object"


def _quoted_arguments(rest: str) -> dict[str, Any] | str:
    """Arguments out of `'...'}`: cut at the last `'}`, since an apostrophe in a value may be followed by a brace."""
    end = rest.rfind("'}")
    if end < 1 or end + 2 != len(rest):
        return "call_form"
    quoted = rest[1:end]
    for spelling in dict.fromkeys((quoted, quoted.replace("\\'", "'"))):
        try:
            value = strict_json(spelling)
        except ValueError:
            continue
        return value if isinstance(value, dict) else "arguments_not_object"
    return "arguments_not_json"


def _object_arguments(rest: str) -> dict[str, Any] | str:
    """Arguments out of `{...}}`, an object as it is."""
    try:
        value, after = leading_json(rest)
    except ValueError:
        return "arguments_not_json" if rest.endswith("}") else "call_form"
    if after.strip() != "}":
        return "call_form"
    return value if isinstance(value, dict) else "arguments_not_object"
