"""Small runs: a tiny head, made-up states in place of a target's, rollouts whose next token can be learned."""

from pathlib import Path

import torch
from accelerate import Accelerator
from test_eagle3_head import VOCAB, tiny_head

from schemafill.data_prep.feature_store import TargetStates
from schemafill.training.examples import Rollout
from schemafill.training.train_config import TrainConfig
from schemafill.training.trainer import Data, Trainer
from schemafill.training.ttt_loss import Teacher


class MadeUpStates:
    """States that tell which token comes: the target's final state points to it."""

    def __init__(self, size: int, output: torch.Tensor) -> None:
        self._size = size
        self._output = output
        self._codes = torch.randn(VOCAB, 3 * size, generator=torch.Generator().manual_seed(5))
        self.num_asked = 0

    def states(self, rollout: Rollout) -> TargetStates:
        self.num_asked += 1
        ids, num_prompt = rollout.token_ids, len(rollout.prompt_ids)
        captured = self._codes[torch.tensor(ids[:-1])]
        return TargetStates(ids, num_prompt, captured, 6 * self._output[torch.tensor(ids[num_prompt:])])


def some_rollouts(count: int, seed: int = 0) -> list[Rollout]:
    """Every token follows from the one before it."""
    draw = torch.Generator().manual_seed(seed)
    rollouts = []
    for number in range(count):
        length = int(torch.randint(6, 20, (1,), generator=draw))
        first = 2 * int(torch.randint(VOCAB // 2, (1,), generator=draw))  # most can be drafted
        ids = [(first + 4 * at) % VOCAB for at in range(length)]
        num_prompt = int(torch.randint(2, length - 2, (1,), generator=draw))
        regions = torch.arange(length - num_prompt, dtype=torch.uint8) % 4
        rollouts.append(
            Rollout(
                record_id=str(number), prompt_ids=ids[:num_prompt], completion_ids=ids[num_prompt:], regions=regions
            )
        )
    return rollouts


def run_config(out: Path, **changes: object) -> TrainConfig:
    out.mkdir(parents=True, exist_ok=True)
    fields = {
        "target": "tiny", "rollouts": ["r.jsonl"], "dev_rollouts": ["d.jsonl"], "vocabulary": "v", "out": out,
        "learning_rate": 3e-3, "epochs": 2, "batch_size": 2, "accumulation": 2, "precision": "fp32",
    }  # fmt: skip
    return TrainConfig.model_validate(fields | changes)


def trainer_of(config: TrainConfig, num_rollouts: int = 22, accelerator: Accelerator | None = None) -> Trainer:
    accelerator = accelerator or Accelerator(cpu=True, gradient_accumulation_steps=config.accumulation)
    head = tiny_head(dtype=torch.float32)
    torch.manual_seed(3)
    size = head.config.hidden_size
    output = torch.nn.functional.normalize(torch.randn(VOCAB, size), dim=-1)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.05) if parameter.dim() > 1 else torch.nn.init.ones_(parameter)
    teacher = Teacher(output[head.target_ids], torch.randn(VOCAB, size))
    data = Data(some_rollouts(num_rollouts), some_rollouts(6, seed=9), MadeUpStates(size, output))
    saved = []
    trainer = Trainer(config, accelerator, head, teacher, data, lambda *args: saved.append(args))
    trainer.saved = saved
    return trainer
