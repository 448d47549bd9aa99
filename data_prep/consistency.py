"""Whether an augmented copy still says what its original says: a check that knows nothing of how copies are made.

Places are compared pair by pair: the n-th call with the n-th call, the n-th argument with the n-th argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from schemafill.data_prep.json_values import leaves_in
from schemafill.data_prep.literals import last_request_idx, spelling
from schemafill.data_prep.record_calls import calls_of, read_arguments
from schemafill.data_prep.records import Record
from schemafill.data_prep.schema_names import element_nodes, listed_texts, property_names
from schemafill.data_prep.spellings import is_unsaid, says_otherwise
from schemafill.data_prep.tool_definitions import Tool, tool_name
from schemafill.inference.request import UserError
from schemafill.inference.toolcall.schema import Catalog, parse_tools
from schemafill.inference.toolcall.schema_node import SchemaNode

Call = tuple[str, Any]
"""Name and arguments; arguments that spell no object stay as they are written."""


def is_consistent(original: Record, copy: Record) -> bool:
    """Whether calls, schemas and texts of a copy fit together as those of the original do."""
    return inconsistency(original, copy) is None


def inconsistency(original: Record, copy: Record) -> str | None:
    """The first thing that does not fit, in words; None where everything does."""
    if _outline(original) != _outline(copy):
        return "other messages, or another number of calls"
    try:
        catalogs = parse_tools(original.tools), parse_tools(copy.tools)
    except UserError as error:
        return str(error)
    return next(_faults(original, copy, *catalogs), None)


def _outline(record: Record) -> tuple:
    messages = [(message["role"], message.get("tool_call_id")) for message in record.messages]
    calls = [message.get("tool_calls") or () for message in record.messages]
    ids = [[call.get("id") for call in one if isinstance(call, dict)] for one in calls if isinstance(one, list | tuple)]
    return messages, ids, None if record.reference_calls is None else len(record.reference_calls)


def _faults(original: Record, copy: Record, before: Catalog, after: Catalog) -> Iterator[str]:
    pairs = list(zip(_calls(original), _calls(copy), strict=True))
    yield from _name_faults(pairs, before, after)
    for (old_name, old_arguments), (new_name, new_arguments) in pairs:
        nodes = _parameters(before, old_name), _parameters(after, new_name)
        yield from _value_faults(nodes[0], old_arguments, nodes[1], new_arguments)
    yield from _literal_faults(original, copy)


def _calls(record: Record) -> Iterator[Call]:
    for call in calls_of(record):
        values = read_arguments(call.get("arguments"))
        name = call.get("name")
        yield name if isinstance(name, str) else repr(name), call.get("arguments") if values is None else values


def _parameters(catalog: Catalog, name: str) -> SchemaNode | None:
    tool = catalog.get(name)
    return tool.parameters if tool else None


def _name_faults(pairs: list[tuple[Call, Call]], before: Catalog, after: Catalog) -> Iterator[str]:
    """Tools: one new name for one old name, declared where the old one was, and no other tool under an old name."""
    names = {(old[0], new[0]) for old, new in pairs}
    if not len(names) == len({old for old, _ in names}) == len({new for _, new in names}):
        yield "two names for one tool, or one for two"
    for old, new in names:
        if (_parameters(before, old) is None) != (_parameters(after, new) is None):
            yield f"{old!r} is called as {new!r}, and only one of them is declared"
    sizes = [{tool_name(tool.raw): _num_properties(tool.raw) for tool in catalog.tools} for catalog in (before, after)]
    for name in sizes[0].keys() & sizes[1].keys():
        if sizes[0][name] != sizes[1][name]:
            yield f"{name!r} names another tool"


def _num_properties(tool: Tool) -> int:
    return len(list(property_names(tool.get("function", tool).get("parameters"))))


def _value_faults(old: SchemaNode | None, first: Any, new: SchemaNode | None, second: Any) -> Iterator[str]:
    """Values at one place: the same shape, declared keys where declared keys were, the same keys required."""
    if type(first) is not type(second) or (isinstance(first, list) and len(first) != len(second)):
        yield f"{first!r} became {second!r}"
    elif isinstance(first, list):
        inner = zip(element_nodes(old, first), first, element_nodes(new, second), second, strict=True)
        yield from (fault for place in inner for fault in _value_faults(*place))
    elif isinstance(first, dict):
        yield from _object_faults(old, first, new, second)
    elif first != second and old is not None and old.choices:
        yield f"{first!r}, one of the values that a schema lists, became {second!r}"
    elif isinstance(first, int | float) and len(str(first)) != len(str(second)):
        yield f"{first!r} became {second!r}"


def _object_faults(old: SchemaNode | None, first: dict, new: SchemaNode | None, second: dict) -> Iterator[str]:
    known, renamed = (node.properties if node else {} for node in (old, new))
    if len(first) != len(second) or _num_missing(old, first) != _num_missing(new, second):
        yield f"the keys {list(first)} became {list(second)}"
        return
    free = old.additional if old else None, new.additional if new else None
    for key, other in zip(first, second, strict=True):
        if (key in known) != (other in renamed) or (key not in known and key != other):
            yield f"the key {key!r} became {other!r}"
        else:
            nodes = known.get(key, free[0]), renamed.get(other, free[1])
            yield from _value_faults(nodes[0], first[key], nodes[1], second[other])


def _num_missing(node: SchemaNode | None, value: dict[str, Any]) -> int:
    return len(node.required - value.keys()) if node else 0


def _literal_faults(original: Record, copy: Record) -> Iterator[str]:
    """A value that the last request says is said in the copy as well; a changed one is no longer said as it was."""
    at = last_request_idx(original)
    before, after = (record.messages[at]["content"] if at is not None else "" for record in (original, copy))
    leaves = list(zip(_leaves(original), _leaves(copy), strict=True))
    for first, second in ((spelling(first), spelling(second)) for first, second in leaves):
        if not first:  # a boolean, null, an empty text
            continue
        for is_said in (_is_said, _is_said_alone):
            if is_said(before, first) and not (second and is_said(after, second)):
                yield f"the request says {first!r}, its copy does not say {second!r}"
        if first != second and (not _is_said(before, first) or _is_said(after, first)):
            yield f"{first!r} became {second!r}, but not in the request"
    yield from _leftover_faults(original, leaves, before, after)


def _leftover_faults(original: Record, leaves: list[tuple[Any, Any]], before: str, after: str) -> Iterator[str]:
    """Beside a value that was replaced: what may follow from it and stayed, and another spelling of it that stayed."""
    names = list(map(tool_name, original.tools))
    values = [(first, spelling(first), spelling(second)) for first, second in leaves]
    # A value that mentions a tool takes its new name, which replaces nothing.
    replaced = [old for _, old, new in values if old and old != new and not any(_is_said(old, name) for name in names)]
    listed = {text for tool in original.tools for text in listed_texts(tool.get("function", tool).get("parameters"))}
    for first, old, new in values if replaced else ():
        if old and old == new and is_unsaid(first, old, listed, before):
            yield f"{replaced[0]!r} was replaced, and {old!r}, which the request does not say, may follow from it"
    yield from (f"the copy still says {old!r} in another spelling" for old in replaced if says_otherwise(after, old))


def _leaves(record: Record) -> list[Any]:
    return [leaf for call in record.reference_calls or () for leaf in leaves_in(call.get("arguments"))]


def _is_said(text: str, value: str) -> bool:
    """Whether a text holds a value, not as a part of a word."""
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def _is_said_alone(text: str, value: str) -> bool:
    """Whether a text holds a value, not as a part of a word, nor of a number, an address or a dotted name."""
    return re.search(rf"(?<![\w.\-/@]){re.escape(value)}(?![\w/@]|[.\-]\w)", text) is not None
