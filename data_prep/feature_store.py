"""What a target computed behind the tokens of rollouts, on disk, so that training need not run the target again.

A folder holds one safetensors file per rollout, named by its token ids, and `store.json`, which says what all of them
were computed with. Files are written whole; one that is not there is computed when it is needed.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from schemafill.inference.request import UserError
from schemafill.inference.results import make_folder, write_atomically, write_json

FORMAT = "schemafill-features/1"
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class TargetStates:
    """States of one sequence. token_ids: prompt and completion, T tokens of which the last has no row.

    captured: [T - 1, 3H] bfloat16, the captured layers side by side. final: [completion, H] bfloat16, the states behind
    the final norm that the completion's tokens were chosen from: rows num_prompt - 1 to T - 2.
    """

    token_ids: list[int]
    num_prompt: int
    captured: torch.Tensor
    final: torch.Tensor

    def __post_init__(self) -> None:
        rows = len(self.token_ids) - 1
        assert 0 < self.num_prompt <= rows, (self.num_prompt, rows)
        assert self.captured.shape[0] == rows and self.final.shape[0] == rows + 1 - self.num_prompt

    @classmethod
    def of_rollout(cls, row: dict[str, Any], captured: torch.Tensor, final: torch.Tensor) -> TargetStates:
        """Of a row of a rollouts file and the states of its tokens, [rows, 3H] and [rows, H] or more rows."""
        token_ids, num_prompt = [*row["prompt_ids"], *row["completion_ids"]], len(row["prompt_ids"])
        num_rows = len(token_ids) - 1
        return cls(token_ids, num_prompt, captured[:num_rows], final[num_prompt - 1 : num_rows])


class FeatureStore:
    """A folder of states of one target."""

    def __init__(self, folder: Path, target: dict[str, Any], layers: tuple[int, ...]) -> None:
        """target: what the states depend on (`files_sha256`, `dtype`, ...). layers: indices into transformers'
        `hidden_states`. UserError where the folder holds the states of something else."""
        self.folder = folder
        settings = {"format": FORMAT, "target": target, "layers": list(layers), "convention": "hidden_states"}
        make_folder(folder)
        path = folder / "store.json"
        if path.is_file():
            self._refuse_difference(path, settings)
        else:
            write_json(path, settings)

    def _refuse_difference(self, path: Path, settings: dict[str, Any]) -> None:
        try:
            found = json.loads(path.read_bytes())
        except ValueError as error:
            raise UserError(f"{path}: not JSON: {error}") from None
        differing = [name for name in settings if not isinstance(found, dict) or found.get(name) != settings[name]]
        if differing:
            raise UserError(f"{self.folder} holds features of another {', '.join(differing)}: choose another folder")

    def path_of(self, token_ids: list[int]) -> Path:
        digest = hashlib.sha256(np.asarray(token_ids, dtype="<i8").tobytes()).hexdigest()[:32]
        return self.folder / digest[:2] / f"{digest}.safetensors"

    def save(self, states: TargetStates) -> None:
        path = self.path_of(states.token_ids)
        make_folder(path.parent)
        tensors = {"captured": states.captured.contiguous(), "final": states.final.contiguous()}
        write_atomically(path, save(tensors | {"token_ids": torch.tensor(states.token_ids)}))

    def load(self, token_ids: list[int]) -> TargetStates | None:
        """The states of a sequence; None where they are not there. A file that cannot be read is removed."""
        path = self.path_of(token_ids)
        if not path.is_file():
            return None
        try:
            tensors = load_file(path)
            captured, final = tensors["captured"], tensors["final"]
            is_whole = tensors["token_ids"].tolist() == token_ids and len(captured) == len(token_ids) - 1
        except (SafetensorError, KeyError):
            is_whole = False
        if not is_whole:
            os.unlink(path)
            return None
        return TargetStates(token_ids, len(token_ids) - len(final), captured, final)
