"""Runs methods over a suite and measures them: the entry module behind `schemafill bench`.

Knows how a measurement is kept fair and resumable; what is decoded, and how, is the engine's business.

Fairness: one engine serves all methods; every request is decoded by each method in turn, so that drift of the machine
hits all alike; the order of the methods changes from request to request along a balanced square, so that each method
stands equally often in each place and behind each other method; every method is run once before, unmeasured, on a
request of its own that no suite holds; and with the prefix cache on each prompt is cached before its methods run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from schemafill.inference.figures import (
    BASELINE,
    ResultRow,
    Summary,
    decode_tokens_per_second,
    pool,
    ratio,
    tokens_per_second,
)
from schemafill.inference.request import Completion, SamplingParams, UserError
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


def run_bench(config: BenchConfig) -> Summary:
    """Run what the folder does not hold yet, and write its summary.

    A request that raises is a failure of its method: counted, its time kept in the sums. Raises UserError where the
    folder holds a run under another configuration; nothing is written then.
    """
    lossless = _known_methods(config.methods)
    suite = load_suite(config.suite)
    items = suite[: config.limit]
    folder = RunFolder(Path(config.out))
    if folder.path.exists() and not folder.path.is_dir():
        raise UserError(f"{folder.path} is not a folder")
    asked, begun = _asked(config, suite), folder.read_config()
    if begun is not None:
        _refuse_difference(folder, begun["asked"], asked)
    rows = {row.key: row for row in folder.read_rows()}
    groups = list(_groups(config, items))
    if begun is None or any(key not in rows for group in groups for key in group.keys):
        engine = _load_engine(config)
        resolved = _resolved(engine)
        if begun is not None:
            _refuse_difference(folder, begun["resolved"], resolved)
        _warm_up(engine, config)
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


def _asked(config: BenchConfig, suite: list[SuiteItem]) -> dict[str, Any]:
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


def _resolved(engine: Engine) -> dict[str, Any]:
    """What the engine made of `auto`, and on what it runs."""
    info = dict(engine.info)
    return json.loads(json.dumps({**info, "machine": machine_name(info["device"])}))


def machine_name(device: str) -> str:
    """Processor and usable cores, and the GPU where the device is one."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":", 1)[1].strip() if models else cpu
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = f"{cpu}, {cores} cores"
    if device.startswith("cuda"):
        import torch

        name += f", {torch.cuda.get_device_name(device)}"
    return name


def _refuse_difference(folder: RunFolder, begun: dict[str, Any], now: dict[str, Any]) -> None:
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


@dataclass(frozen=True)
class Group:
    """One request in one repeat, with its methods in the order in which they run."""

    item: SuiteItem
    repeat: int
    methods: tuple[str, ...]

    @property
    def keys(self) -> list[tuple[str, str, int]]:
        return [(self.item.id, method, self.repeat) for method in self.methods]


def _groups(config: BenchConfig, items: list[SuiteItem]) -> Iterator[Group]:
    orders = balanced_orders(config.methods)
    for repeat_idx in range(config.repeat):
        for item_idx, item in enumerate(items):
            turn = repeat_idx * (len(items) + 1) + item_idx  # + 1: repeats of a request differ in order as well
            yield Group(item, repeat_idx, orders[turn % len(orders)])


def balanced_orders(methods: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Orders in which each method stands equally often in each place and directly behind each other method.

    Williams 1949: a zigzag 0, 1, n-1, 2, n-2, ... shifted by every amount; for odd n also each of them reversed.
    """
    n = len(methods)
    zigzag = [(place + 1) // 2 if place % 2 else (n - place // 2) % n for place in range(n)]
    orders = [tuple(methods[(idx + shift) % n] for idx in zigzag) for shift in range(n)]
    return orders + [order[::-1] for order in orders] if n % 2 and n > 1 else orders


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
            fresh = [_compared(row, baseline) for row in fresh]
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
    return _row(group, method, done, _trace(engine, done) if is_traced else None)


def _row(group: Group, method: str, done: Completion, trace: dict[str, list] | None) -> ResultRow:
    stats = done.stats
    row = ResultRow(
        request_id=group.item.id,
        method=method,
        repeat=group.repeat,
        error=None,
        prompt_tokens=stats.prompt_tokens,
        tokens=stats.tokens,
        seconds=stats.seconds,
        seconds_by_phase=dict(stats.seconds_by_phase),
        verify_calls=stats.verify_calls,
        rechecks=stats.rechecks,
        nodes=stats.nodes,
        accepted_by_source=dict(stats.accepted_by_source),
        rejections=dict(stats.rejections),
        finish_reason=done.finish_reason,
        tool_calls=[{"name": call.name, "arguments": call.arguments} for call in done.tool_calls],
        token_ids=list(done.token_ids),
        text=done.text,
        trace=trace,
        accepted_length=ratio(stats.tokens, stats.verify_calls),
        nodes_per_verify=ratio(stats.nodes, stats.verify_calls),
    )
    return replace(row, tps=tokens_per_second([row]))


def _trace(engine: Engine, done: Completion) -> dict[str, list]:
    """What the page shows round by round; see `ResultRow.trace`."""
    rounds = done.stats.rounds
    return {
        "token_texts": list(engine.tokenizer_text(done.token_ids)),
        "token_sources": [source for one in rounds for source in one.sources],
        "rounds": [
            [len(one.token_ids), one.num_nodes, one.num_side_nodes, round(one.seconds, 6), one.rejected]
            for one in rounds
        ],
    }


def _compared(row: ResultRow, baseline: ResultRow | None) -> ResultRow:
    """The row with its comparison with ar's row of the same request and repeat."""
    if baseline is None or baseline.error is not None:
        return row
    if row.error is not None:
        return replace(row, agreement=False)
    divergence = first_divergence(row.token_ids, baseline.token_ids)
    return replace(
        row,
        speedup=ratio(row.tps, baseline.tps),
        speedup_decode_only=ratio(decode_tokens_per_second([row]), decode_tokens_per_second([baseline])),
        agreement=divergence is None,
        first_divergence=divergence,
    )


def first_divergence(token_ids: list[int], reference: list[int]) -> int | None:
    """Index of the first difference; where one output is the start of the other, the shorter one's length."""
    if token_ids == reference:
        return None
    pairs = zip(token_ids, reference, strict=False)  # they may differ in length
    return next((idx for idx, (a, b) in enumerate(pairs) if a != b), min(len(token_ids), len(reference)))


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
