"""Checkpoints of a run: everything that decides how it goes on, in safetensors and JSON.

    checkpoints/step-N/head.safetensors     weights, float32
                       moments.safetensors  the optimizer's two moments of each weight
                       progress.json        epoch, window, evaluations so far, the configuration
    best/                                   the best head so far, a head folder

A checkpoint is written beside its place and renamed, so one that is there is whole. The order of the data is a function
of seed and epoch, and nothing is drawn while training, so no random state is kept.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from schemafill.inference.request import UserError
from schemafill.inference.results import make_folder

KEPT = 2
"""Checkpoints that stay; older ones go."""


@dataclass
class Progress:
    """Where a run is."""

    config: dict[str, Any]
    num_processes: int
    epoch: int = 0
    window: int = 0
    """The next window of the epoch."""
    step: int = 0
    """Steps of the optimizer so far."""
    best_length: float = 0.0
    best_step: int = 0
    without_gain: int = 0
    """Evaluations since the best one."""
    seconds: float = 0.0
    """Time spent so far, over all processes that went on with it."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)


def latest_checkpoint(run: Path) -> Path | None:
    """The checkpoint with the most steps; None where there is none."""
    found = [path for path in (run / "checkpoints").glob("step-*") if path.name[5:].isdecimal()]
    return max(found, key=lambda path: int(path.name[5:]), default=None)


def save_checkpoint(
    run: Path, progress: Progress, weights: dict[str, torch.Tensor], moments: dict[str, torch.Tensor]
) -> None:
    """Write a checkpoint, whole or not at all, and remove all but the latest ones."""
    place = run / "checkpoints" / f"step-{progress.step}"
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    make_folder(temporary)
    try:
        save_file(_plain(weights), temporary / "head.safetensors")
        save_file(_plain(moments), temporary / "moments.safetensors")
        (temporary / "progress.json").write_text(json.dumps(asdict(progress), indent=1), encoding="utf-8")
        if place.exists():
            shutil.rmtree(place)
        temporary.replace(place)
    except OSError as error:
        raise UserError(f"cannot write {place}: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    older = sorted(place.parent.glob("step-*"), key=lambda path: int(path.name[5:]))[:-KEPT]
    for path in older:
        shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(place: Path) -> tuple[Progress, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Progress, weights and moments of a checkpoint. UserError names what cannot be read."""
    try:
        progress = Progress(**json.loads((place / "progress.json").read_bytes()))
        return progress, load_file(place / "head.safetensors"), load_file(place / "moments.safetensors")
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise UserError(f"checkpoint {place} cannot be read: {' '.join(str(error).split())[:200]}; remove it") from None


def moments_of(optimizer: torch.optim.Optimizer, names: dict[torch.nn.Parameter, str]) -> dict[str, torch.Tensor]:
    """The state of an AdamW optimizer by the parameters' names."""
    return {
        f"{names[parameter]}.{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }  # fmt: skip


def set_moments(
    optimizer: torch.optim.Optimizer, names: dict[torch.nn.Parameter, str], moments: dict[str, torch.Tensor]
) -> None:
    """Put a state back that `moments_of` gave."""
    for parameter, name in names.items():
        keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}.{key}" in moments]
        if keys:
            optimizer.state[parameter] = {
                key: moments[f"{name}.{key}"].to("cpu" if key == "step" else parameter.device) for key in keys
            }  # fmt: skip


def _plain(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
