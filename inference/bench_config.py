"""What a benchmark run is asked for, and which of it decides what a row holds: rows of two configurations never mix."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemafill.inference.model.machine import cpu_name
from schemafill.inference.request import SamplingParams, UserError
from schemafill.inference.results import RunFolder
from schemafill.inference.suites import SuiteItem

if TYPE_CHECKING:
    from schemafill.inference.engine import Engine


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """One benchmark run."""

    target: str
    """Hub id, local folder, or `embedded`."""
    suite: str
    """Name or path, see `load_suite`."""
    methods: tuple[str, ...]
    out: Path
    """Folder of the run; a run begun there under the same configuration goes on."""
    head: str = "auto"
    limit: int | None = None
    """The first so many requests; None: all."""
    repeat: int = 1
    """How often the whole suite is run; the seed grows by one each time."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    numerics: str = "guarded"
    prefix_cache: bool = False
    dialect: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if not self.methods:
            raise UserError("no methods to run")
        if len(set(self.methods)) < len(self.methods):
            raise UserError(f"a method stands twice in {','.join(self.methods)}")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit must be >= 1, got {self.limit}")
        if self.repeat < 1:
            raise UserError(f"repeat must be >= 1, got {self.repeat}")

    def command(self) -> str:
        """The command line that makes this run."""
        words = ["schemafill", "bench", "--target", self.target, "--suite", self.suite]
        words += ["--methods", ",".join(self.methods)]
        options = [(self, one) for one in fields(self) if one.default is not MISSING]
        options += [(self.sampling, one) for one in fields(self.sampling)]
        for owner, option in options:
            value, flag = getattr(owner, option.name), f"--{option.name.replace('_', '-')}"
            if value == option.default:
                continue
            if option.name == "trust_remote_code":
                words.append(flag)
            else:
                words += [flag, "on" if option.name == "prefix_cache" else str(value)]
        return shlex.join([*words, "--out", str(self.out)])


def asked_settings(config: BenchConfig, suite: list[SuiteItem]) -> dict[str, Any]:
    """What is known of the configuration before the engine is loaded; limit and repeat may grow later."""
    records = json.dumps([item.record() for item in suite], sort_keys=True)
    asked = {
        "suite": config.suite,
        "suite_sha256": hashlib.sha256(records.encode()).hexdigest(),
        "target": config.target,
        "numerics": config.numerics,
        "prefix_cache": config.prefix_cache,
        "method_order": list(config.methods),
        "trust_remote_code": config.trust_remote_code,
        **asdict(config.sampling),
    }
    return json.loads(json.dumps(asked))  # as it will be read back: tuples are lists


def resolved_settings(engine: Engine) -> dict[str, Any]:
    """What the engine made of `auto`, and on what it runs."""
    info = dict(engine.info)
    return json.loads(json.dumps({**info, "machine": machine_name(info["device"])}))


def machine_name(device: str) -> str:
    """Processor and usable cores, and the GPU where the device is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cpu_name()}, {cores} cores" + ("" if device == "cpu" else f", {device}")


def refuse_difference(folder: RunFolder, begun: dict[str, Any], now: dict[str, Any]) -> None:
    """Rows of two configurations never share a folder. The latency curve is a measurement, no setting."""
    theirs, ours = _flat(begun), _flat(now)
    names = [name for name in dict.fromkeys([*theirs, *ours]) if name != "latency_curve"]
    differing = [name for name in names if theirs.get(name) != ours.get(name)]
    if differing:
        shown = "; ".join(f"{name} was {theirs.get(name)!r}, is {ours.get(name)!r}" for name in differing)
        raise UserError(f"{folder.path} holds a run under another configuration ({shown}): choose another --out")


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    nested = {name: value for name, value in settings.items() if isinstance(value, dict)}
    return flat | {f"{name}.{key}": one for name, value in nested.items() for key, one in value.items()}
