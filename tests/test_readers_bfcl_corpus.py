"""The reader of BFCL on the corpus itself: every figure that is known of it."""

import ast
import json
from collections import Counter

import pytest
from corpus_reading import DATA, needs_corpus, num_calls, num_fields

from schemafill.data_prep.readers import bfcl
from schemafill.data_prep.readers.python_calls import parse_call
from schemafill.data_prep.records import LeftOut, Record

pytestmark = needs_corpus("bfcl/v3")

# requests, calls, fields; parameters that the ground truth declares (None: call expressions).
TABLE = {
    "exec_parallel": (50, 188, 354, None), "parallel": (200, 538, 1440, 1480),
    "parallel_multiple": (200, 607, 1562, 1606), "simple": (400, 400, 1062, 1159), "multiple": (200, 200, 515, 568),
    "java": (100, 100, 257, 258), "javascript": (50, 50, 129, 131), "live_simple": (258, 258, 503, 712),
    "live_multiple": (1053, 1053, 2534, 4019), "live_parallel": (16, 39, 79, 111),
    "live_parallel_multiple": (24, 55, 95, 145), "exec_simple": (100, 100, 194, None),
    "exec_multiple": (50, 50, 101, None), "exec_parallel_multiple": (40, 112, 193, None),
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[Record | LeftOut]]:
    return {file.category: list(bfcl.read_file(file)) for file in bfcl.question_files(DATA / "bfcl" / "v3")}


def ground_truths(category: str) -> list:
    [file] = [file for file in bfcl.question_files(DATA / "bfcl" / "v3") if file.category == category]
    return [json.loads(line)["ground_truth"] for line in file.answers.path.read_text().split("\n") if line]


def flagged(rows: list[Record | LeftOut], flag: str) -> list[str]:
    return [one.id.rpartition("/")[2] for one in rows if isinstance(one, Record) and flag in one.meta.get("flags", [])]


@pytest.mark.parametrize("category", TABLE)
def test_counts_of_a_category(corpus, category: str) -> None:
    records = corpus[category]
    assert all(isinstance(one, Record) for one in records)
    *expected, declared = TABLE[category]
    assert [len(records), num_calls(records), num_fields(records)] == expected
    if declared is not None:
        found = [parameters for truth in ground_truths(category) for call in truth for parameters in call.values()]
        assert sum(map(len, found)) == declared


def test_requests_by_number_of_calls(corpus) -> None:
    sizes = {
        category: dict(sorted(Counter(len(one.reference_calls) for one in corpus[category]).items()))
        for category in ("exec_parallel", "parallel", "parallel_multiple")
    }
    assert sizes == {
        "exec_parallel": {3: 12, 4: 38},
        "parallel": {2: 110, 3: 52, 4: 35, 6: 1, 8: 2},
        "parallel_multiple": {2: 64, 3: 66, 4: 69, 5: 1},
    }


def test_rows_without_reference_are_left_out_by_reason(corpus) -> None:
    reasons = {
        category: Counter(one.reason for one in rows)
        for category, rows in corpus.items()
        if category not in TABLE and not category.startswith("multi_turn")
    }
    assert reasons == {
        "irrelevance": {"no_call_expected": 240}, "live_irrelevance": {"no_call_expected": 878, "no_tools": 4},
        "live_relevance": {"no_reference": 18}, "chatable": {"no_tools": 200}, "rest": {"recorded_response": 70},
        "sql": {"flat_question": 100},
    }  # fmt: skip


def test_oddities_are_flagged(corpus) -> None:
    flags = ("undeclared_tool", "argument_outside_schema", "missing_required")
    found = {flag: {name: len(ids) for name in TABLE if (ids := flagged(corpus[name], flag))} for flag in flags}
    assert found == {
        "undeclared_tool": {"simple": 1, "javascript": 1},
        # A second one of parallel_multiple is declared with the empty text first, so it is absent.
        "argument_outside_schema": {"parallel_multiple": 1, "live_multiple": 2, "exec_multiple": 1},
        "missing_required": {"simple": 1, "live_simple": 2, "live_multiple": 4},
    }
    assert flagged(corpus["simple"], "undeclared_tool") == ["simple_363"]
    assert flagged(corpus["parallel_multiple"], "argument_outside_schema") == ["parallel_multiple_26"]


def test_values_of_expressions(corpus) -> None:
    def values(category: str) -> list:
        calls = [call for one in corpus[category] for call in one.reference_calls]
        return [value for call in calls for value in call["arguments"].values()]

    assert "1/6" in values("exec_multiple")
    assert "500*500" in values("exec_parallel_multiple")
    first, _ = corpus["exec_parallel_multiple"][18].reference_calls
    assert first == {"name": "calculate_mean", "arguments": {"numbers": [1, 3, 4, 6, 8]}}


def test_inline_ground_truth_gives_the_same_references(corpus) -> None:
    files = bfcl.question_files(DATA / "bfcl" / "v3-inline-ground-truth")
    inline = {file.category: list(bfcl.read_file(file)) for file in files}
    assert {category: len(rows) for category, rows in inline.items()} == {
        "exec_multiple": 50, "exec_parallel": 50, "exec_parallel_multiple": 40, "exec_simple": 100,
    }  # fmt: skip
    for category, rows in inline.items():
        assert [one.reference_calls for one in rows] == [one.reference_calls for one in corpus[category]]


def test_multi_turn_expressions_all_parse() -> None:
    counts = {}
    for category in ("base", "long_context", "miss_func", "miss_param"):
        turns = [turn for truth in ground_truths(f"multi_turn_{category}") for turn in truth]
        calls = [parse_call(text) for turn in turns for text in turn]
        counts[category] = (len(calls), sum(len(call.positional) for call in calls), sum(not turn for turn in turns))
    assert counts == {
        "base": (1161, 40, 3), "long_context": (1222, 40, 3), "miss_func": (1159, 40, 203),
        "miss_param": (1159, 40, 203),
    }  # fmt: skip


def allowed_values(category: str) -> list:
    """Every list of allowed values of a category's ground truth."""
    calls = [call for truth in ground_truths(category) for call in truth]
    return [allowed for call in calls for parameters in call.values() for allowed in parameters.values()]


def count(holds) -> dict[str, int]:
    """In how many lists of allowed values something holds, by category."""
    found = {name: sum(map(holds, allowed_values(name))) for name, row in TABLE.items() if row[-1] is not None}
    return {name: number for name, number in found.items() if number}


def is_nested(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(inner, list) for inner in value.values())


def first(allowed: list) -> object:
    return allowed[0] if allowed else None


def test_first_allowed_values_of_the_corpus() -> None:
    assert count(lambda allowed: allowed == []) == {"live_simple": 7}
    assert count(lambda allowed: first(allowed) == []) == {"parallel_multiple": 3, "multiple": 1}
    assert count(lambda allowed: allowed[:1] == [None]) == {"live_multiple": 3}
    others = count(lambda allowed: first(allowed) == "" and len(allowed) > 1)
    plain = {"parallel": 39, "parallel_multiple": 18, "simple": 81, "multiple": 42, "java": 1, "javascript": 2}
    assert {name: number for name, number in others.items() if not name.startswith("live")} == plain
    assert sum(others.values()) - sum(plain.values()) == 1737
    later = count(lambda allowed: first(allowed) != "" and "" in allowed)
    assert (later["parallel"], later["parallel_multiple"]) == (134, 124)


def test_objects_of_allowed_values_in_the_corpus() -> None:
    assert count(lambda allowed: is_nested(first(allowed))) == {
        "parallel": 4, "parallel_multiple": 6, "simple": 5, "multiple": 2, "live_simple": 16, "live_multiple": 9,
        "live_parallel_multiple": 1, "java": 3, "javascript": 9,
    }  # fmt: skip
    in_lists = count(lambda allowed: isinstance(first(allowed), list) and any(map(is_nested, first(allowed))))
    assert in_lists == {"simple": 1, "multiple": 1, "live_simple": 2, "live_multiple": 3}
    plain = count(lambda allowed: isinstance(first(allowed), dict) and not is_nested(first(allowed)))
    assert plain == {"java": 1, "javascript": 1}


def test_lists_that_stay_inside_an_object_are_values(corpus) -> None:
    """Where the first allowed value of a key is itself a list, the list is the value."""
    inner = {
        (one.id.rpartition("/")[2], key): value
        for rows in corpus.values()
        for one in rows
        if isinstance(one, Record)
        for call in one.reference_calls
        for argument in call["arguments"].values()
        if isinstance(argument, dict)
        for key, value in argument.items()
        if isinstance(value, list)
    }
    assert Counter(id_ for id_, _ in inner) == {"parallel_multiple_135": 3, "simple_337": 4, "javascript_5": 2}
    assert inner["simple_337", "Sam"] == ["2 of diamonds", "3 of clubs"]


def test_arguments_keep_the_order_of_the_reference(corpus) -> None:
    def is_moved(call: dict, tools: list[dict]) -> bool:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        declared = list(schemas.get(call["name"], {}).get("properties", {}))
        names = [name for name in call["arguments"] if name in declared]
        return names != sorted(names, key=declared.index)

    moved = {
        name: sum(is_moved(call, one.tools) for one in corpus[name] for call in one.reference_calls) for name in TABLE
    }
    moved = {name: number for name, number in moved.items() if number}
    assert moved == {"parallel": 2, "multiple": 1, "live_multiple": 1}


def test_tuples_of_expressions_become_lists(corpus) -> None:
    nodes = {
        name: [node for truth in ground_truths(name) for text in truth for node in ast.walk(ast.parse(text))]
        for name, row in TABLE.items()
        if row[-1] is None
    }
    assert {name: sum(isinstance(node, ast.Tuple) for node in found) for name, found in nodes.items()} == {
        "exec_parallel": 8, "exec_simple": 4, "exec_multiple": 2, "exec_parallel_multiple": 4,
    }  # fmt: skip
    assert "(" not in json.dumps([call for one in corpus["exec_simple"] for call in one.reference_calls])


def test_tools_of_the_corpus(corpus) -> None:
    functions = {name: [tool["function"] for one in corpus[name] for tool in one.tools] for name in TABLE}
    dotted = {name: sum("." in function["name"] for function in found) for name, found in functions.items()}
    assert sum(number for name, number in dotted.items() if name.startswith("live")) == 538
    assert {name: number for name, number in dotted.items() if number and not name.startswith("live")} == {
        "parallel": 85, "parallel_multiple": 316, "simple": 167, "multiple": 312, "java": 94,
    }  # fmt: skip
    assert {name: len(functions[name]) for name in ("parallel_multiple", "simple", "multiple")} == {
        "parallel_multiple": 520, "simple": 400, "multiple": 557,
    }  # fmt: skip
    empty = {name: sum(not one["parameters"]["properties"] for one in found) for name, found in functions.items()}
    assert {name: number for name, number in empty.items() if number} == {"live_simple": 1, "live_multiple": 66}


def test_every_type_of_the_corpus_is_one_of_json_schema(corpus) -> None:
    def types(schema: dict) -> list:
        inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
        return [schema.get("type"), *(one for part in inner if isinstance(part, dict) for one in types(part))]

    found = Counter(
        one
        for rows in corpus.values()
        for record in rows
        if isinstance(record, Record)
        for tool in record.tools
        for one in types(tool["function"]["parameters"])
    )
    assert set(found) <= {"object", "array", "string", "number", "integer", "boolean", None}


def test_system_messages_of_the_corpus(corpus) -> None:
    roles = {name: [message["role"] for one in corpus[name] for message in one.messages] for name in TABLE}
    found = {name: each.count("system") for name, each in roles.items() if "system" in each}
    assert found == {"live_simple": 11, "live_multiple": 37, "live_parallel": 1}


def test_ids_are_unique_over_the_corpus(corpus) -> None:
    ids = [one.id for rows in corpus.values() for one in rows if isinstance(one, Record)]
    assert len(ids) == len(set(ids))


def test_several_turns_give_their_first_decision(corpus) -> None:
    found = {name: rows for name, rows in corpus.items() if name.startswith("multi_turn")}
    records = {name: sum(isinstance(one, Record) for one in rows) for name, rows in found.items()}
    assert records == {
        "multi_turn_base": 200, "multi_turn_long_context": 200, "multi_turn_miss_func": 105,
        "multi_turn_miss_param": 126, "multi_turn_composite": 62,
    }  # fmt: skip
    left_out = Counter(one.reason for rows in found.values() for one in rows if isinstance(one, LeftOut))
    assert left_out == {"needs_execution": 3027, "no_call_expected": 307}
