"""What a training run is asked for: a YAML file, and `name=value` words that change it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemafill.data_prep.token_regions import REGIONS
from schemafill.inference.request import UserError

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]


class TrainConfig(BaseModel):
    """One run. Every field may stand in the YAML file and on the command line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str
    """Hub id, local folder, or `embedded`."""
    rollouts: list[Path] = Field(min_length=1)
    """What is trained on."""
    dev_rollouts: list[Path] = Field(min_length=1)
    """What is held out; the best head is the one with the longest simulated accepted length there."""
    vocabulary: Path
    """The draft vocabulary, of `data_prep.draft_vocab`."""
    out: Path
    """The run's folder."""
    features: Path | None = None
    """Folder of states that were kept with the rollouts. What is not there is computed, and kept if `keep_features`."""
    keep_features: bool = False
    limit: Positive | None = None
    """Only so many usable rollouts, chosen by content."""
    max_tokens: Positive | None = None
    """Longer sequences are left out and counted; nothing is ever cut."""

    intermediate_size: Positive | None = None
    """Width of the head's MLP; none: the target's."""
    lm_head: Literal["trained", "frozen"] = "trained"
    """frozen: the target's own rows, and the target's final norm to begin with."""
    state_weight: NotNegative = 0.0
    """How much the distance to the target's final state adds to the loss."""
    init_from: Path | None = None
    """A head folder to go on from, with a new optimizer."""

    horizons: Positive = 2
    decay: Share = 0.8
    region_weights: dict[str, NotNegative] = Field(default_factory=dict)
    """What a token counts by what it is part of (structure, name, key, value, other); 1 where nothing is said."""

    learning_rate: Annotated[float, Field(gt=0)] = 8e-5
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_share: Share = 0.03
    weight_decay: NotNegative = 0.0
    betas: tuple[Share, Share] = (0.9, 0.95)
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    epochs: Positive = 6
    batch_size: Positive = 4
    """Sequences of one pass of one process."""
    accumulation: Positive = 2
    """Passes before the optimizer's step."""
    seed: int = 0
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """What the head computes in; its weights are float32. auto: bf16 where the device computes in it."""

    eval_per_epoch: Positive = 1
    eval_depths: Positive = 5
    patience: Positive | None = None
    """Stop after so many evaluations without a better head."""
    save_minutes: Annotated[float, Field(gt=0)] = 10.0
    device: str = "auto"
    dtype: str = "auto"
    """What the target computes in."""
    threads: Positive | None = None
    trust_remote_code: bool = False
    wandb: Literal["off", "offline", "online"] = "off"
    wandb_project: str = "schemafill"

    def model_post_init(self, _: Any) -> None:
        unknown = set(self.region_weights) - set(REGIONS)
        if unknown:
            shown = ", ".join(sorted(unknown))
            raise ValueError(f"region_weights: unknown region {shown}; known: {', '.join(REGIONS)}")


def load_config(path: Path, changes: Sequence[str] = ()) -> TrainConfig:
    """The configuration of a file with `name=value` changes, values read as YAML. UserError names the field."""
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {path}: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path}: must be a mapping of fields to values")
    for change in changes:
        name, sign, value = change.partition("=")
        if not sign:
            raise UserError(f"{change!r} is no change of the form name=value")
        _set(fields, name.split("."), _value(change, value))
    try:
        return TrainConfig.model_validate(fields)
    except ValidationError as error:
        raise UserError(f"{path}: " + "; ".join(_told(one) for one in error.errors()[:3])) from None


def _set(fields: dict[str, Any], names: list[str], value: Any) -> None:
    for name in names[:-1]:
        inner = fields.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UserError(f"{'.'.join(names)}: {name} holds no fields")
        fields = inner
    fields[names[-1]] = value


def _value(change: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"{change!r}: the value is not YAML") from None
    # YAML 1.1 takes 8e-5 for a text: it wants a point and a sign.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _told(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    return f"{where}: {error['msg']}" if where else str(error["msg"])
