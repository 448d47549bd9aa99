"""What a head was made for and from: the block `schemafill` of its configuration.

Servers pass over the block; this project decodes and publishes by it. Knows no tensor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from schemafill.inference.request import UserError

BLOCK = "schemafill"
FORMAT = "schemafill-head/1"
CONVENTION = "hidden_states"
"""How captured layers are numbered: as transformers' `hidden_states`, where 0 is the embedding. The same state has a
number less where layers' outputs are counted, and a head that is fed its neighbours' states drafts almost nothing."""
IDENTITY = (
    "target", "revision", "files_sha256", "tokenizer_sha256", "prompt", "template_sha256", "template_options",
    "dialect",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HeadFacts:
    """One head's origin. The first eight fields are a target's identity, as `TargetFacts` has it."""

    target: str
    """Hub id, or the name of a folder."""
    revision: str | None
    files_sha256: str | None
    """Of a target in a local folder."""
    tokenizer_sha256: str
    prompt: str
    """`plain` or `chat template`."""
    template_sha256: str
    template_options: dict[str, Any]
    dialect: str
    capture_layers: tuple[int, int, int]
    """Indices into `hidden_states` of the three states that the head reads, in the order it reads them."""
    training_data: dict[str, Any] = field(default_factory=dict)
    """What it was trained on: files and their hashes, counts, sampling."""
    training: dict[str, Any] = field(default_factory=dict)
    """The resolved configuration of the run, the seed, the versions."""
    evaluation: dict[str, Any] = field(default_factory=dict)
    """Figures on held-out rollouts, as `training.evaluate` gives them."""

    @classmethod
    def of_target(cls, identity: Mapping[str, Any], capture_layers: Sequence[int], **more: Any) -> HeadFacts:
        """identity: of `TargetFacts`, what is not told here is passed over. more: the other fields."""
        return cls(**{name: identity[name] for name in IDENTITY}, capture_layers=tuple(capture_layers), **more)

    @property
    def output_layers(self) -> list[int]:
        """The captured states as outputs of layers, counted from 0: SGLang's numbering."""
        return [layer - 1 for layer in self.capture_layers]

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self) | {"capture_layers": list(self.capture_layers)}
        return {"format": FORMAT, "capture_convention": CONVENTION} | fields


FACTS = TypeAdapter(HeadFacts)


def facts_from_json(where: str, block: Any) -> HeadFacts:
    """where: the file, for messages. UserError where it is no such block, or numbers layers in another way."""
    if not isinstance(block, dict):
        raise UserError(f"{where}: has no block {BLOCK!r}: not a head of this project (training.export imports others)")
    rest = dict(block)
    if (found := rest.pop("format", None)) != FORMAT:
        raise UserError(f"{where}: block {BLOCK!r} has format {found!r}, this version reads {FORMAT!r}")
    if (found := rest.pop("capture_convention", None)) != CONVENTION:
        raise UserError(f"{where}: unknown capture_convention {found!r}; known: {CONVENTION}")
    try:
        facts = FACTS.validate_json(json.dumps(rest), strict=True, extra="forbid")
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise UserError(f"{where}: {BLOCK}.{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    if list(facts.capture_layers) != sorted(set(facts.capture_layers)) or facts.capture_layers[0] < 1:
        raise UserError(f"{where}: capture_layers {list(facts.capture_layers)} are not three layers in ascending order")
    return facts
