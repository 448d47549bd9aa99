import json
from pathlib import Path

import pytest
from corpus_reading import DATA, FIXTURES, needs_corpus, num_calls, num_fields, read_all, reasons, write_lines

from schemafill.data_prep.readers import glaive
from schemafill.data_prep.readers.glaive_calls import read_call_fragment, read_call_object
from schemafill.inference.request import UserError
from schemafill.inference.row_files import read_rows

PING = {"name": "ping", "description": "Ping a host", "parameters": {}}
NOW = {"name": "now", "description": "The time", "parameters": {}}
CALL = "<functioncall> {\"name\": \"ping\", \"arguments\": '{}'}"
END = "<|endoftext|>"


def row(*turns: str, tools: tuple = (PING, NOW)) -> dict:
    """A row of version 2. Turns are `U text`, `A text` or `F text`."""
    heads = {"U": "USER", "A": "ASSISTANT", "F": "FUNCTION RESPONSE"}
    spelled = [f"{heads[turn[0]]}: {turn[2:]}{f' {END}' if turn[0] == 'A' else ''}\n\n\n" for turn in turns]
    listed = "".join(json.dumps(tool, indent=4) + "\n\n" for tool in tools)
    return {"system": f"SYSTEM: Functions -\n{listed}", "chat": "".join(spelled)}


def read_lines(folder: Path, *rows: object):
    return read_all(glaive, write_lines(folder / "rows.jsonl", *rows))


def test_a_call_becomes_a_record_with_everything_before_it() -> None:
    records, _ = read_all(glaive, FIXTURES / "glaive" / "chats.jsonl")
    first, second, _ = records
    asked = {"role": "user", "content": "Tell Ada that it's raining."}
    told = {"role": "user", "content": "Which notes are there?"}
    assert first.id == "glaive/chats/1/1"
    assert first.messages == [asked]
    assert first.reference_calls == [{"name": "send_note", "arguments": {"to": "Ada", "text": "It's raining"}}]
    assert [tool["function"]["name"] for tool in first.tools] == ["send_note", "list_notes"]
    assert first.tools[0]["function"]["parameters"]["required"] == ["to", "text"]
    function = {"name": "send_note", "arguments": '{"to": "Ada", "text": "It\'s raining"}'}
    assert second.messages == [
        asked,
        {
            "role": "assistant", "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sent": true}'},
        {"role": "assistant", "content": "Done.\n\nUSER wishes are sent."},
        told,
    ]
    assert second.reference_calls == [{"name": "list_notes", "arguments": {}}]
    assert second.meta == {"file": "chats.jsonl", "row": 1, "turn": 5}


def test_every_layout_of_a_folder_is_read_and_copies_share_a_group() -> None:
    records, left_out = read_all(glaive, FIXTURES / "glaive")
    ids = ["chats/1/1", "chats/1/5", "chats/3/3", "one_text/1/1", "shared/1/1", "shared/1/5"]
    assert [record.id for record in records] == [f"glaive/{one}" for one in ids]
    by_id = {record.id.removeprefix("glaive/"): record for record in records}
    assert by_id["chats/1/1"].group == by_id["chats/1/5"].group == by_id["shared/1/1"].group
    assert len({record.group for record in records}) == 3
    assert all(len(record.group) == 16 and int(record.group, 16) >= 0 for record in records)
    assert by_id["shared/1/5"].messages == by_id["chats/1/5"].messages
    assert by_id["shared/1/5"].tools == by_id["chats/1/5"].tools
    assert by_id["one_text/1/1"].messages == [{"role": "user", "content": "Which notes are there?"}]
    assert by_id["one_text/1/1"].tools == by_id["chats/1/1"].tools[1:]
    assert reasons(left_out) == {"tool_declared_twice": 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{\"name\": \"f\", \"arguments\": '{\"a\": \"it's\"}'}", ("f", {"a": "it's"})),
        ("{\"name\": \"f\", \"arguments\": '{\"a\": \"x'} y\"}'}", ("f", {"a": "x'} y"})),
        ("{\"name\": \"f\", \"arguments\": '{\n  \"a\": [1, 1.0]\n}'} ", ("f", {"a": [1, 1.0]})),
        ('{"name": "f", "arguments": {\n"a": {"b": null}}}', ("f", {"a": {"b": None}})),
        ("{\"name\": \"f g\", \"arguments\": '{\"a\": \"it\\'s\"}'}", ("f g", {"a": "it's"})),
        ("{\"name\": \"f\", \"arguments\": '{\"a\": NaN}'}", "arguments_not_json"),
        ('{"name": "f", "arguments": {"a": Infinity}}', "arguments_not_json"),
        ("{\"name\": \"f\", \"arguments\": '{\"a\": some text}'}", "arguments_not_json"),
        ("{\"name\": \"f\", \"arguments\": '[1]'}", "arguments_not_object"),
        ('{"name": "f", "arguments": null}', "arguments_not_object"),
        ('{"name": "f", "parameters": {}}', "call_form"),
        ("{\"name\": \"f\", \"arguments\": '{\"a\": \"", "call_form"),
        ('{"name": "f", "arguments": {"a": ', "call_form"),
        ("{\"name\": \"f\", \"arguments\": '{}'}}", "call_form"),
        ('{"name": "f", "arguments": {}}}', "call_form"),
        ('{"name": "", "arguments": {}}', "call_form"),
        ('{"name": "\\q", "arguments": {}}', "call_form"),
        ("f()", "call_form"),
    ],
)
def test_a_call_fragment_is_read_or_named(text: str, found: tuple | str) -> None:
    assert read_call_fragment(f" {text} ") == found


def test_numbers_keep_their_kind() -> None:
    _, arguments = read_call_fragment("{\"name\": \"f\", \"arguments\": '{\"a\": 1, \"b\": 1.0}'}")
    assert [type(value) for value in arguments.values()] == [int, float]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"name": "f", "arguments": {"a": 1}}', ("f", {"a": 1})),
        ('{"name": "f", "arguments": [1]}', "arguments_not_object"),
        ('{"name": "f"}', "call_form"),
        ('{"name": 1, "arguments": {}}', "call_form"),
        ('{"name": "f", "arguments": {}', "call_form"),
        ("[1]", "call_form"),
    ],
)
def test_a_call_object_is_read_or_named(text: str, found: tuple | str) -> None:
    assert read_call_object(text) == found


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (f"Let me see. {CALL}", "text_before_call"),
        (CALL.replace("ping", "pi-ng"), "undeclared_tool"),
        (CALL.replace("'{}'", "'[]'"), "arguments_not_object"),
        (CALL.replace("'{}'", "'{x}'"), "arguments_not_json"),
        (CALL[:-2], "call_form"),
        (f"{CALL} {END} and on", "stray_end"),
    ],
)
def test_an_unusable_call_is_named_and_the_next_one_read(tmp_path: Path, turn: str, reason: str) -> None:
    records, left_out = read_lines(tmp_path, row("U go", f"A {turn}", "F ok"), row("U go", f"A {CALL}"))
    assert [(one.row, one.turn, one.reason) for one in left_out] == [(1, 1, reason)]
    assert [record.id for record in records] == ["glaive/rows/2/1"]


def test_an_unusable_call_stays_in_the_history(tmp_path: Path) -> None:
    broken, undeclared = CALL.replace("'{}'", "null"), CALL.replace("ping", "pong")
    turns = ("U go", f"A {broken}", "F no", f"A {undeclared}", "F 404", f"A Then {CALL}", "F 1", f"A {CALL}")
    (record,), left_out = read_lines(tmp_path, row(*turns))
    assert reasons(left_out) == {"arguments_not_object": 1, "undeclared_tool": 1, "text_before_call": 1}
    _, first, result, second, answer, third, _ = record.messages
    assert (first["content"], result) == (broken, {"role": "tool", "content": "no"})
    assert second["tool_calls"][0]["function"] == {"name": "pong", "arguments": "{}"}
    assert answer == {"role": "tool", "tool_call_id": "call_1", "content": "404"}
    assert (third["content"], third["tool_calls"][0]["id"]) == ("Then", "call_2")


def test_of_a_tool_declared_twice_only_calls_to_others_are_read() -> None:
    records, left_out = read_all(glaive, FIXTURES / "glaive" / "chats.jsonl")
    assert [(one.row, one.reason) for one in left_out] == [(3, "tool_declared_twice")]
    record = records[-1]
    assert record.reference_calls == [{"name": "now", "arguments": {}}]
    assert [tool["function"]["description"] for tool in record.tools] == ["Ping a host", "The time"]
    assert record.meta["flags"] == ["tool_declared_twice"]


@pytest.mark.parametrize("turn", [f"F cut {END}\n\n\nASSISTANT: in two", f"U cut {END}\n\n\nASSISTANT: in two"])
def test_an_end_inside_a_turn_spoils_every_later_call(tmp_path: Path, turn: str) -> None:
    turns = ("U go", f"A {CALL}", "F ok", f"A {CALL}", turn, f"A {CALL}", "F ok", f"A {CALL}")
    records, left_out = read_lines(tmp_path, row(*turns), row("U go", f"A {CALL}"))
    assert [record.id for record in records] == ["glaive/rows/1/1", "glaive/rows/1/3", "glaive/rows/2/1"]
    assert reasons(left_out) == {"stray_end": 2}


def test_a_header_counts_only_after_a_blank_line(tmp_path: Path) -> None:
    (record,), _ = read_lines(tmp_path, row("U One\nUSER: two\n ASSISTANT: three", "U Four", f"A {CALL}"))
    assert [message["content"] for message in record.messages] == ["One\nUSER: two\n ASSISTANT: three", "Four"]


def test_prose_and_rows_without_tools_ask_for_nothing(tmp_path: Path) -> None:
    rows = [
        row("U hi", "A hello", "U bye"),
        row("U hi", "A AI to= ping: {}", "F pong"),
        row("U hi", "A hello", tools=()),
        row("A only text"),
    ]
    assert read_lines(tmp_path, *rows) == ([], [])


def test_bad_rows_are_named_and_the_others_read(tmp_path: Path) -> None:
    good, broken_tool = row("U go", f"A {CALL}"), row("U go", f"A {CALL}")
    broken_tool["system"] += "and more"
    rows = [
        '{"system": "cut',
        good,
        [1],
        {"question": "?", "answer": "!"},
        {"system": "SYSTEM: ", "chat": "no header"},
        broken_tool,
        row("U go", f"A {CALL}", tools=({"description": "no name"},)),
        {"conversations": [{"from": "robot", "value": "?"}], "tools": "[]"},
        {"conversations": [{"from": "human", "value": "?"}], "tools": "{}"},
        {"text": "SYSTEM: and nobody speaks"},
        row(f"A {CALL}"),
        good,
    ]
    records, left_out = read_lines(tmp_path, *rows)
    assert [record.meta["row"] for record in records] == [2, 12]
    found = {one.row: one.reason for one in left_out}
    bad_rows = dict.fromkeys((1, 3, 4, 5, 8, 10), "row_form")
    assert found == bad_rows | dict.fromkeys((6, 7, 9), "tool_form") | {11: "no_history"}
    assert len(left_out) == len(found)


@pytest.mark.parametrize("is_list", [True, False])
def test_version_1_may_be_bare_texts(tmp_path: Path, is_list: bool) -> None:
    head = f"SYSTEM: You may use -\n{json.dumps(PING, indent=2)}\n\n"
    rows = [f"{head}USER: go\nASSISTANT: {CALL} {END}\n", "no turns", f"{head}USER: on\n\n\nASSISTANT: {CALL}"]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows) if is_list else "\n".join([*map(json.dumps, rows), '"cut']))
    records, left_out = read_all(glaive, path)
    assert [(record.meta["row"], record.messages[0]["content"]) for record in records] == [(1, "go"), (3, "on")]
    assert records[0].tools[0]["function"] == PING
    assert [(one.row, one.reason) for one in left_out] == [(2, "row_form")] + ([] if is_list else [(4, "row_form")])


def test_a_result_without_a_call_stands_without_id(tmp_path: Path) -> None:
    (record,), _ = read_lines(tmp_path, row("U go", "A Sure.", "F 17", f"A {CALL}"))
    assert record.messages[2] == {"role": "tool", "content": "17"}


def test_exact_repeats_share_a_group_and_nothing_else_does(tmp_path: Path) -> None:
    rows = [row("U go", f"A {CALL}"), row("U go on", f"A {CALL}"), row("U go", f"A {CALL}")]
    records, _ = read_lines(tmp_path, *rows, row("U go", f"A {CALL}", tools=(PING,)))
    first, other, *repeats = [record.group for record in records]
    assert first != other and set(repeats) == {first}


def test_a_folder_is_read_without_its_folders_and_a_packed_copy_once(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl.gz", row("U packed", f"A {CALL}"))
    write_lines(tmp_path / "b.jsonl", row("U plain", f"A {CALL}"))
    write_lines(tmp_path / "b.jsonl.gz", row("U copy", f"A {CALL}"))
    write_lines(tmp_path / "deeper" / "c.jsonl", row("U deep", f"A {CALL}"))
    records, _ = read_all(glaive, tmp_path)
    assert [(record.id, record.messages[0]["content"]) for record in records] == [
        ("glaive/a/1/1", "packed"),
        ("glaive/b/1/1", "plain"),
    ]
    assert [record.id for record in read_all(glaive, tmp_path / "a.jsonl")[0]] == ["glaive/a/1/1"]


def test_a_source_without_rows_is_named(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(UserError, match=source.name):
            list(glaive.read(source))


# ----------------------------------------------------------------------------------------------------- the real corpus

CORPUS = DATA / "glaive"
needs_glaive = needs_corpus("glaive")


def tally(source: Path) -> tuple[int, int, int, int]:
    """Conversations with a decision, decisions, calls, fields."""
    records, left_out = read_all(glaive, source)
    assert not left_out
    return len({record.meta["row"] for record in records}), len(records), num_calls(records), num_fields(records)


def turns_of(path: Path) -> dict[str, int]:
    turns = [turn for _, one in read_rows(path) for turn in glaive.split_turns(one["chat"])]
    roles = ["assistant" if turn.role == "call" else turn.role for turn in turns]
    return {role: roles.count(role) for role in ("user", "assistant", "tool")}


@needs_glaive
def test_counts_of_the_raw_rows() -> None:
    assert tally(CORPUS / "raw")[1:] == (5, 5, 8)
    path = CORPUS / "raw" / "chat_data.jsonl"
    assert turns_of(path) == {"user": 9, "assistant": 14, "tool": 5}
    assert sum(len(glaive.system_tools(one["system"]).tools) for _, one in read_rows(path)) == 6


@needs_glaive
def test_counts_of_the_rerendered_rows() -> None:
    path = CORPUS / "rerendered" / "glaive_v2_layout_300.jsonl"
    assert tally(path) == (153, 211, 211, 411)
    assert turns_of(path) == {"user": 746, "assistant": 957, "tool": 211}
    lists = [glaive.system_tools(one["system"]).tools for _, one in read_rows(path)]
    assert (len(lists), sum(not tools for tools in lists), sum(map(len, lists))) == (300, 109, 219)
    calls = [turn for _, one in read_rows(path) for turn in glaive.split_turns(one["chat"]) if turn.role == "call"]
    assert sum(turn.text.count("'") > 2 for turn in calls) == 4


@needs_glaive
def test_exact_repeats_of_the_real_rows() -> None:
    path = CORPUS / "rerendered" / "glaive_v2_layout_300.jsonl"
    records, _ = read_all(glaive, path)
    first_rows: dict[str, int] = {}
    for record in records:
        first_rows.setdefault(record.group, record.meta["row"])
    assert len(first_rows) == 135
    assert sum(first_rows[record.group] == record.meta["row"] for record in records) == 189


@needs_glaive
def test_counts_of_the_conversion_and_its_groups() -> None:
    english, chinese = (CORPUS / "llamafactory" / f"glaive_toolcall_{code}_demo.json" for code in ("en", "zh"))
    assert tally(english) == (153, 211, 211, 411)
    assert tally(chinese) == (157, 216, 216, 434)
    rerendered, _ = read_all(glaive, CORPUS / "rerendered")
    converted, _ = read_all(glaive, english)
    assert [record.group for record in converted] == [record.group for record in rerendered]
    assert [record.messages for record in converted] == [record.messages for record in rerendered]


@needs_glaive
def test_oddities_of_the_chinese_rows() -> None:
    records, _ = read_all(glaive, CORPUS / "llamafactory" / "glaive_toolcall_zh_demo.json")
    num_incomplete = 0
    for record in records:
        call = record.reference_calls[0]
        tool = next(tool["function"] for tool in record.tools if tool["function"]["name"] == call["name"])
        num_incomplete += not set(tool["parameters"].get("required", ())) <= set(call["arguments"])
    assert num_incomplete == 2


@needs_glaive
def test_the_irregular_calls_of_the_full_corpus() -> None:
    rows = [one for _, one in read_rows(CORPUS / "irregular" / "call_fragments.jsonl")]
    assert [one["status"] for one in rows].count("ok") == 5 and len(rows) == 13
    for one in rows:
        is_read = one["status"] in ("ok", "repair")
        assert read_call_fragment(one["text"]) == ((one["name"], one["arguments"]) if is_read else one["reason"])
