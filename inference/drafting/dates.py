"""Dates as requests tell them and as tools ask for them.

Knows English months and the order of year, month and day; a date of slashes is read as month, day, year.
"""

from __future__ import annotations

import re

MONTH_NAMES = "january february march april may june july august september october november december"
MONTHS = {name: number for number, name in enumerate(MONTH_NAMES.split(), 1)}
MONTHS |= {name[:3]: number for name, number in MONTHS.items()}
DATE = re.compile(
    r"(?P<iso>\d{4}-\d{1,2}-\d{1,2})|(?P<us>\d{1,2}/\d{1,2}/\d{4})"
    r"|(?P<m1>[A-Z][a-z]{2,8})\.? (?P<d1>\d{1,2})(?:st|nd|rd|th)?,? (?P<y1>\d{4})"
    r"|(?P<d2>\d{1,2})(?:st|nd|rd|th)?(?: of)? (?P<m2>[A-Z][a-z]{2,8}),? (?P<y2>\d{4})"
)


def find_dates(text: str) -> list[tuple[int, int, str]]:
    """Where dates stand in the text, start and end, and their form in ISO 8601."""
    found = ((match.start(), match.end(), _iso(match)) for match in DATE.finditer(text))
    return [(start, end, iso) for start, end, iso in found if iso is not None]


def date_forms(iso: str) -> list[str]:
    """The ISO date and the other forms in which tools ask for it."""
    year, month, day = iso.split("-")
    long_month = MONTH_NAMES.split()[int(month) - 1]
    return [iso, f"{month}/{day}/{year}", f"{day}/{month}/{year}", f"{long_month.capitalize()} {int(day)}, {year}"]


def _iso(match: re.Match) -> str | None:
    """None where a number or name is no day or month."""
    if match["iso"]:
        year, month, day = match["iso"].split("-")
    elif match["us"]:
        month, day, year = match["us"].split("/")
    else:
        name = (match["m1"] or match["m2"]).lower()
        month = str(MONTHS.get(name) or MONTHS.get(name[:3], 0) if name in MONTHS or len(name) <= 4 else 0)
        day, year = match["d1"] or match["d2"], match["y1"] or match["y2"]
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    return f"{year}-{int(month):02d}-{int(day):02d}"
