"""What a benchmark run leaves in its folder, as files.

    config.json     everything that decides what a row would hold; a run is resumed only under an equal one
    requests.jsonl  the requests as they were asked, a records file
    results.jsonl   one row per request x method x repeat, appended while the run goes on
    summary.json    pooled figures per method, written when the run is complete
    .lock           held while a run writes

Knows no model and no plotting: `bench` writes these files, `report` reads them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from schemafill.inference.figures import MethodFigures, ResultRow, Summary
from schemafill.inference.file_lock import exclusive_lock
from schemafill.inference.request import UserError
from schemafill.inference.suites import SuiteItem

ROW, ITEM, METHODS = TypeAdapter(ResultRow), TypeAdapter(SuiteItem), TypeAdapter(dict[str, MethodFigures])


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """One run as a report sees it."""

    name: str
    summary: Summary
    items: list[SuiteItem]
    rows: list[ResultRow]


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def results(self) -> Path:
        return self.path / "results.jsonl"

    def read_config(self) -> dict[str, dict[str, Any]] | None:
        """The configuration the folder was begun with: `asked` and, of `auto`, `resolved`. None without a run."""
        path = self.path / "config.json"
        if path.is_file():
            config = _read_json(path)
            if not all(isinstance(config.get(part), dict) for part in ("asked", "resolved")):
                raise UserError(f"{path}: not the configuration of a bench run")
            return config
        if self.results.exists():
            raise UserError(f"{self.path} holds results.jsonl but no config.json: use another folder")
        if self.path.is_dir() and any(path.name != ".lock" for path in self.path.iterdir()):
            raise UserError(f"{self.path} is not empty and holds no bench run: use another folder")
        return None

    def check_writable(self) -> None:
        """Raise UserError where rows could not be written. Leaves nothing behind."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is not a folder")
        nearest = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise UserError(f"cannot write to {self.path}: no permission in {nearest}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and hold it against a second run; UserError where one is at work in it."""
        make_folder(self.path)
        with exclusive_lock(self.path / ".lock", self._refuse_second):
            yield

    def _refuse_second(self) -> None:
        raise UserError(f"another run is writing to {self.path}: wait for it or choose another --out")

    def begin(self, config: dict[str, Any], items: Iterable[SuiteItem]) -> None:
        """Write down what is about to run, and drop a last row that a kill cut in two."""
        write_json(self.path / "config.json", config)
        rows = "".join(json_text(item.record()) + "\n" for item in items)
        write_atomically(self.path / "requests.jsonl", rows.encode())
        if self.results.exists():
            data = self.results.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                os.truncate(self.results, len(whole))

    def append(self, rows: Iterable[ResultRow]) -> None:
        with self.results.open("a", encoding="ascii", newline="\n") as file:
            for row in rows:
                file.write(json.dumps(asdict(row)) + "\n")
                file.flush()

    def read_rows(self) -> list[ResultRow]:
        """All whole rows; what follows the last newline is a row cut in two and is left out."""
        if not self.results.exists():
            return []
        rows = []
        try:
            lines = self.results.read_text(encoding="utf-8").split("\n")[:-1]
        except (UnicodeDecodeError, OSError) as error:
            raise UserError(f"{self.results}: cannot be read: {error}") from None
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(ROW.validate_json(line, strict=True, extra="forbid"))
            except ValueError as error:
                raise UserError(f"{self.results}:{number}: not a row of this version: {error}") from None
        return rows

    def load(self) -> FinishedRun:
        """Everything a report needs. Rows beyond the summary's requests and repeats are left out."""
        summary = self.read_summary()
        items = self.read_requests()[: summary.settings["num_requests"]]
        ids = {item.id for item in items}
        rows = [
            row
            for row in self.read_rows()
            if row.request_id in ids and row.method in summary.methods and row.repeat < summary.settings["repeat"]
        ]
        if not rows and any(figures.runs for figures in summary.methods.values()):
            raise UserError(f"{self.path}: the summary counts runs, but {self.results.name} holds none of them")
        return FinishedRun(name=str(self.path), summary=summary, items=items, rows=rows)

    def read_requests(self) -> list[SuiteItem]:
        path = self.path / "requests.jsonl"
        if not path.is_file():
            raise UserError(f"{self.path} holds no requests.jsonl: it is not the folder of a bench run")
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
            return [ITEM.validate_json(line, strict=True, extra="forbid") for line in lines if line]
        except ValueError as error:
            raise UserError(f"{path}: not a file of this version: {error}") from None

    def write_summary(self, summary: Summary) -> None:
        write_json(self.path / "summary.json", summary.to_json())

    def read_summary(self) -> Summary:
        path = self.path / "summary.json"
        if not self.path.is_dir():
            raise UserError(f"no such folder: {self.path}")
        if not path.is_file():
            raise UserError(f"{self.path} has no summary.json: run its bench command again, it goes on where it was")
        settings = _read_json(path)
        try:
            methods = METHODS.validate_python(settings.pop("methods"), extra="forbid")
        except (KeyError, ValueError) as error:
            raise UserError(f"{path}: not a summary of this version: {error}") from None
        if not all(isinstance(settings.get(name), int) for name in ("num_requests", "repeat")) or not methods:
            raise UserError(f"{path}: not a summary of this version")
        return Summary(settings=settings, methods=methods)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json_text(value, indent=2) + "\n").encode())


def json_text(value: Any, *, indent: int | None = None, encoding: str = "utf-8") -> str:
    """JSON with letters as they are, or escaped where `encoding` cannot carry them (half a surrogate pair, say)."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


def write_atomically(path: Path, data: bytes) -> None:
    """Readers see the old file or the whole new one, never a part. UserError where something else than a file is."""
    if os.path.exists(path) and not os.path.isfile(path):  # a device, say: replaced by a file, it would be gone
        raise UserError(f"cannot write {path}: it is there and is no regular file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # of a name that is too long
            temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {path}: {error.strerror}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: must be a JSON object")
    return value
