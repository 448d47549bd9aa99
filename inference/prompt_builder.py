"""What a target is asked: from messages and tools as a client sends them to the text and the ids of the prompt.

Needs the tokenizer and no weights, so that whoever prepares data asks a target exactly what the engine asks it.
"""

from __future__ import annotations

from typing import Any

from schemafill.inference.request import UserError
from schemafill.inference.toolcall.dialects import Dialect
from schemafill.inference.toolcall.plain_prompt import render_plain
from schemafill.inference.toolcall.prompt import normalise_messages, render_chat
from schemafill.inference.toolcall.schema import Catalog


class PromptBuilder:
    """Builds the prompts of one target in one dialect."""

    def __init__(self, tokenizer: Any, dialect: Dialect, call_id_length: int | None = None) -> None:
        """call_id_length: the length that the target's chat template demands of call ids; None: any."""
        self._tokenizer = tokenizer
        self._dialect = dialect
        self._call_id_length = call_id_length

    @property
    def is_plain(self) -> bool:
        """The plain-text prompt instead of the tokenizer's chat template."""
        return self._dialect.name == "json"

    def history(self, messages: list) -> list[dict]:
        """The messages in the one form that templates agree on."""
        return normalise_messages(messages, id_length=self._call_id_length)

    def text(self, history: list[dict], catalog: Catalog) -> str:
        """The prompt for a history that `history` made."""
        if self.is_plain:
            return render_plain(history, catalog)
        return render_chat(self._tokenizer, history, catalog.raw)

    def encode(self, text: str) -> list[int]:
        """Ids of the prompt; a chat template writes its own start sign, a plain prompt gets the tokenizer's."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            bad = text[error.start : error.end]
            raise UserError(f"messages or tools hold {bad!r}, which is no character (half of a pair)") from error
        ids = self._tokenizer(text, add_special_tokens=self.is_plain)["input_ids"]
        if not ids:
            raise UserError("the prompt is empty")
        return ids

    def opens_reasoning(self, text: str) -> bool:
        """Whether the prompt ends in the sign that opens the answer's reasoning."""
        return text.rstrip().endswith(self._dialect.reasoning_opening)
