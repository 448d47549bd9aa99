"""The EAGLE-3 head: one decoder layer that drafts from a target's hidden states. Training and decoding share it.

With `a_i` the captured states of token i, side by side, and `x_{i+1}` the token after it:

    g = fc(a_i)                                                       once, where the states are the target's
    u = [input_layernorm(embed(x_{i+1})), hidden_norm(g)]             embedding first
    z = y + mlp(post_attention_layernorm(y)),  y = g + o_proj(attention(u))
    logits of x_{i+2} = lm_head(norm(z));  the next step takes z, before the norm, in g's place

Attention itself is the caller's: who sees whom is another matter in training than in a draft tree. The form is the one
that SGLang, vLLM and SafeAILab's code load alike; source: EAGLE-3, arXiv 2503.01840.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    rotate_half,
)

from schemafill.inference.request import UserError

NUM_CAPTURED = 3
COPIED_FROM_TARGET = (
    "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "vocab_size",
)  # fmt: skip


def head_config(target: Any, *, draft_vocab_size: int, intermediate_size: int | None = None) -> LlamaConfig:
    """The configuration of a head for a target, everything written out: readers differ in their defaults.

    target: the target's `transformers` configuration. intermediate_size None: the target's own.
    """
    head_dim = getattr(target, "head_dim", None) or target.hidden_size // target.num_attention_heads
    return LlamaConfig(
        hidden_size=target.hidden_size, head_dim=head_dim, num_hidden_layers=1, hidden_act="silu",
        intermediate_size=intermediate_size or target.intermediate_size, rope_parameters=dict(target.rope_parameters),
        attention_bias=False, mlp_bias=False, tie_word_embeddings=False, draft_vocab_size=draft_vocab_size,
        target_hidden_size=target.hidden_size, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        **{name: getattr(target, name) for name in COPIED_FROM_TARGET},
    )  # fmt: skip


class Attention(nn.Module):
    """The projections of the layer's attention. They read embedding and state side by side: [..., 2H]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, size = 2 * config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, config.hidden_size, bias=False)


class Layer(nn.Module):
    """The one layer, named as checkpoints name it."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)


class Eagle3Head(nn.Module):
    """Weights and the parts of a draft step. Embeddings are the target's and come from outside."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        if config.num_hidden_layers != 1:
            raise UserError(f"a head has one layer, this one has {config.num_hidden_layers}")
        self.config = config
        self.fc = nn.Linear(NUM_CAPTURED * config.target_hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.rotary = LlamaRotaryEmbedding(config)

    @property
    def target_ids(self) -> torch.Tensor:
        """[V_draft] target id of each draft id, ascending."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def set_vocabulary(self, d2t: torch.Tensor, t2d: torch.Tensor) -> None:
        """d2t [V_draft] int64, target id minus draft id; t2d [V] bool. UserError where they do not agree."""
        if d2t.shape != self.d2t.shape or t2d.shape != self.t2d.shape:
            raise UserError(
                f"the draft vocabulary has {len(d2t)} of {len(t2d)} tokens, the head {len(self.d2t)} of {len(self.t2d)}"
            )
        ids = d2t + torch.arange(len(d2t), device=d2t.device)
        if not torch.equal(t2d.nonzero()[:, 0], ids):
            raise UserError("d2t and t2d of the draft vocabulary name different tokens, or unsorted ones")
        self.d2t.copy_(d2t)
        self.t2d.copy_(t2d)

    def fuse(self, captured: torch.Tensor) -> torch.Tensor:
        """captured [..., 3H] of the target -> the first step's state g [..., H]."""
        return self.fc(captured)

    def inputs(self, embedded: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """embedded, state [..., H] -> u [..., 2H], what attention reads."""
        return torch.cat([self.midlayer.input_layernorm(embedded), self.midlayer.hidden_norm(state)], dim=-1)

    def rotation(self, positions: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """positions [B, R] -> cosines and sines [B, R, D], in the dtype of `like`."""
        return self.rotary(like, positions)

    def query(self, inputs: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """inputs [B, R, 2H] -> queries [B, heads, R, D]."""
        return self._turned(self._heads(self.midlayer.self_attn.q_proj(inputs)), rotation)

    def key_value(
        self, inputs: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """inputs [B, R, 2H] -> keys and values [B, key heads, R, D]."""
        attention = self.midlayer.self_attn
        return self._turned(self._heads(attention.k_proj(inputs)), rotation), self._heads(attention.v_proj(inputs))

    def finish(self, state: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """state g [B, R, H] and what attention gave [B, heads, R, D] -> z [B, R, H]."""
        summed = state + self.midlayer.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        return summed + self.midlayer.mlp(self.midlayer.post_attention_layernorm(summed))

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        """z [..., H] -> logits over the draft vocabulary [..., V_draft]."""
        return self.lm_head(self.norm(state))

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)

    @staticmethod
    def _turned(heads: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        cosines, sines = (part[:, None] for part in rotation)
        return heads * cosines + rotate_half(heads) * sines
