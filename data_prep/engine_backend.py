"""Answers prompts with the engine itself, one after the other: the slow way that all others must agree with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from schemafill.data_prep.prompts import Answer, Prompt
from schemafill.inference.engine import Engine
from schemafill.inference.request import SamplingParams


class EngineBackend:
    """The engine as a backend. Its answers equal plain decoding, whatever it drafts."""

    def __init__(self, engine: Engine, params: SamplingParams) -> None:
        self.facts = engine_facts(engine)
        self._engine = engine
        self._params = params

    def answer(self, prompts: Sequence[Prompt]) -> Iterator[Answer]:
        """In the order of the prompts."""
        for prompt in prompts:
            try:
                done = self._engine.generate(
                    messages=prompt.record.messages, tools=prompt.record.tools,
                    sampling=replace(self._params, seed=prompt.seed),
                )  # fmt: skip
            except Exception as error:  # whatever it is, it is this row's failure
                yield Answer.failed(prompt, error)
            else:
                yield Answer(prompt, done.token_ids)


def engine_facts(engine: Engine) -> dict[str, Any]:
    """What a loaded engine made of `auto`."""
    info = engine.info
    return {"dtype": info["dtype"], "device": info["device"], "row_invariant": info["row_invariant"]}
