"""Tool calls that a corpus writes as Python call expressions, `weather.now(city="Oslo", days=3)`.

Read with Python's own expression parser and never run: an argument that is no literal keeps its source text. Knows no
corpus and no schema.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LONGEST_INTEGER_BITS = 1024
"""More digits than a float can stand for; Python itself refuses to spell more than a few thousand."""


@dataclass(frozen=True)
class PythonCall:
    """One call as it is written: the name with its dots, the arguments as JSON values."""

    name: str
    positional: tuple[Any, ...]
    keywords: dict[str, Any]

    def arguments(self, parameters: Sequence[str]) -> dict[str, Any]:
        """The arguments by name, in the order of the expression.

        parameters: the function's parameter names in order; the argument at a place takes the name there. ValueError
        where there is no such place, or where a keyword gives the same parameter once more.
        """
        if len(self.positional) > len(parameters):
            raise ValueError(f"{len(self.positional)} positional arguments for {len(parameters)} known parameters")
        by_place = dict(zip(parameters, self.positional, strict=False))
        for name in by_place:
            if name in self.keywords:
                raise ValueError(f"argument {name!r} is given by place and by name")
        return by_place | self.keywords


def parse_call(text: str) -> PythonCall:
    """The call that a text spells. ValueError says why it is not exactly one call of a plain or dotted name.

    Tuples become lists, numbers keep their kind. What is no JSON value (`1 / 6`, a bare name, bytes) stays the text it
    is written as, at any depth.
    """
    source = text.strip()
    node = _expression(source)
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    if any(isinstance(value, ast.Starred) for value in node.args):
        raise ValueError("takes arguments out of a list")
    keywords: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("takes arguments out of a dict")
        # Python folds compatibility letters of identifiers (`µ`), so the name comes from the source.
        name = _source_of(keyword, source).split("=", 1)[0].strip()
        if name in keywords:
            raise ValueError(f"argument {name!r} is given twice")
        keywords[name] = _json_value(keyword.value, source)
    return PythonCall(_dotted_name(node.func, source), tuple(_json_value(one, source) for one in node.args), keywords)


def _expression(source: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a text is a warning of the compiler
            return ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not an expression: {error}") from None


def _dotted_name(node: ast.expr, source: str) -> str:
    inner = node
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    if not isinstance(inner, ast.Name):
        raise ValueError("what is called is not a name")
    return "".join(_source_of(node, source).split())


def _json_value(node: ast.expr, source: str) -> Any:
    """The JSON value that an expression spells, else its text."""
    if isinstance(node, ast.Constant) and _is_json(node.value):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant) and _is_number(node.operand.value):
        if isinstance(node.op, ast.USub):
            return -node.operand.value
        if isinstance(node.op, ast.UAdd):
            return node.operand.value
    if isinstance(node, (ast.List, ast.Tuple)) and not any(isinstance(one, ast.Starred) for one in node.elts):
        return [_json_value(one, source) for one in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        keys = [key.value for key in node.keys]
        if all(isinstance(key, str) for key in keys):
            return {key: _json_value(value, source) for key, value in zip(keys, node.values, strict=True)}
    return _source_of(node, source)


def _is_json(value: Any) -> bool:
    return value is None or isinstance(value, (str, bool)) or _is_number(value)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and is_json_number(value)


def is_json_number(value: int | float) -> bool:
    """Whether JSON can say it: it has no infinity, which `1e999` is to Python, and no reader takes endless digits."""
    return value.bit_length() <= LONGEST_INTEGER_BITS if isinstance(value, int) else math.isfinite(value)


def _source_of(node: ast.expr | ast.keyword, source: str) -> str:
    text = ast.get_source_segment(source, node)
    assert text is not None, ast.dump(node)
    return text
