"""States kept with rollouts: those that one plain pass over the same tokens computes, under the tokens' own name."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from models import tiny_target
from rollout_setup import StubBackend, read_rows, record_row, roll_out, tiny_facts, write_rows
from test_batched_backend import engine_of, some_prompts

from schemafill.data_prep.batched_backend import BatchedBackend
from schemafill.data_prep.feature_store import FeatureStore, TargetStates
from schemafill.data_prep.rollout_config import RolloutConfig
from schemafill.inference.model.architectures import eagle3_layers
from schemafill.inference.request import SamplingParams, UserError

LAYERS = (2, 3, 4)
TARGET = {"target": "tiny", "dtype": "float32"}


def states_of(token_ids: list[int], num_prompt: int) -> TargetStates:
    rows = len(token_ids) - 1
    captured = torch.arange(rows * 6, dtype=torch.bfloat16).view(rows, 6)
    return TargetStates(token_ids, num_prompt, captured, -captured[num_prompt - 1 :, :2])


def one_pass(target, token_ids: list[int], num_prompt: int) -> TargetStates:
    """The same from a pass over everything at once."""
    arena = target.new_arena(len(token_ids))
    target.forward_prompt(arena, token_ids[:-1])
    captured, final = target.captured_states(), target.final_states()
    return TargetStates(
        token_ids, num_prompt, captured.to(torch.bfloat16), final[num_prompt - 1 :].to(torch.bfloat16)
    )  # fmt: skip


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])
def test_kept_states_are_those_of_one_pass(has_kernels, batch_size):
    target = tiny_target("qwen3", has_kernels=has_kernels)
    prompts = some_prompts()
    common = prompts[1].ids
    prompts[4].ids[:30] = common[:30]  # what is lent by another slot comes with its states
    backend = BatchedBackend(engine_of(target), SamplingParams(), batch_size, keeps_states=True)
    answers = list(backend.answer(prompts))
    assert len(answers) == len(prompts) and target.capture_layers == LAYERS
    target = tiny_target("qwen3", has_kernels=has_kernels, capture_layers=LAYERS)
    for answer in answers:
        row = {"prompt_ids": answer.prompt.ids, "completion_ids": answer.token_ids}
        kept = TargetStates.of_rollout(row, *answer.states)
        expected = one_pass(target, kept.token_ids, kept.num_prompt)
        for found, wanted in ((kept.captured, expected.captured), (kept.final, expected.final)):
            assert found.dtype == torch.bfloat16 and found.shape == wanted.shape
            assert torch.equal(found, wanted) if has_kernels else torch.allclose(found, wanted, atol=0.02, rtol=0.02)


def test_the_final_states_are_what_the_completion_was_chosen_from():
    target = tiny_target("llama", has_kernels=True)
    backend = BatchedBackend(engine_of(target), SamplingParams(), 2, keeps_states=True)
    for answer in backend.answer(some_prompts()):
        row = {"prompt_ids": answer.prompt.ids, "completion_ids": answer.token_ids}
        final = TargetStates.of_rollout(row, *answer.states).final.float()
        weight = tiny_target("llama", has_kernels=False).head.weight
        chosen = (final @ weight.T).argmax(dim=-1).tolist()
        agreed = sum(a == b for a, b in zip(chosen, answer.token_ids, strict=True))
        assert agreed >= len(chosen) - 1, "bfloat16 may turn a near tie over"


def test_an_output_that_is_cut_keeps_the_rows_of_what_is_left():
    row = {"prompt_ids": [1, 2, 3], "completion_ids": [4, 5]}
    captured = torch.arange(12, dtype=torch.bfloat16).view(6, 2)
    states = TargetStates.of_rollout(row, captured, captured)
    assert states.token_ids == [1, 2, 3, 4, 5] and states.num_prompt == 3
    assert torch.equal(states.captured, captured[:4]) and torch.equal(states.final, captured[2:4])


def test_states_are_found_again_by_their_tokens(tmp_path: Path):
    store, states = FeatureStore(tmp_path, TARGET, LAYERS), states_of([5, 6, 7, 8], 2)
    store.save(states)
    found = FeatureStore(tmp_path, TARGET, LAYERS).load([5, 6, 7, 8])
    assert found.num_prompt == 2
    assert torch.equal(found.captured, states.captured) and torch.equal(found.final, states.final)
    assert store.load([5, 6, 7]) is None and store.load([5, 6, 8, 7]) is None


@pytest.mark.parametrize("fault", ["cut", "other tokens", "other rows", "lacks"])
def test_a_file_that_is_not_whole_counts_as_none(tmp_path: Path, fault):
    from safetensors.torch import save_file

    store, ids = FeatureStore(tmp_path, TARGET, LAYERS), [5, 6, 7, 8]
    store.save(states_of(ids, 2))
    path = store.path_of(ids)
    good = {"captured": torch.zeros(3, 6), "final": torch.zeros(2, 2), "token_ids": torch.tensor(ids)}
    if fault == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif fault == "other tokens":
        save_file(good | {"token_ids": torch.tensor([5, 6, 7, 9])}, path)
    elif fault == "other rows":
        save_file(good | {"captured": torch.zeros(4, 6)}, path)
    else:
        save_file({"captured": torch.zeros(3, 6)}, path)
    assert store.load(ids) is None and not path.exists()
    store.save(states_of(ids, 2))
    assert store.load(ids) is not None


@pytest.mark.parametrize(
    ("target", "layers", "named"),
    [(TARGET | {"dtype": "bfloat16"}, LAYERS, "target"), (TARGET, (2, 3, 5), "layers")],
)
def test_a_folder_of_another_target_is_refused(tmp_path: Path, target, layers, named):
    FeatureStore(tmp_path, TARGET, LAYERS)
    with pytest.raises(UserError, match=f"features of another {named}: choose another folder"):
        FeatureStore(tmp_path, target, layers)
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(UserError, match="store.json: not JSON"):
        FeatureStore(tmp_path, TARGET, LAYERS)


def test_layers_of_published_heads():
    assert [eagle3_layers(n) for n in (24, 28, 32, 36)] == [(2, 12, 21), (2, 14, 25), (2, 16, 29), (2, 18, 33)]
    with pytest.raises(UserError, match="6 layers has too few"):
        eagle3_layers(6)


class WithStates(StubBackend):
    """Answers come with states of as many rows as the target runs."""

    def answer(self, prompts):
        for answer in super().answer(prompts):
            rows = len(answer.prompt.ids) + len(answer.token_ids) - 1
            states = torch.ones(rows, 6, dtype=torch.bfloat16), torch.ones(rows, 2, dtype=torch.bfloat16)
            yield replace(answer, states=None if answer.failure else states)


def test_a_job_keeps_the_states_of_its_usable_rows(tmp_path: Path):
    facts, out = tiny_facts("hermes"), tmp_path / "out.jsonl"
    records = write_rows(tmp_path / "r.jsonl", [record_row(text, text) for text in "abcd"])
    roll_out(records, out, facts, WithStates(facts, fails=["c"]), features=tmp_path / "features")
    identity = {name: facts.identity[name] for name in ("target", "revision", "files_sha256")}
    store = FeatureStore(tmp_path / "features", identity | {"dtype": "float32"}, LAYERS)
    rows = read_rows(out)
    assert [row["usable"] for row in rows] == [True, True, False, True]
    for row in rows:
        states = store.load([*row["prompt_ids"], *row["completion_ids"]])
        assert (states is not None) == row["usable"]
        assert states is None or len(states.final) == len(row["completion_ids"])


def test_only_the_batched_backend_keeps_states(tmp_path: Path):
    with pytest.raises(UserError, match="--features belongs to the batched backend, not to engine"):
        RolloutConfig(target="x", records=[], out=tmp_path / "o", backend="engine", features=tmp_path)
