"""The manifest beside every file that a step writes: what made it, from what, and what was left out.

`NAME.manifest.json` stands beside `NAME` and is written last, so a file without one is not whole. A step that finds
its output there, made by the same settings from the same inputs, has nothing to do.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from schemafill.inference.request import UserError
from schemafill.inference.results import make_folder, write_atomically, write_json


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is known of one output file."""

    step: str
    """The step that wrote it: corpora, suites, split, augment, rollout, draft_vocab, data_card."""
    settings: dict[str, Any]
    """Everything that decides what the file holds, inputs aside."""
    inputs: dict[str, str]
    """Name of each input file -> sha256 of its content."""
    counts: dict[str, Any]
    """`read`, `written`, `left_out` and what else the step counts."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Reason -> how many."""
    output_sha256: str = ""
    code_version: str = ""


MANIFEST = TypeAdapter(Manifest)


def manifest_path(output: Path) -> Path:
    return output.with_name(output.name + ".manifest.json")


def file_sha256(path: Path) -> str:
    """sha256 of a file's content; UserError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def code_version() -> str:
    return version("schemafill")


def read_manifest(output: Path) -> Manifest:
    """The manifest of a file; UserError where it has none, or where the file was changed since."""
    path = manifest_path(output)
    if not output.is_file():
        raise UserError(f"no such file: {output}")
    if not path.is_file():
        raise UserError(f"{output} has no manifest ({path.name}): it was not finished, or not written by this project")
    try:
        manifest = MANIFEST.validate_json(path.read_bytes(), strict=True, extra="forbid")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        raise UserError(f"{path}: not a manifest of this version: {_faults(error)}") from None
    if file_sha256(output) != manifest.output_sha256:
        raise UserError(f"{output} was changed after it was written: its content is not that of {path.name}")
    return manifest


def _faults(error: ValidationError) -> str:
    """Each field with what is wrong with it, in one line; a text that is no JSON has no field."""
    faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors(include_url=False)]
    return " ".join("; ".join(": ".join(filter(None, fault)) for fault in faults).split())


def remove_file(path: Path) -> None:
    """Remove a file where it is there; UserError where it cannot be removed."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot remove {path}: {error.strerror}") from None


def write_output(output: Path, data: bytes, manifest: Manifest) -> None:
    """Write a file and then its manifest, each whole or not at all."""
    make_folder(output.parent)
    remove_file(manifest_path(output))  # an old one would vouch for the new file
    write_atomically(output, data)
    seal_output(output, manifest)


def seal_output(output: Path, manifest: Manifest) -> None:
    """Write the manifest of a file that is whole."""
    sealed = asdict(manifest) | {"output_sha256": file_sha256(output), "code_version": code_version()}
    write_json(manifest_path(output), sealed)


def is_done(output: Path, step: str, settings: dict[str, Any], inputs: dict[str, str]) -> bool:
    """Whether `output` is there as this step would write it. UserError where it is there and differs, by field."""
    if os.path.isdir(output):
        raise UserError(f"{output} is a folder: choose another --out")
    if not all(os.path.exists(path) for path in (output, manifest_path(output))):
        return False  # nothing there, or a step that was stopped: it writes again
    found = read_manifest(output)
    if found.step != step:
        raise UserError(f"{output} was written by step {found.step}, not by {step}: choose another --out")
    for name, was, now in (("settings", found.settings, settings), ("inputs", found.inputs, inputs)):
        differing = [key for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]
        if differing:
            shown = "; ".join(f"{key} was {was.get(key)!r}, is {now.get(key)!r}" for key in differing)
            raise UserError(f"{output} was made with other {name} ({shown}): choose another --out or remove it")
    return True
