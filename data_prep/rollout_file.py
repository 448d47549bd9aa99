"""The output of a rollout job that may be stopped at any moment and goes on where it was.

    OUT.part.json     the settings it was begun with; it goes on under equal ones only
    OUT.part.jsonl    `{"key", "row"}` lines in the order in which answers came; the file is locked while a job writes
    OUT               the rows in the input's order, written whole at the end; then its manifest, then the parts go

Knows keys and rows, and nothing of targets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemafill.data_prep.manifest import Manifest, manifest_path, seal_output
from schemafill.data_prep.records import json_lines
from schemafill.data_prep.rollout_form import FAILED, NOT_ASKED, check_row, reason_of
from schemafill.data_prep.sealed_inputs import refuse_output
from schemafill.inference.file_lock import exclusive_lock
from schemafill.inference.request import UserError
from schemafill.inference.results import make_folder, write_json
from schemafill.inference.row_files import parse_json

SYNC_EVERY = 16
"""Rows between two syncs to the disk. A kill loses none of them, only a machine that goes down does."""


class RolloutFile:
    """The files of one job. Rows are known by key; a later row of a key replaces an earlier one."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rows_path = out.with_name(out.name + ".part.jsonl")
        self.settings_path = out.with_name(out.name + ".part.json")
        self._temporary = out.with_name(f".{out.name}.{os.getpid()}")
        self._places: dict[str, tuple[int, int]] = {}  # key -> where its line starts in the rows file, and its length
        self._reasons: dict[str, str] = {}  # key -> why its row is not usable, empty where it is
        self._num_unsynced = 0

    def written_paths(self) -> list[Path]:
        """Everything that is written, manifest aside."""
        return [self.out, self.rows_path, self.settings_path, self._temporary]

    @contextmanager
    def opened(self) -> Iterator[RolloutFile]:
        """Hold the job against a second process and read what is there; UserError where another one is at work."""
        make_folder(self.out.parent)
        for path in self.written_paths():
            refuse_output(path)
        with self._writing(self.rows_path):
            self.rows_path.touch()
        with exclusive_lock(self.rows_path, self._refuse_second):
            try:
                self._read()
                yield self
            finally:
                self._sync()
                if self.rows_path.exists() and not self.rows_path.stat().st_size and not self.settings_path.exists():
                    self.rows_path.unlink()  # nothing was begun

    def _refuse_second(self) -> None:
        raise UserError(f"another job is writing {self.rows_path}: wait for it or choose another --out")

    def settings(self) -> dict[str, Any] | None:
        """What the job was begun with; None where it was not."""
        if not self.settings_path.is_file():
            if self.rows_path.stat().st_size:
                raise UserError(f"{self.rows_path} holds rows, but {self.settings_path.name} is gone: remove it")
            return None
        try:
            settings = parse_json(self.settings_path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{self.settings_path}: {error}") from None
        if not isinstance(settings, dict):
            raise UserError(f"{self.settings_path}: must be a JSON object")
        return settings

    def begin(self, settings: dict[str, Any]) -> None:
        """Write down what the rows are made with, before the first of them."""
        write_json(self.settings_path, settings)

    def is_answered(self, key: str) -> bool:
        """Whether the row is there and need not be tried again; one that failed is."""
        return self._reasons.get(key, FAILED) != FAILED

    def num_failed(self) -> int:
        return sum(reason == FAILED for reason in self._reasons.values())

    def has_answers(self) -> bool:
        """Whether the target has answered anything at all."""
        return any(reason not in (FAILED, *NOT_ASKED) for reason in self._reasons.values())

    def append(self, key: str, row: dict[str, Any]) -> None:
        """Add a row; it is in the file when this returns."""
        line = json_lines([{"key": key, "row": row}])
        with self._writing(self.rows_path), self.rows_path.open("ab") as file:
            start = file.seek(0, os.SEEK_END)
            file.write(line)
        self._note(key, row, start, len(line))
        self._num_unsynced += 1
        if self._num_unsynced >= SYNC_EVERY:
            self._sync()

    def rows(self, keys: Iterable[str] | None = None) -> Iterator[dict[str, Any]]:
        """The rows of these keys, in their order; None: of all keys."""
        with self.rows_path.open("rb") as file:
            for key in self._places if keys is None else keys:
                start, length = self._places[key]
                file.seek(start)
                yield json.loads(file.read(length))["row"]

    def finish(self, keys: Iterable[str], manifest: Manifest) -> None:
        """Write the output in the order of the keys, then its manifest, and remove the parts."""
        manifest_path(self.out).unlink(missing_ok=True)  # an old one would vouch for the new file
        try:
            with self._writing(self.out):
                with self._temporary.open("wb") as file:
                    for row in self.rows(keys):
                        file.write(json_lines([row]))
                    file.flush()
                    os.fsync(file.fileno())
                self._temporary.replace(self.out)
        finally:
            self._temporary.unlink(missing_ok=True)
        seal_output(self.out, manifest)
        self.remove_parts()

    def remove_parts(self) -> None:
        """Remove everything but the output."""
        self.settings_path.unlink(missing_ok=True)
        self.rows_path.unlink(missing_ok=True)
        self._places, self._reasons = {}, {}

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; the rows before it are kept") from None

    def _read(self) -> None:
        """Find the whole rows, and cut off one that a kill left half written."""
        self._places, self._reasons = {}, {}
        start = 0
        with self.rows_path.open("r+b") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    file.truncate(start)
                    break
                self._note(*self._parse(number, line), start, len(line))
                start += len(line)

    def _parse(self, number: int, line: bytes) -> tuple[str, dict[str, Any]]:
        try:
            entry = parse_json(line.decode())
            if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
                raise ValueError("key is missing or no text")
            check_row(entry.get("row"))
        except ValueError as error:
            raise UserError(
                f"{self.rows_path}:{number}: not a row of a rollout job ({error}): choose another --out or remove it"
            ) from None
        return entry["key"], entry["row"]

    def _note(self, key: str, row: dict[str, Any], start: int, length: int) -> None:
        self._places[key] = (start, length)
        self._reasons[key] = reason_of(row)

    def _sync(self) -> None:
        if self._num_unsynced and self.rows_path.exists():
            with self.rows_path.open("rb") as file:
                os.fsync(file.fileno())
        self._num_unsynced = 0
