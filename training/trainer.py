"""The training loop: windows of batches, one step of the optimizer each, evaluations and checkpoints between them.

Only the head, inside its loss, is prepared by accelerate; the target stays outside. A step's loss is the sum over its
window divided by the number of trained tokens of the whole window, over all processes, so that neither padding nor the
way a window is divided changes it.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from tqdm import tqdm

from schemafill.inference.model.eagle3_head import Eagle3Head
from schemafill.training.batches import own_batches, windows
from schemafill.training.evaluate import Acceptance, measure
from schemafill.training.examples import Rollout, token_weights
from schemafill.training.run_state import (
    Progress,
    latest_checkpoint,
    load_checkpoint,
    moments_of,
    save_checkpoint,
    set_moments,
)
from schemafill.training.state_source import StateSource
from schemafill.training.train_config import TrainConfig
from schemafill.training.trained_rows import Example, collate
from schemafill.training.ttt_loss import LossSums, Teacher, TrainedRows, ttt_loss


class LossModule(nn.Module):
    """The head together with its loss: one forward, as wrappers for several processes want it."""

    def __init__(self, head: Eagle3Head, teacher: Teacher, config: TrainConfig) -> None:
        super().__init__()
        self.head = head
        self._teacher = [teacher]  # in a list: what is no parameter of the head must not look like one
        self._config = config

    def forward(self, batch: TrainedRows) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss sum, and [4, horizons] rows, known, right and cross-entropy."""
        config = self._config
        sums: LossSums = ttt_loss(
            self.head, self._teacher[0], batch, horizons=config.horizons, decay=config.decay,
            state_weight=config.state_weight,
        )  # fmt: skip
        return sums.loss, torch.stack([sums.rows, sums.known, sums.right, sums.cross_entropy]).to(sums.loss.device)


@dataclass(frozen=True)
class Data:
    """What a run trains on and is measured on."""

    train: Sequence[Rollout]
    dev: Sequence[Rollout]
    source: StateSource


class Trainer:
    """One run in one folder."""

    def __init__(
        self, config: TrainConfig, accelerator: Accelerator, head: Eagle3Head, teacher: Teacher, data: Data,
        save_best: Callable[[Eagle3Head, dict[str, Any], Progress], None],
    ) -> None:
        """save_best: writes a head that is better than those before it, with its evaluation's figures."""
        self.config, self.accelerator, self.data = config, accelerator, data
        self._teacher, self._save_best = teacher, save_best
        parameters = [one for one in head.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(
            parameters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
        )
        self.model, self.optimizer = accelerator.prepare(LossModule(head, teacher, config), optimizer)
        self.head: Eagle3Head = accelerator.unwrap_model(self.model).head
        self.progress = Progress(config.model_dump(mode="json"), accelerator.num_processes)
        self._lengths = [len(one) for one in data.train]
        self._is_stopped = False
        self._metrics = config.out / "metrics.jsonl"

    @property
    def windows_per_epoch(self) -> int:
        batches = math.ceil(len(self._lengths) / self.config.batch_size)
        return math.ceil(batches / (self.config.accumulation * self.accelerator.num_processes))

    @property
    def num_steps(self) -> int:
        return self.windows_per_epoch * self.config.epochs

    def run(self) -> Progress:
        """Train from where the folder's latest checkpoint is to the end, to the patience's, or to a SIGTERM."""
        self._resume()
        previous = signal.signal(signal.SIGTERM, self._stop)
        saved = started = time.monotonic()
        bar = tqdm(
            total=self.num_steps, initial=self.progress.step, desc="train", unit="step", disable=None, file=sys.stderr
        )
        try:
            while self.progress.epoch < self.config.epochs and not self._is_over():
                for window in self._rest_of_epoch():
                    figures = self._step(window)
                    bar.update()
                    bar.set_postfix(loss=f"{figures['loss']:.3f}", right=f"{figures['right'][0]:.3f}", refresh=False)
                    self._log({"kind": "step"} | figures)
                    if self.progress.window % self._eval_every() == 0 or self.progress.window == self.windows_per_epoch:
                        self.evaluate()
                    if self._is_over():
                        break
                    if time.monotonic() - saved > 60 * self.config.save_minutes:
                        self._save(time.monotonic() - started)
                        saved = started = time.monotonic()
                if self.progress.window >= self.windows_per_epoch:
                    self.progress.epoch, self.progress.window = self.progress.epoch + 1, 0
        finally:
            bar.close()
            signal.signal(signal.SIGTERM, previous)
        self._save(time.monotonic() - started)
        return self.progress

    def evaluate(self) -> Acceptance:
        """Measure the head on the held-out rollouts, and keep it where it is the best so far."""
        self.model.eval()
        counts = measure(self.head, self._teacher.embedding, self._dev_batches(), self.config.eval_depths)
        self.model.train()
        for part in (counts.tried, counts.right, counts.known, counts.bins):
            part.copy_(self._summed(part))
        progress, figures = self.progress, counts.figures()
        is_better = figures["accepted_length"] > progress.best_length
        progress.evaluations.append({"step": progress.step, "epoch": progress.epoch + 1} | figures)
        if is_better:
            progress.best_length, progress.best_step = figures["accepted_length"], progress.step
            progress.without_gain = 0
        else:
            progress.without_gain += 1
        self._log({"kind": "evaluation", "step": progress.step, "is_best": is_better} | figures)
        if is_better and self.accelerator.is_main_process:
            self._save_best(self.head, figures, progress)
        return counts

    def _step(self, window: list[list[int]]) -> dict[str, Any]:
        """One step of the optimizer over a window."""
        config, accelerator = self.config, self.accelerator
        own = own_batches(window, accelerator.process_index, accelerator.num_processes, config.accumulation)
        batches = [self._batch(indices or window[0], is_counted=bool(indices)) for indices in own]
        num_trained = float(self._summed(torch.tensor([sum(self._num_known(batch) for batch in batches)]))[0])
        rate = self._learning_rate(self.progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total, norm = torch.zeros(5, config.horizons, dtype=torch.float64), 0.0
        for batch in batches:
            with accelerator.accumulate(self.model):
                loss, counts = self.model(batch)
                # Accelerate divides by the passes of a window, several processes take the mean of their gradients.
                scale = config.accumulation * accelerator.num_processes / max(num_trained, 1.0)
                accelerator.backward(loss * scale)
                if accelerator.sync_gradients:
                    norm = float(accelerator.clip_grad_norm_(self.model.parameters(), config.clip_norm) or 0.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            total[:4] += counts.detach().double().cpu()
            total[4, 0] += float(loss.detach())
        total = self._summed(total)
        self.progress.step += 1
        self.progress.window += 1
        if not math.isfinite(float(total[4, 0])):
            raise FloatingPointError(f"the loss is not a number any more at step {self.progress.step}")
        rows, known, right, entropy = (part.tolist() for part in total[:4])
        return {
            "step": self.progress.step, "epoch": self.progress.epoch + 1, "learning_rate": rate, "gradient_norm": norm,
            "loss": float(total[4, 0]) / max(num_trained, 1.0), "trained": rows,
            "right": [b / a if a else 0.0 for a, b in zip(rows, right, strict=True)],
            "out_of_vocabulary": [1 - b / a if a else 0.0 for a, b in zip(rows, known, strict=True)],
            "cross_entropy": [b / a if a else 0.0 for a, b in zip(known, entropy, strict=True)],
        }  # fmt: skip

    def _batch(self, indices: list[int], *, is_counted: bool = True) -> TrainedRows:
        """A batch; one that only keeps the processes in step has no weight."""
        rollouts = [self.data.train[index] for index in indices]
        examples = [
            Example(self.data.source.states(one), token_weights(one, self.config.region_weights) * is_counted)
            for one in rollouts
        ]
        return collate(examples, self.config.horizons, self.accelerator.device)

    def _num_known(self, batch: TrainedRows) -> float:
        """Rows of a batch's first step whose right token is in the draft vocabulary, by weight zero or not."""
        is_trained = batch.num_steps > 0
        right_ids = batch.token_ids.gather(1, (batch.rows + 2).clamp(max=batch.token_ids.shape[1] - 1))
        return float((is_trained & self.head.t2d[right_ids]).sum())

    def _dev_batches(self):
        size, depths = 2 * self.config.batch_size, self.config.eval_depths
        order = sorted(range(len(self.data.dev)), key=lambda index: len(self.data.dev[index]))
        starts = range(0, len(order), size)
        for start in list(starts)[self.accelerator.process_index :: self.accelerator.num_processes]:
            rollouts = [self.data.dev[index] for index in order[start : start + size]]
            examples = [Example(self.data.source.states(one), torch.ones(len(one.completion_ids))) for one in rollouts]
            regions = nn.utils.rnn.pad_sequence([one.regions for one in rollouts], batch_first=True)
            yield collate(examples, depths, self.accelerator.device), regions.to(self.accelerator.device)

    def _rest_of_epoch(self) -> list[list[list[int]]]:
        config, processes = self.config, self.accelerator.num_processes
        every = windows(
            self._lengths, batch_size=config.batch_size, per_window=config.accumulation * processes,
            seed=config.seed, epoch=self.progress.epoch,
        )  # fmt: skip
        return every[self.progress.window :]

    def _learning_rate(self, step: int) -> float:
        """Of a step, counted from 0: a linear rise, then a constant or half a cosine down to 0."""
        config = self.config
        warmup = max(1, round(config.warmup_share * self.num_steps))
        if step < warmup:
            return config.learning_rate * (step + 1) / warmup
        if config.schedule == "constant":
            return config.learning_rate
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, self.num_steps - warmup)))

    def _eval_every(self) -> int:
        return max(1, math.ceil(self.windows_per_epoch / self.config.eval_per_epoch))

    def _is_over(self) -> bool:
        patience = self.config.patience
        return self._is_stopped or (patience is not None and self.progress.without_gain >= patience)

    def _stop(self, *_: Any) -> None:
        self._is_stopped = True  # after the step that is under way

    def _summed(self, values: torch.Tensor) -> torch.Tensor:
        return self.accelerator.reduce(values.to(self.accelerator.device, torch.float32), "sum").cpu().to(values.dtype)

    def _names(self) -> dict[nn.Parameter, str]:
        return {parameter: name for name, parameter in self.head.named_parameters() if parameter.requires_grad}

    def _save(self, seconds: float) -> None:
        self.progress.seconds += seconds
        if self.accelerator.is_main_process:
            moments = moments_of(self.optimizer.optimizer, self._names())
            save_checkpoint(self.config.out, self.progress, self.head.state_dict(), moments)
        self.accelerator.wait_for_everyone()

    def _resume(self) -> None:
        place = latest_checkpoint(self.config.out)
        if place is None:
            return
        progress, weights, moments = load_checkpoint(place)
        self.head.load_state_dict(weights)
        set_moments(self.optimizer.optimizer, self._names(), moments)
        self.progress = progress

    def _log(self, figures: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            with self._metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(figures) + "\n")
