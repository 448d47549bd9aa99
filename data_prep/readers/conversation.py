"""What a decision's model sees, built turn by turn out of a corpus: a history in OpenAI form and a list of tools.

Knows the OpenAI form and no corpus.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from schemafill.inference.toolcall.type_names import openai_function


class Conversation:
    """A history that grows. Calls get the ids call_1, call_2, ... through the whole of it."""

    def __init__(self, system: str = "") -> None:
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self._num_calls = 0
        self._unanswered: list[dict[str, Any]] = []  # calls of the latest turn, as messages hold them

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The history up to here; later turns do not change the list."""
        return list(self._messages)

    @property
    def unanswered(self) -> list[str]:
        """The tools that the latest turn calls and that have not given a result."""
        return [call["function"]["name"] for call in self._unanswered]

    def say(self, role: str, text: str) -> None:
        self._unanswered = []
        self._messages.append({"role": role, "content": text})

    def call(self, calls: Sequence[dict[str, Any]], words: str | None = None) -> None:
        """An assistant turn that calls. Arguments that upstream spells as no JSON object stay the text they are."""
        functions = [{"name": one["name"], "arguments": as_text(one["arguments"])} for one in calls]
        written = [
            {"id": f"call_{number}", "type": "function", "function": function}
            for number, function in enumerate(functions, start=self._num_calls + 1)
        ]
        self._num_calls += len(calls)
        self._unanswered = list(written)
        self._messages.append({"role": "assistant", "content": words, "tool_calls": written})

    def answer(self, text: str) -> None:
        """The result of the latest turn's first call that has none. After a turn without calls it stands without id."""
        of_call = {"tool_call_id": self._unanswered.pop(0)["id"]} if self._unanswered else {}
        self._messages.append({"role": "tool", **of_call, "content": text})


def as_text(value: Any) -> str:
    """A text as it is, any other JSON value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class ToolList:
    """The tools of a decision in OpenAI form, each name once: of a tool declared twice the first definition."""

    tools: list[dict[str, Any]]
    declared_twice: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.tools]

    @property
    def flags(self) -> dict[str, list[str]]:
        """What a record's meta says of the list."""
        return {"flags": ["tool_declared_twice"]} if self.declared_twice else {}

    def fault(self, *names: str) -> str | None:
        """Why calls to these tools cannot be asked for: `undeclared_tool`, `tool_declared_twice`, or None."""
        if self.declared_twice.intersection(names):
            return "tool_declared_twice"
        return None if set(names) <= set(self.names) else "undeclared_tool"


def tool_list(functions: Iterable[Any]) -> ToolList:
    """Tools out of upstream's `{"name", "description", "parameters"}`; ValueError where one is not of that form.

    Types become JSON Schema's. Of other keys, which corpora fill with nulls and output formats, none is kept.
    """
    tools: dict[str, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    for function in functions:
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise ValueError(f"a tool without a name: {function!r:.200}")
        description, parameters = function.get("description"), function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise ValueError(f"{name}: parameters are no object: {parameters!r:.200}")
        kept = {
            "name": name,
            "description": description if isinstance(description, str) else "",
            "parameters": {"type": "object", "properties": {}} if parameters is None else parameters,
        }
        tools.setdefault(name, {"type": "function", "function": openai_function(kept)})
        counts[name] += 1
    return ToolList(list(tools.values()), frozenset(name for name, count in counts.items() if count > 1))
