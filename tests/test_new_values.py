import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemafill.data_prep.new_values import in_old_order, is_number, new_number, new_value, shifted_date


def test_round_numbers_stay_round_and_years_stay_years() -> None:
    assert all(new_number("5000", Random(seed)).endswith("000") for seed in range(50))
    assert all(1950 <= int(new_number("1987", Random(seed))) <= 2030 for seed in range(50))
    assert all(new_number("0.5", Random(seed)).startswith("0.") for seed in range(50))


def test_a_lower_and_an_upper_limit_keep_their_order() -> None:
    assert in_old_order({"300": "811", "950": "127", "12": "99", "Oslo": "Rome"}) == {
        "300": "127", "950": "811", "12": "99", "Oslo": "Rome",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shifted"),
    [
        ("2024-02-28", "2024-03-06"), ("2024/02/28", "2024/03/06"), ("02/28/2024", "03/06/2024"),
        ("28/02/2024", "06/03/2024"), ("28.02.2024", "06.03.2024"), ("February 28, 2024", "March 6, 2024"),
        ("28 February 2024", "6 March 2024"), ("02/03/2024", None), ("2023-02-29", None), ("May 05, 2024", None),
        ("Smarch 5, 2024", None), ("2024-2-28", None), ("next week", None),
    ],
)  # fmt: skip
def test_a_date_moves_in_its_own_form(text: str, shifted: str | None) -> None:
    assert shifted_date(text, 7) == shifted


@settings(max_examples=200, deadline=None)
@given(st.from_regex(r"-?[0-9]{1,6}(\.[0-9]{1,3})?", fullmatch=True), st.integers(0, 2**32))
def test_new_numbers_have_the_old_shape(text: str, seed: int) -> None:
    new = new_value(text, Random(seed), 7)
    if not is_number(text):
        assert new is None
    else:
        assert re.sub(r"\d", "0", new) == re.sub(r"\d", "0", text)
        assert is_number(new)
