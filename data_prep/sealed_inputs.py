"""Records files as inputs of a step, and where its output may go.

An input is there, unchanged since it was written, and from a step that fits. An output is a file of its own, with room
for its manifest beside it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from schemafill.data_prep.manifest import Manifest, file_sha256, manifest_path, read_manifest
from schemafill.data_prep.records import require_files
from schemafill.inference.request import UserError

LONGEST_NAME_BYTES = 200
"""Of an output; file systems allow 255, and what is written beside it (`.NAME.manifest.json.PID`) needs its part."""


def input_manifest(path: Path, steps: Sequence[str], *, is_unsealed_allowed: bool) -> Manifest | None:
    """The manifest of an input file; None for a file made by hand, where those are allowed.

    UserError where the file is missing, was changed since, or comes from a step that is not one of `steps`.
    """
    try:
        require_files(path)
        is_sealed = manifest_path(path).exists()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if not is_sealed:
        if is_unsealed_allowed:
            return None
        raise UserError(f"{path} has no manifest ({manifest_path(path).name}): pass --unsealed if it was made by hand")
    manifest = read_manifest(path)
    if manifest.step not in steps:
        raise UserError(f"{path}: `step` in its manifest is {manifest.step!r}, here it must be {' or '.join(steps)}")
    return manifest


def input_names(paths: Sequence[Path]) -> list[str]:
    """What a manifest calls each file: its name, with as many of its folders as tell files of one name apart.

    The same however a path is spelled: relative or absolute, with `..` or through a link to a folder.
    """
    places = [Path(os.path.realpath(path.parent)) / path.name for path in paths]
    names = []
    for place in places:
        others = {other for other in places if other.name == place.name} - {place}
        count = 1
        while any(other.parts[-count:] == place.parts[-count:] for other in others):
            count += 1
        names.append("/".join(place.parts[-count:]))
    return names


def input_hashes(paths: Sequence[Path]) -> dict[str, str]:
    """Name -> sha256 of each input file."""
    return {name: file_sha256(path) for name, path in zip(input_names(paths), paths, strict=True)}


def refuse_output(path: Path) -> None:
    """Raise UserError where no file can be written at `path`, or something else than a file would be replaced there."""
    if path.name in ("", ".."):
        raise UserError(f"{str(path)!r} names no file: an output needs a name")
    if len(os.fsencode(path.name)) > LONGEST_NAME_BYTES:
        raise UserError(f"the name of {path} is too long for an output: at most {LONGEST_NAME_BYTES} bytes")
    try:
        for one in (path, manifest_path(path)):
            if one.exists() and not one.is_file():  # a device would be replaced as well
                raise UserError(f"{one} is there and is no regular file: choose another name for the output")
        above = next((folder for folder in path.parents if folder.exists()), None)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    if above is not None and not above.is_dir():
        raise UserError(f"cannot write {path}: {above} is no folder")


def refuse_overwriting(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Raise UserError where an output cannot be written, or it or its manifest is one of another file."""
    kinds = ("an input of this step", "the manifest of an input of this step")
    input_places = {place: kind for path in inputs for place, kind in zip(_places(path), kinds, strict=False)}
    output_places: set[str] = set()
    for output in outputs:
        refuse_output(output)
        for place, what in zip(_places(output), (f"{output}", f"the manifest of {output}"), strict=True):
            if place in input_places:
                raise UserError(f"{what} is {input_places[place]}: choose another name for the output")
            if place in output_places:
                raise UserError(f"{what} is named for two outputs: choose two names")
        output_places.update(_places(output))


def _places(path: Path) -> list[str]:
    """Where a file and its manifest stand."""
    return [os.path.realpath(one) for one in ([path, manifest_path(path)] if path.name else [path])]
