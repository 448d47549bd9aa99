"""Small targets for tests: random models of every family, tokenizers that join JSON signs, and a scripted target.

`tiny_target` computes with real attention and random weights. `scripted_target` computes nothing, but looks at exactly
those arena rows that a pass makes visible: what it "chooses" at a node is a function of the tokens on its path, so a
wrong mask, position or commit shows as another output.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from schemafill.inference.engine import Engine
from schemafill.inference.model.cpu_kernels import Kernels, load_kernels
from schemafill.inference.model.kv_arena import ATTENTION_NAME, ForwardPlan, KVArena
from schemafill.inference.model.target import TargetModel, pack_linears
from schemafill.inference.toolcall.dialects import get_dialect

FIXTURES = Path(__file__).parent / "fixtures"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SHAPES = {
    "llama": {
        "hidden_size": 48,  # head size 12: no multiple of any vector length
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 512,
        },
    },
    "mistral": {"hidden_size": 64, "sliding_window": None},
    "qwen2": {"hidden_size": 48, "tie_word_embeddings": True},
    "qwen3": {"hidden_size": 64, "head_dim": 24},  # not hidden_size / heads
}  # fmt: skip
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|im_start|>", "[TOOL_CALLS]", "<|python_tag|>")
MARKER_TOKENS = ("<tool_call>", "</tool_call>")  # tokens of their own, but ordinary text
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DIALECT_TEMPLATES = {"hermes": "qwen_like", "mistral": "mistral_like", "llama3": "llama_like"}


def weather_tools() -> list[dict]:
    """Two tools with a choice, a default, a nested object and a list."""
    place = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
        "required": ["city"],
    }
    weather = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name of the city"},
            "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
            "days": {"type": "integer", "default": 1},
            "place": place,
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city", "unit"],
    }
    mail = {"type": "object", "properties": {"to": {"type": "string"}, "urgent": {"type": "boolean"}}}
    return [
        {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": weather}},
        {"type": "function", "function": {"name": "send_mail", "description": "Send a mail", "parameters": mail}},
    ]


# ---------------------------------------------------------------------------------------------------------- tokenizers


def _corpus() -> list[str]:
    calls = [
        {"name": name, "arguments": {"city": city, "unit": "celsius", "days": days}}
        for name in ("get_weather", "order_part")
        for city, days in (("Oslo", 3), ("Lisbon", 12))
    ]
    texts = [json.dumps({"tool_calls": calls}), json.dumps({"tool_calls": calls[:1]}, indent=2)]
    texts += [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls]
    texts += ["The north gate is open. It's Anna's.", "What is the weather in Oslo and Lisbon?", "größe, Zürich 北区"]
    return texts * 3


@cache
def byte_level_tokenizer(*, is_split: bool = True, dialect: str = "") -> PreTrainedTokenizerFast:
    """A byte-level BPE vocabulary. is_split: cut into words first, as Qwen does; else tokens run across anything.

    dialect: the chat template of a family that writes it.
    """
    tokenizer = Tokenizer(models.BPE())
    split = [pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated")] if is_split else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=440, min_frequency=2, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=9, show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(_corpus(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_special_tokens({"eos_token": SPECIAL_TOKENS[0], "additional_special_tokens": list(SPECIAL_TOKENS[1:])})
    fast.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKER_TOKENS])
    if dialect in DIALECT_TEMPLATES:
        fast.chat_template = (FIXTURES / f"{DIALECT_TEMPLATES[dialect]}.jinja").read_text(encoding="utf-8")
    return fast


@cache
def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """A vocabulary as Llama 2 and Mistral have it: `▁` for a space, one put in front, single bytes for the rest."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=300, min_frequency=2, max_token_length=9, show_progress=False)
    texts = [text.replace("\n", " ").replace("北区", "").replace("ü", "u") for text in _corpus()]
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learned["vocab"]]
    model = models.BPE(
        vocab={piece: number for number, piece in enumerate(pieces)},
        merges=[tuple(pair) for pair in learned["merges"]], unk_token="<unk>", byte_fallback=True, fuse_unk=True,
    )  # fmt: skip
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    fast.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
    return fast


# -------------------------------------------------------------------------------------------------------- random models


def tiny_config(family: str, vocab_size: int):
    """The configuration of a family, small, with grouped heads and enough layers to capture three of them."""
    sizes = {
        "vocab_size": vocab_size, "intermediate_size": 80, "num_hidden_layers": 7, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 2048, "tie_word_embeddings": False,
        "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    return AutoConfig.for_model(family, **(sizes | SHAPES[family]))


def tiny_model(
    family: str, vocab_size: int, *, attention: str = ATTENTION_NAME, seed: int = 0, **changes: object
) -> nn.Module:
    """A random model in float32; the same seed gives the same weights, whatever the attention."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = tiny_config(family, vocab_size)
        config.update(changes)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
        for name, parameter in model.named_parameters():  # biases start at zero, which would hide a lost one
            if name.endswith("bias"):
                nn.init.normal_(parameter, std=0.2)
    return model.eval()


def kernels_or_none(wanted: bool) -> Kernels | None:
    """The compiled kernels where they are wanted; skips the test on a machine without a C++ compiler."""
    if not wanted:
        return None
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("the CPU kernels cannot be compiled on this machine")
    return kernels


def as_target(model: nn.Module, *, has_kernels: bool, kind: type[TargetModel] = TargetModel, **options) -> TargetModel:
    """Wrap a model, with packed layers or with torch's own."""
    kernels = kernels_or_none(has_kernels)
    if kernels is not None:
        pack_linears(model, kernels)
    return kind(model, name="tiny", kernels=kernels, **options)


def tiny_target(family: str, *, has_kernels: bool, vocab_size: int = 0, seed: int = 0, **options) -> TargetModel:
    """A random target of a family over the byte-level vocabulary (or `vocab_size` tokens)."""
    size = vocab_size or len(byte_level_tokenizer())
    return as_target(tiny_model(family, size, seed=seed), has_kernels=has_kernels, **options)


def memorised_model(prompt_ids: list[int], output_ids: list[int], vocab_size: int, *, steps: int = 60) -> nn.Module:
    """A small Qwen2 trained until it writes `output_ids` behind `prompt_ids`, so that real drafts are accepted."""
    model = tiny_model("qwen2", vocab_size, attention="sdpa", seed=3).train()
    model.model.layers = model.model.layers[:2]
    model.config.num_hidden_layers = 2
    optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
    ids = torch.tensor([[*prompt_ids, *output_ids]])
    for _ in range(steps):
        logits = model(ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1]
        loss = nn.functional.cross_entropy(logits, torch.tensor(output_ids))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.set_attn_implementation(ATTENTION_NAME)
    return model.eval().requires_grad_(False)


def greedy_continuation(target: TargetModel, token_ids: list[int], count: int) -> list[int]:
    """The slow, obvious twin of decoding: a fresh prefill for every token, argmax, lowest id first."""
    ids = list(token_ids)
    for _ in range(count):
        arena = target.new_arena(len(ids))
        ids.append(int(target.forward_prompt(arena, ids).logits[0].argmax()))
    return ids[len(token_ids) :]


# ------------------------------------------------------------------------------------------------------ scripted target

DOUBTFUL_MARGIN = 5e-4
"""Less than the smallest threshold of guarded decoding in float32."""


class ScriptedModel(nn.Module):
    """Stands where a transformers model stands inside a `TargetModel`; one layer whose keys hold (token, position).

    Behind the prompt it chooses the script's tokens and then the end sign, as long as all it sees is the script; on
    any other path its choice is a hash of the path. is_doubtful: at a third of all paths the choice has a tiny margin
    and is wrong in passes of several rows, as happens in low precision.
    """

    def __init__(
        self, script: list[int], *, end_id: int, vocab_size: int, is_doubtful: bool = False, max_positions: int = 8192
    ) -> None:
        super().__init__()
        self.script = np.array([*script, end_id], dtype=np.int64)
        self.vocab_size = vocab_size
        self.is_doubtful = is_doubtful
        self.prompt_ids: list[int] = []
        """The request's prompt, as the target was given it; the script follows this prompt only."""
        self.fails_at = 0
        """Number of the pass (from 1) that raises KeyboardInterrupt before its rows are written; 0: none."""
        self.num_passes = 0
        self.embedding = nn.Embedding(1, 1)
        self.config = SimpleNamespace(
            num_hidden_layers=1, num_key_value_heads=1, num_attention_heads=1, hidden_size=2, head_dim=2,
            max_position_embeddings=max_positions, model_type="scripted",
        )  # fmt: skip
        self.output = _ScriptedHead(vocab_size)

    def get_decoder(self) -> nn.Module:
        return self

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.output

    def choice_after(self, token_ids: list[int]) -> int:
        """What it chooses behind a whole text (prompt included), worked out without an arena."""
        return int(self._choices(np.array([token_ids]), np.array([len(token_ids)]))[0])

    def forward(self, input_ids, position_ids, use_cache, plan: ForwardPlan, past_key_values: KVArena):
        assert use_cache
        self.num_passes += 1
        tokens, positions = input_ids[0].numpy(), position_ids[0].numpy()
        if self.num_passes == self.fails_at:
            raise KeyboardInterrupt
        written = torch.from_numpy(np.stack([tokens, positions], axis=-1)).float()[None, None]
        keys, _ = past_key_values.update(written, written.clone(), 0)
        rows = keys[0, 0].numpy()  # [capacity, 2]
        first = max(plan.num_prompt - 1, 0)  # of the prompt only the last row's choice counts
        visible = visible_rows(plan, len(rows), len(tokens) - first)
        paths, lengths = _paths(visible, rows, positions[first:])
        choices = self._choices(paths, lengths)
        is_close = np.zeros(len(choices))
        if self.is_doubtful:
            is_close = (_hashes(paths, lengths, 1) % 3 == 0).astype(float)
            if len(choices) > 1:
                choices = np.where(is_close > 0, (choices + 7) % self.vocab_size, choices)
        states = np.zeros((1, len(tokens), 2), dtype=np.float32)
        states[0, first:] = np.stack([choices, is_close], axis=-1)
        return SimpleNamespace(last_hidden_state=torch.from_numpy(states))

    def _choices(self, paths: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """paths [N, L] tokens from position 0 on, their lengths [N] -> chosen tokens [N]."""
        choices = _hashes(paths, lengths, 0) % self.vocab_size
        whole = np.array([*self.prompt_ids, *self.script])
        for row, (path, length) in enumerate(zip(paths, lengths, strict=True)):
            if len(self.prompt_ids) <= length < len(whole) and np.array_equal(path[:length], whole[:length]):
                choices[row] = whole[length]
        return choices


class ScriptedTarget(TargetModel):
    """Tells its model what the prompt is, so that rows which hold another one are noticed."""

    def forward_prompt(self, arena: KVArena, prompt_ids: list[int], proposal=None):
        self.model.prompt_ids = list(prompt_ids)
        return super().forward_prompt(arena, prompt_ids, proposal)


class PaddedTarget(ScriptedTarget):
    """Pads its passes as on a GPU: to few row counts and to whole blocks of key rows."""

    def _shape(self, arena: KVArena, rows: int) -> tuple[int, int]:
        own, self.device = self.device, torch.device("cuda")
        try:
            return super()._shape(arena, rows)
        finally:
            self.device = own


class _ScriptedHead(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.out_features = vocab_size

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        choices = states[:, :1].long()
        logits = torch.zeros(len(states), self.out_features).scatter_(1, choices, 10.0)
        second = torch.where(states[:, 1:] > 0, 10.0 - DOUBTFUL_MARGIN, 1.0)
        return logits.scatter_(1, (choices + 1) % self.out_features, second)


def visible_rows(plan: ForwardPlan, width: int, count: int) -> np.ndarray:
    """[count, width] which arena rows the last prompt row (if any) and the nodes see, read off either form of a
    plan."""
    visible = np.zeros((count, width), dtype=bool)
    if plan.kernels is None:
        if plan.num_prompt:
            visible[0, plan.stream_start : plan.first_row + plan.num_prompt] = True
        if nodes := count - bool(plan.num_prompt):
            visible[-nodes:, : plan.mask.shape[-1]] = plan.mask[0, 0].numpy()
        return visible
    columns = np.arange(width)[None] - plan.stream_start
    visible[:] = (columns >= 0) & (columns < plan.context.numpy()[-count:, None])
    for row, more, num in zip(visible, plan.more.numpy()[-count:], plan.more_count.numpy()[-count:], strict=True):
        assert not row[more[:num]].any(), "a row is seen twice"
        row[more[:num]] = True
    return visible


def _paths(visible: np.ndarray, rows: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The visible tokens in the order of their positions; every position up to the node's own must be there once."""
    lengths = positions + 1
    assert (visible.sum(axis=1) == lengths).all(), "a node does not see one row for each position"
    paths = np.full((len(positions), int(lengths.max())), -1, dtype=np.int64)
    node, row = np.nonzero(visible)
    at = rows[row, 1].astype(np.int64)
    assert (at < lengths[node]).all(), "a node sees a row behind its own position"
    paths[node, at] = rows[row, 0].astype(np.int64)
    assert ((paths >= 0).sum(axis=1) == lengths).all(), "a node sees two rows of one position"
    return paths, lengths


HASH_WEIGHTS = np.random.default_rng(0).integers(1, 2**31, size=(2, 16384), dtype=np.int64)


def _hashes(paths: np.ndarray, lengths: np.ndarray, salt: int) -> np.ndarray:
    return ((paths + 1) @ HASH_WEIGHTS[salt, : paths.shape[1]] + lengths * 7919) % 1_000_003


def scripted_target(
    script: list[int], *, end_id: int, vocab_size: int, has_kernels: bool = False, exact: bool = False,
    end_ids: tuple[int, ...] = (), kind: type[ScriptedTarget] = ScriptedTarget, **options,
) -> ScriptedTarget:  # fmt: skip
    """A target that spells `script` and then `end_id`, whatever is drafted."""
    model = ScriptedModel(script, end_id=end_id, vocab_size=vocab_size, **options)
    return kind(
        model, name="scripted", kernels=kernels_or_none(has_kernels), exact=exact, end_ids=end_ids or (end_id,)
    )


@dataclass(frozen=True)
class Scripted:
    """An engine on a scripted target and the token ids that it must put out, the end sign included."""

    engine: Engine
    output_ids: list[int]

    @property
    def model(self) -> ScriptedModel:
        return self.engine.target.model


def scripted_engine(
    text: str | list[int], dialect: str = "json", *, is_split: bool = True, end: str = "<|im_end|>",
    numerics: str = "guarded", has_kernels: bool = False, prefix_cache: bool = False, **options,
) -> Scripted:  # fmt: skip
    """An engine whose target writes a text (or token ids) and then the end sign."""
    tokenizer = byte_level_tokenizer(is_split=is_split, dialect=dialect)
    script = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids if isinstance(text, str) else text
    ends = [tokenizer.convert_tokens_to_ids(sign) for sign in ("<|endoftext|>", "<|im_end|>", "<|eot_id|>")]
    end_id = tokenizer.convert_tokens_to_ids(end)
    target = scripted_target(
        script,
        end_id=end_id,
        vocab_size=len(tokenizer) + 3,
        has_kernels=has_kernels,
        exact=numerics == "exact",
        end_ids=tuple(ends),
        **options,
    )
    engine = Engine(
        target,
        tokenizer,
        dialect=get_dialect(dialect),
        numerics=numerics,
        prefix_cache=prefix_cache,
        call_id_length=9 if dialect == "mistral" else None,
    )
    return Scripted(engine, [*script, end_id])


def seed_of(*parts: object) -> int:
    """A seed that depends on the parts only (Python's own hash of a text differs from run to run)."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")
