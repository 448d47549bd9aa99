"""What a rollout job is asked for, which of it decides what a row holds, and the backend that it names."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from schemafill.inference.request import SamplingParams, UserError

if TYPE_CHECKING:
    from schemafill.data_prep.prompts import Answer, Prompt
    from schemafill.data_prep.target_facts import TargetFacts

BACKENDS = ("batched", "local", "engine", "openai")
OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "batched": {"batch_size": 16, "features": None, "device": "auto", "dtype": "auto", "threads": None},
    "engine": {"device": "auto", "dtype": "auto", "threads": None},
    "openai": {"base_url": None, "model": None, "concurrency": 16, "send": "ids"},
}
"""The options that only some backends have, with their defaults."""
RESOLVED = ("dtype", "device", "row_invariant")
"""Settings that only a loaded target knows."""


class Backend(Protocol):
    """Whoever lets a target answer prompts."""

    facts: dict[str, Any]
    """What it decides about the rows beyond what was asked for: RESOLVED."""

    def answer(self, prompts: Sequence[Prompt]) -> Iterator[Answer]:
        """One answer for each prompt, in the order in which they are ready. UserError where none can be had."""
        ...


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """One job. Options of other backends than its own are refused; those of its own that are None get their default."""

    target: str
    """Hub id, local folder, or `embedded`."""
    records: list[Path]
    out: Path
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_prompt_tokens: int | None = None
    """Longer prompts are not asked; None: the target's context is the only limit."""
    limit: int | None = None
    """Only the first so many records."""
    unsealed: bool = False
    """Records files without a manifest are taken."""
    backend: str = "batched"
    """One of BACKENDS; `local` becomes `batched`."""
    batch_size: int | None = None
    """Answers that the batched backend works on at a time."""
    features: Path | None = None
    """Folder for what the target computed behind the tokens of usable rows."""
    base_url: str | None = None
    model: str | None = None
    """The target's name at the server."""
    concurrency: int | None = None
    """Requests that are sent to the server at a time."""
    send: str | None = None
    """How the prompt is sent to it: as `ids` or as `text`."""
    dialect: str = "auto"
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise UserError(f"unknown backend {self.backend!r}; known: {', '.join(BACKENDS)}")
        if self.backend == "local":
            object.__setattr__(self, "backend", "batched")  # frozen from here on
        own = OWN_OPTIONS[self.backend]
        for name in {name: None for options in OWN_OPTIONS.values() for name in options}:
            if getattr(self, name) is None:
                object.__setattr__(self, name, own.get(name))
            elif name not in own:
                owners = [backend for backend, options in OWN_OPTIONS.items() if name in options]
                option, plural = f"--{name.replace('_', '-')}", "s" * (len(owners) > 1)
                raise UserError(
                    f"{option} belongs to the {' and '.join(owners)} backend{plural}, not to {self.backend}"
                )
        if self.backend == "openai" and not (self.base_url and self.model):
            raise UserError("the openai backend needs --base-url and --model")

    def asked_settings(self, facts: TargetFacts) -> dict[str, Any]:
        """What decides a row and is known before weights are loaded. Batch sizes, threads and addresses may change."""
        sampling = asdict(self.sampling)
        del sampling["stop"]
        made = facts.identity | sampling | {
            "max_prompt_tokens": self.max_prompt_tokens, "backend": self.backend, "model": self.model,
        }  # fmt: skip
        if self.backend == "openai":
            return made | {"send": self.send}
        return made | {"dtype_asked": self.dtype, "device_asked": self.device}

    def refuse_difference(self, begun: dict[str, Any] | None, now: dict[str, Any]) -> None:
        """Rows of two settings never share a file. begun: what the job was begun with, None where it was not."""
        differing = [name for name in now if begun is not None and begun.get(name) != now[name]]
        if differing:
            shown = "; ".join(f"{name} was {begun.get(name)!r}, is {now[name]!r}" for name in differing)
            raise UserError(f"{self.out} was begun with other settings ({shown}): choose another --out")


def open_backend(config: RolloutConfig, facts: TargetFacts) -> Backend:
    """The backend that a job names, its target loaded."""
    if config.backend == "openai":
        from schemafill.data_prep.openai_backend import OpenAIBackend

        return OpenAIBackend(
            config.base_url, config.model, facts, config.sampling, concurrency=config.concurrency,
            sends_text=config.send == "text",
        )  # fmt: skip
    from schemafill.data_prep.batched_backend import BatchedBackend
    from schemafill.data_prep.engine_backend import EngineBackend
    from schemafill.inference.engine import Engine

    engine = Engine.from_pretrained(
        config.target, device=config.device, dtype=config.dtype, threads=config.threads, dialect=config.dialect,
        trust_remote_code=config.trust_remote_code, progress=sys.stderr.isatty(),
    )  # fmt: skip
    if config.backend == "engine":
        return EngineBackend(engine, config.sampling)
    keeps_states = config.features is not None
    return BatchedBackend(engine, config.sampling, config.batch_size, keeps_states=keeps_states)
