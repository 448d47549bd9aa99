"""What the tests of rollouts share: facts of a small target, records, and a backend whose answers a test decides."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

from models import byte_level_tokenizer

from schemafill.data_prep.prompts import Answer, Prompt, PromptMaker
from schemafill.data_prep.records import Record, record_of
from schemafill.data_prep.rollout_config import RolloutConfig
from schemafill.data_prep.rollout_inputs import RolloutInput, content_sha256
from schemafill.data_prep.rollout_job import run_rollout
from schemafill.data_prep.target_facts import TargetFacts, target_facts
from schemafill.inference.request import SamplingParams
from schemafill.inference.toolcall.dialects import get_dialect

END_SIGNS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>")
ECHO = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Say it again.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}


def tiny_facts(
    dialect: str = "json", *, max_positions: int = 2048, end_signs: Sequence[str] = END_SIGNS
) -> TargetFacts:
    """Facts of a target over the small byte-level vocabulary."""
    tokenizer = byte_level_tokenizer(dialect=dialect)
    config = SimpleNamespace(vocab_size=len(tokenizer) + 3, max_position_embeddings=max_positions, num_hidden_layers=7)
    return target_facts(
        "tiny", tokenizer, config, get_dialect(dialect),
        end_ids=tuple(tokenizer.convert_tokens_to_ids(sign) for sign in end_signs),
        call_id_length=9 if dialect == "mistral" else None,
    )  # fmt: skip


def record_row(text: str, id_: str | None = None, **more: object) -> dict:
    """A row of a records file that asks for something; without an id where none is given."""
    named = {} if id_ is None else {"id": id_}
    messages = [{"role": "user", "content": text}]
    return named | {"source": "x", "messages": messages, "tools": [ECHO], "group": "g"} | more


def write_rows(path: Path, rows: Sequence[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def item_of(row: dict) -> RolloutInput:
    record = record_of(row)
    return RolloutInput(f"{record.id} {content_sha256(record)[:32]}", record)


def prompt_of(facts: TargetFacts, text: str, id_: str = "a", **sampling: object) -> Prompt:
    return PromptMaker(facts, SamplingParams(**sampling)).make(item_of(record_row(text, id_)))


def request_of(record: Record) -> str:
    return record.messages[-1]["content"]


def echo_call(request: str) -> str:
    """What a target writes that does as it is told."""
    call = {"name": "echo", "arguments": {"text": request}}
    return json.dumps({"tool_calls": [call]}, ensure_ascii=False)


class StubBackend:
    """Answers with a call that repeats the request and then the end sign. Looks at nothing but the prompts.

    order: indices of the prompts in the order in which they are answered. fails: requests that fail each time.
    before: called before each answer with how many came before it.
    """

    def __init__(
        self, facts: TargetFacts, *, order: Callable[[int], Sequence[int]] = range, fails: Sequence[str] = (),
        before: Callable[[int], object] = int, write: Callable[[str], str] = echo_call,
    ) -> None:  # fmt: skip
        self.facts = {"dtype": "float32", "device": "cpu", "row_invariant": True}
        self.asked: list[str] = []
        """Ids of the records, in the order of the prompts."""
        self._target = facts
        self._order = order
        self._fails = fails
        self._before = before
        self._write = write

    def answer(self, prompts: Sequence[Prompt]) -> Iterator[Answer]:
        self.asked += [prompt.record.id for prompt in prompts]
        for number, index in enumerate(self._order(len(prompts))):
            self._before(number)
            prompt = prompts[index]
            if request_of(prompt.record) in self._fails:
                yield Answer.failed(prompt, RuntimeError("the server hung up"))
                continue
            ids = self._target.vocabulary.encode(self._write(request_of(prompt.record)))
            yield Answer(prompt, [*ids, self._target.end_ids[1]])


def roll_out(
    records: Path | list[Path], out: Path, facts: TargetFacts | None = None, stub: StubBackend | None = None,
    **config: object,
) -> StubBackend:  # fmt: skip
    """Run a job with a backend of the test's own; returns it."""
    facts = facts or tiny_facts()
    stub = stub or StubBackend(facts)
    paths = records if isinstance(records, list) else [records]
    asked = RolloutConfig(target="tiny", records=paths, out=out, **({"unsealed": True} | config))
    run_rollout(asked, lambda _: facts, lambda *_: stub)
    return stub
