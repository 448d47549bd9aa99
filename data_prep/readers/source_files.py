"""The row files of a corpus folder, packed or not, and their rows with the bad ones named. Knows no corpus."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemafill.data_prep.json_values import MOST_LEVELS, is_deeper_than
from schemafill.data_prep.records import LeftOut, Record
from schemafill.inference.request import UserError
from schemafill.inference.row_files import Place, read_rows

ROW_FILE = re.compile(r"(?P<stem>.+)\.jsonl?(\.gz)?")


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of rows."""

    path: Path
    name: str
    """Its name as upstream has it, without `.gz`."""
    stem: str
    """What record ids call it: the name without endings, or the path where two files would share that."""


Decide = Callable[[SourceFile, int, dict[str, Any]], Iterator[Record | LeftOut]]
"""A row's records, and the reasons where it gives none: of the file, the row's number and the row."""


def row_files(source: Path, *, pattern: str = "*", without: Sequence[str] = ()) -> list[SourceFile]:
    """The `.json` and `.jsonl` files, plain or `.gz`, of a folder in order of their paths; or the one file named.

    pattern: which files of the folder, as for `Path.glob`; `**/*` goes into the folders below. without: names that hold
    no rows. Of a file that is there packed and plain the plain one counts. UserError where nothing is there.
    """
    if not source.exists() and source.with_name(source.name + ".gz").is_file():
        source = source.with_name(source.name + ".gz")
    if source.is_file():
        return _named([source], source.parent)
    if not source.is_dir():
        raise UserError(f"no such file or folder: {source}")
    paths = [path for path in sorted(source.glob(pattern)) if ROW_FILE.fullmatch(path.name) and path.is_file()]
    plain = {path for path in paths if path.suffix != ".gz"}
    paths = [path for path in paths if path in plain or path.with_suffix("") not in plain]
    paths = [path for path in paths if _plain_name(path) not in without]
    if not paths:
        raise UserError(f"{source} holds no .json or .jsonl file of rows (plain or .gz)")
    return _named(paths, source)


def rows_of(file: SourceFile) -> Iterator[tuple[int, dict[str, Any]] | LeftOut]:
    """Each row with its number, counted from 1 as `Place` does, and a LeftOut `row_form` for what is no JSON object."""
    bad: list[LeftOut] = []

    def on_bad(place: Place, reason: str) -> None:
        bad.append(LeftOut(file=file.name, row=place.line, reason="row_form", detail=reason))

    for place, row in read_rows(file.path, on_bad):
        yield from bad
        bad.clear()
        if is_deeper_than(row, MOST_LEVELS):
            on_bad(place, f"nests deeper than {MOST_LEVELS} levels")
        else:
            yield place.line, row
    yield from bad


def decisions_of(file: SourceFile, decide: Decide) -> Iterator[Record | LeftOut]:
    """What `decide` makes of each row of a file, and what is no row."""
    for row in rows_of(file):
        if isinstance(row, LeftOut):
            yield row
        else:
            yield from decide(file, *row)


def _named(paths: list[Path], folder: Path) -> list[SourceFile]:
    stems = {path: _stem(path) for path in paths}
    counts = Counter(stems.values())
    whole = {path: path.relative_to(folder).as_posix().removesuffix(".gz") for path in paths}
    shared = {stem for stem, count in counts.items() if count > 1}
    while more := (set(stems.values()) - shared) & _names_of(shared, stems, whole):
        shared |= more  # `a.json.json` beside `a.json` and `a.jsonl`
    return [
        SourceFile(path=path, name=_plain_name(path), stem=whole[path] if stems[path] in shared else stems[path])
        for path in paths
    ]


def _names_of(shared: set[str], stems: dict[Path, str], whole: dict[Path, str]) -> set[str]:
    """What the files of shared stems are called instead."""
    return {whole[path] for path, stem in stems.items() if stem in shared}


def _plain_name(path: Path) -> str:
    return path.name.removesuffix(".gz")


def _stem(path: Path) -> str:
    match = ROW_FILE.fullmatch(path.name)
    return match["stem"] if match else path.name
