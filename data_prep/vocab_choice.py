"""Which tokens of the target a draft head gets, and the file that says so.

In this order, until all places are taken: end signs, digits and tokens that are nothing but JSON's own signs; tokens of
tools' words, the commonest first, in at most half of the places; tokens of completions, the most frequent first; the
lowest unused ids that are plain text. A byte-pair vocabulary numbers its tokens in the order in which they were merged,
so the lowest ids are the commonest pieces of text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from safetensors.torch import save

from schemafill.data_prep.target_facts import TargetFacts
from schemafill.inference.request import UserError

STRUCTURE = re.compile(r'(?=.*[{}\[\]":,`])[{}\[\]":,` \t\r\n]{1,6}', re.DOTALL)
"""Signs of JSON and of fences with white space among them. Longer runs are of other languages."""
SPACE = re.compile(r"[ \t\r\n]+")
DIGITS = re.compile(r"[0-9]+")
LARGEST_WORD_SHARE = 0.5


@dataclass(frozen=True)
class VocabChoice:
    """ids ascend: draft id i stands for target id ids[i]. counts: how many came in by which rule, and were left out."""

    ids: list[int]
    counts: dict[str, int]


def choose_vocab(size: int, facts: TargetFacts, written: Counter[int], words: Counter[int]) -> VocabChoice:
    """written: token -> how often completions hold it. words: token -> how many words of tools hold it.

    UserError where `size` is too small for what is always there, or larger than the plain text of the vocabulary.
    """
    texts = _plain_texts(facts)
    structure = {token for token, text in texts.items() if STRUCTURE.fullmatch(text)}
    structure |= {token for token in written if SPACE.fullmatch(texts.get(token, ""))}
    digits = {token for token, text in texts.items() if DIGITS.fullmatch(text)}
    chosen = structure | digits | set(facts.end_ids)
    if len(chosen) > size:
        raise UserError(f"size {size} is too small: JSON signs, digits and end signs alone are {len(chosen)} tokens")
    counts = {"structure": len(structure), "digits": len(digits), "end_signs": len(facts.end_ids)}
    room = min(int(size * LARGEST_WORD_SHARE), size - len(chosen))
    counts |= _add(chosen, "tool_words", _ranked(words), room)
    counts |= _add(chosen, "by_frequency", _ranked(written), size - len(chosen))
    counts |= _add(chosen, "filled", texts, size - len(chosen))
    del counts["filled_left_out"]
    if len(chosen) < size:
        raise UserError(f"size {size} is too large: {len(chosen)} tokens of the vocabulary are plain text or in use")
    return VocabChoice(sorted(chosen), counts)


def _add(chosen: set[int], name: str, candidates: Iterable[int], room: int) -> dict[str, int]:
    """Add the first `room` candidates that are not chosen yet; returns how many came in and how many did not."""
    fresh = [token for token in candidates if token not in chosen]
    chosen.update(fresh[:room])
    return {name: len(fresh[:room]), f"{name}_left_out": len(fresh[room:])}


def _ranked(counts: Counter[int]) -> list[int]:
    """Most frequent first, lowest id first among equals."""
    return sorted(counts, key=lambda token: (-counts[token], token))


def _plain_texts(facts: TargetFacts) -> dict[int, str]:
    """Token -> text, in the order of ids, for all that are whole characters and no special sign."""
    vocabulary, texts = facts.vocabulary, {}
    for token in range(min(len(facts.tokenizer), facts.vocab_size)):
        if not vocabulary.is_special(token):
            try:
                text = vocabulary.bytes_of(token).decode()
            except UnicodeDecodeError:  # a part of a character
                continue
            if text:
                texts[token] = text
    return texts


def vocab_file(choice: VocabChoice, facts: TargetFacts) -> bytes:
    """The maps as a safetensors file: `d2t` [size] int64 with target id = draft id + d2t[draft id], ascending target
    ids; `t2d` [vocab_size] bool, true for every target id that can be drafted."""
    ids = torch.tensor(choice.ids)
    can_be_drafted = torch.zeros(facts.vocab_size, dtype=torch.bool)
    can_be_drafted[ids] = True
    metadata = {"target": facts.identity["target"], "tokenizer_sha256": facts.identity["tokenizer_sha256"]}
    return save({"d2t": ids - torch.arange(len(ids)), "t2d": can_be_drafted}, metadata)
