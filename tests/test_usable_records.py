import json
from pathlib import Path
from typing import Any

import pytest
from sealed_files import row, tool

from schemafill.data_prep.json_values import is_deeper_than
from schemafill.data_prep.records import json_lines
from schemafill.data_prep.usable_records import MOST_LEVELS, MOST_SHOWN, BadRows, usable_records
from schemafill.inference.request import UserError
from schemafill.inference.row_files import Place


def nested(levels: int) -> dict[str, Any]:
    """Parameters that stand so many times inside each other."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


def earlier_call(arguments: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": arguments}}
    return row("a/f/3", "", messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])


def test_depth_counts_objects_and_lists_inside_each_other() -> None:
    deep: Any = 1
    for _ in range(50_000):
        deep = [deep]
    assert is_deeper_than(deep, 49_999) and not is_deeper_than(deep, 50_000)
    assert not is_deeper_than(1, 0) and is_deeper_than({}, 0) and not is_deeper_than({"a": [], "b": 1}, 2)
    assert is_deeper_than({"a": {"b": [1]}, "c": 1}, 2)


@pytest.mark.parametrize(
    "deep",
    [
        row("a/f/1", "x", tool("t", x=nested(320))),
        row("a/f/2", "x", reference_calls=[{"name": "t", "arguments": nested(320)}]),
        earlier_call(json.dumps(nested(320))),
        row("a/f/4", "x", meta=nested(320)),
    ],
)
def test_a_record_that_nests_too_deeply_is_a_bad_row(tmp_path: Path, deep: dict) -> None:
    (tmp_path / "rows").write_bytes(json_lines([row("a/f/0", "x", tool("t", x=nested(40))), deep]))
    bad: list[tuple[Place, str]] = []
    assert [one.id for one in usable_records(tmp_path / "rows", lambda *what: bad.append(what))] == ["a/f/0"]
    assert [(place.line, reason) for place, reason in bad] == [(2, f"nests deeper than {MOST_LEVELS} levels")]
    with pytest.raises(UserError, match="rows:2: nests deeper"):
        list(usable_records(tmp_path / "rows"))


def test_rows_that_are_no_records_and_second_ids_are_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(json_lines([row("a/f/0", "x"), {"id": "x"}, row("a/f/0", "y")]))
    bad: list[int] = []
    assert len(list(usable_records(tmp_path / "rows", lambda place, _: bad.append(place.line)))) == 1
    assert bad == [2, 3]


@pytest.mark.parametrize(("count", "more"), [(1, ""), (MOST_SHOWN, ""), (MOST_SHOWN + 7, "... and 7 more\n")])
def test_the_first_bad_rows_are_named_and_the_others_counted(capsys, count: int, more: str) -> None:
    rows = BadRows()
    for line in range(1, count + 1):
        rows.add(Place(Path("f"), line), "no record")
    rows.close()
    named = "".join(f"left out f:{line}: no record\n" for line in range(1, min(count, MOST_SHOWN) + 1))
    assert capsys.readouterr().err == named + more
    assert rows.count == count
