"""The hot loop: whatever is proposed, what comes out is what plain decoding gives, and the books are kept."""

from __future__ import annotations

import pytest
import torch
from hostile import SHAPES, HostileDrafter
from models import FAMILIES, PaddedTarget, byte_level_tokenizer, greedy_continuation, scripted_target, tiny_target

from schemafill.inference.decoding.loop import decode
from schemafill.inference.decoding.methods import METHODS
from schemafill.inference.decoding.stop import StopRule
from schemafill.inference.decoding.verify import make_choice
from schemafill.inference.drafting.drafter import MAX_NODES, SIDE_ROWS, DecodeState, NoDraft
from schemafill.inference.model.latency import FLAT
from schemafill.inference.model.target import EXACT_ROWS, TargetModel
from schemafill.inference.model.tree import Proposal
from schemafill.inference.model.vocabulary import Vocabulary
from schemafill.inference.request import DecodeStats, SamplingParams
from schemafill.inference.toolcall.dialects import get_dialect
from schemafill.inference.toolcall.schema import parse_tools
from schemafill.inference.toolcall.style import StyleMemory
from schemafill.inference.toolcall.tracker import Tracker

VOCABULARY = Vocabulary(byte_level_tokenizer())
VOCAB_SIZE = len(VOCABULARY.tokenizer)
PROMPT = VOCABULARY.encode("What is the weather in Oslo and Lisbon?")
DIALECT = get_dialect("hermes")
END_IDS = tuple(VOCABULARY.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|eot_id|>"]))
NUMERICS = {"guarded": 1e-3, "fast": 0.0, "exact": 0.0}
BACKENDS = pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])


class Run:
    """One request through the loop."""

    def __init__(
        self, target: TargetModel, drafter, *, limit: int = 24, threshold: float = 0.0, prompt: list[int] = PROMPT,
        sampling: SamplingParams | None = None, side_rows: int = SIDE_ROWS, rounds: int = 10_000,
    ) -> None:  # fmt: skip
        catalog = parse_tools([])
        is_chain_only = target.exact and not target.is_row_invariant
        self.state = DecodeState(
            prompt_ids=prompt, request_text="", catalog=catalog, dialect=DIALECT, vocabulary=VOCABULARY,
            tracker=Tracker(DIALECT, catalog, StyleMemory("hermes").guesses()[0][0]), styles=StyleMemory("hermes"),
            latency=FLAT, end_ids=target.end_ids, max_nodes=EXACT_ROWS - 1 if is_chain_only else MAX_NODES,
            is_chain_only=is_chain_only,
        )  # fmt: skip
        self.arena = target.new_arena(len(prompt) + limit + MAX_NODES + 1, side_rows)
        self.stats = DecodeStats()
        self.stop = StopRule(DIALECT, VOCABULARY, target.end_ids, (), limit)
        self.drafter = drafter(self.state) if isinstance(drafter, type(lambda: 0)) else drafter
        choose = make_choice(sampling or SamplingParams(), target.kernels)
        steps = decode(
            target, self.arena, self.drafter, choose, self.state, self.stop, self.stats, threshold=threshold,
            keep_trace=True,
        )  # fmt: skip
        self.pieces = [piece for piece, _ in zip(steps, range(rounds), strict=False)]

    @property
    def ids(self) -> list[int]:
        return self.state.output_ids


@pytest.fixture(
    scope="module", params=[(f, k) for f in FAMILIES for k in (True, False)], ids=lambda p: f"{p[0]}-{p[1]}"
)
def family_target(request):
    family, has_kernels = request.param
    return tiny_target(family, has_kernels=has_kernels, end_ids=END_IDS)


@pytest.mark.parametrize("numerics", NUMERICS)
def test_every_method_and_hostile_drafter_gives_the_ids_of_plain_decoding(family_target, numerics):
    target = family_target
    target.exact = numerics == "exact"
    plain = Run(target, NoDraft())
    assert len(plain.ids) > 12
    if numerics == "fast":
        assert plain.ids == greedy_continuation(target, PROMPT, len(plain.ids))
    for name, method in METHODS.items():
        assert Run(target, method.make, threshold=NUMERICS[numerics]).ids == plain.ids, name
    for shape in SHAPES:
        drafter = HostileDrafter(plain.ids, VOCAB_SIZE, shape=shape, seed=1)
        found = Run(target, drafter, threshold=NUMERICS[numerics])
        assert found.ids == plain.ids, shape
        if shape == "deep":
            assert found.stats.verify_calls < plain.stats.verify_calls / 2


def test_plain_decoding_is_one_pass_a_token():
    target = tiny_target("qwen3", has_kernels=False, end_ids=())
    run = Run(target, NoDraft(), limit=12)
    assert run.ids == greedy_continuation(target, PROMPT, 12)
    assert run.stats.verify_calls == run.stats.tokens == 12
    assert run.stats.nodes == run.stats.rechecks == 0
    assert run.stop.reason == "length"


def scripted(text: str = "The north gate is open.", **options) -> tuple[TargetModel, list[int]]:
    end_id = VOCABULARY.tokenizer.eos_token_id
    script = VOCABULARY.encode(text)
    return scripted_target(script, end_id=end_id, vocab_size=VOCAB_SIZE + 3, **options), [*script, end_id]


LONG = "The north gate is open. What is the weather in Oslo and Lisbon? " * 4


@pytest.mark.parametrize("shape", SHAPES)
def test_passes_padded_as_on_a_gpu_give_the_same_output(shape):
    target, expected = scripted(LONG, kind=PaddedTarget)
    drafter = HostileDrafter(expected, VOCAB_SIZE, shape=shape)
    assert Run(target, drafter, limit=200).ids == expected
    assert drafter.verdicts


@BACKENDS
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_hostile_drafts_neither_change_the_output_nor_see_each_other(has_kernels, shape, seed):
    """The scripted target checks on every pass that each node sees exactly its own path; SIDE's answers are checked
    here."""
    target, expected = scripted(LONG, has_kernels=has_kernels)
    drafter = HostileDrafter(expected, VOCAB_SIZE + 3, shape=shape, seed=seed)
    run = Run(target, drafter, limit=200)
    assert run.ids == expected
    assert b"".join(run.pieces).decode() == LONG
    assert len(drafter.verdicts) > 3
    for history, tokens in drafter.verdicts:
        for token in tokens:
            assert target.model.choice_after(history) == token
            history = [*history, token]


def test_wrong_choices_with_small_margins_are_looked_at_again():
    """A third of all choices is wrong in passes of several rows, as near ties are in low precision."""
    target, expected = scripted(LONG, is_doubtful=True)
    for shape in SHAPES:
        drafter = HostileDrafter(expected, VOCAB_SIZE + 3, shape=shape, has_side=False)
        run = Run(target, drafter, limit=200, threshold=1e-3)
        assert run.ids == expected, shape
        assert run.stats.rechecks > 3
        assert run.stats.tokens == len(expected) < run.stats.verify_calls + run.stats.nodes
    assert Run(target, HostileDrafter(expected, VOCAB_SIZE, shape="deep"), limit=200).ids != expected


@pytest.mark.parametrize("method", ["pld", "schemafill"])
def test_methods_stand_being_looked_at_again(method):
    """The pass that looks again holds no proposal of the drafter's; it observes that pass all the same."""
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>' * 3
    target, expected = scripted(text, is_doubtful=True)
    run = Run(target, METHODS[method].make, limit=300, threshold=1e-3)
    assert run.ids == expected
    assert run.stats.rechecks > 0


def test_margins_are_not_doubted_where_rows_do_not_depend_on_each_other():
    target = tiny_target("llama", has_kernels=True, end_ids=())
    plain = Run(target, NoDraft())
    run = Run(target, HostileDrafter(plain.ids, VOCAB_SIZE, shape="deep"), threshold=1e9)
    assert run.ids == plain.ids and run.stats.rechecks == 0


def test_a_pass_of_the_root_alone_is_never_doubted():
    target, expected = scripted()
    run = Run(target, NoDraft(), threshold=1e9)
    assert run.ids == expected and run.stats.rechecks == 0


def test_doubting_everything_still_gives_the_output():
    target, expected = scripted()
    run = Run(target, HostileDrafter(expected, VOCAB_SIZE, shape="wide"), threshold=1e9)
    assert run.ids == expected
    assert run.stats.rechecks >= len(expected) // 2


# --------------------------------------------------------------------------------------------------------------- counts


@BACKENDS
@pytest.mark.parametrize("shape", SHAPES)
def test_counts_add_up(has_kernels, shape):
    target, expected = scripted(LONG, has_kernels=has_kernels)
    run = Run(target, HostileDrafter(expected, VOCAB_SIZE, shape=shape, seed=5), limit=200)
    stats = run.stats
    assert stats.tokens == len(expected) == sum(stats.accepted_by_source.values())
    assert stats.verify_calls == len(stats.rounds) == len(run.pieces)
    assert [token for one in stats.rounds for token in one.token_ids] == expected
    assert stats.nodes == sum(one.num_nodes for one in stats.rounds)
    assert all(len(one.sources) == len(one.token_ids) for one in stats.rounds)
    assert all(one.num_side_nodes <= one.num_nodes <= MAX_NODES for one in stats.rounds)
    assert stats.rejections.get("hostile", 0) == sum(one.rejected == "hostile" for one in stats.rounds)
    assert set(stats.seconds_by_phase) == {"prepare", "prefill", "draft", "verify", "other"}


def test_nothing_behind_the_end_is_counted():
    """The whole output, the end sign and more of the target's own choices behind it are accepted in one round."""
    target, expected = scripted("The gate.", has_kernels=True)
    behind = list(expected)
    target.model.prompt_ids = PROMPT
    for _ in range(4):
        behind.append(target.model.choice_after([*PROMPT, *behind]))

    class Ahead(NoDraft):
        def propose(self, state: DecodeState) -> Proposal:
            proposal = Proposal(state.root)
            proposal.add_chain(behind[len(state.output_ids) :], 0, "copy")
            return proposal

    run = Run(target, Ahead())
    assert run.stats.verify_calls == 1
    assert run.ids == expected
    assert run.stats.tokens == len(expected) == run.stats.accepted_by_source["copy"]
    assert run.stats.rounds[0].token_ids == expected
    assert run.stop.text == "The gate."


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", ["deep", "ends"])
def test_the_limit_holds_inside_an_accepted_run(limit, shape):
    target, expected = scripted()
    run = Run(target, HostileDrafter(expected, VOCAB_SIZE, shape=shape), limit=limit)
    assert run.ids == expected[:limit]
    assert run.stats.tokens == limit and run.stop.reason == "length"


# ----------------------------------------------------------------------------------------------------------------- SIDE


def test_a_full_pool_costs_branches_not_output():
    target, expected = scripted(LONG)
    for side_rows in (0, 1, 5):
        drafter = HostileDrafter(expected, VOCAB_SIZE, shape="mixed")
        run = Run(target, drafter, limit=200, side_rows=side_rows)
        assert run.ids == expected
        assert sum(len(branch.rows) for branch in drafter.branches) <= side_rows
        if not side_rows:
            assert not drafter.verdicts


def test_rows_of_closed_branches_are_handed_out_again():
    target, expected = scripted(LONG * 2)
    drafter = HostileDrafter(expected, VOCAB_SIZE, shape="wide")
    run = Run(target, drafter, limit=400, side_rows=16)
    closed = [branch for branch in drafter.branches if branch.is_closed]
    open_rows = [row for branch in drafter.branches for row in branch.rows]
    assert closed and all(not branch.rows for branch in closed)
    assert len(open_rows) == len(set(open_rows)) and set(open_rows) <= set(range(16))
    kept = sum(len(verdict.nodes) for seen in drafter.observations for verdict in seen.side)
    assert kept > 16
    assert run.ids == expected


@pytest.mark.parametrize("has_kernels", [True, False])
def test_side_branches_of_a_real_target_get_what_a_request_of_their_own_gets(has_kernels):
    target = tiny_target("qwen2", has_kernels=has_kernels, end_ids=())
    plain = Run(target, NoDraft(), limit=12)
    drafter = HostileDrafter(plain.ids, VOCAB_SIZE, shape="deep", seed=2)
    assert Run(target, drafter, limit=12).ids == plain.ids
    assert len(drafter.verdicts) >= 4
    for history, tokens in drafter.verdicts:
        if history:
            assert greedy_continuation(target, history, len(tokens)) == tokens


# ---------------------------------------- poison and cancelling


class PoisonedTarget(TargetModel):
    """Overwrites every row that nobody may see, and the logits buffer, before each pass."""

    poison = float("nan")

    def forward_prompt(self, arena, prompt_ids, proposal=None):
        self._poison(arena)
        return super().forward_prompt(arena, prompt_ids, proposal)

    def forward(self, arena, proposal):
        self._poison(arena)
        return super().forward(arena, proposal)

    @torch.inference_mode()
    def _poison(self, arena) -> None:
        hidden = [*arena._free_side, *range(arena.side_rows + arena.length, arena.side_rows + arena.capacity)]
        for store in (*arena.keys, *arena.values):
            store[:, :, hidden] = self.poison
        self._logits.fill_(self.poison)


@pytest.mark.parametrize(
    ("has_kernels", "exact", "poison"),
    [(True, False, float("nan")), (True, False, 1e9), (False, False, 1e9), (False, True, -1e9)],
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_poisoned_rows_change_nothing(family, has_kernels, exact, poison):
    """Torch's masked attention multiplies hidden values by zero, so only finite poison can be told from a leak
    there."""
    target = tiny_target(family, has_kernels=has_kernels, exact=exact, end_ids=())
    poisoned = tiny_target(family, has_kernels=has_kernels, exact=exact, end_ids=(), kind=PoisonedTarget)
    poisoned.poison = poison
    plain = Run(target, NoDraft())
    assert Run(poisoned, NoDraft()).ids == plain.ids
    for shape in ("mixed", "wide"):
        clean = HostileDrafter(plain.ids, VOCAB_SIZE, shape=shape)
        dirty = HostileDrafter(plain.ids, VOCAB_SIZE, shape=shape)
        assert Run(target, clean).ids == Run(poisoned, dirty).ids == plain.ids
        assert dirty.verdicts == clean.verdicts
        assert [list(seen.choices) for seen in dirty.observations] == [
            list(seen.choices) for seen in clean.observations
        ]


@BACKENDS
def test_a_request_on_an_arena_left_at_any_round_is_not_disturbed(has_kernels):
    target, expected = scripted(LONG, has_kernels=has_kernels)
    for rounds in range(1, 6):
        first = Run(target, HostileDrafter(expected, VOCAB_SIZE, shape="wide", seed=rounds), limit=200, rounds=rounds)
        assert len(first.pieces) == rounds
        arena = first.arena
        arena.reset()
        state = Run(target, NoDraft(), limit=1).state
        state.output_ids.clear()
        stop = StopRule(DIALECT, VOCABULARY, target.end_ids, (), 200)
        drafter = HostileDrafter(expected, VOCAB_SIZE, shape="mixed")
        choose = make_choice(SamplingParams(), target.kernels)
        for _ in decode(target, arena, drafter, choose, state, stop, DecodeStats()):
            pass
        assert state.output_ids == expected


# ------------------------------------------------------------------------------------------------------------- sampling


@BACKENDS
@pytest.mark.parametrize("settings", [{}, {"top_k": 5}, {"top_p": 0.6}, {"top_k": 30, "top_p": 0.8}])
def test_the_same_seed_gives_the_same_text_whatever_is_proposed(has_kernels, settings):
    target = tiny_target("mistral", has_kernels=has_kernels, end_ids=())
    outputs = set()
    for seed in (3, 4):
        sampling = SamplingParams(temperature=0.9, seed=seed, **settings)
        plain = Run(target, NoDraft(), sampling=sampling, limit=16)
        outputs.add(tuple(plain.ids))
        for drafter in (METHODS["pld"].make, METHODS["schemafill"].make):
            assert Run(target, drafter, sampling=sampling, limit=16).ids == plain.ids
        for shape in ("deep", "mixed"):
            drafter = HostileDrafter(plain.ids, VOCAB_SIZE, shape=shape)
            run = Run(target, drafter, sampling=sampling, threshold=1e-3, limit=16)
            assert run.ids == plain.ids
            if shape == "deep":
                assert run.stats.verify_calls < 12
    assert len(outputs) == 2


def test_sampling_keeps_to_the_likeliest_tokens():
    target = tiny_target("qwen3", has_kernels=False, end_ids=())
    greedy = Run(target, NoDraft(), limit=12).ids
    only_one = SamplingParams(temperature=1.5, top_k=1, seed=9)
    assert Run(target, NoDraft(), sampling=only_one, limit=12).ids == greedy
    run = Run(target, NoDraft(), sampling=SamplingParams(temperature=1.5, top_k=3, seed=9), limit=12)
    assert run.ids != greedy
    ids = list(PROMPT)
    for token in run.ids:
        logits = target.forward_prompt(target.new_arena(len(ids)), ids).logits[0]
        assert token in logits.topk(3).indices
        ids.append(token)


def test_every_pass_is_free_of_gradients():
    target = tiny_target("qwen2", has_kernels=False, end_ids=())
    with torch.enable_grad():
        assert not target.forward_prompt(target.new_arena(4), [1, 2]).logits.requires_grad
