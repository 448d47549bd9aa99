"""How a target lays its calls out: fences, line breaks, indentation, separators.

A style is learned from committed text and used to spell the structure that comes next. Knows white space and fixed
texts of a call, no values. A wrong style costs acceptance, never output.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property

from schemafill.inference.toolcall.dialects import Dialect

# Containers by their role around and inside a call; `object` and `array` are those inside the arguments.
ROLES = ("outer", "list", "call", "args", "object", "array")


@dataclass(frozen=True)
class Style:
    """White space at (role, place) with place `open`, `item` or `close`; a break stands for one plus indentation.

    `unit` is the indentation of one level. Places not in `spaces` follow the nearest role that is known.
    """

    prefix: str = ""
    """Text before the first container: a fence, or nothing."""
    colon: str = ": "
    unit: str = "  "
    arguments_key: str = "arguments"
    spaces: tuple[tuple[tuple[str, str], str], ...] = ()
    """Kept as sorted pairs, so that equal styles compare equal."""

    def space(self, role: str, place: str, depth: int) -> str:
        """The white space there; `depth` containers are open after it (for `close`: including the closing one)."""
        known = self._by_place.get((role, place))
        if known is None:
            known = self._guess(role, place)
        if known != "\n":
            return known
        return "\n" + self.unit * (depth - 1 if place == "close" else depth)

    @cached_property
    def _by_place(self) -> dict[tuple[str, str], str]:
        return dict(self.spaces)

    def _guess(self, role: str, place: str) -> str:
        known = self._by_place
        if role == "array":
            return " " if place == "item" else ""
        if place == "close" and (role, "open") in known:
            return "\n" if known[role, "open"] == "\n" else ""
        for other in ("args", "call", "list", "outer"):
            if (other, place) in known:
                return known[other, place]
        return " " if place == "item" else ""

    def learn(self, role: str, place: str, text: str, depth: int) -> Style:
        """The style after seeing the white space `text` there; depth as in `space`."""
        kept, unit = text, self.unit
        if text.startswith("\n") and not text.strip(" \n") and "\n" not in text[1:]:
            levels = depth - 1 if place == "close" else depth
            width = len(text) - 1
            if levels and width and width % levels == 0:
                unit, kept = " " * (width // levels), "\n"
        if self._by_place.get((role, place)) == kept and unit == self.unit:
            return self
        return replace(self, unit=unit, spaces=tuple(sorted((self._by_place | {(role, place): kept}).items())))


def _style(prefix: str, unit: str, broken: tuple[str, ...], flat: tuple[str, ...]) -> Style:
    spaces = {(role, place): "\n" for role in broken for place in ("open", "item", "close")}
    spaces |= {(role, place): " " if place == "item" else "" for role in flat for place in ("open", "item", "close")}
    return Style(prefix=prefix, unit=unit, spaces=tuple(sorted(spaces.items())))


BARE = _style("", "  ", (), ("outer", "list", "call", "args", "object", "array"))
FENCED = _style("```json\n", "  ", ("outer", "list", "call", "args", "object"), ("array",))
PRETTY = replace(FENCED, prefix="")
FENCED_LINES = _style("```json\n", "  ", ("outer", "list"), ("call", "args", "object", "array"))

# What an output in each dialect may look like before anything is known, likeliest first, with first guesses of how
# likely. What has been seen of a target replaces them (`StyleMemory`).
PRIORS: dict[str, tuple[tuple[Style, float], ...]] = {
    "json": ((FENCED, 0.6), (BARE, 0.25), (PRETTY, 0.05), (FENCED_LINES, 0.05)),
    "hermes": ((BARE, 0.95),),
    "mistral": ((BARE, 0.95),),
    "llama3": ((replace(BARE, arguments_key="parameters"), 0.95),),
}
PRIOR_REQUESTS = 4
"""So many requests are seen before what was seen weighs as much as the prior."""


@dataclass
class StyleMemory:
    """Which styles a target was seen to write, over the requests of one engine. Bounded; only styles, no texts."""

    dialect: str
    counts: dict[Style, int] = field(default_factory=dict)
    limit: int = 16
    """Most styles kept; the one seen least goes first."""

    def add(self, style: Style) -> None:
        self.counts[style] = self.counts.get(style, 0) + 1
        if len(self.counts) > self.limit:
            del self.counts[min(self.counts, key=self.counts.get)]

    def guesses(self, most: int = 3) -> list[tuple[Style, float]]:
        """The likeliest styles with their probabilities: what was seen, on top of the prior."""
        weights = {style: PRIOR_REQUESTS * share for style, share in PRIORS[self.dialect]}
        for style, count in self.counts.items():
            weights[style] = weights.get(style, 0.0) + count
        total = sum(weights.values())
        ranked = sorted(weights.items(), key=lambda pair: -pair[1])[:most]
        return [(style, weight / total) for style, weight in ranked]


def quoted(text: str) -> str:
    """The JSON string as models write it: no escapes for letters outside ASCII."""
    return json.dumps(text, ensure_ascii=False)


def call_header(style: Style, dialect: Dialect, name: str) -> str:
    """From a call's opening brace to the opening brace of its arguments."""
    depth = dialect.call_depth + 1
    return (
        "{" + style.space("call", "open", depth) + quoted(dialect.name_key) + style.colon + quoted(name) + ","
        + style.space("call", "item", depth) + quoted(style.arguments_key) + style.colon + "{"
    )  # fmt: skip


def opening(style: Style, dialect: Dialect) -> str:
    """All text before the first call's brace."""
    if dialect.calls_key:
        outer = "{" + style.space("outer", "open", 1) + quoted(dialect.calls_key) + style.colon + "["
        return style.prefix + outer + style.space("list", "open", 2)
    return style.prefix + dialect.opening


def call_end(style: Style, dialect: Dialect) -> str:
    """From behind the arguments' closing brace to the end of the call."""
    return style.space("call", "close", dialect.call_depth + 1) + "}"


def between_calls(style: Style, dialect: Dialect) -> str:
    """From the end of a call to the brace of the next."""
    if dialect.call_depth == 0:
        return dialect.separator
    return "," + style.space("list", "item", dialect.call_depth)


def closing(style: Style, dialect: Dialect) -> str:
    """From the end of the last call to the end of the output, the end sign not included; a fence is closed too."""
    fence = "\n```" if style.prefix.startswith("```") else ""
    if dialect.calls_key:
        return style.space("list", "close", 2) + "]" + style.space("outer", "close", 1) + "}" + fence
    return dialect.closing + fence
