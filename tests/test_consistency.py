import json
from copy import deepcopy
from dataclasses import replace

import pytest

from schemafill.data_prep.consistency import inconsistency, is_consistent
from schemafill.data_prep.record_calls import called_functions
from schemafill.data_prep.records import Record, record_of


def tool(name: str, **properties: dict) -> dict:
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


EARLIER = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"city": "Oslo"}'}}
ORIGINAL = record_of({
    "id": "a/b/1",
    "messages": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [EARLIER]},
        {"role": "tool", "tool_call_id": "call_1", "content": "{}"},
        {"role": "user", "content": "Book 25 seats in Rome by plane."},
    ],
    "tools": [
        tool("find", city={"type": "string"}),
        tool("book", seats={"type": "integer"}, city={}, by={"type": "string", "enum": ["plane", "train"]},
             more={"type": "object", "properties": {"x": {"type": "integer"}}}),
    ],
    "reference_calls": [
        {"name": "book", "arguments": {"seats": 25, "city": "Rome", "by": "plane", "more": {"x": 4}, "other": [1, 2]}}
    ],
})  # fmt: skip


def changed(path: str, value: object) -> Record:
    """The original with one place replaced."""
    row = deepcopy(ORIGINAL.to_json())
    here, *steps = row, *path.split("/")
    for step in steps[:-1]:
        here = here[int(step) if isinstance(here, list) else step]
    here[int(steps[-1]) if isinstance(here, list) else steps[-1]] = value
    return record_of(row)


def arguments(**changes: object) -> dict:
    return ORIGINAL.reference_calls[0]["arguments"] | changes


ARGUMENTS = "reference_calls/0/arguments"


def test_a_record_is_consistent_with_itself_and_with_another_order_of_its_tools() -> None:
    assert is_consistent(ORIGINAL, ORIGINAL)
    assert is_consistent(ORIGINAL, replace(ORIGINAL, tools=ORIGINAL.tools[::-1]))


def test_a_copy_with_all_names_changed_alike_is_consistent() -> None:
    text = json.dumps(ORIGINAL.to_json())
    for old, new in (("find", "f_1"), ("book", "b_1"), ("city", "town"), ("seats", "num"), ("more", "m"), ("x", "y")):
        text = text.replace(f'"{old}"', f'"{new}"').replace(f'\\"{old}\\"', f'\\"{new}\\"')
    assert inconsistency(ORIGINAL, record_of(json.loads(text))) is None


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("messages/0/role", "system", "other messages"),
        ("messages/2/tool_call_id", "call_2", "other messages"),
        ("reference_calls", [], "other messages"),
        ("reference_calls/0/name", "buy", "only one of them is declared"),
        ("reference_calls/0/name", "find", "two names for one tool"),
        ("tools/1/function/name", "buy", "only one of them is declared"),
        ("tools/0", tool("find", a={}, b={}), "names another tool"),
        ("messages/1/tool_calls/0/function/arguments", '{"place": "Oslo"}', "city"),
        ("messages/1/tool_calls/0/function/arguments", '{"city": "Os', "became"),
        (ARGUMENTS, {"seats": 25}, "the keys"),
        (ARGUMENTS + "/seats", 38, "does not say '38'"),
        (ARGUMENTS + "/seats", "25", "became"),
        (ARGUMENTS + "/more/x", 7, "not in the request"),
        (ARGUMENTS + "/more", {"y": 4}, "the key 'x'"),
        (ARGUMENTS + "/by", "train", "a schema lists"),
        (ARGUMENTS + "/other", [1], "became"),
        ("messages/3/content", "Book seats in Rome by plane.", "the request says '25'"),
        ("messages/3/content", "Book seats in Rome by my.plane, 25 of them.", "the request says 'plane'"),
        ("messages/3/content", "Book 258 seats in Rome by plane.", "the request says '25'"),
        ("tools/1/function/parameters/required", ["seats", "nothing"], "the keys"),
    ],
)
def test_a_copy_that_differs_in_one_place_is_named(path: str, value: object, fault: str) -> None:
    assert fault in (inconsistency(ORIGINAL, changed(path, value)) or "")


def test_a_value_must_change_everywhere_in_the_request() -> None:
    text = json.dumps(ORIGINAL.to_json()).replace("Book 25", "Book 25 or 38").replace('"seats": 25', '"seats": 38')
    assert "not in the request" in inconsistency(ORIGINAL, record_of(json.loads(text)))


def booking(request: str, **arguments: object) -> Record:
    calls = [{"name": "stay", "arguments": arguments}]
    tools = [tool("stay", by={"type": "string", "enum": ["plane"]})]
    messages = [{"role": "user", "content": request}]
    return record_of({"id": "a/b/1", "messages": messages, "tools": tools, "reference_calls": calls})


@pytest.mark.parametrize(
    ("original", "copy"),
    [
        (booking("From 2024-05-01, 3 nights", start="2024-05-01", end="2024-05-04"),
         booking("From 2024-06-05, 3 nights", start="2024-06-05", end="2024-05-04")),
        (booking("In Paris", city="Paris", country="France"), booking("In Cairo", city="Cairo", country="France")),
        (booking("In Boston", city="Boston", state="MA"), booking("In Detroit", city="Detroit", state="MA")),
        (booking("12 at 25", n=12, price=25, total=300), booking("59 at 98", n=59, price=98, total=300)),
        (booking("12 to 15", n=[12, 13, 14, 15]), booking("59 to 98", n=[59, 13, 14, 98])),
    ],
)  # fmt: skip
def test_a_value_that_may_follow_from_a_replaced_one_must_be_said(original: Record, copy: Record) -> None:
    assert "may follow from it" in inconsistency(original, copy)


def test_plain_words_that_a_schema_lists_and_booleans_may_stay_unsaid() -> None:
    original, copy = (booking(f"In {city}", city=city, by="plane", is_new=True) for city in ("Paris", "Cairo"))
    assert inconsistency(original, copy) is None


@pytest.mark.parametrize(("request_text", "old", "new"), [
    ("{} (twenty)", 20, 80), ("{}, yes 10k", 10000, 80000), ("{}, that is May 1", "2024-05-01", "2024-06-05"),
])  # fmt: skip
def test_another_spelling_of_a_replaced_value_is_named(request_text: str, old: object, new: object) -> None:
    original, copy = (booking(request_text.format(value), n=value) for value in (old, new))
    assert inconsistency(original, copy) == f"the copy still says {str(old)!r} in another spelling"


def test_a_call_whose_name_is_no_text_is_compared_like_any_other() -> None:
    """The name ["a"] ended in a TypeError: it cannot stand in a set."""
    odd = replace(ORIGINAL, reference_calls=[{"name": ["a"], "arguments": {}}])
    assert inconsistency(odd, odd) is None


def test_tool_calls_that_are_no_list_of_objects_are_no_calls() -> None:
    for calls in (5, ["a"], "ab", {"a": 1}):
        odd = replace(ORIGINAL, messages=[{"role": "assistant", "content": "", "tool_calls": calls}])
        assert called_functions(odd.messages[0]) == []
        assert inconsistency(odd, odd) is None


def test_two_tools_of_one_name_are_named() -> None:
    copy = replace(ORIGINAL, tools=[*ORIGINAL.tools, ORIGINAL.tools[0]])
    assert "'find'" in inconsistency(ORIGINAL, copy)
