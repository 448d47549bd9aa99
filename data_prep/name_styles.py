"""Names of tools and parameters as words, and words as names in the usual styles. Knows no schema."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from random import Random

# Words of about the same meaning. A name keeps what it says, it is only said otherwise.
SYNONYM_SETS = (
    ("get", "fetch", "retrieve", "obtain", "read"),
    ("find", "search", "locate", "lookup"),
    ("create", "make", "add", "register"),
    ("update", "modify", "edit", "change"),
    ("delete", "remove", "erase", "discard"),
    ("calculate", "compute", "evaluate", "determine"),
    ("convert", "transform", "translate"),
    ("send", "dispatch", "deliver", "submit"),
    ("list", "enumerate", "show"),
    ("book", "reserve"),
    ("generate", "produce", "build"),
    ("start", "begin"),
    ("end", "finish"),
    ("location", "place", "site", "position"),
    ("city", "town", "municipality"),
    ("country", "nation"),
    ("name", "label", "title"),
    ("date", "day"),
    ("time", "moment", "hour"),
    ("amount", "quantity", "total"),
    ("number", "count", "num"),
    ("price", "cost", "charge"),
    ("id", "identifier", "key", "ref"),
    ("type", "kind", "category"),
    ("email", "mail"),
    ("message", "text", "note", "body"),
    ("query", "question", "term"),
    ("user", "account", "member", "person"),
    ("limit", "maximum", "cap"),
    ("max", "upper"),
    ("min", "lower"),
    ("unit", "measure"),
    ("info", "details", "data"),
    ("file", "document"),
    ("path", "folder"),
    ("language", "lang", "locale"),
    ("weather", "forecast"),
    ("movie", "film"),
    ("recipe", "dish"),
    ("order", "purchase"),
    ("value", "figure"),
    ("length", "extent"),
    ("year", "yr"),
    ("distance", "span"),
    ("status", "condition"),
    ("description", "summary"),
)
SYNONYMS = {word: [other for other in words if other != word] for words in SYNONYM_SETS for word in words}
SYNONYM_SHARE = 0.4

TOOL_STYLES = ("snake", "camel", "kebab", "dotted", "pascal")
PARAMETER_STYLES = ("snake", "camel", "kebab", "pascal")
TOOL_PREFIXES = ("api", "app", "tool", "service", "client", "remote", "my")
PARAMETER_PREFIXES = ("input", "arg", "given", "the", "param", "in")
PREFIX_SHARE = 0.2

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\WA-Z\d_]+|\d+")


def words_of(name: str) -> list[str]:
    """The words of a name in lower case: `getUserID2`, `get_user-id.2` and `Get user ID 2` all give the same four."""
    return [word.lower() for word in _WORD.findall(name)]


def spell(words: Sequence[str], style: str) -> str:
    """A name of at least one word in one of the styles."""
    capitalised = [word[:1].upper() + word[1:] for word in words]
    match style:
        case "snake":
            return "_".join(words)
        case "camel":
            return "".join([words[0], *capitalised[1:]])
        case "pascal":
            return "".join(capitalised)
        case "kebab":
            return "-".join(words)
        case "dotted":
            return ".".join([words[0], "_".join(words[1:])]) if len(words) > 1 else words[0]
    raise AssertionError(style)


class NameMaker:
    """Makes one name for each old one, in one style for all; no name twice, and none that is `taken`."""

    def __init__(self, rng: Random, styles: Sequence[str], prefixes: Sequence[str], taken: Container[str]) -> None:
        self._rng = rng
        self._style = rng.choice(styles)
        self._prefixes = prefixes
        self._prefix = [rng.choice(prefixes)] if rng.random() < PREFIX_SHARE else []
        self._taken = taken
        self._made: set[str] = set()

    def make(self, name: str) -> str:
        """A further name; never the old one, as long as that is `taken`."""
        words = words_of(name) or ["item"]
        tries = [[*self._prefix, *map(self._said_otherwise, words)] for _ in range(6)]
        tries += [[prefix, *words] for prefix in self._rng.sample(self._prefixes, len(self._prefixes))]
        candidates = [spell(one, self._style) for one in tries]
        number = 2
        while not (free := [one for one in candidates if one not in self._taken and one not in self._made]):
            candidates, number = [spell([*words, str(number)], self._style)], number + 1
        self._made.add(free[0])
        return free[0]

    def _said_otherwise(self, word: str) -> str:
        return self._rng.choice(SYNONYMS[word]) if word in SYNONYMS and self._rng.random() < SYNONYM_SHARE else word
