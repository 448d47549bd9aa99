"""From a request to a completion: builds the prompt, runs one method through the loop, reads the calls off the output.

Owns the target, the tokenizer, the K/V arena and what is learned across requests (the target's layout style).
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch
import transformers

from schemafill.inference.decoding.loop import decode
from schemafill.inference.decoding.methods import get_method
from schemafill.inference.decoding.stop import StopRule
from schemafill.inference.decoding.text_feed import TextFeed
from schemafill.inference.decoding.verify import make_choice
from schemafill.inference.drafting.drafter import MAX_NODES, SIDE_ROWS, DecodeState
from schemafill.inference.loading import choose_dialect, load_tokenizer, locate_target
from schemafill.inference.model.architectures import check_architecture
from schemafill.inference.model.kv_arena import KVArena
from schemafill.inference.model.latency import FLAT, LatencyCurve, calibrate
from schemafill.inference.model.target import EXACT_ROWS, ROW_BUCKETS, TargetModel, load_target
from schemafill.inference.model.vocabulary import Vocabulary
from schemafill.inference.prompt_builder import PromptBuilder
from schemafill.inference.request import Completion, DecodeStats, SamplingParams, UserError
from schemafill.inference.toolcall.dialects import Dialect, get_dialect
from schemafill.inference.toolcall.output import OutputParser, new_call_id
from schemafill.inference.toolcall.prompt import request_text
from schemafill.inference.toolcall.reply import Delta
from schemafill.inference.toolcall.schema import Catalog, parse_tools
from schemafill.inference.toolcall.style import StyleMemory
from schemafill.inference.toolcall.tracker import Tracker

logger = logging.getLogger(__name__)

NUMERICS = ("guarded", "fast", "exact")
ARENA_STEP = 512
"""Arenas have a multiple of this many rows, so that one serves the next requests as well."""
SCRATCH_ROWS = next(rows for rows in ROW_BUCKETS if rows > MAX_NODES)
"""Rows of the largest pass, its padding included."""
MOST_THREADS = 1024


class Engine:
    """A loaded target, ready for one request at a time."""

    def __init__(
        self, target: TargetModel, tokenizer, *, dialect: Dialect, numerics: str = "guarded",
        latency: LatencyCurve = FLAT, call_id_length: int | None = None, prefix_cache: bool = False,
    ) -> None:
        if numerics not in NUMERICS:
            raise UserError(f"unknown numerics {numerics!r}, known are {', '.join(NUMERICS)}")
        self.target = target
        self.tokenizer = tokenizer
        self.dialect = dialect
        self.numerics = numerics
        self.latency = latency
        self.vocabulary = Vocabulary(tokenizer)
        self.styles = StyleMemory(dialect.name)
        self.prompts = PromptBuilder(tokenizer, dialect, call_id_length)
        self._arena: KVArena | None = None
        self._prefix_cache = prefix_cache
        self._prompt_in_arena: list[int] = []
        self._is_busy = False

    @classmethod
    def from_pretrained(
        cls, target: str, *, head: str = "auto", device: str = "auto", dtype: str = "auto", numerics: str = "guarded",
        threads: int | None = None, prefix_cache: bool = False, dialect: str = "auto",
        trust_remote_code: bool = False, progress: bool = True,
    ) -> Engine:
        """Load a target (Hub id, folder or `embedded`) and measure its passes once.

        head: `none` and `auto` run without a trained head. prefix_cache: prompt rows that the last request had in
        common with this one are not computed again, whatever the method.
        """
        if head not in ("none", "auto"):
            raise UserError(f"head {head!r}: trained heads cannot be loaded yet, use none or auto")
        if numerics not in NUMERICS:
            raise UserError(f"unknown numerics {numerics!r}, known are {', '.join(NUMERICS)}")
        if threads is not None:
            if not 1 <= threads <= MOST_THREADS:
                raise UserError(f"threads must be from 1 to {MOST_THREADS}, got {threads}")
            torch.set_num_threads(threads)
        if dialect != "auto":
            get_dialect(dialect)
        if not progress:
            transformers.utils.logging.disable_progress_bar()
        source = locate_target(target)
        model = load_target(
            source, device=device, dtype=dtype, exact=numerics == "exact", trust_remote_code=trust_remote_code
        )
        tokenizer = load_tokenizer(source, trust_remote_code)
        family = check_architecture(model.config)
        chosen = choose_dialect(source, tokenizer) if dialect == "auto" else dialect
        if progress:
            logger.info("measuring passes of %s", target)
        return cls(
            model, tokenizer, dialect=get_dialect(chosen), numerics=numerics, latency=calibrate(model),
            call_id_length=family.call_id_length, prefix_cache=prefix_cache,
        )

    @property
    def info(self) -> dict:
        """What a result depends on, for reports."""
        target = self.target
        return {
            "target": Path(target.name).name if Path(target.name).is_dir() else target.name,
            "head": None,
            "device": _device_name(target.device),
            "dtype": str(target.dtype).removeprefix("torch."),
            "numerics": self.numerics,
            "prefix_cache": self._prefix_cache,
            "threads": torch.get_num_threads(),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            "latency_curve": [[rows, s] for rows, s in zip(self.latency.rows, self.latency.seconds, strict=True)],
            "dialect": self.dialect.name,
            "row_invariant": target.is_row_invariant,
        }  # fmt: skip

    def tokenizer_text(self, token_ids: list[int]) -> list[str]:
        """The text of each token."""
        return [self.vocabulary.text_of([token_id]) for token_id in token_ids]

    def generate(
        self, *, messages: list[dict], tools: list[dict] | None = None, method: str = "schemafill",
        sampling: SamplingParams | None = None, trace: bool = False,
    ) -> Completion:
        """The whole answer to a request. tools in OpenAI form or as bare functions."""
        *_, completion = self.stream(messages=messages, tools=tools, method=method, sampling=sampling, trace=trace)
        return completion

    def stream(
        self, *, messages: list[dict], tools: list[dict] | None = None, method: str = "schemafill",
        sampling: SamplingParams | None = None, trace: bool = False,
    ) -> Iterator[Delta | Completion]:
        """The answer as deltas while it is decoded; the last item is the completion.

        One stream at a time: a second one is refused until the first is finished or closed.
        """
        if self._is_busy:
            raise UserError("this engine is decoding another request: finish or close that stream first")
        self._is_busy = True
        try:
            yield from self._decode(messages, tools, method, sampling or SamplingParams(), trace)
        finally:
            self._is_busy = False

    def _decode(
        self, messages: list[dict], tools: list[dict] | None, method: str, params: SamplingParams, trace: bool
    ) -> Iterator[Delta | Completion]:
        started = perf_counter()
        maker = get_method(method)
        catalog = parse_tools(tools or [])
        history = self.prompts.history(messages)
        prompt = self.prompts.text(history, catalog)
        prompt_ids = self.prompts.encode(prompt)
        limit = self._limit(len(prompt_ids), params)
        stats = DecodeStats(prompt_tokens=len(prompt_ids))
        state = self._state(prompt_ids, history, catalog)
        drafter = maker.make(state)
        stop = StopRule(self.dialect, self.vocabulary, self.target.end_ids, params.stop, limit)
        arena = self._fresh_arena(prompt_ids, limit)
        choose = make_choice(params, self.target.kernels)
        threshold = self.latency.threshold(self.target.dtype) if self.numerics == "guarded" else 0.0
        stats.seconds_by_phase["prepare"] = perf_counter() - started

        parser = OutputParser(self.dialect, catalog, self.prompts.opens_reasoning(prompt))
        feed = TextFeed(params.stop)
        rounds = decode(
            self.target, arena, drafter, choose, state, stop, stats, threshold=threshold, keep_trace=trace
        )
        for _ in rounds:
            self._prompt_in_arena = prompt_ids  # not before the prompt's pass is through
            yield from parser.feed(feed.take(stop.data, is_over=bool(stop.reason)))
        parsed = parser.finish("eos" if stop.reason == "stop" else stop.reason)
        yield from parsed.deltas
        stats.seconds = perf_counter() - started
        stats.seconds_by_phase["other"] = 0.0  # what the loop counted there is part of what is left over
        stats.seconds_by_phase["other"] = stats.seconds - sum(stats.seconds_by_phase.values())
        if parsed.tool_calls and state.tracker.state.is_style_seen:
            self.styles.add(state.tracker.state.style)
        yield Completion(
            text=stop.text, token_ids=state.output_ids,
            tool_calls=[replace(call, id=new_call_id()) for call in parsed.tool_calls], content=parsed.content,
            reasoning=parsed.reasoning, finish_reason=parsed.finish_reason, unfinished=parsed.unfinished, stats=stats,
        )

    def _limit(self, num_prompt: int, params: SamplingParams) -> int:
        context = self.target.max_positions
        if num_prompt >= context:
            raise UserError(f"the prompt has {num_prompt} tokens, the target's context holds {context}")
        return min(params.max_new_tokens, context - num_prompt)

    def _state(self, prompt_ids: list[int], history: list[dict], catalog: Catalog) -> DecodeState:
        is_chain_only = self.target.exact and not self.target.is_row_invariant
        return DecodeState(
            prompt_ids=prompt_ids,
            request_text=request_text(history),
            catalog=catalog,
            dialect=self.dialect,
            vocabulary=self.vocabulary,
            tracker=Tracker(self.dialect, catalog, self.styles.guesses()[0][0]),
            styles=self.styles,
            latency=self.latency,
            end_ids=self.target.end_ids,
            max_nodes=min(MAX_NODES, EXACT_ROWS - 1) if is_chain_only else MAX_NODES,
            is_chain_only=is_chain_only,
        )

    def _fresh_arena(self, prompt_ids: list[int], limit: int) -> KVArena:
        """The engine's arena with nothing in it but reused prompt rows; a larger one where the request needs it."""
        capacity = len(prompt_ids) + limit + SCRATCH_ROWS
        arena = self._arena
        if arena is None or arena.capacity < capacity:
            self._arena = arena = None  # free the old rows first
            self._arena = arena = self.target.new_arena(-(-capacity // ARENA_STEP) * ARENA_STEP, SIDE_ROWS)
            self._prompt_in_arena = []
        arena.reset()
        if self._prefix_cache:
            common = _common_length(self._prompt_in_arena, prompt_ids)
            arena.length = min(common, len(prompt_ids) - 1)  # the last row is run again: its logits are needed
        self._prompt_in_arena = []
        return arena


def _common_length(old: list[int], new: list[int]) -> int:
    """How many ids two lists share at their beginning."""
    differing = (i for i, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    return next(differing, min(len(old), len(new)))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
