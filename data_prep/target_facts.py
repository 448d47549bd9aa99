"""What is known of a target without its weights: how it is asked, where its answers end, and by what it is recognised.

Everything that is made with a target carries `TargetFacts.identity`, so that files of two targets, of two tokenizers or
of two templates are never mixed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from schemafill.inference.loading import choose_dialect, load_tokenizer, locate_target
from schemafill.inference.model.architectures import check_architecture
from schemafill.inference.model.target import end_ids_of
from schemafill.inference.model.vocabulary import Vocabulary
from schemafill.inference.prompt_builder import PromptBuilder
from schemafill.inference.request import UserError, first_line
from schemafill.inference.toolcall.dialects import Dialect, get_dialect
from schemafill.inference.toolcall.plain_prompt import render_plain
from schemafill.inference.toolcall.schema import parse_tools

FILE_SUFFIXES = (".json", ".safetensors", ".model", ".jinja")
BLOCK_BYTES, NUM_BLOCKS = 1 << 16, 64
"""Of a file with more bytes than all blocks together only so many blocks are hashed, evenly spread."""
# Everything that the plain prompt says of a tool and of a conversation stands in this request once.
PROBE_TOOLS = [
    {
        "name": "probe.tool",
        "description": "A tool.",
        "parameters": {
            "type": "object",
            "properties": {
                "one": {"type": "string", "enum": ["a", "b"], "default": "a", "description": "First."},
                "two": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
            },
            "required": ["one"],
        },
    }
]
PROBE_CALL = {"id": "call_1", "type": "function", "function": {"name": "probe.tool", "arguments": {"one": "b"}}}
PROBE_MESSAGES = [
    {"role": "system", "content": "Rules."},
    {"role": "user", "content": "Request."},
    {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]},
    {"role": "tool", "content": "Result.", "tool_call_id": "call_1"},
]


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """A target as it can be asked through any backend."""

    source: str
    """Where its files are: a folder or a Hub id."""
    tokenizer: Any
    vocabulary: Vocabulary
    dialect: Dialect
    prompts: PromptBuilder
    end_ids: tuple[int, ...]
    max_positions: int
    """Tokens that its context holds, prompt and answer together."""
    vocab_size: int
    """Rows of its output layer; a tokenizer may know fewer tokens."""
    num_layers: int
    identity: dict[str, Any]
    """Name, revision and hashes, as JSON holds them. `template_options` is empty: prompts are rendered with none, and
    files that were made with some would not fit."""


def read_target(target: str, *, dialect: str = "auto", trust_remote_code: bool = False) -> TargetFacts:
    """The facts of a Hub id, a local folder or `embedded`. Raises UserError for what a user can mend."""
    if dialect != "auto":
        get_dialect(dialect)
    source = locate_target(target)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    except Exception as error:  # files of strangers: transformers raises whatever their faults lead to
        raise UserError(f"cannot read the configuration of target {source!r}: {first_line(error)}") from error
    family = check_architecture(config)
    tokenizer = load_tokenizer(source, trust_remote_code)
    revision = getattr(config, "_commit_hash", None)
    return target_facts(
        source, tokenizer, config, get_dialect(choose_dialect(source, tokenizer) if dialect == "auto" else dialect),
        end_ids=end_ids_of(source, config, {"trust_remote_code": trust_remote_code}),
        call_id_length=family.call_id_length, revision=revision,
    )  # fmt: skip


def target_facts(
    source: str, tokenizer: Any, config: Any, dialect: Dialect, *, end_ids: tuple[int, ...] = (),
    call_id_length: int | None = None, revision: str | None = None,
) -> TargetFacts:  # fmt: skip
    """The facts of a target whose parts are at hand. config: anything with `vocab_size`,
    `max_position_embeddings` and `num_hidden_layers`."""
    folder = Path(source)
    prompts = PromptBuilder(tokenizer, dialect, call_id_length)
    identity = {
        "target": folder.name if folder.is_dir() else source,
        "revision": revision,
        "files_sha256": files_sha256(folder) if folder.is_dir() else None,
        "tokenizer_sha256": _sha256(tokenizer.backend_tokenizer.to_str()),
        "prompt": "plain" if prompts.is_plain else "chat template",
        "template_sha256": template_sha256(tokenizer, prompts),
        "template_options": {},
        "dialect": dialect.name,
        "vocab_size": config.vocab_size,
        "end_ids": list(end_ids),
    }
    return TargetFacts(
        source=source, tokenizer=tokenizer, vocabulary=Vocabulary(tokenizer), dialect=dialect, prompts=prompts,
        end_ids=end_ids, max_positions=config.max_position_embeddings, vocab_size=config.vocab_size,
        num_layers=config.num_hidden_layers, identity=identity,
    )  # fmt: skip


def template_sha256(tokenizer: Any, prompts: PromptBuilder) -> str:
    """Changes with whatever shapes the prompt: the chat template, or the wording of the plain prompt."""
    if prompts.is_plain:
        return _sha256(render_plain(PROBE_MESSAGES, parse_tools(PROBE_TOOLS)))
    template = tokenizer.chat_template
    return _sha256(template if isinstance(template, str) else json.dumps(template, sort_keys=True))


def files_sha256(folder: Path) -> str:
    """Hash of the files that decide what a target says. Large files count with their size and a part of their blocks.

    Weights that were trained on differ everywhere, so the blocks show it, in milliseconds instead of minutes.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in FILE_SUFFIXES and path.is_file():
            size = path.stat().st_size
            digest.update(f"{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                for start, length in _blocks(size):
                    file.seek(start)
                    digest.update(file.read(length))
    return digest.hexdigest()


def _blocks(size: int) -> list[tuple[int, int]]:
    """Start and length of the parts of a file that are read: all of it, or blocks from its first to its last byte."""
    if size <= BLOCK_BYTES * NUM_BLOCKS:
        return [(0, size)]
    return [(number * (size - BLOCK_BYTES) // (NUM_BLOCKS - 1), BLOCK_BYTES) for number in range(NUM_BLOCKS)]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
