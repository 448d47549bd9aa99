"""From a record to what the target is asked: the prompt that the engine would build for it, or why it is not asked.

Also what comes back: an answer, which is what every backend makes of a prompt.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemafill.data_prep.records import Record
from schemafill.data_prep.rollout_form import FAILED, PROMPT_FAILED, PROMPT_TOO_LONG
from schemafill.data_prep.rollout_inputs import RolloutInput
from schemafill.data_prep.target_facts import TargetFacts
from schemafill.inference.request import SamplingParams, UserError, first_line
from schemafill.inference.toolcall.schema import Catalog, parse_tools

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What one record asks of the target."""

    key: str
    record: Record
    catalog: Catalog
    text: str = ""
    ids: list[int] = field(default_factory=list)
    limit: int = 0
    """Most tokens of the answer, its end sign included."""
    seed: int = 0
    """Fixes the draws of this record, whatever is rolled out before it or beside it."""
    refusal: str = ""
    """Why the target is not asked; empty where it is."""


@dataclass(frozen=True)
class Answer:
    """What became of a prompt. The ids are those that the target wrote; they may go on behind the end of the output."""

    prompt: Prompt
    token_ids: list[int] = field(default_factory=list)
    failure: str = ""
    """Why there is no answer: a reason in one word, then a colon and what happened. Empty where there is one."""
    text: str = ""
    """What a server wrote, where that could not be turned into ids."""
    is_cut: bool = False
    """The writer ended it at a limit of its own."""
    states: tuple[torch.Tensor, torch.Tensor] | None = None
    """What the target computed behind all tokens but the last: captured [rows, 3H] and final [rows, H]."""

    @classmethod
    def failed(cls, prompt: Prompt, error: Exception) -> Answer:
        """What an error left; the row is tried again when the job goes on."""
        return cls(prompt, failure=f"{FAILED}: {type(error).__name__}: {first_line(error)}")


class PromptMaker:
    """Makes the prompts of a job."""

    def __init__(self, facts: TargetFacts, params: SamplingParams, max_prompt_tokens: int | None = None) -> None:
        self._facts = facts
        self._params = params
        self._longest = min(max_prompt_tokens or facts.max_positions, facts.max_positions - 1)

    def make(self, item: RolloutInput) -> Prompt:
        """The prompt of a record; one that cannot be asked says why. Nothing is ever cut."""
        prompts, record = self._facts.prompts, item.record
        catalog = parse_tools(record.tools)
        try:
            text = prompts.text(prompts.history(record.messages), catalog)
            ids = prompts.encode(text)
        except UserError as error:
            return Prompt(key=item.key, record=record, catalog=catalog, refusal=f"{PROMPT_FAILED}: {error}")
        return Prompt(
            key=item.key, record=record, catalog=catalog, text=text, ids=ids,
            limit=min(self._params.max_new_tokens, self._facts.max_positions - len(ids)),
            seed=seed_of(self._params.seed, item.key), refusal=PROMPT_TOO_LONG if len(ids) > self._longest else "",
        )  # fmt: skip


def seed_of(seed: int, key: str) -> int:
    """A seed for one record, below 2**31. With one seed for all, every record would be answered with the same draws."""
    return int.from_bytes(hashlib.sha256(f"{seed} {key}".encode(errors="surrogatepass")).digest()[:4]) >> 1
