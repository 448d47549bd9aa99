"""Token ids as exact bytes, and text as the ids that a vocabulary gives it behind committed tokens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import byte_level_tokenizer, sentencepiece_tokenizer

from schemafill.inference.model.vocabulary import WINDOW_TOKENS, Vocabulary

SPLIT = Vocabulary(byte_level_tokenizer())
JOINING = Vocabulary(byte_level_tokenizer(is_split=False))
PIECES = Vocabulary(sentencepiece_tokenizer())
ALL = pytest.mark.parametrize("vocabulary", [SPLIT, JOINING, PIECES], ids=["split", "joining", "sentencepiece"])
CALL = '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Zürich 北区 🏭", "days": 3}}]}'
TEXTS = [CALL, json.dumps(json.loads(CALL), indent=2), json.dumps(json.loads(CALL)), "  two  spaces\n\n\ttab ", "a"]
# The sign `▁` itself is a space to a SentencePiece vocabulary.
ANY_TEXT = st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), max_size=40)
SIGNS = ['"', ":", " ", ",", "{", "}", "[", "]", "\n", "name", "get_weather", "city", "ü", "北", "1"]
NEAR_JSON = st.lists(st.sampled_from(SIGNS), max_size=20).map("".join)


def after_nothing(vocabulary: Vocabulary, text: str) -> list[int]:
    """Ids of a text that stands behind something else, as the target would have written it."""
    return vocabulary.continuation(("", []), text)


def joined(vocabulary: Vocabulary, token_ids: list[int]) -> bytes:
    return b"".join(map(vocabulary.bytes_of, token_ids))


@ALL
@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_join_to_the_text(vocabulary, text):
    ids = after_nothing(vocabulary, text)
    assert joined(vocabulary, ids) == text.encode()
    assert vocabulary.text_of(ids) == text
    assert len(ids) < len(text.encode()) or text == "a"


def test_text_that_looks_like_a_vocabularys_own_spelling_is_kept():
    for vocabulary in (SPLIT, PIECES):
        assert joined(vocabulary, after_nothing(vocabulary, "Ġ<0x41>Ċ")) == "Ġ<0x41>Ċ".encode()


@ALL
@given(ANY_TEXT)
def test_bytes_of_tokens_join_to_any_text(vocabulary, text):
    assert joined(vocabulary, after_nothing(vocabulary, text)) == text.encode()


@given(ANY_TEXT)
def test_encode_of_a_byte_level_vocabulary_is_exact(text):
    assert joined(SPLIT, SPLIT.encode(text)) == text.encode()


def test_every_byte_has_a_token_of_its_own():
    for vocabulary in (SPLIT, PIECES):
        known = {vocabulary.bytes_of(i) for i in range(len(vocabulary.tokenizer))}
        assert {bytes([byte]) for byte in range(256)} <= known


@ALL
def test_special_and_added_tokens_stand_for_their_own_text(vocabulary):
    tokenizer = vocabulary.tokenizer
    marker = "[TOOL_CALLS]"
    token = tokenizer.convert_tokens_to_ids(marker)
    assert vocabulary.bytes_of(token) == marker.encode()
    assert vocabulary.is_special(token) and vocabulary.is_special(tokenizer.eos_token_id)
    assert vocabulary.text_of([token, *after_nothing(vocabulary, "[{")]) == marker + "[{"
    assert not vocabulary.is_special(after_nothing(vocabulary, "a")[0])


def test_a_marker_that_is_a_token_but_ordinary_text_is_not_special():
    token = SPLIT.tokenizer.convert_tokens_to_ids("<tool_call>")
    assert SPLIT.bytes_of(token) == b"<tool_call>"
    assert not SPLIT.is_special(token)
    assert SPLIT.encode("<tool_call>") == [token]


@ALL
def test_an_id_outside_the_vocabulary_has_no_text(vocabulary):
    """Output layers are often longer than the vocabulary."""
    assert vocabulary.bytes_of(len(vocabulary.tokenizer) + 5) == b""


def test_half_a_character_is_kept_as_bytes_and_shown_as_a_replacement_sign():
    ids = SPLIT.encode("é")
    assert len(ids) == 2 and joined(SPLIT, ids) == "é".encode()
    assert SPLIT.text_of(ids[:1]) == "\ufffd"


# -------------------------------------------------------------------------------------------------------- continuation


@ALL
@pytest.mark.parametrize("text", TEXTS[:3])
def test_continuation_gives_the_ids_of_the_whole_text_from_every_token_on(vocabulary, text):
    """The tail behind any token of a text comes back as the very tokens that stand there, whatever the window is."""
    ids = after_nothing(vocabulary, text)
    same = 0
    for at in range(1, len(ids)):
        rest = joined(vocabulary, ids[at:])
        try:
            rest = rest.decode()
        except UnicodeDecodeError:
            continue
        window = vocabulary.window(ids[:at])
        found = vocabulary.continuation(window, rest)
        assert joined(vocabulary, found) == rest.encode()
        same += found == ids[at:]
    assert same >= 0.9 * (len(ids) - 1 - sum(b >= 0x80 for b in text.encode()))


@ALL
@given(before=NEAR_JSON, text=NEAR_JSON)
def test_continuation_spells_its_text_behind_any_tail(vocabulary, before, text):
    ids = after_nothing(vocabulary, before)
    window = vocabulary.window(ids)
    assert joined(vocabulary, vocabulary.continuation(window, text)) == text.encode()


@ALL
@given(before=NEAR_JSON, text=NEAR_JSON)
def test_a_window_is_the_tail_and_a_prefix_of_what_is_encoded_with_it(vocabulary, before, text):
    """Where text joins the window's last token, the continuation falls back to the text alone."""
    ids = after_nothing(vocabulary, before)
    window_text, tail = vocabulary.window(ids)
    assert tail == ids[len(ids) - len(tail) :] and len(tail) <= WINDOW_TOKENS + 1
    assert joined(vocabulary, tail) == window_text.encode()
    assert after_nothing(vocabulary, window_text) == tail
    joint = after_nothing(vocabulary, window_text + text)
    found = vocabulary.continuation((window_text, tail), text)
    assert found == (joint[len(tail) :] if joint[: len(tail)] == tail else after_nothing(vocabulary, text))


def test_a_continuation_joins_across_the_boundary_where_the_vocabulary_does():
    """`"city":` is followed by ` "` as one token, which no encoding of the parts by themselves shows."""
    window = JOINING.window(JOINING.encode('{"name": "get_weather", "arguments": {'))
    assert window[1]
    alone = JOINING.continuation(("", []), ' "x')
    behind = JOINING.encode('{"name": "get_weather", "arguments": {"city": "Oslo')
    split = JOINING.continuation(JOINING.window(behind[:-1]), "Oslo")
    assert split == behind[-1:]
    assert joined(JOINING, alone) == b' "x'


def test_a_continuation_is_split_as_the_words_before_it_demand():
    """`'s` is one token behind a word, and two behind a quote, which takes the apostrophe."""
    alone, apostrophe = SPLIT.encode("'s"), SPLIT.encode("'")
    assert len(alone) == 1
    assert SPLIT.continuation(SPLIT.window(SPLIT.encode("Anna")), "'s") == alone
    assert SPLIT.continuation(SPLIT.window(SPLIT.encode('"')), "'s") == [*apostrophe, *SPLIT.encode("s")]


@ALL
def test_a_tail_inside_a_character_or_split_in_another_way_gives_a_shorter_window_or_none(vocabulary):
    ids = after_nothing(vocabulary, "北")
    assert vocabulary.window(ids[:1]) == ("", [])
    assert vocabulary.window([]) == ("", [])
    odd = [*after_nothing(vocabulary, "get_wea"), *after_nothing(vocabulary, "t"), *after_nothing(vocabulary, "her")]
    text, tail = vocabulary.window(odd)
    assert after_nothing(vocabulary, text) == tail == odd[len(odd) - len(tail) :]


def test_a_window_takes_special_tokens_along():
    ids = [SPLIT.tokenizer.convert_tokens_to_ids("<|im_start|>"), *SPLIT.encode("a\n"), *SPLIT.encode("<tool_call>")]
    text, tail = SPLIT.window(ids)
    assert tail == ids and text == "<|im_start|>a\n<tool_call>"
    assert SPLIT.continuation((text, tail), '\n{"name') == SPLIT.encode('\n{"name')


@settings(max_examples=30)
@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3))
def test_sentencepiece_puts_no_space_in_front_of_a_continuation(texts):
    text = "".join(texts)
    ids = PIECES.encode(text)
    assert joined(PIECES, ids) == (" " + text).encode()
    assert joined(PIECES, PIECES.continuation(PIECES.window(ids), "x y")) == b"x y"
