"""Token ids as bytes and text as token ids.

Bytes come from the vocabulary's own spelling, never from decoding, so that a token that holds half a character is
still exact. Text is turned into ids jointly with the tail of what is committed already: a vocabulary may join the end
of one with the start of the other.
"""

from __future__ import annotations

import re
from functools import cached_property

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
WINDOW_TOKENS = 6


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins of byte-level vocabularies (GPT-2's table), sign -> byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(rest)}


class Vocabulary:
    """Wraps a fast tokenizer of transformers. Owned by the engine, shared by all drafters."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._special = set(tokenizer.all_special_ids)
        added = tokenizer.added_tokens_decoder
        self._added = {index: token.content for index, token in added.items()}
        self._special |= {index for index, token in added.items() if token.special}
        self._is_byte_level = self._find_byte_level()
        self._alphabet = _byte_alphabet()
        self._bytes: dict[int, bytes] = {}

    def _find_byte_level(self) -> bool:
        """Byte-level vocabularies spell a space as `Ġ`, SentencePiece ones as `▁`."""
        vocabulary = self.tokenizer.get_vocab()
        return any(token.startswith("Ġ") for token in vocabulary) or not any("▁" in token for token in vocabulary)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that the token stands for; a special token stands for its own text."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self.tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            is_spelt = set(token) <= self._alphabet.keys()
            return bytes(self._alphabet[char] for char in token) if is_spelt else token.encode()
        byte = BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()

    def is_special(self, token_id: int) -> bool:
        """An end sign, a turn marker and the like."""
        return token_id in self._special

    def text_of(self, token_ids: list[int]) -> str:
        """The text of a run of tokens, special ones shown, broken characters as replacement signs."""
        return b"".join(map(self.bytes_of, token_ids)).decode("utf-8", "replace")

    def encode(self, text: str) -> list[int]:
        """Ids of a text that starts from nothing (no start sign added)."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def window(self, token_ids: list[int]) -> tuple[str, list[int]]:
        """The tail of committed tokens that a continuation is tokenised with: its text and its ids.

        Empty where the tail has no exact text (it ends inside a character) or does not come back as the same ids.
        """
        for count in (WINDOW_TOKENS, WINDOW_TOKENS - 1, WINDOW_TOKENS + 1, WINDOW_TOKENS - 2, 2, 1):
            tail = token_ids[-count:]
            if len(tail) < min(count, len(token_ids)):
                continue
            raw = b"".join(map(self.bytes_of, tail))
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:
                continue
            if self._encode_after(text) == tail:
                return text, tail
        return "", []

    def continuation(self, window: tuple[str, list[int]], text: str) -> list[int]:
        """Ids of `text` when it follows the window, as the vocabulary would split both together.

        Where the join would have been split differently, the target has already chosen another split of the tail, and
        the text is split on its own.
        """
        before, ids = window
        joint = self._encode_after(before + text)
        return joint[len(ids) :] if joint[: len(ids)] == ids else self._encode_after(text)

    def _encode_after(self, text: str) -> list[int]:
        """Ids of a text that follows something else: without the space that some vocabularies put in front."""
        if self._is_byte_level:
            return self._backend.encode(text, add_special_tokens=False).ids
        anchored = self._backend.encode(self._anchor[0] + text, add_special_tokens=False).ids
        return anchored[self._anchor[1] :]

    @cached_property
    def _anchor(self) -> tuple[str, int]:
        return "\n", len(self._backend.encode("\n", add_special_tokens=False).ids)
