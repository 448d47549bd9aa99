"""One rollout job from records to a rollouts file: what is answered already is kept, the rest is asked.

Knows no backend: it hands prompts to one and puts down what comes back, in whatever order.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from schemafill.data_prep.feature_store import FeatureStore, TargetStates
from schemafill.data_prep.finished_rollouts import find_finished
from schemafill.data_prep.manifest import Manifest
from schemafill.data_prep.prompts import Answer, PromptMaker
from schemafill.data_prep.rollout_config import RESOLVED, Backend, RolloutConfig, open_backend
from schemafill.data_prep.rollout_file import RolloutFile
from schemafill.data_prep.rollout_form import FAILED, reason_of
from schemafill.data_prep.rollout_inputs import RECORD_STEPS, RolloutInput, read_told
from schemafill.data_prep.rollout_manifests import refuse_twice
from schemafill.data_prep.rollout_row import row_of
from schemafill.data_prep.sealed_inputs import input_hashes, input_manifest, refuse_output, refuse_overwriting
from schemafill.data_prep.target_facts import TargetFacts, read_target
from schemafill.inference.model.architectures import eagle3_layers
from schemafill.inference.request import UserError

CHUNK = 1 << 15
"""Records whose prompts are in memory at a time; only among them is what prompts begin with alike computed once."""
FAILURES_AT_START = 25
"""So many first rows that are asked and all fail are a fault of the settings and not of the rows."""


def read_facts(config: RolloutConfig) -> TargetFacts:
    return read_target(config.target, dialect=config.dialect, trust_remote_code=config.trust_remote_code)


def run_rollout(
    config: RolloutConfig,
    facts_of: Callable[[RolloutConfig], TargetFacts] = read_facts,
    backend_of: Callable[[RolloutConfig, TargetFacts], Backend] = open_backend,
) -> None:
    """Answer what is not answered yet; when all of it is, write the rollouts and say what they hold."""
    _refuse_paths(config)
    for path in config.records:
        input_manifest(path, RECORD_STEPS, is_unsealed_allowed=config.unsealed)
    facts = facts_of(config)
    asked, inputs = config.asked_settings(facts), input_hashes(config.records)
    finished = find_finished(config, asked, inputs)
    if finished is not None and finished.is_whole:
        finished.remove_parts()
        print(f"{config.out} is there already")
        return
    items, num_bad = _read_items(config)
    with RolloutFile(config.out).opened() as file:
        finished = find_finished(config, asked, inputs)  # again: another job may have been quicker
        if finished is not None and finished.is_whole:
            print(f"{config.out} is there already")
            return
        if finished is not None:
            config.refuse_difference(file.settings(), finished.settings)
            finished.hand_over(file, items)
        settings = _answer_rest(config, facts, backend_of, items, asked, file)
        _refuse_all_failed(file)
        keys = [item.key for item in items]
        manifest = _manifest(file.rows(keys), settings | {"limit": config.limit}, inputs, num_bad)
        file.finish(keys, manifest)
    _print_summary(config.out, manifest)


def _refuse_paths(config: RolloutConfig) -> None:
    """UserError where the job could not write, would write over an input, or would read one twice."""
    refuse_output(config.out)
    written = RolloutFile(config.out).written_paths()
    refuse_overwriting(written, config.records)
    refuse_twice(config.records)
    if config.features is not None:
        is_file = config.features.exists() and not config.features.is_dir()
        if is_file or config.features.resolve() in [path.resolve() for path in written]:
            raise UserError(f"--features {config.features} must name a folder of its own")


def _read_items(config: RolloutConfig) -> tuple[list[RolloutInput], int]:
    """The records, and how many rows were none."""
    items, num_bad = read_told(config.records)
    if not items:
        raise UserError(f"{', '.join(map(str, config.records))}: no row is a record ({num_bad} left out)")
    return items[: config.limit], num_bad


def _answer_rest(
    config: RolloutConfig, facts: TargetFacts, backend_of: Callable[[RolloutConfig, TargetFacts], Backend],
    items: list[RolloutInput], asked: dict[str, Any], file: RolloutFile,
) -> dict[str, Any]:  # fmt: skip
    """Load the target and ask it what the file does not hold, if that is anything; returns the job's settings."""
    begun = file.settings()
    config.refuse_difference(begun, asked)
    waiting = [item for item in items if not file.is_answered(item.key)]
    if begun is not None and not waiting:
        return begun
    backend = backend_of(config, facts)
    settings = asked | {name: backend.facts[name] for name in RESOLVED}
    config.refuse_difference(begun, settings)
    file.begin(settings)
    answers = _answers(PromptMaker(facts, config.sampling, config.max_prompt_tokens), backend, waiting)
    with _stoppable(config.out), closing(answers), _progress(len(items), len(waiting)) as bar:
        _put_down(answers, facts, file, _feature_store(config, facts, backend), bar)
    return settings


def _answers(maker: PromptMaker, backend: Backend, waiting: list[RolloutInput]) -> Iterator[Answer]:
    """An answer for each record; what cannot be asked is answered by its refusal."""
    for start in range(0, len(waiting), CHUNK):
        prompts = [maker.make(item) for item in waiting[start : start + CHUNK]]
        yield from (Answer(prompt, failure=prompt.refusal) for prompt in prompts if prompt.refusal)
        yield from backend.answer([prompt for prompt in prompts if not prompt.refusal])


def _feature_store(config: RolloutConfig, facts: TargetFacts, backend: Backend) -> FeatureStore | None:
    if config.features is None:
        return None
    target = {name: facts.identity[name] for name in ("target", "revision", "files_sha256")}
    target["dtype"] = backend.facts["dtype"]
    return FeatureStore(config.features, target, eagle3_layers(facts.num_layers))


def _put_down(
    answers: Iterator[Answer], facts: TargetFacts, file: RolloutFile, features: FeatureStore | None, bar: tqdm
) -> None:
    """Write each row when its answer is there; a row that failed is named at once."""
    started, num_tokens, num_asked, failures, is_fresh = time.perf_counter(), 0, 0, Counter(), not file.has_answers()
    for answer in answers:
        row = row_of(answer, facts)
        if features is not None and row["usable"]:
            features.save(TargetStates.of_rollout(row, *answer.states))
        file.append(answer.prompt.key, row)
        num_asked += not answer.prompt.refusal
        num_tokens += len(row["completion_ids"])
        bar.set_postfix_str(f"{num_tokens / (time.perf_counter() - started):.0f} tokens/s", refresh=False)
        bar.update()
        if reason_of(row) == FAILED:
            failures[row["why_not"]] += 1
            bar.write(f"{row['record_id']}: {row['why_not']}", file=sys.stderr)
            if is_fresh and failures.total() == num_asked >= FAILURES_AT_START:
                raise UserError(f"the first {num_asked} rows all failed, most with {failures.most_common(1)[0][0]}")


def _refuse_all_failed(file: RolloutFile) -> None:
    """UserError where no row that was asked has an answer; the rows stay, and the next job tries them again."""
    if file.num_failed() and not file.has_answers():
        failures = Counter(row["why_not"] for row in file.rows() if reason_of(row) == FAILED)
        raise UserError(
            f"all {failures.total()} rows that were asked failed, most with {failures.most_common(1)[0][0]}; the same "
            "command tries them again"
        )


def _progress(num_all: int, num_waiting: int) -> tqdm:
    interval = 0.1 if sys.stderr.isatty() else 10.0  # a log file wants few lines
    return tqdm(
        total=num_all, initial=num_all - num_waiting, desc="rollout", unit="row", mininterval=interval, file=sys.stderr
    )


@contextmanager
def _stoppable(out: Path) -> Iterator[None]:
    """SIGTERM stops as Ctrl-C does; both say how to go on."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; every finished row is kept beside {out}: the same command goes on from there", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _manifest(
    rows: Iterator[dict[str, Any]], settings: dict[str, Any], inputs: dict[str, str], num_bad: int
) -> Manifest:
    """Token counts are those of usable rows."""
    counts = dict.fromkeys(("read", "left_out", "usable", "unusable", "prompt_tokens", "completion_tokens"), 0)
    counts["left_out"] = num_bad
    reasons: Counter[str] = Counter({"bad_row": num_bad} if num_bad else {})
    for row in rows:
        counts["read"] += 1
        counts["usable" if row["usable"] else "unusable"] += 1
        if row["usable"]:
            counts["prompt_tokens"] += len(row["prompt_ids"])
            counts["completion_tokens"] += len(row["completion_ids"])
        else:
            reasons[reason_of(row)] += 1
    return Manifest(step="rollout", settings=settings, inputs=inputs, counts=counts, left_out=dict(reasons))


def _print_summary(out: Path, manifest: Manifest) -> None:
    counts = manifest.counts
    print(f"{out}: {counts['read']} rows, {counts['usable']} usable, {counts['unusable']} not")
    print(f"  usable rows hold {counts['prompt_tokens']} prompt and {counts['completion_tokens']} completion tokens")
    for reason, count in sorted(manifest.left_out.items(), key=lambda pair: -pair[1]):
        again = "; the same command tries them again" if reason == FAILED else ""
        print(f"  {'left out' if reason == 'bad_row' else 'unusable'} {count:6d}  {reason}{again}")
