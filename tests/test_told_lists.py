"""Lists that a request tells."""

import time

from schemafill.inference.drafting.told_lists import told_words


def test_words_with_commas_are_a_list():
    assert told_words("Buy apples, pears and plums today.")[0].elements == ('"apples"', '"pears"', '"plums"')


def test_one_endless_word_takes_no_time():
    """Tried from every letter of a long word, the pattern once took seconds for a few thousand signs."""
    started = time.process_time()
    for sign in ("a", "a-", "_", "é", "1, a"):
        told_words(sign * 50_000)
    assert time.process_time() - started < 5
