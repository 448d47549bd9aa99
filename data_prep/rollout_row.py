"""From what a target wrote to a row of a rollouts file, cut where the engine would have ended the output.

One function for every backend: where an output ends does not depend on who computed it.
"""

from __future__ import annotations

from typing import Any

from schemafill.data_prep.prompts import Answer
from schemafill.data_prep.rollout_form import EMPTY, LENGTH, NO_END
from schemafill.data_prep.target_facts import TargetFacts
from schemafill.inference.decoding.stop import StopRule
from schemafill.inference.toolcall.output import parse_output


def row_of(answer: Answer, facts: TargetFacts) -> dict[str, Any]:
    """The row. A row that is no example of how the target answers is kept, not usable, with the reason.

    completion_ids end with the token that ended the output, an end sign included. `why_not` starts with one word:
    length (cut off by a limit), empty (an end sign and nothing else), no_end (it stopped without a sign that is
    known), or the word of a prompt or an answer that failed.
    """
    prompt = answer.prompt
    if answer.failure:
        return _row(answer, [], answer.text, None, answer.failure)
    stop = StopRule(facts.dialect, facts.vocabulary, facts.end_ids, (), prompt.limit)
    ids = []
    for token_id in answer.token_ids:
        stop.take(token_id)
        ids.append(token_id)
        if stop.reason:
            break
    reason = stop.reason or (LENGTH if answer.is_cut else NO_END)
    opens_reasoning = facts.prompts.opens_reasoning(prompt.text)
    parsed = parse_output(facts.dialect, prompt.catalog, stop.text, reason, opens_reasoning)
    why_not = reason if reason in (LENGTH, NO_END) else "" if stop.text.strip() else EMPTY
    return _row(answer, ids, stop.text, parsed.finish_reason, why_not)


def _row(answer: Answer, ids: list[int], text: str, finish_reason: str | None, why_not: str) -> dict[str, Any]:
    return {
        "record_id": answer.prompt.record.id,
        "prompt_ids": answer.prompt.ids,
        "completion_ids": ids,
        "text": text,
        "finish_reason": finish_reason,
        "usable": not why_not,
        "why_not": why_not or None,
    }
