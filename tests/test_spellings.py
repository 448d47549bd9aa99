import pytest

from schemafill.data_prep.spellings import is_unsaid, says, says_otherwise

SAID_OTHERWISE = [
    ("twenty of them", "20"), ("Twenty-Five", "25"), ("twenty five", "25"), ("one hundred and five", "105"),
    ("two thousand three hundred", "2300"), ("a dozen", "12"), ("two dozen eggs", "24"), ("10k", "10000"),
    ("$1.5M", "1500000"), ("3 million", "3000000"), ("2,500 thousand", "2500000"), ("1e5", "100000"),
    ("2.5e-1 of it", "0.25"), ("5%", "0.05"), ("10 000", "10000"), ("twenty", "-20"), ("2e1", "20.0"),
    ("on May 1", "2024-05-01"), ("May 1st, 2024", "2024-05-01"), ("the 1st of May", "2024-05-01"),
    ("1 may", "2024-05-01"), ("Sept. 9", "2024-09-09"), ("05/01/2024", "2024-05-01"), ("1.5.24", "2024-05-01"),
    ("2024/5/1", "2024-05-01"), ("5/1", "2024-05-01"), ("20240501", "2024-05-01"), ("2024-05-01", "May 1, 2024"),
    ("in LA", "Los Angeles"), ("NYC", "New York, NY"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), SAID_OTHERWISE)
def test_a_value_in_another_spelling_is_said_and_said_otherwise(text: str, value: str) -> None:
    assert says_otherwise(f"So {text}, please.", value)
    assert says(f"So {text}, please.", value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20 rooms", "20"), ("20 rooms", "5"), ("twenties", "2"), ("10km", "10000"), ("weighty", "80"), ("often", "10"),
        ("2024-05-01 to 2024-05-04", "2024-05-01"), ("you may come on 2024-05-01", "2024-05-01"),
        ("May 1, 2024 and May 9, 2024", "May 1, 2024"), ("on 2025-05-01", "2024-05-01"), ("LAX", "Los Angeles"),
        ("by 2024-01-05", "2024-05-01"), ("9" * 5000 + ".1 of it", "2024-05-01"), ("9" * 5000 + "%", "20"),
        ("A. Nthony", "Anthony"), ("New York", "New York"), ("twenty", "twenty"), ("", "20"), ("20th", "12"),
    ],
)  # fmt: skip
def test_a_value_in_its_own_spelling_or_none_is_not_said_otherwise(text: str, value: str) -> None:
    assert not says_otherwise(text, value)


def test_a_month_alone_is_another_spelling_but_does_not_say_the_day() -> None:
    assert says_otherwise("some day in May", "2024-05-01") and not says("some day in May", "2024-05-01")
    assert says_otherwise("on the 1st", "2024-05-01") and not says("on the 1st", "2024-05-01")


@pytest.mark.parametrize(
    ("text", "value"),
    [("in PARIS", "Paris"), ("to Lyon now", "Lyon, France"), ("4,000", "4000"), ("5.0", "5"), ("5-7", "7"), ("0", "0")],
)
def test_case_grouping_and_a_region_make_no_difference(text: str, value: str) -> None:
    assert says(text, value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("Parisian", "Paris"), ("France", "Paris, France"), ("12 at 25", "300"), ("no number", "1"), ("10", "0"),
     ("from 2024-05-01", "2024-05-04"), ("12 Main Street", "12, Main")],
)  # fmt: skip
def test_what_is_not_said(text: str, value: str) -> None:
    assert not says(text, value)


def test_choices_follow_from_nothing() -> None:
    listed = {"celsius", "FR", "top 5"}
    assert not is_unsaid("celsius", "celsius", listed, "")
    assert not is_unsaid(True, "True", listed, "")
    for leaf in ("kelvin", "FR", "top 5", 5):
        assert is_unsaid(leaf, str(leaf), listed, "")
        assert not is_unsaid(leaf, str(leaf), listed, f"It is {leaf}.")
