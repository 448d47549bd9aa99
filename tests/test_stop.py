"""When an output is over: each rule, and which one wins at the same token."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import byte_level_tokenizer

from schemafill.inference.decoding.stop import ObjectScan, StopRule
from schemafill.inference.model.vocabulary import Vocabulary
from schemafill.inference.toolcall.dialects import get_dialect

VOCABULARY = Vocabulary(byte_level_tokenizer())
END, SECOND_END = (VOCABULARY.tokenizer.convert_tokens_to_ids(sign) for sign in ("<|im_end|>", "<|eot_id|>"))
TEXT = "The north gate is open."
IDS = VOCABULARY.encode(TEXT)


def rule(stop: tuple[str, ...] = (), limit: int = 100, dialect: str = "hermes") -> StopRule:
    return StopRule(get_dialect(dialect), VOCABULARY, (END, SECOND_END), stop, limit)


def run(stop_rule: StopRule, token_ids: list[int]) -> int:
    """Feed tokens until it is over; returns how many were taken."""
    count = 0
    for token_id in token_ids:
        if stop_rule.reason:
            break
        stop_rule.take(token_id)
        count += 1
    return count


@pytest.mark.parametrize("end", [END, SECOND_END])
def test_any_end_sign_ends_the_output_and_is_no_text(end):
    stop_rule = rule()
    assert run(stop_rule, [*IDS, end, *IDS]) == len(IDS) + 1
    assert (stop_rule.reason, stop_rule.text) == ("eos", TEXT)


def test_an_end_sign_first_gives_no_text():
    stop_rule = rule()
    assert stop_rule.take(END) == b""
    assert (stop_rule.reason, stop_rule.text) == ("eos", "")


@pytest.mark.parametrize("limit", range(1, len(IDS) + 1))
def test_the_limit_ends_the_output_after_so_many_tokens(limit):
    stop_rule = rule(limit=limit)
    assert run(stop_rule, IDS) == limit
    assert (stop_rule.reason, stop_rule.text) == ("length", VOCABULARY.text_of(IDS[:limit]))


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("gate is",), "The north "),
        (("The",), ""),
        (("open.",), "The north gate is "),
        (("zzz", "is", "north"), "The "),
        (("ate",), "The north g"),
        ((" ",), "The"),
        (("gates",), None),
    ],
)
def test_a_stop_text_ends_the_output_before_it(stop, text):
    for ids in (IDS, [VOCABULARY.encode(sign)[0] for sign in TEXT]):
        stop_rule = rule(stop)
        run(stop_rule, ids)
        assert (stop_rule.reason, stop_rule.text) == (("stop", text) if text is not None else ("", TEXT))


def test_of_two_stop_texts_that_complete_at_one_token_the_first_place_counts():
    token = VOCABULARY.encode("get_weather")
    stop_rule = rule(("ather", "_weath"))
    run(stop_rule, token)
    assert stop_rule.text == "get"


def test_a_stop_text_of_characters_that_lie_across_tokens():
    ids = VOCABULARY.encode("eins 查询 zwei")
    assert any(b"\xe6" in VOCABULARY.bytes_of(i) and VOCABULARY.bytes_of(i)[-1:] != b"\xa5" for i in ids)
    stop_rule = rule(("查",))
    run(stop_rule, ids)
    assert (stop_rule.reason, stop_rule.text) == ("stop", "eins ")


OBJECT = '{"tool_calls": [{"name": "a}", "arguments": {"b": "\\"}", "c": [1, {"d": "]"}]}}]}'


@pytest.mark.parametrize("lead", ["", "```json\n", "Sure.\n  ", "\n\n\t"])
@pytest.mark.parametrize("tail", ["", "\n```", "}", "\n\nDone."])
def test_the_first_outer_object_ends_the_json_dialect_behind_its_brace(lead, tail):
    for pieces in ([lead + OBJECT + tail], list(lead + OBJECT + tail)):
        ids = [token for piece in pieces for token in VOCABULARY.encode(piece)]
        stop_rule = rule(dialect="json")
        run(stop_rule, ids)
        assert (stop_rule.reason, stop_rule.text) == ("object", lead + OBJECT)


def test_an_object_in_the_middle_of_a_line_is_text_and_ends_nothing():
    ids = VOCABULARY.encode("Use {} or {1}. Then:\n{}")
    stop_rule = rule(dialect="json")
    run(stop_rule, ids)
    assert (stop_rule.reason, stop_rule.text) == ("object", "Use {} or {1}. Then:\n{}")


@pytest.mark.parametrize("dialect", ["hermes", "mistral", "llama3"])
def test_other_dialects_go_on_behind_an_object(dialect):
    stop_rule = rule(dialect=dialect)
    run(stop_rule, VOCABULARY.encode(OBJECT + OBJECT))
    assert stop_rule.reason == ""


@pytest.mark.parametrize(
    ("stop", "limit", "end_at"), [*itertools.product([(), ("gate",), ("north",)], range(1, 9), range(9))]
)
def test_the_earliest_rule_wins_and_the_limit_never_hides_an_earlier_one(stop, limit, end_at):
    """Against a plain reading of the rules: after each token, end sign, stop text, then limit."""
    ids = [*IDS[:end_at], END, *IDS[end_at:]]
    stop_rule = rule(stop, limit)
    count = run(stop_rule, ids)
    text, expected = "", ""
    for number, token_id in enumerate(ids, 1):
        if token_id == END:
            expected = "eos"
        else:
            text += VOCABULARY.text_of([token_id])
            places = [text.find(word) for word in stop if word in text]
            if places:
                expected, text = "stop", text[: min(places)]
            elif number >= limit:
                expected = "length"
        if expected:
            break
    assert (stop_rule.reason, stop_rule.text, count) == (expected, text, number)


def test_bytes_of_each_take_join_to_the_text_unless_a_stop_text_takes_some_back():
    stop_rule = rule()
    assert b"".join(stop_rule.take(token) for token in IDS) == TEXT.encode() == stop_rule.data


def test_nothing_is_taken_after_the_end():
    stop_rule = rule(limit=1)
    stop_rule.take(IDS[0])
    with pytest.raises(AssertionError, match="over"):
        stop_rule.take(IDS[1])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\{}[]é \n', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a"}{', max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(alphabet='k"{}', max_size=3), JSON, max_size=4), st.booleans(), st.data())
def test_the_end_of_any_object_is_found_in_any_cut(value, is_ascii, data):
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    stream = b" \n" + text + b"}] tail {"
    cut = data.draw(st.integers(0, len(stream)))
    scan = ObjectScan()
    found = scan.feed(stream[:cut])
    if found is None:
        rest = scan.feed(stream[cut:])
        found = None if rest is None else cut + rest
    assert found == 2 + len(text)
