"""A value of the same kind in place of a given one: numbers, dates, names of people and of cities. Knows no record."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from random import Random

from schemafill.data_prep.known_names import FIRST_NAMES, LAST_NAMES, PLACES

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_YEAR = r"(?P<year>[12][0-9]{3})"
_MONTH, _DAY = r"(?P<month>[0-9]{2})", r"(?P<day>[0-9]{2})"
# Pattern of a written date, and the form that writes it again. A text that fits two forms (05/06/2024) is no date here.
DATE_FORMS = (
    (re.compile(f"{_YEAR}-{_MONTH}-{_DAY}"), "{year}-{month:02}-{day:02}"),
    (re.compile(f"{_YEAR}/{_MONTH}/{_DAY}"), "{year}/{month:02}/{day:02}"),
    (re.compile(f"{_MONTH}/{_DAY}/{_YEAR}"), "{month:02}/{day:02}/{year}"),
    (re.compile(f"{_DAY}/{_MONTH}/{_YEAR}"), "{day:02}/{month:02}/{year}"),
    (re.compile(rf"{_DAY}\.{_MONTH}\.{_YEAR}"), "{day:02}.{month:02}.{year}"),
    (re.compile(rf"(?P<name>[A-Z][a-z]+) (?P<day>[0-9]{{1,2}}), {_YEAR}"), "{name} {day}, {year}"),
    (re.compile(rf"(?P<day>[0-9]{{1,2}}) (?P<name>[A-Z][a-z]+) {_YEAR}"), "{day} {name} {year}"),
)
NAMED_DATES = re.compile(r"\b(?:[A-Z][a-z]+ [0-9]{1,2}, [12][0-9]{3}|[0-9]{1,2} [A-Z][a-z]+ [12][0-9]{3})\b")


def is_number(text: str) -> bool:
    """Whether a text is a number that may be another one as well: not 0 or 1, which often are switches or factors."""
    return bool(_NUMBER.fullmatch(text)) and abs(Decimal(text)) not in (0, 1)


def is_place(text: str) -> bool:
    """Whether a text is a known city, or `City, Region` as known."""
    city, comma, region = text.partition(", ")
    return any(city == known and (not comma or region == behind) for places in PLACES for known, behind in places)


def new_value(text: str, rng: Random, days: int) -> str | None:
    """Another value of the kind of `text`; None where it is of none of the known kinds.

    days: by how much dates move. One shift for a whole request keeps their order.
    """
    if is_number(text):
        return new_number(text, rng)
    return shifted_date(text, days) or new_person(text, rng) or new_place(text, rng)


def new_number(text: str, rng: Random) -> str:
    """A number of the same sign, kind and number of digits; as many zeros at the end of it; a year becomes a year."""
    if _is_year(text):
        return str(rng.randrange(1950, 2031))
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, point, decimals = digits.partition(".")
    if point:
        return f"{sign}{_new_digits(whole, rng)}.{_digits(len(decimals) - 1, rng)}{rng.choice('123456789')}"
    return sign + _new_digits(whole, rng)


def _new_digits(digits: str, rng: Random) -> str:
    """Other digits between the zeros at the beginning and the zeros at the end; a single one becomes 2 to 9."""
    middle = digits.strip("0")
    if not middle:
        return digits
    start = digits.index(middle)
    drawn = rng.choice("123456789" if len(middle) > 1 else "23456789")
    if len(middle) > 1:
        drawn += _digits(len(middle) - 2, rng) + rng.choice("123456789")
    return digits[:start] + drawn + digits[start + len(middle) :]


def _digits(count: int, rng: Random) -> str:
    return "".join(rng.choices("0123456789", k=count))


def _is_year(text: str) -> bool:
    return len(text) == 4 and text.isdecimal() and 1900 <= int(text) < 2100


def in_old_order(new_values: dict[str, str]) -> dict[str, str]:
    """The same numbers dealt out so that, among numbers of one shape, a larger one stays the larger.

    A lowest and a highest price keep their order. Values that are no numbers keep theirs.
    """
    by_shape: dict[tuple, list[str]] = defaultdict(list)
    for text in filter(is_number, new_values):
        by_shape[text.startswith("-"), _is_year(text), text.find("."), len(text)].append(text)
    ordered = dict(new_values)
    for texts in by_shape.values():
        news = sorted((new_values[text] for text in texts), key=Decimal)
        ordered.update(zip(sorted(texts, key=Decimal), news, strict=True))
    return ordered


def shifted_date(text: str, days: int) -> str | None:
    """The date so many days later, written in the same form; None where the text is no date, or could be two."""
    found = _dates_of(text)
    return _written(found[0][0] + timedelta(days), found[0][1]) if len(found) == 1 else None


def parsed_date(text: str) -> date | None:
    """The date that a text is; None where it is none, or could be two."""
    found = _dates_of(text)
    return found[0][0] if len(found) == 1 else None


def _dates_of(text: str) -> list[tuple[date, str]]:
    """Every date that a text can be read as, with its form."""
    return [(day, form) for pattern, form in DATE_FORMS if (day := _date_of(text, pattern, form)) is not None]


def _date_of(text: str, pattern: re.Pattern[str], form: str) -> date | None:
    match = pattern.fullmatch(text)
    if match is None:
        return None
    parts = match.groupdict()
    if "name" in parts and parts["name"] not in MONTHS:
        return None
    month = MONTHS.index(parts["name"]) + 1 if "name" in parts else int(parts["month"])
    try:
        day = date(int(parts["year"]), month, int(parts["day"]))
    except ValueError:  # the 31st of February
        return None
    return day if _written(day, form) == text else None  # `May 05, 2024` would come back without its zero


def _written(day: date, form: str) -> str:
    return form.format(year=day.year, month=day.month, day=day.day, name=MONTHS[day.month - 1])


def new_person(text: str, rng: Random) -> str | None:
    """Another first name, or first and last name; None where the first name is not a known one."""
    first, *last = text.split(" ")
    alike = next((names for names in FIRST_NAMES if first in names), None)
    if alike is None or len(last) > 1 or not all(re.fullmatch("[A-Z][a-z]+", name) for name in last):
        return None
    return " ".join([_other(alike, first, rng), *(_other(LAST_NAMES, name, rng) for name in last)])


def new_place(text: str, rng: Random) -> str | None:
    """Another city, or `City, Region` where that is how it stands; None where it is not a known one."""
    if not is_place(text):
        return None
    city, comma, _ = text.partition(", ")
    alike = next(places for places in PLACES if any(city == known for known, _ in places))
    other = rng.choice([place for place in alike if place[0] != city])
    return ", ".join(other) if comma else other[0]


def _other(names: Sequence[str], name: str, rng: Random) -> str:
    return rng.choice([one for one in names if one != name])
