"""From a completion to a row of results, and its comparison with ar's row of the same request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schemafill.inference.bench_schedule import Group
from schemafill.inference.figures import ResultRow, decode_tokens_per_second, ratio, tokens_per_second
from schemafill.inference.request import Completion

if TYPE_CHECKING:
    from schemafill.inference.engine import Engine


def result_row(group: Group, method: str, done: Completion, trace: dict[str, list] | None) -> ResultRow:
    """What a completion leaves in the results; its comparison with ar comes later."""
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


def traced_rounds(engine: Engine, done: Completion) -> dict[str, list]:
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


def compared_row(row: ResultRow, baseline: ResultRow | None) -> ResultRow:
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
