"""The ways in which a text may say a value: `twenty`, `20.0` or `2e1` for 20, `10k` for 10000, `1 May` for 2024-05-01.

It tells whether a text says a value at all, and whether in another spelling than the value's own. Knows no record.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import date
from decimal import Decimal
from typing import Any

from schemafill.data_prep.new_values import MONTHS, NAMED_DATES, is_place, parsed_date

NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
_TEENS = ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_WORDS = {word: number for number, word in enumerate((*NUMBER_WORDS, *_TEENS))}
_WORDS |= {word: 10 * number for number, word in enumerate(_TENS, start=2)} | _SCALES | {"dozen": 12}
_WORD = f"(?:{'|'.join(sorted(_WORDS, key=len, reverse=True))})"
_IN_WORDS = re.compile(rf"\b{_WORD}s?(?:[\s-]+(?:and\s+)?{_WORD}s?)*\b")
_FACTORS = {
    "k": 10**3, "m": 10**6, "mn": 10**6, "b": 10**9, "bn": 10**9, "%": Decimal("0.01"), "percent": Decimal("0.01"),
    "dozen": 12,
} | _SCALES  # fmt: skip
_FACTOR = "|".join(sorted(_FACTORS, key=len, reverse=True))
_WITH_FACTOR = re.compile(rf"(\d+(?:,\d{{3}})*(?:\.\d+)?)[\s-]?({_FACTOR})(?!\w)")
_WITH_EXPONENT = re.compile(r"(?<![\w.])\d+(?:\.\d+)?e[+-]?\d{1,3}(?!\w)")
_IN_GROUPS = re.compile(r"(?<!\d)\d{1,3}(?:[\s']\d{3})+(?!\d)")
_NUMBERS = re.compile(r"\d+(?:[.,:/\-]\d+)*")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")
_PLAIN_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_CITY_AND_REGION = re.compile(r"([^,\d]+), [^,\d]+")


def is_unsaid(leaf: Any, value: str, listed: Collection[str], text: str) -> bool:
    """Whether a value may follow from what a text says without being said in it: a sum, an end of a stay, a country.

    value: the leaf's spelling; listed: what schemas list as values. Booleans and the plain words among the listed ones
    (`celsius`) are choices that follow from no other value; a listed `FR` or `France` may.
    """
    is_choice = isinstance(leaf, str) and value in listed and value.islower() and not re.search(r"\d", value)
    return not isinstance(leaf, bool) and not is_choice and not says(text, value)


def says(text: str, value: str) -> bool:
    """Whether a text says a value in some spelling; for `City, Region` the city is enough."""
    if re.search(rf"(?<!\w){re.escape(value.casefold())}(?!\w)", text.casefold()):
        return True
    if _PLAIN_NUMBER.fullmatch(value) and any(abs(Decimal(value)) in one for one in map(readings, digits_in(text))):
        return True
    place = _CITY_AND_REGION.fullmatch(value)
    day = parsed_date(value)
    if day is not None:
        return _says_day(text, day)
    return _has_other_number(text, value) or _has_initials(text, value) or (place is not None and says(text, place[1]))


def says_otherwise(text: str, value: str) -> bool:
    """Whether a text holds another spelling of a number, date or city: words, `10k`, `1e5`, a month's name, initials.

    Numbers that are only grouped or padded otherwise (4,000 or 5.0) do not count here: see `readings`.
    """
    day = parsed_date(value)
    if day is None:
        return _has_other_number(text, value) or (is_place(value) and _has_initials(text, value))
    rest = NAMED_DATES.sub(lambda match: match[0] if parsed_date(match[0]) == day else " ", text.replace(value, " "))
    is_verb = day.month in (3, 5)  # march, may: alone a month only with a capital
    month = re.search(_month_name(day), rest, 0 if is_verb else re.IGNORECASE)
    ordinal = re.search(rf"(?<!\d)0?{day.day}(?:st|nd|rd|th)\b", rest)
    return month is not None or ordinal is not None or _says_day(rest, day)


def digits_in(text: str) -> list[str]:
    """Runs of digits with single signs between them: 12,5 or 5-7 or 2024-05-01."""
    return _NUMBERS.findall(text)


def readings(digits: str) -> set[Decimal]:
    """The numbers that a run of digits and signs between them can be read as."""
    whole = [digits.replace(",", "")] if _GROUPED.fullmatch(digits) else []
    parts = [*re.split(r"[.,:/\-]", digits), *re.findall(r"(?<!\d)(?=(\d+\.\d+))", digits)]
    return {Decimal(number) for number in (*whole, *parts)}


def _has_other_number(text: str, value: str) -> bool:
    return bool(_PLAIN_NUMBER.fullmatch(value)) and abs(Decimal(value)) in set(_other_numbers(text.casefold()))


def _other_numbers(text: str) -> Iterator[Decimal]:
    """Every number that a text in lower case writes in words or with a factor; of `twenty-five` all three readings."""
    for match in _IN_WORDS.finditer(text):
        words = [word if word in _WORDS else word[:-1] for word in re.findall(rf"{_WORD}s?", match[0])]
        yield from (Decimal(_WORDS[word]) for word in words)
        yield Decimal(_value_of(words))
    for number, factor in _WITH_FACTOR.findall(text):
        yield Decimal(number.replace(",", "")) * _FACTORS[factor]
    yield from map(Decimal, _WITH_EXPONENT.findall(text))
    yield from (Decimal(re.sub(r"\D", "", number)) for number in _IN_GROUPS.findall(text))


def _value_of(words: list[str]) -> int:
    total = current = 0
    for word in words:
        if word == "hundred" or word == "dozen":
            current = max(current, 1) * _WORDS[word]
        elif word in _SCALES:
            total, current = total + max(current, 1) * _SCALES[word], 0
        else:
            current += _WORDS[word]
    return total + current


def _has_initials(text: str, value: str) -> bool:
    """Whether a text writes a name of several words by its initials: `LA`, `NYC`."""
    words = value.partition(", ")[0].split(" ")
    initials = "".join(word[:1] for word in words)
    return len(words) > 1 and initials.isupper() and re.search(rf"\b{initials}C?\b", text) is not None


def _month_name(day: date) -> str:
    """Matches the month's name, short or whole."""
    name = MONTHS[day.month - 1]
    return rf"\b(?:{name}|{'Sept?' if name == 'September' else name[:3]})\b"


def _says_day(text: str, day: date) -> bool:
    """Whether a text says month and day of a date, the month by its name or as a number."""
    number = rf"0?{day.day}(?:st|nd|rd|th)?"
    before, after = rf"(?<!\d){number}(?: day)?(?: of)?[\s-]+$", rf"\.?,?[\s-]*(?:the )?{number}(?!\d)"
    for month in re.finditer(_month_name(day), text, re.IGNORECASE):
        if re.search(before, text[: month.start()]) or re.match(after, text[month.end() :]):
            return True
    runs = re.findall(r"(?<!\d)\d{1,4}(?:[./\-]\d{1,4}){1,2}(?!\d)", text)
    return f"{day:%Y%m%d}" in text or any(_fits([int(part) for part in re.split(r"[./\-]", run)], day) for run in runs)


def _fits(parts: list[int], day: date) -> bool:
    """Whether numbers can be read as a date, with its year before or behind it or without one."""
    if len(parts) == 3 and parts[0] >= 1000:  # after a year comes the month
        return parts == [day.year, day.month, day.day]
    is_year_right = len(parts) == 2 or parts[2] in (day.year, day.year % 100)
    return is_year_right and sorted(parts[:2]) == sorted((day.month, day.day))
