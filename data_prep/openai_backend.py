"""Answers prompts through a server that speaks OpenAI's completions protocol: vLLM, SGLang, llama.cpp and others.

The prompt is sent as ids, or as text to servers that take no ids. What the server wrote is kept as its own ids where it
returns them for all of the text; else its text is split again and counts only if that gives the same text back. Ids
that are not the target's, or spell another text than the server's, make the row unusable (`ids_differ`): a server with
another tokenizer has read another prompt too. The needless end of an answer (behind the object that ends it) is not
waited for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from threading import Event
from typing import Any

from schemafill.data_prep.prompts import Answer, Prompt
from schemafill.data_prep.rollout_form import IDS_DIFFER, NOT_REENCODABLE, PROMPT_DIFFERS
from schemafill.data_prep.server_answer import ServerAnswer
from schemafill.data_prep.side_by_side import side_by_side
from schemafill.data_prep.target_facts import TargetFacts
from schemafill.inference.request import SamplingParams, UserError, first_line

RETRIES = 4
"""How often a request is sent again, with growing waits: by the client until it is accepted, by us when it breaks
off."""
FATAL_STATUS = (401, 403, 404)
"""The key, the address or the model's name is wrong: no other row will fare better."""


class OpenAIBackend:
    """A server as a backend, asked by several threads at a time."""

    def __init__(
        self, base_url: str, model: str, facts: TargetFacts, params: SamplingParams, *, concurrency: int = 16,
        sends_text: bool = False, timeout_s: float = 600.0, retries: int = RETRIES,
    ) -> None:  # fmt: skip
        self.facts = {"dtype": "server", "device": "server", "row_invariant": False}
        self._openai = _import_openai()
        self._client = self._openai.OpenAI(
            base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY") or "none", timeout=timeout_s,
            max_retries=retries,
        )  # fmt: skip
        self._base_url = base_url
        self._model = model
        self._target = facts
        self._params = params
        self._concurrency = concurrency
        self._sends_text = sends_text
        self._retries = retries

    def answer(self, prompts: Sequence[Prompt]) -> Iterator[Answer]:
        """In the order in which answers are complete. UserError where the server cannot be reached or refuses us."""
        return side_by_side(self._ask, prompts, self._concurrency)

    def _ask(self, prompt: Prompt, is_over: Event) -> Answer:
        """The answer to one prompt; an error that other prompts need not meet is this row's failure.

        is_over: nobody waits for the answer any more, so what is under way ends at its next piece.
        """
        openai = self._openai
        for tries_left in range(self._retries, -1, -1):
            try:
                return self._answer_of(prompt, self._receive(prompt, is_over))
            except openai.APIStatusError as error:
                if error.status_code in FATAL_STATUS:
                    raise UserError(f"{self._base_url} refuses: {first_line(error)}") from error
                return Answer.failed(prompt, error)
            except openai.APITimeoutError as error:
                return Answer.failed(prompt, error)
            except openai.APIConnectionError as error:
                reason = first_line(error.__cause__ or error)
                raise UserError(f"cannot reach {self._base_url} ({reason}): is the server running?") from error
            except Exception as error:  # broken off inside the answer, or not the protocol
                if not tries_left or is_over.wait(2.0 ** (self._retries - tries_left) / 4):
                    return Answer.failed(prompt, error)
        raise AssertionError("the last try returns")

    def _receive(self, prompt: Prompt, is_over: Event) -> ServerAnswer:
        """Read an answer piece by piece, up to where the output ends."""
        received = ServerAnswer(self._target, prompt.limit)
        with self._client.completions.create(**self._request(prompt)) as stream:
            for chunk in self._pieces(stream):
                if not chunk.choices:  # a last chunk may hold the usage alone
                    continue
                if received.take(chunk.choices[0]) or is_over.is_set():
                    break
        return received

    def _pieces(self, stream: Iterator[Any]) -> Iterator[Any]:
        """The pieces of an answer. The client reports a connection lost among them like one that never was."""
        try:
            yield from stream
        except self._openai.APITimeoutError:
            raise
        except self._openai.APIConnectionError as error:
            raise ConnectionError(f"broken off: {first_line(error.__cause__ or error)}") from error

    def _request(self, prompt: Prompt) -> dict[str, Any]:
        """Everything that decides the answer is said: a server's own defaults may come with the model."""
        params = self._params
        return {
            "model": self._model,
            "prompt": prompt.text if self._sends_text else prompt.ids,
            "max_tokens": prompt.limit,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": prompt.seed,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stream": True,
            "extra_body": {
                "top_k": params.top_k or -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True,
                "skip_special_tokens": False, "spaces_between_special_tokens": False,
            },
        }  # fmt: skip

    def _answer_of(self, prompt: Prompt, received: ServerAnswer) -> Answer:
        text, ids = received.text, received.ids
        if received.prompt_ids is not None and received.prompt_ids != prompt.ids:
            return Answer(prompt, failure=f"{PROMPT_DIFFERS}: the server read other prompt ids", text=text)
        if received.has_all_ids:
            if fault := received.fault():
                return Answer(prompt, failure=f"{IDS_DIFFER}: {fault}", text=text)
        else:
            ids = self._reencoded(prompt, text)
            if ids is None:
                return Answer(prompt, failure=NOT_REENCODABLE, text=text)
        ids = [*ids, *self._end_sign(received, ids)]
        return Answer(prompt, ids, is_cut=received.finish_reason == "length")

    def _reencoded(self, prompt: Prompt, text: str) -> list[int] | None:
        """The ids of a text behind the prompt; None where they do not spell exactly this text."""
        vocabulary = self._target.vocabulary
        try:
            text.encode()
        except UnicodeEncodeError:
            return None
        ids = vocabulary.continuation(vocabulary.window(prompt.ids), text)
        return ids if vocabulary.text_of(ids) == text else None

    def _end_sign(self, received: ServerAnswer, ids: list[int]) -> list[int]:
        """The end sign of an answer where the server keeps it to itself; none where it may be one of several."""
        ends = self._target.end_ids
        if received.finish_reason != "stop" or (ids and ids[-1] in ends):
            return []
        known = [received.stop_reason] if received.stop_reason in ends else list(ends)
        return known if len(known) == 1 else []


def _import_openai() -> Any:
    try:
        import openai
    except ImportError:
        raise UserError("the openai backend needs the package openai: pip install 'schemafill[rollout]'") from None
    return openai
