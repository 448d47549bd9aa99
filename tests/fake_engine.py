"""A scripted engine: what each method gives back is decided by the test, nothing is decoded."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from schemafill.inference.request import (
    Completion,
    DecodeStats,
    RoundTrace,
    SamplingParams,
    ToolCall,
    UserError,
)
from schemafill.inference.toolcall.reply import Delta

TEXTS = {0: '{"tool_calls": ', 1: '[{"name": "', 2: "ping", 3: '", "arguments": ', 4: "{}", 5: "}]}", 9: "<script>"}
"""Text of each token id of the fake vocabulary."""
AR_IDS = [0, 1, 2, 3, 4, 5]


@dataclass(frozen=True)
class FakeMethod:
    lossless: bool
    summary: str = "a scripted method"


def completion(
    token_ids: list[int] = AR_IDS,
    *,
    seconds: float = 6.0,
    prefill: float = 1.0,
    per_round: int = 1,
    source: str = "target",
    nodes_per_round: int = 0,
    rejected: str = "",
    trace: bool = False,
) -> Completion:
    """A completion of one `ping` call, cut into rounds of `per_round` tokens, with phases that add up."""
    chunks = [token_ids[start : start + per_round] for start in range(0, len(token_ids), per_round)]
    rounds = [
        RoundTrace(chunk, [source] * (len(chunk) - 1) + ["target"], nodes_per_round, 0, 0.5, rejected)
        for chunk in chunks
    ]
    accepted = sum(len(chunk) - 1 for chunk in chunks)
    text = "".join(TEXTS[token] for token in token_ids)
    return Completion(
        text=text,
        token_ids=list(token_ids),
        tool_calls=[ToolCall("ping", '{"host":  "örtchen"}', "call_1")],
        content=None,
        reasoning=None,
        finish_reason="tool_calls",
        unfinished=None,
        stats=DecodeStats(
            prompt_tokens=20,
            tokens=len(token_ids),
            verify_calls=len(chunks),
            nodes=nodes_per_round * len(chunks),
            seconds=seconds,
            seconds_by_phase={
                "prepare": 0.25, "prefill": prefill, "draft": 0.25, "verify": seconds - prefill - 0.75, "other": 0.25,
            },
            accepted_by_source={source: accepted, "target": len(chunks)} if accepted else {"target": len(chunks)},
            rejections={rejected: len(chunks)} if rejected else {},
            rounds=rounds if trace else [],
        ),
    )  # fmt: skip


def default_script(method: str, request: str, trace: bool) -> Completion:
    """ar in 6 s, `fast` three times as fast, `wrong` differing at its last token, `broken` failing."""
    if method == "ar":
        return completion(trace=trace)
    if method in ("fast", "schemafill"):
        return completion(seconds=2.0, per_round=3, source="key", nodes_per_round=8, rejected="value end", trace=trace)
    if method == "wrong":
        ids = [*AR_IDS[:-1], 9]
        return completion(ids, seconds=3.0, per_round=2, source="copy", rejected="<b>odd</b> | reason", trace=trace)
    raise RuntimeError(f"out of <memory> in {request}")


@dataclass
class FakeEngine:
    """Stands in for `schemafill.inference.engine.Engine`."""

    script: Callable[[str, str, bool], Completion] = default_script
    loads: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Arguments of each `from_pretrained`."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """(method, last message) of each generate."""
    samplings: list[SamplingParams] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=lambda: {"schemafill": "0.1", "torch": "2.13.0"})
    settings: dict[str, Any] = field(default_factory=dict)

    def from_pretrained(self, target: str, **settings: Any) -> FakeEngine:
        if target == "nowhere/nothing":
            raise UserError("no target 'nowhere/nothing'")
        self.loads.append((target, settings))
        self.settings = {"target": target, **settings}
        return self

    @property
    def info(self) -> dict[str, Any]:
        asked = self.settings
        return {
            "target": asked["target"],
            "head": None,
            "device": "cpu",
            "dtype": "bfloat16",
            "numerics": asked["numerics"],
            "prefix_cache": asked.get("prefix_cache", False),
            "threads": asked["threads"] or 2,
            "versions": self.versions,
            "latency_curve": [[1, 0.05], [8, 0.06]],
            "dialect": "json",
        }

    def generate(
        self,
        *,
        messages: list[dict],
        tools: list[dict],
        method: str = "schemafill",
        sampling: SamplingParams | None = None,
        trace: bool = False,
    ) -> Completion:
        request = messages[-1]["content"]
        self.requests.append((method, request))
        self.samplings.append(sampling)
        if request == "too long":
            raise UserError("the prompt has 40000 tokens, the target's context holds 32768")
        return self.script(method, request, trace)

    def stream(self, *, messages: list[dict], tools: list[dict], method: str, sampling: SamplingParams) -> Iterator:
        yield Delta("call", "ping", 0)
        yield Delta("arguments", '{"host":  "örtchen"}', 0)
        yield self.generate(messages=messages, tools=tools, method=method, sampling=sampling)

    def tokenizer_text(self, token_ids: list[int]) -> list[str]:
        return [TEXTS[token] for token in token_ids]


def install(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> FakeEngine:
    """Let the product find `engine` and the four scripted methods where it looks for the real ones."""
    engine_module = types.ModuleType("schemafill.inference.engine")
    engine_module.Engine = engine
    methods_module = types.ModuleType("schemafill.inference.decoding.methods")
    methods_module.METHODS = {
        "ar": FakeMethod(True), "fast": FakeMethod(True), "wrong": FakeMethod(False), "broken": FakeMethod(True),
        "schemafill": FakeMethod(True),
    }  # fmt: skip
    monkeypatch.setitem(sys.modules, "schemafill.inference.engine", engine_module)
    monkeypatch.setitem(sys.modules, "schemafill.inference.decoding.methods", methods_module)
    return engine
