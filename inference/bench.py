"""Runs methods over a suite and measures them: the entry module behind `schemafill bench`.

Knows how a measurement is kept fair and resumable; what is decoded, and how, is the engine's business.

Fairness: one engine serves all methods; every request is decoded by each method in turn, so that drift of the machine
hits all alike; the order of the methods changes from request to request along a balanced square, so that each method
stands equally often in each place and behind each other method; every method is run once before, unmeasured, on a
request of its own that no suite holds; and with the prefix cache on each prompt is cached before its methods run.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from schemafill.inference.bench_config import BenchConfig, asked_settings, refuse_difference, resolved_settings
from schemafill.inference.bench_rows import compared_row, result_row, traced_rounds
from schemafill.inference.bench_schedule import Group, plan_groups
from schemafill.inference.figures import BASELINE, ResultRow, Summary, pool, ratio, tokens_per_second
from schemafill.inference.request import UserError
from schemafill.inference.results import RunFolder
from schemafill.inference.suites import SuiteItem, load_suite

if TYPE_CHECKING:
    from schemafill.inference.engine import Engine

WARM_UP = SuiteItem(
    id="warm-up",
    messages=[{"role": "user", "content": "Give the tide table of Brest for 2 days."}],
    tools=[
        {
            "type": "function",
            "function": {
                "name": "tide_table",
                "description": "Times of high and low water.",
                "parameters": {
                    "type": "object",
                    "properties": {"port": {"type": "string"}, "days": {"type": "integer"}},
                    "required": ["port", "days"],
                },
            },
        }
    ],
)
WARM_UP_TOKENS = 32


def run_bench(config: BenchConfig) -> Summary:
    """Run what the folder does not hold yet, and write its summary.

    A request that raises is a failure of its method: counted, its time kept in the sums. Raises UserError where the
    folder holds a run under another configuration; nothing is written then.
    """
    lossless = _known_methods(config.methods)
    suite = load_suite(config.suite)
    items = suite[: config.limit]
    folder = RunFolder(Path(config.out))
    folder.check_writable()
    asked, begun = asked_settings(config, suite), folder.read_config()
    if begun is not None:
        refuse_difference(folder, begun["asked"], asked)
    rows = {row.key: row for row in folder.read_rows()}
    groups = list(plan_groups(config, items))
    if begun is None or any(key not in rows for group in groups for key in group.keys):
        engine = _load_engine(config)
        resolved = resolved_settings(engine)
        if begun is not None:
            refuse_difference(folder, begun["resolved"], resolved)
        _warm_up(engine, config)
        with folder.locked():
            if folder.read_config() != begun:
                raise UserError(f"another run has begun in {folder.path} meanwhile: choose another --out")
            rows = {row.key: row for row in folder.read_rows()}
            folder.begin({"asked": asked, "resolved": resolved}, items)
            _run_groups(engine, config, folder, groups, rows)
    else:
        resolved = begun["resolved"]
    measured = [rows[key] for group in groups for key in group.keys]
    extras = {"num_requests": len(items), "repeat": config.repeat, "command": config.command()}
    summary = Summary(settings={**asked, **resolved, **extras}, methods=pool(measured, lossless))
    folder.write_summary(summary)
    return summary


def _known_methods(names: tuple[str, ...]) -> dict[str, bool]:
    """Which of the methods are lossless."""
    from schemafill.inference.decoding.methods import METHODS

    if unknown := [name for name in names if name not in METHODS]:
        raise UserError(f"unknown method {unknown[0]!r}; known: {', '.join(METHODS)}")
    return {name: METHODS[name].lossless for name in names}


def _load_engine(config: BenchConfig) -> Engine:
    from schemafill.inference.engine import Engine

    return Engine.from_pretrained(
        config.target,
        head=config.head,
        device=config.device,
        dtype=config.dtype,
        numerics=config.numerics,
        threads=config.threads,
        prefix_cache=config.prefix_cache,
        dialect=config.dialect,
        trust_remote_code=config.trust_remote_code,
    )


def _warm_up(engine: Engine, config: BenchConfig) -> None:
    """Every method once, unmeasured. A UserError is the configuration's fault (no head, say) and ends the run."""
    sampling = replace(config.sampling, max_new_tokens=min(WARM_UP_TOKENS, config.sampling.max_new_tokens))
    for method in config.methods:
        try:
            engine.generate(messages=WARM_UP.messages, tools=WARM_UP.tools, method=method, sampling=sampling)
        except UserError:
            raise
        except Exception as error:
            # Not fatal: the measured requests will show whether the method fails, and count it.
            print(f"warm-up of {method} failed: {_error_text(error)}", file=sys.stderr)


def _run_groups(
    engine: Engine,
    config: BenchConfig,
    folder: RunFolder,
    groups: list[Group],
    rows: dict[tuple[str, str, int], ResultRow],
) -> None:
    """Decode what `rows` lacks, append it to the folder and to `rows`.

    A group is written when its last method has run, because a row carries its comparison with ar's.
    """
    num_runs = sum(len(group.keys) for group in groups)
    num_kept = sum(key in rows for group in groups for key in group.keys)
    interval = 0.1 if sys.stderr.isatty() else 10.0  # a log file wants few lines
    with tqdm(total=num_runs, initial=num_kept, unit="run", mininterval=interval) as bar:
        for group in groups:
            missing = [method for method in group.methods if (group.item.id, method, group.repeat) not in rows]
            if not missing:
                continue
            if config.prefix_cache:
                _fill_prefix_cache(engine, config, group.item)
            fresh = []
            for method in missing:
                fresh.append(_run_one(engine, config, group, method))
                bar.update()
            known = {row.method: row for row in fresh}
            baseline = known.get(BASELINE) or rows.get((group.item.id, BASELINE, group.repeat))
            fresh = [compared_row(row, baseline) for row in fresh]
            folder.append(fresh)
            rows.update({row.key: row for row in fresh})
            bar.set_postfix_str(_running_speedup(list(rows.values())), refresh=False)


def _fill_prefix_cache(engine: Engine, config: BenchConfig, item: SuiteItem) -> None:
    """Whichever method comes first would else pay for the prompt that the others find in the cache."""
    sampling = replace(config.sampling, max_new_tokens=1)
    try:
        engine.generate(messages=item.messages, tools=item.tools, method=BASELINE, sampling=sampling)
    except Exception as error:
        print(f"{item.id} is not in the prefix cache: {_error_text(error)}", file=sys.stderr)


def _run_one(engine: Engine, config: BenchConfig, group: Group, method: str) -> ResultRow:
    item, is_traced = group.item, group.repeat == 0
    sampling = replace(config.sampling, seed=config.sampling.seed + group.repeat)
    start = time.perf_counter()
    try:
        done = engine.generate(
            messages=item.messages, tools=item.tools, method=method, sampling=sampling, trace=is_traced
        )
    except Exception as error:  # whatever it is, it is this method's failure on this request
        seconds = time.perf_counter() - start
        return ResultRow(
            request_id=item.id, method=method, repeat=group.repeat, error=_error_text(error), seconds=seconds
        )
    return result_row(group, method, done, traced_rounds(engine, done) if is_traced else None)


def _running_speedup(rows: list[ResultRow]) -> str:
    """`fastest method 3.91x` of the runs so far, nothing while ar has none."""
    by_method: dict[str, list[ResultRow]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    baseline = tokens_per_second(by_method.pop(BASELINE, []))
    speedups = [(ratio(tokens_per_second(own), baseline) or 0.0, method) for method, own in by_method.items()]
    if not speedups or not baseline:
        return ""
    fastest, method = max(speedups)
    return f"{method} {fastest:.2f}x"


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
