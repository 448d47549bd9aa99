"""What rollouts files say about themselves, and whether several of them, and records, may be used together."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from schemafill.data_prep.manifest import Manifest, manifest_path
from schemafill.data_prep.rollout_inputs import RECORD_STEPS
from schemafill.data_prep.sealed_inputs import input_hashes, input_manifest
from schemafill.inference.request import UserError
from schemafill.inference.toolcall.dialects import DIALECTS


@dataclass(frozen=True, kw_only=True)
class Answerer:
    """What identifies who answered, and to which prompts. Rollouts that differ in one of these are never mixed."""

    target: str
    revision: str | None
    files_sha256: str | None
    tokenizer_sha256: str
    prompt: str
    template_sha256: str
    template_options: dict[str, Any]
    dialect: str
    vocab_size: int
    end_ids: list[int]


TARGET_FIELDS = tuple(Answerer.__dataclass_fields__)
ANSWERER = TypeAdapter(Answerer)


def check_settings(path: Path, manifest: Manifest) -> None:
    """UserError, naming the field, where the manifest of a rollouts file does not say who answered."""
    known = {name: manifest.settings[name] for name in TARGET_FIELDS if name in manifest.settings}
    try:
        answerer = ANSWERER.validate_json(json.dumps(known), strict=True)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        name = ".".join(map(str, fault["loc"]))
        raise UserError(f"{manifest_path(path)}: settings.{name}: {fault['msg']}") from None
    if answerer.dialect not in DIALECTS:
        raise UserError(f"{manifest_path(path)}: settings.dialect: unknown dialect {answerer.dialect!r}")


def rollout_manifests(paths: Sequence[Path]) -> list[Manifest]:
    """The manifest of each of the files. UserError where one is no finished rollouts, is named twice or has another
    target than the first."""
    refuse_twice(paths)
    manifests = [input_manifest(path, ("rollout",), is_unsealed_allowed=False) for path in paths]
    for path, manifest in zip(paths, manifests, strict=True):
        check_settings(path, manifest)
        settings, first = manifest.settings, manifests[0].settings
        for name in TARGET_FIELDS:
            if settings[name] != first[name]:
                raise UserError(
                    f"{path} and {paths[0]} were not made with the same target: {name} is {settings[name]!r} and "
                    f"{first[name]!r}"
                )
    return manifests


def common_settings(paths: Sequence[Path]) -> dict[str, Any]:
    """The settings of the first of the files, all of which have one target."""
    return rollout_manifests(paths)[0].settings


def hashes_with_records(
    rollouts: Sequence[Path], manifests: Sequence[Manifest], records: Sequence[Path], *, is_unsealed_allowed: bool
) -> dict[str, str]:
    """Hashes of rollouts and records files as inputs of a step.

    UserError where records are none, are named twice, or, unless `is_unsealed_allowed`, are not what one of the
    rollouts was made from.
    """
    refuse_twice(records)
    for path in records:
        input_manifest(path, RECORD_STEPS, is_unsealed_allowed=is_unsealed_allowed)
    inputs = input_hashes([*rollouts, *records])
    rolled_out = {digest for manifest in manifests for digest in manifest.inputs.values()}
    for path, digest in zip(records, list(inputs.values())[len(rollouts) :], strict=True):
        if digest not in rolled_out and not is_unsealed_allowed:
            raise UserError(f"no rollouts file was made from {path}: name the records that were, or pass --unsealed")
    return inputs


def refuse_twice(paths: Sequence[Path]) -> None:
    """Raise UserError where one file is named twice, in whatever spelling: its rows would count twice."""
    seen: dict[str, Path] = {}
    for path in paths:
        place = os.path.realpath(path)
        if place in seen:
            shown = path if path == seen[place] else f"{path} and {seen[place]}"
            raise UserError(f"{shown}: the same file is named twice")
        seen[place] = path
