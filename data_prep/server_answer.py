"""What a server sent of one answer: pieces of text, their ids where it returns them, and whether both say the same.

Ids are trusted where they are ids of the target's vocabulary and spell the text that came with them. Signs that servers
show or hide (end signs, control signs), white space at both ends and broken characters are not compared: servers differ
there and mean the same.
"""

from __future__ import annotations

import re
from typing import Any

from schemafill.data_prep.target_facts import TargetFacts
from schemafill.inference.decoding.stop import ObjectScan, StopRule

BROKEN = re.compile("\ufffd+")


class ServerAnswer:
    """One answer, fed with the choices of a completions stream."""

    def __init__(self, target: TargetFacts, limit: int) -> None:
        self.ids: list[int] = []
        """They may go on behind the end of the output."""
        self.has_all_ids = False
        """Every piece of text came with its ids."""
        self.prompt_ids: list[int] | None = None
        self.finish_reason: str | None = None
        self.stop_reason: Any = None
        self._pieces: list[str] = []
        self._target = target
        self._stop = StopRule(target.dialect, target.vocabulary, target.end_ids, (), limit)
        self._scan = ObjectScan() if target.dialect.stops_at_object else None
        self._lacks_ids = False
        self._foreign_ids: list[Any] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def take(self, choice: Any) -> bool:
        """Add a piece; returns whether the output is over."""
        extras, piece = choice.model_extra or {}, choice.text or ""
        self._pieces.append(piece)
        if extras.get("prompt_token_ids") is not None:
            self.prompt_ids = extras["prompt_token_ids"]
        self.finish_reason = choice.finish_reason or self.finish_reason
        self.stop_reason = extras.get("stop_reason", self.stop_reason)
        is_closed = self._scan is not None and self._scan.feed(piece.encode(errors="surrogatepass")) is not None
        token_ids = extras.get("token_ids")
        if token_ids is None:
            self._lacks_ids |= bool(piece)
        else:
            self._take_ids(token_ids)
        self.has_all_ids = bool(self.ids or self._foreign_ids) and not self._lacks_ids
        if self._foreign_ids:
            return True
        return bool(self._stop.reason) if self.has_all_ids else is_closed

    def _take_ids(self, token_ids: Any) -> None:
        for token_id in token_ids if isinstance(token_ids, list) else [token_ids]:
            is_id = type(token_id) is int and isinstance(token_ids, list)
            if not is_id or not 0 <= token_id < self._target.vocab_size:
                self._foreign_ids.append(token_id)
                return
            self.ids.append(token_id)
            if not self._stop.reason:
                self._stop.take(token_id)

    def fault(self) -> str:
        """What is wrong with the ids; empty where they can be trusted."""
        if self._foreign_ids:
            return f"{self._foreign_ids[0]!r:.40} is no id of the target's vocabulary"
        vocabulary = self._target.vocabulary
        signs = {vocabulary.text_of([token_id]) for token_id in self.ids if vocabulary.is_special(token_id)}
        spelt, text = (_bare(text, signs) for text in (vocabulary.text_of(self.ids), self.text))
        is_whole = self.finish_reason is not None  # else it was left at the object's end, and text may lag behind
        if spelt == text or (not is_whole and spelt.startswith(text)):
            return ""
        return "the server's ids do not spell its text"


def _bare(text: str, signs: set[str]) -> str:
    """A text without what is not compared."""
    for sign in signs:
        text = text.replace(sign, "")
    return BROKEN.sub("\ufffd", text).strip().strip("\ufffd").strip()
