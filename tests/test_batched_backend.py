"""Batches of requests in slots: every answer is the one that the request gets alone, whatever stands beside it."""

import random
from dataclasses import replace

import pytest
import torch
from models import FAMILIES, byte_level_tokenizer, greedy_continuation, tiny_target
from rollout_setup import record_row, tiny_facts

from schemafill.data_prep.batched_backend import BatchedBackend, slot_size
from schemafill.data_prep.engine_backend import EngineBackend
from schemafill.data_prep.prompts import Answer, Prompt
from schemafill.data_prep.records import record_of
from schemafill.data_prep.rollout_row import row_of
from schemafill.data_prep.slot_arena import SlotArena, SlotStep
from schemafill.inference.engine import Engine
from schemafill.inference.model.target import TargetModel
from schemafill.inference.request import SamplingParams, UserError
from schemafill.inference.toolcall.dialects import get_dialect
from schemafill.inference.toolcall.schema import parse_tools

BACKENDS = pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])
GREEDY = SamplingParams()
LENGTHS = (7, 40, 3, 25, 40, 12, 1, 33)
LIMITS = (9, 2, 30, 1, 14, 22, 5, 17)


def engine_of(target: TargetModel) -> Engine:
    return Engine(target, byte_level_tokenizer(dialect="hermes"), dialect=get_dialect("hermes"))


def backend_of(target: TargetModel, params: SamplingParams = GREEDY, batch_size: int = 3) -> BatchedBackend:
    return BatchedBackend(engine_of(target), params, batch_size)


def some_prompts(lengths=LENGTHS, limits=LIMITS) -> list[Prompt]:
    """Prompts of random tokens."""
    record, draw, prompts = record_of(record_row("x", "x")), random.Random(4), []
    for number, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
        ids = draw.choices(range(300), k=length)
        key, catalog = str(number), parse_tools([])
        prompts.append(Prompt(key=key, record=record, catalog=catalog, ids=ids, limit=limit, seed=number))
    return prompts


def by_key(answers: list[Answer]) -> dict[str, list[int]]:
    found = {answer.prompt.key: answer.token_ids for answer in answers}
    assert len(found) == len(answers), "a prompt is answered twice"
    assert not any(answer.failure for answer in answers)
    return found


def alone(target: TargetModel, prompts: list[Prompt]) -> dict[str, list[int]]:
    """What each prompt gets without any other: a fresh prefill for each token, ended as the engine ends it."""
    facts, found = tiny_facts("hermes"), {}
    for prompt in prompts:
        ids = greedy_continuation(target, prompt.ids, prompt.limit)
        ends = [place for place, token in enumerate(ids, start=1) if token in target.end_ids]
        found[prompt.key] = ids[: min([*ends, prompt.limit])]
    assert facts.dialect.name == "hermes"
    return found


@BACKENDS
@pytest.mark.parametrize("family", FAMILIES)
def test_every_answer_is_the_one_the_request_gets_alone(family, has_kernels):
    target = tiny_target(family, has_kernels=has_kernels)
    prompts = some_prompts()
    assert by_key(list(backend_of(target).answer(prompts))) == alone(target, prompts)


@BACKENDS
def test_an_end_sign_frees_a_slot_early(has_kernels):
    target = tiny_target("qwen2", has_kernels=has_kernels)
    prompts = some_prompts()
    whole = alone(target, prompts)
    target.end_ids = (whole["2"][4], whole["5"][7])
    expected = alone(target, prompts)
    assert len(expected["2"]) <= 5 and len(expected["5"]) <= 8
    assert by_key(list(backend_of(target).answer(prompts))) == expected


@BACKENDS
@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_the_number_of_slots_changes_nothing(batch_size, has_kernels):
    target = tiny_target("llama", has_kernels=has_kernels)
    prompts = some_prompts()
    assert by_key(list(backend_of(target, batch_size=batch_size).answer(prompts))) == alone(target, prompts)


@BACKENDS
def test_draws_are_those_of_the_engine_with_the_record_s_seed(has_kernels, monkeypatch):
    target = tiny_target("qwen3", has_kernels=has_kernels)
    params = SamplingParams(temperature=1.4, top_k=40, top_p=0.95)
    prompts = some_prompts()
    found = by_key(list(backend_of(target, params).answer(prompts)))
    engine = engine_of(target)
    for prompt in prompts:
        monkeypatch.setattr(engine.prompts, "encode", lambda _, ids=prompt.ids: ids)
        sampling = SamplingParams(
            temperature=1.4, top_k=40, top_p=0.95, seed=prompt.seed, max_new_tokens=prompt.limit
        )  # fmt: skip
        expected = engine.generate(messages=prompt.record.messages, method="ar", sampling=sampling)
        assert found[prompt.key] == expected.token_ids


def test_the_engine_still_decodes_after_a_batch():
    """Without kernels a batch has an attention of its own, which must leave the engine's passes as they are."""
    target = tiny_target("qwen2", has_kernels=False)
    engine, prompts = engine_of(target), some_prompts()
    messages = [{"role": "user", "content": "hi"}]
    before = engine.generate(messages=messages, sampling=SamplingParams(max_new_tokens=12)).token_ids
    list(BatchedBackend(engine, GREEDY, 3).answer(prompts))
    assert engine.generate(messages=messages, sampling=SamplingParams(max_new_tokens=12)).token_ids == before


@BACKENDS
def test_what_idle_rows_hold_changes_nothing(has_kernels, monkeypatch):
    target = tiny_target("mistral", has_kernels=has_kernels)
    prompts = some_prompts()
    begin = SlotArena.__init__

    def poisoned(arena, *args, **options):
        begin(arena, *args, **options)
        arena._store.fill_(3e3)

    monkeypatch.setattr(SlotArena, "__init__", poisoned)
    assert by_key(list(backend_of(target).answer(prompts))) == alone(target, prompts)


@BACKENDS
@pytest.mark.parametrize("batch_size", [1, 3])
def test_what_prompts_begin_with_alike_is_run_once(batch_size, has_kernels):
    target = tiny_target("qwen3", has_kernels=has_kernels)
    common = list(range(40, 60))
    tails = ([1], [1, 2, 3], [], [7, 8], [1, 2, 3], [1, 2])
    prompts = [
        replace(prompt, ids=common + tail)
        for tail, prompt in zip(tails, some_prompts((1,) * 6, (4, 6, 3, 5, 2, 4)), strict=True)
    ]
    prompts.append(some_prompts((20,), (5,))[0])  # shares nothing
    prompts = [replace(prompt, key=str(number)) for number, prompt in enumerate(prompts)]
    expected, num_rows = alone(target, prompts), []
    plan = SlotArena.plan_prompt

    def noted(arena, tokens, step=None):
        num_rows.append(len(tokens))
        return plan(arena, tokens, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotArena, "plan_prompt", noted)
        assert by_key(list(backend_of(target, batch_size=batch_size).answer(prompts))) == expected
    # The last token of each is always run; before it, what the one before has run already is not.
    assert sum(num_rows) == 20 + 20 + 1 + 1 + 1 + 1 + 2 and len(num_rows) == 7


@pytest.mark.parametrize("has_step", [True, False])
def test_rows_behind_a_shared_beginning_have_the_bits_of_a_whole_pass(has_step):
    """So a job that was stopped, whose prompts meet other neighbours then, ends with the same rows."""
    target = tiny_target("qwen2", has_kernels=True)
    ids = random.Random(1).choices(range(300), k=90)
    arena = SlotArena(target, 3, 128)
    step = SlotStep([0], [5], [30], behind_prompt=True) if has_step else None
    arena.open(0, ids[:30])
    target.forward_prompt(arena, ids[:30])
    arena.open(1, ids)
    assert arena.length == 30
    target.forward_prompt(arena, ids, step)
    shared = arena._store[:, :, 128 : 128 + 90]
    arena = SlotArena(target, 3, 128)
    arena.open(2, ids)
    target.forward_prompt(arena, ids)
    assert torch.equal(shared, arena._store[:, :, 256 : 256 + 90])


def test_long_requests_have_slots_of_their_own():
    assert [slot_size(rows) for rows in (1, 512, 513, 1024, 1025, 5000)] == [512, 512, 1024, 1024, 2048, 8192]
    target = tiny_target("qwen2", has_kernels=True)
    prompts = some_prompts((600, 5, 9), (4, 4, 4))
    sizes = []
    begin = SlotArena.__init__

    def noted(arena, target, num_slots, slot_rows, **options):
        sizes.append((num_slots, slot_rows))
        begin(arena, target, num_slots, slot_rows, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotArena, "__init__", noted)
        found = by_key(list(backend_of(target).answer(prompts)))
    assert sizes == [(2, 512), (1, 1024)]
    assert found == alone(target, prompts)


def test_a_free_slot_is_filled_at_once():
    """No pass runs fewer answers than there could be: that is what a batch is for."""
    target = tiny_target("qwen2", has_kernels=True)
    rows = []
    forward, forward_prompt = target.forward, target.forward_prompt

    def counted(arena, step):
        rows.append(len(step))
        return forward(arena, step)

    def counted_prompt(arena, ids, step=None):
        rows.append(len(step) if step is not None else 1)
        return forward_prompt(arena, ids, step)

    target.forward, target.forward_prompt = counted, counted_prompt
    prompts = [
        replace(prompt, ids=[number, *prompt.ids])  # they are taken in the order of their tokens
        for number, prompt in enumerate(some_prompts((4,) * 9, (8, 3, 5, 8, 2, 6, 9, 4, 7)))
    ]
    list(backend_of(target).answer(prompts))
    assert rows[:3] == [1, 2, 3]
    last_prompt = sum(limit for limit in (8, 3, 5, 8, 2, 6, 9, 4, 7)) - sum(rows)
    assert last_prompt == 0, "one row for each token"
    assert rows[2:].count(3) >= len(rows) - 8


@BACKENDS
def test_out_of_memory_halves_the_batch_once_and_loses_nothing(has_kernels):
    target = tiny_target("qwen2", has_kernels=has_kernels)
    prompts = some_prompts()
    expected = alone(target, prompts)
    forward, sizes = target.forward, []

    def tight(arena, step):
        sizes.append(len(step))
        if len(step) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(arena, step)

    target.forward = tight
    assert by_key(list(backend_of(target, batch_size=4).answer(prompts))) == expected
    assert max(sizes) > 2

    target.forward = lambda *_: (_ for _ in ()).throw(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    with pytest.raises(UserError, match="batch of 2: choose a smaller --batch-size"):
        list(backend_of(target, batch_size=4).answer(prompts))


def test_another_error_of_a_pass_is_not_taken_for_memory():
    target = tiny_target("qwen2", has_kernels=True)
    target.forward = lambda *_: (_ for _ in ()).throw(RuntimeError("shape mismatch"))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        list(backend_of(target).answer(some_prompts()))


def test_rows_equal_those_of_the_engine_backend():
    target = tiny_target("llama", has_kernels=True)
    facts, engine, prompts = tiny_facts("hermes"), engine_of(target), some_prompts()
    target.end_ids = facts.end_ids
    one_by_one = {}
    for prompt in prompts:
        engine.prompts.encode = lambda _, ids=prompt.ids: ids
        [answer] = EngineBackend(engine, SamplingParams(max_new_tokens=prompt.limit)).answer([prompt])
        one_by_one[prompt.key] = row_of(answer, facts)
    batched = {answer.prompt.key: row_of(answer, facts) for answer in BatchedBackend(engine, GREEDY, 3).answer(prompts)}
    assert batched == one_by_one


def test_facts_say_whether_a_batch_changes_near_ties():
    for has_kernels in (True, False):
        target = tiny_target("qwen2", has_kernels=has_kernels)
        assert backend_of(target).facts == {"dtype": "float32", "device": "cpu", "row_invariant": has_kernels}


def test_a_step_that_would_write_one_slot_twice_is_refused():
    arena = SlotArena(tiny_target("qwen2", has_kernels=True), 2, 8)
    for slots, lengths in (([1, 1], [0, 0]), ([1, 0], [0, 0]), ([0, 1], [0, 8])):
        with pytest.raises(AssertionError):
            arena.plan_round(SlotStep(slots, [1, 2], lengths))
