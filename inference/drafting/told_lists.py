"""Lists that a request tells: in brackets, or as words, numbers and names one after the other.

`spell` makes JSON of an element's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemafill.inference.toolcall.style import quoted

BRACKETED = re.compile(r"\[[^\[\]\n]{1,200}\]")
ONE_WORD = r"[\w-]{1,40}"  # bounded, and tried at word starts only: a request may hold one endless word
WORD_LIST = re.compile(
    rf"(?<![\w-])(?:(?:{ONE_WORD}, )+(?:{ONE_WORD} )?(?:and |or ){ONE_WORD}|(?:{ONE_WORD}, ){{2,}}{ONE_WORD})(?![\w-])"
)
LINK = re.compile(r",? ?(and|or|&)?|,")


@dataclass(frozen=True)
class Listed:
    """A list: where in the request it starts, and its elements as JSON."""

    start: int
    elements: tuple[str, ...]


class Located(Protocol):
    """A piece of the request: [start, end) in its text, and the text of its value."""

    start: int
    end: int
    text: str


def bracketed(request: str, spell: Callable[[str], str]) -> list[Listed]:
    """Lists in square brackets, whatever their elements look like."""
    found = []
    for match in BRACKETED.finditer(request):
        elements = [part.strip().strip("'\"") for part in match[0][1:-1].split(",")]
        found.append(Listed(match.start(), tuple(map(spell, elements))))
    return found


def told(request: str, spans: Sequence[Located], spell: Callable[[str], str]) -> list[Listed]:
    """Spans, given in order, with nothing but commas, `and`, `or` or `&` between them: at least two."""
    found, run = [], []
    for span in [*spans, None]:
        link = request[run[-1].end : span.start].strip("\"'” ") if run and span else None
        if link is not None and LINK.fullmatch(link):
            run.append(span)
            continue
        if len(run) > 1:
            found.append(Listed(run[0].start, tuple(spell(each.text) for each in run)))
        run = [span] if span else []
    return found


def told_words(request: str) -> list[Listed]:
    """Plain words with commas between them: three or more, or two before the last of which `and` or `or` stands."""
    return [
        Listed(match.start(), tuple(quoted(word) for word in re.split(r",? (?:and |or )?", match[0])))
        for match in WORD_LIST.finditer(request)
    ]
