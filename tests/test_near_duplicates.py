import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemafill.data_prep.near_duplicates import (
    MISSED,
    NUM_PERM,
    RequestIndex,
    band_shape,
    jaccard,
    normalized,
    request_texts,
    shingles,
    words_of,
)

TEXT = "Please book a table for four people at the Golden Lion in Vienna on Friday evening at eight"


def index(*texts: str, threshold: float = 0.8) -> RequestIndex:
    made = RequestIndex(threshold)
    for text in texts:
        made.add(text)
    return made


SPACED = TEXT.replace(" ", "  ")


@pytest.mark.parametrize("other", [TEXT.upper(), f"  {SPACED}\n", TEXT.replace("a table", "a\u00a0table")])
def test_white_space_and_case_make_no_difference(other: str) -> None:
    assert index(TEXT).holds(other)
    assert index(TEXT).holds_near(other)


def test_another_text_is_not_held() -> None:
    assert not index(TEXT).holds(TEXT + "!")
    assert not index(TEXT).holds("")
    assert not index().holds_near(TEXT)


def test_one_other_word_at_the_end_is_near_and_one_in_the_middle_is_not() -> None:
    """18 words have 16 triples: the last word changes one of them, a middle word three."""
    words = TEXT.split(" ")
    assert len(shingles(TEXT)) == len(words) - 2 == 16
    end, middle = " ".join([*words[:-1], "nine"]), " ".join([*words[:8], "Silver", *words[9:]])
    assert jaccard(shingles(TEXT), shingles(end)) == 15 / 17
    assert jaccard(shingles(TEXT), shingles(middle)) == 13 / 19
    assert index(TEXT).holds_near(end)
    assert not index(TEXT).holds_near(middle)
    assert index(TEXT, threshold=0.6).holds_near(middle)
    assert index(TEXT, threshold=13 / 19).holds_near(middle)  # the threshold itself counts


def test_punctuation_is_no_word_and_scripts_without_spaces_are_cut_by_character() -> None:
    assert words_of("Café, e-mail & snake_case: 3.5!") == ["café", "e", "mail", "snake", "case", "3", "5"]
    assert words_of("请查天气 now") == ["请", "查", "天", "气", "now"]
    assert normalized("\uff21\uff22 \u212b") == "ab å"  # full width letters, the Angstrom sign


def test_texts_under_three_words_have_no_near_duplicates() -> None:
    assert shingles("play music") == frozenset()
    assert not index("play music").holds_near("play music")
    assert index("play music").holds("Play music")


def test_long_user_messages_are_compared_by_themselves_and_short_ones_only_as_part_of_all() -> None:
    messages = [
        {"role": "system", "content": "Book a table for four people in Vienna."},
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": "Shall I go on and do that?"},
        {"role": "user", "content": [{"type": "text", "text": "Yes, please."}, {"type": "image_url"}]},
    ]
    assert request_texts(messages) == [f"{TEXT}\nYes, please.", TEXT]
    assert request_texts(messages[:2]) == [TEXT]
    assert request_texts([{"role": "user", "content": "hi"}]) == ["hi"]
    assert request_texts([{"role": "user", "content": None}]) == []


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.8, 0.95, 0.99])
def test_bands_miss_a_text_at_the_threshold_rarely_and_are_as_long_as_that_allows(threshold: float) -> None:
    bands, rows = band_shape(threshold)
    assert bands >= 2 and bands * rows <= NUM_PERM
    assert (1 - threshold**rows) ** bands <= MISSED or rows == 1
    longer = rows + 1
    assert longer > NUM_PERM // 2 or (1 - threshold**longer) ** (NUM_PERM // longer) > MISSED


WORDS = st.lists(st.sampled_from(["one", "two", "three", "four", "five", "six", "seven"]), min_size=3, max_size=12)


@settings(max_examples=50, deadline=None)
@given(WORDS, WORDS)
def test_near_means_exactly_that_the_triples_agree_to_the_threshold(first: list, second: list) -> None:
    first, second = " ".join(first), " ".join(second)
    expected = jaccard(shingles(first), shingles(second)) >= 0.5
    assert index(first, threshold=0.5).holds_near(second) == expected


def test_every_near_duplicate_among_many_texts_is_found_in_time() -> None:
    rng = random.Random(0)
    words = [f"w{number}" for number in range(300)]
    texts = [" ".join(rng.choices(words, k=30)) for _ in range(300)]
    found = index(*texts)
    start = time.perf_counter()
    assert all(found.holds_near(f"{text} more") for text in texts)
    assert not any(found.holds_near(" ".join(rng.choices(words, k=30))) for _ in range(100))
    assert time.perf_counter() - start < 5
