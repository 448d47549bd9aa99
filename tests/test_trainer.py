"""The loop: it learns, its steps do not depend on how they are divided, and a stopped run ends as one never stopped."""

import json
import os
import signal

import pytest
import torch
from training_setup import run_config, trainer_of

from schemafill.training.batches import own_batches, windows
from schemafill.training.run_state import latest_checkpoint


def metrics_of(config, kind: str) -> list[dict]:
    lines = (config.out / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def weights_of(trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.head.state_dict().items()}


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def test_it_learns(tmp_path):
    config = run_config(tmp_path / "run", epochs=12, learning_rate=1e-2)
    trainer = trainer_of(config, num_rollouts=60)
    progress = trainer.run()
    steps = metrics_of(config, "step")
    assert len(steps) == progress.step == trainer.num_steps
    assert steps[-1]["loss"] < 0.5 * steps[0]["loss"]
    evaluations = metrics_of(config, "evaluation")
    assert len(evaluations) == 12
    assert evaluations[-1]["acceptance"][0] > 0.85
    assert progress.best_length == max(one["accepted_length"] for one in evaluations)
    assert len(trainer.saved) == sum(one["is_best"] for one in evaluations) >= 1


def test_a_stopped_run_goes_on_to_the_weights_of_one_that_never_was(tmp_path):
    whole = trainer_of(run_config(tmp_path / "whole", epochs=3))
    whole.run()
    config = run_config(tmp_path / "stopped", epochs=3)
    for stop_at in (2, 7):
        trainer = trainer_of(config)
        step = trainer._step

        def stopping(window, trainer=trainer, step=step, stop_at=stop_at):
            figures = step(window)
            if trainer.progress.step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return figures

        trainer._step = stopping
        assert trainer.run().step == stop_at
        assert latest_checkpoint(config.out).name == f"step-{stop_at}"
    last = trainer_of(config)
    assert last.run().step == whole.progress.step
    assert_equal(weights_of(last), weights_of(whole))
    found, wanted = last.progress, whole.progress
    assert found.best_length == wanted.best_length and found.evaluations == wanted.evaluations


@pytest.mark.parametrize("divided", [{"batch_size": 4, "accumulation": 1}, {"batch_size": 1, "accumulation": 4}])
def test_a_step_does_not_depend_on_how_its_window_is_divided(tmp_path, divided):
    """The order of batches differs, so one window that holds everything is compared."""
    wanted = trainer_of(run_config(tmp_path / "a", epochs=1, batch_size=2, accumulation=2), num_rollouts=4)
    wanted.run()
    found = trainer_of(run_config(tmp_path / "b", epochs=1, **divided), num_rollouts=4)
    found.run()
    for name, tensor in weights_of(wanted).items():
        assert torch.allclose(weights_of(found)[name].double(), tensor.double(), atol=2e-5), name


def test_every_sequence_is_trained_once_in_an_epoch_and_in_another_order_in_the_next():
    lengths = [3 + index % 17 for index in range(101)]
    epochs = [windows(lengths, batch_size=4, per_window=3, seed=1, epoch=epoch) for epoch in range(2)]
    flat = [[index for window in epoch for batch in window for index in batch] for epoch in epochs]
    assert sorted(flat[0]) == sorted(flat[1]) == list(range(101)) and flat[0] != flat[1]
    assert epochs[0] == windows(lengths, batch_size=4, per_window=3, seed=1, epoch=0)
    assert all(len(window) == 3 for window in epochs[0][:-1])
    batches = [[lengths[index] for index in batch] for batch in sum(epochs[0], [])]
    spread = [max(batch) - min(batch) for batch in batches]
    assert sum(spread) / len(spread) < 2


def test_processes_share_a_window():
    window = [[1], [2], [3], [4], [5]]
    assert [own_batches(window, process, 2, 3) for process in range(2)] == [[[1], [3], [5]], [[2], [4], []]]


def test_rates_rise_and_fall(tmp_path):
    trainer = trainer_of(run_config(tmp_path, epochs=10, warmup_share=0.1, learning_rate=1.0))
    rates = [trainer._learning_rate(step) for step in range(trainer.num_steps)]
    top = round(0.1 * trainer.num_steps)
    assert rates[: top] == sorted(rates[:top]) and rates[top - 1] == 1.0
    assert rates[top:] == sorted(rates[top:], reverse=True) and rates[-1] < 0.01
    constant = trainer_of(run_config(tmp_path, epochs=10, schedule="constant", learning_rate=1.0))
    assert constant._learning_rate(60) == constant._learning_rate(59) == 1.0


def test_patience_ends_a_run(tmp_path):
    config = run_config(tmp_path, epochs=50, patience=2, learning_rate=1e-9)
    trainer = trainer_of(config)
    progress = trainer.run()
    assert progress.step < trainer.num_steps and progress.without_gain == 2


def test_old_checkpoints_go(tmp_path):
    trainer = trainer_of(run_config(tmp_path, epochs=3))
    for step in (1, 2, 3):
        trainer.progress.step = step
        trainer._save(0.0)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-2", "step-3"]
