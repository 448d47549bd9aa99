"""Small bench runs on the fake engine: their configuration, and what they left behind."""

import json
from pathlib import Path

from fake_engine import FakeEngine

from schemafill.inference.bench_config import BenchConfig

METHODS = ("ar", "fast", "wrong", "broken")


def write_suite(path: Path, *ids: str) -> Path:
    rows = [{"id": id_, "messages": [{"role": "user", "content": f"do {id_}"}], "tools": []} for id_ in ids]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config_of_two_requests(folder: Path) -> BenchConfig:
    suite = write_suite(folder / "suite.jsonl", "a", "b")
    return BenchConfig(target="toy", suite=str(suite), methods=METHODS, out=folder / "out")


def rows_of(config: BenchConfig) -> list[dict]:
    return [json.loads(line) for line in (config.out / "results.jsonl").read_text().splitlines()]


def measured(engine: FakeEngine) -> list[tuple[str, str]]:
    """What the engine was asked, the warm-up left out."""
    return [request for request in engine.requests if request[1].startswith("do ")]
