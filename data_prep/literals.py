"""New literal values in the user's last request and in the reference calls alike.

Rewritten are numbers, dates, names of people and of cities that stand as whole tokens in the last user message and as a
value in the reference calls. All values of a record are left alone where one of its reference calls is not said in the
request, since it may follow from one that is (the end of a stay, a sum, the country of a city). A value is left alone
wherever the two could come apart:

- a part of the request spells it in another way, or inside a word or another number (`5kg`, `five`, `5.0`, `May 1`);
- it stands anywhere else in the record: another message, an earlier call, a tool (so no value that an enum, const or
  default lists), a key, or inside a longer value of the reference calls;
- a tool bounds its values (minimum, pattern, maxLength and the like);
- no new value is found that is itself nowhere in the record.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random
from typing import Any

from schemafill.data_prep.json_values import keys_in, leaves_in, map_leaves
from schemafill.data_prep.known_names import PLACES
from schemafill.data_prep.new_values import in_old_order, is_number, is_place, new_value
from schemafill.data_prep.records import Record
from schemafill.data_prep.schema_names import listed_texts
from schemafill.data_prep.spellings import NUMBER_WORDS, digits_in, is_unsaid, readings, says_otherwise

REWRITTEN_SHARE = 0.8
TRIES = 20
BOUNDS = frozenset({
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern", "minLength", "maxLength",
})  # fmt: skip
_CITY_STARTS = frozenset(city.split(" ")[0] for places in PLACES for city, _ in places)


@dataclass(frozen=True)
class _Texts:
    """Where a value can stand."""

    request: str
    """The last user message."""
    elsewhere: str
    """Everything else in the record, the values of the reference calls aside."""
    values: tuple[str, ...]
    """The spelling of every value in the reference calls, each once."""


def rewrite_literals(record: Record, rng: Random) -> Record:
    """The record with some of its literals replaced; the record itself where none can be."""
    at = last_request_idx(record)
    # A parameter that is itself called `pattern` counts as a bound as well: to leave a record alone costs little.
    if at is None or not record.reference_calls or not BOUNDS.isdisjoint(keys_in(record.tools)):
        return record
    arguments = [call.get("arguments") for call in record.reference_calls]
    if _has_unsaid_value(record, record.messages[at]["content"]):
        return record
    others = [message for number, message in enumerate(record.messages) if number != at]
    texts = _Texts(
        request=record.messages[at]["content"],
        elsewhere=json.dumps([others, record.tools, list(keys_in(arguments))], ensure_ascii=False),
        values=tuple(dict.fromkeys(filter(None, map(spelling, leaves_in(arguments))))),
    )
    new_values = _choose(texts, rng)
    if not new_values:
        return record
    request = record.messages[at] | {"content": _replace_tokens(texts.request, new_values)}
    return replace(
        record,
        messages=[*record.messages[:at], request, *record.messages[at + 1 :]],
        reference_calls=[
            call | {"arguments": map_leaves(call.get("arguments"), lambda leaf: _new_leaf(leaf, new_values))}
            for call in record.reference_calls
        ],
    )


def last_request_idx(record: Record) -> int | None:
    """Where the last user message stands; None where there is none, or none that is plain text."""
    at = max((number for number, message in enumerate(record.messages) if message["role"] == "user"), default=None)
    return at if at is not None and isinstance(record.messages[at].get("content"), str) else None


def _has_unsaid_value(record: Record, request: str) -> bool:
    """Whether a reference call has a value that the request does not say, so that it may follow from others."""
    listed = {text for tool in record.tools for text in listed_texts(tool.get("function", tool).get("parameters"))}
    leaves = [leaf for call in record.reference_calls or () for leaf in leaves_in(call.get("arguments"))]
    return any((text := spelling(leaf)) and is_unsaid(leaf, text, listed, request) for leaf in leaves)


def spelling(leaf: Any) -> str | None:
    """How a scalar value would stand in a text; None for booleans, null and numbers without a plain spelling."""
    if isinstance(leaf, str):
        return leaf
    if isinstance(leaf, bool) or leaf is None or (isinstance(leaf, float) and not math.isfinite(leaf)):
        return None
    return str(leaf)


def token_pattern(text: str) -> str:
    """Matches `text` as a whole token: inside no word, no number, no address and no path."""
    if is_number(text):
        return rf"(?<![\w\-.])(?<!\d[,:/]){re.escape(text)}(?!\w)(?![.,:/\-]\d)"
    return rf"(?<![\w@#/\-])(?<!\w\.){re.escape(text)}(?![\w@/]|[.\-]\w)"


def _choose(texts: _Texts, rng: Random) -> dict[str, str]:
    """Old spelling -> new one, for the values that can be replaced everywhere."""
    days = 7 * rng.choice([*range(-30, -1), *range(2, 31)])  # whole weeks: `Monday` stays right
    chosen: dict[str, str] = {}
    for text in texts.values:
        if new_value(text, rng, days) is None or rng.random() >= REWRITTEN_SHARE or not _is_alone(text, texts):
            continue
        tries = (new_value(text, rng, days) for _ in range(TRIES))
        new = next((one for one in tries if one not in chosen.values() and _is_new(one, texts)), None)
        if new is not None:
            chosen[text] = new
    return in_old_order(chosen)


def _is_alone(text: str, texts: _Texts) -> bool:
    """Whether every place where a value stands is a whole token of the request or a value of its own."""
    num_tokens = len(re.findall(token_pattern(text), texts.request))
    others = [value for value in texts.values if value != text]
    parts = _parts(text)
    return (
        num_tokens > 0
        and all(_num_places(part, texts.request) == num_tokens for part in parts)
        and not any(_num_places(part, where) for part in parts for where in (texts.elsewhere, *others))
        and not any(_num_places(value, text) for value in others)
        and not (is_place(text) and _has_region(text, texts.request))
        and not says_otherwise(texts.request, text)
    )


def _parts(text: str) -> list[str]:
    """A value, and what of it may be said alone: the city of `City, Region`, the first and the last name."""
    if is_place(text):
        return list(dict.fromkeys([text, text.partition(", ")[0]]))
    return [text] if re.search(r"\d", text) else list(dict.fromkeys([text, *text.split(" ")]))


def _has_region(city: str, request: str) -> bool:
    """Whether a region stands behind a city (`Boston, Massachusetts`, `Boston MA`): another city would stand in it."""
    behind = re.findall(rf"{re.escape(city)}(?:, ([A-Z]\w*)| ([A-Z]{{2}})\b)", request)
    return any((first or second) not in _CITY_STARTS for first, second in behind)


def _num_places(text: str, where: str) -> int:
    """How often a value stands in a text, also inside words, in other case or in another spelling of its number.

    Digits that other digits follow (12,5 or 5-7 or 2024-05-01) are taken for one number and for several.
    """
    if not is_number(text):
        return where.casefold().count(text.casefold())
    size = abs(Decimal(text))
    count = sum(size in readings(number) for number in digits_in(where))
    if size < len(NUMBER_WORDS) and size == int(size):
        count += len(re.findall(rf"\b{NUMBER_WORDS[int(size)]}\b", where.casefold()))
    return count


def _is_new(text: str, texts: _Texts) -> bool:
    """Whether a value is nowhere in the record, holds none of its values, and is spelt so when it is a number."""
    is_exact = not is_number(text) or "." not in text or str(float(text)) == text
    is_unseen = not _num_places(text, "\n".join([texts.request, texts.elsewhere, *texts.values]))
    return is_exact and is_unseen and not any(_num_places(value, text) for value in texts.values)


def _replace_tokens(request: str, new_values: dict[str, str]) -> str:
    """All of them at once, so that no new value is taken for an old one."""
    patterns = [token_pattern(text) for text in sorted(new_values, key=len, reverse=True)]
    return re.sub("|".join(patterns), lambda match: new_values[match[0]], request)


def _new_leaf(leaf: Any, new_values: dict[str, str]) -> Any:
    text = spelling(leaf)
    return type(leaf)(new_values[text]) if text in new_values else leaf
