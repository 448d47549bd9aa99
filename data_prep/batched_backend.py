"""Answers prompts with the target in batches that never wait: a slot whose answer ends takes the next prompt at once.

Every pass serves all slots. The prompt of a slot that was just filled rides with the others' next tokens, so a target
that is bound by reading its weights reads them once for both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from schemafill.data_prep.engine_backend import engine_facts
from schemafill.data_prep.prompts import Answer, Prompt
from schemafill.data_prep.slot_arena import SLOT_ATTENTION_NAME, SlotArena, SlotStep
from schemafill.inference.decoding.stop import StopRule
from schemafill.inference.decoding.verify import Choose, make_choice
from schemafill.inference.engine import Engine
from schemafill.inference.model.architectures import eagle3_layers
from schemafill.inference.request import SamplingParams, UserError

SMALLEST_SLOT = 512
"""Rows of the smallest slot; the next sizes are twice the one before, and a batch holds slots of one size."""


@dataclass
class Running:
    """A prompt in a slot and its answer so far; the last id has no row yet."""

    prompt: Prompt
    stop: StopRule
    choose: Choose | None
    """Its own draws; None: greedy, where one choice serves all."""
    ids: list[int] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return len(self.prompt.ids) + len(self.ids) - 1


class BatchedBackend:
    """Owns nothing but its settings between two calls of `answer`."""

    def __init__(
        self, engine: Engine, params: SamplingParams, batch_size: int, *, keeps_states: bool = False
    ) -> None:
        """keeps_states: answers come with what the target computed behind their tokens, as an EAGLE-3 head reads it."""
        self.facts: dict[str, Any] = engine_facts(engine)
        self._target = engine.target
        self._engine = engine
        self._params = params
        self._num_slots = batch_size
        self._was_halved = False
        self._keeps_states = keeps_states
        if keeps_states:
            engine.target.capture(eagle3_layers(engine.target.config.num_hidden_layers))
        self._greedy = make_choice(params, engine.target.kernels) if params.temperature == 0 else None
        if engine.target.kernels is None:
            engine.target.model.set_attn_implementation(SLOT_ATTENTION_NAME)

    def answer(self, prompts: Sequence[Prompt]) -> Iterator[Answer]:
        """In the order in which answers end, the shortest size of slots first.

        Prompts are taken in the order of their tokens: those that begin alike follow each other, and what they share is
        computed once.
        """
        by_size: dict[int, deque[Prompt]] = {}
        for prompt in sorted(prompts, key=lambda prompt: prompt.ids):
            by_size.setdefault(slot_size(len(prompt.ids) + prompt.limit), deque()).append(prompt)
        for size in sorted(by_size):
            waiting = by_size[size]
            while waiting:
                yield from self._serve(waiting, size)

    def _serve(self, waiting: deque[Prompt], size: int) -> Iterator[Answer]:
        """Answer what waits. Out of memory: what was running waits again, and there are half as many slots, once."""
        running: dict[int, Running] = {}
        try:
            num_slots = min(self._num_slots, len(waiting))
            arena = SlotArena(self._target, num_slots, size, keeps_states=self._keeps_states)
            while waiting or running:
                for slot in self._pass(arena, running, waiting):
                    done = running.pop(slot)
                    states = arena.states_of(slot, done.num_rows) if self._keeps_states else None
                    yield Answer(done.prompt, done.ids, states=states)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            self._halve(error)
            waiting.extendleft(one.prompt for one in reversed(running.values()))
        arena = None
        if self._target.device.type == "cuda":
            torch.cuda.empty_cache()  # the next arena has another shape

    def _halve(self, error: Exception) -> None:
        if self._was_halved or self._num_slots == 1:
            message = f"out of memory with a batch of {self._num_slots}: choose a smaller --batch-size"
            raise UserError(message) from error
        self._was_halved = True
        self._num_slots = max(1, self._num_slots // 2)

    def _pass(self, arena: SlotArena, running: dict[int, Running], waiting: deque[Prompt]) -> list[int]:
        """One pass: every running answer gets its next token, a prompt that waits gets a free slot and its first one.

        Returns the slots whose answers have ended.
        """
        slots = sorted(running)
        step = SlotStep(slots, [running[s].ids[-1] for s in slots], [running[s].num_rows for s in slots])
        free = next((slot for slot in range(arena.num_slots) if slot not in running), None)
        if waiting and free is not None:
            prompt = waiting[0]
            arena.open(free, prompt.ids)
            behind = replace(step, behind_prompt=True) if slots else None
            scored = self._target.forward_prompt(arena, prompt.ids, behind)
            running[free] = self._begin(waiting.popleft())  # not before the pass is through
            slots = [free, *slots]
        else:
            scored = self._target.forward(arena, step)
        if self._keeps_states:
            arena.keep_states()
        for slot, token_id in zip(slots, self._choices(scored.logits, [running[s] for s in slots]), strict=True):
            running[slot].ids.append(token_id)
            running[slot].stop.take(token_id)
        return [slot for slot in slots if running[slot].stop.reason]

    def _begin(self, prompt: Prompt) -> Running:
        engine = self._engine
        stop = StopRule(engine.dialect, engine.vocabulary, self._target.end_ids, self._params.stop, prompt.limit)
        choose = make_choice(replace(self._params, seed=prompt.seed), None) if self._greedy is None else None
        return Running(prompt, stop, choose)

    def _choices(self, logits: torch.Tensor, running: list[Running]) -> list[int]:
        """logits [N, V], row i belongs to the i-th answer -> its next token."""
        if self._greedy is not None:
            return self._greedy(logits, [len(one.ids) for one in running])[0]
        return [
            one.choose(row[None], [len(one.ids)])[0][0] for one, row in zip(running, logits, strict=True)
        ]  # fmt: skip


def slot_size(rows: int) -> int:
    """The size of slot that a request of so many rows goes into."""
    size = SMALLEST_SLOT
    while size < rows:
        size *= 2
    return size


def _is_out_of_memory(error: BaseException) -> bool:
    """torch has a class of its own for a GPU's memory, and a plain RuntimeError for a CPU's."""
    is_named = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return is_named or any(words in str(error) for words in ("allocate memory", "not enough memory"))
