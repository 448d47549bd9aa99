import os
from pathlib import Path

import pytest

from schemafill.data_prep.tool_definitions import definition_key, interface_key
from schemafill.inference.suites import load_suite

DATA = Path(os.environ.get("SCHEMAFILL_DATA") or Path(__file__).parents[2] / "shared" / "data")
BFCL450 = ("unused_datasets/question/{}exec_parallel", "{}parallel", "{}parallel_multiple")


def tool(name: str = "find", description: object = "Finds.", **parameters: object) -> dict:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


PLAIN = tool(type="object", properties={"a": {"type": "string"}, "b": {"type": "number"}}, required=["a"])


@pytest.mark.parametrize(
    "same",
    [
        tool(required=["a"], properties={"b": {"type": "number"}, "a": {"type": "string"}}, type="object"),
        tool(type="dict", properties={"a": {"type": "str"}, "b": {"type": "float"}}, required=["a"]),
        PLAIN["function"],
    ],
)
def test_order_of_keys_type_names_and_wrapping_make_no_difference(same: dict) -> None:
    assert definition_key(same) == definition_key(PLAIN)
    assert interface_key(same) == interface_key(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        tool("Find", type="object", properties=PLAIN["function"]["parameters"]["properties"], required=["a"]),
        tool(type="object", properties={"a": {"type": "string"}, "b": {"type": "integer"}}, required=["a"]),
        tool(type="object", properties=PLAIN["function"]["parameters"]["properties"], required=["a", "b"]),
        tool(type="object", properties={"a": {"type": "array", "items": {"type": "string"}}, "b": {"type": "number"}}),
    ],
)
def test_another_name_or_other_parameters_make_another_tool(other: dict) -> None:
    assert definition_key(other) != definition_key(PLAIN)
    assert interface_key(other) != interface_key(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        {"type": "function", "function": PLAIN["function"] | {"description": "Looks for it."}},
        tool(
            type="object",
            properties={"a": {"type": "string", "description": "città", "enum": ["Roma"]}, "b": {"type": "number"}},
            required=["a"],
        ),
    ],
)
def test_what_is_said_counts_for_the_definition_only(other: dict) -> None:
    assert definition_key(other) != definition_key(PLAIN)
    assert interface_key(other) == interface_key(PLAIN)


def test_no_description_is_an_empty_one() -> None:
    assert definition_key(tool(description=None)) == definition_key(tool(description=""))


def test_ways_to_say_that_a_tool_takes_nothing_are_one() -> None:
    nothing = [tool(), tool(type="object", properties={}), tool(type="dict", properties={}, required=[])]
    nothing.append({"function": {"name": "find", "description": "Finds."}})
    assert len(set(map(definition_key, nothing))) == 1


@pytest.mark.parametrize(
    ("category", "num_rows"),
    [("{}simple", 152), ("{}multiple", 146), ("unused_datasets/question/{}exec_simple", 82),
     ("unused_datasets/question/{}exec_multiple", 45), ("unused_datasets/question/{}exec_parallel_multiple", 40)],
)  # fmt: skip
def test_tools_of_bfcl450_recur_in_other_categories_as_counted(category: str, num_rows: int) -> None:
    """The figures of the corpus description; rows that use a definition of the test set word for word."""

    def items(template: str) -> list:
        path = DATA / "bfcl" / "v3" / (template.format("BFCL_v3_") + ".json")
        found = [one for one in (path, path.with_name(path.name + ".gz")) if one.is_file()]
        if not found:
            pytest.skip(f"{path} is not there (set SCHEMAFILL_DATA)")
        return load_suite(f"bfcl:{found[0]}")

    tested = {definition_key(one) for template in BFCL450 for item in items(template) for one in item.tools}
    assert sum(any(definition_key(one) in tested for one in item.tools) for item in items(category)) == num_rows
