"""The head: its formula, written out once more, and what a checkpoint of it is made of."""

import pytest
import torch
import torch.nn.functional as F
from models import tiny_model
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from schemafill.inference.model.eagle3_head import Eagle3Head, head_config
from schemafill.inference.request import UserError

VOCAB, DRAFT = 90, 40


def tiny_head(family: str = "qwen3", *, dtype: torch.dtype = torch.float64, seed: int = 0) -> Eagle3Head:
    """A random head of a tiny target; its draft vocabulary is every other token."""
    torch.manual_seed(seed)
    head = Eagle3Head(head_config(tiny_model(family, VOCAB).config, draft_vocab_size=DRAFT, intermediate_size=48))
    ids = torch.arange(DRAFT) * 2
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[ids] = True
    head.set_vocabulary(ids - torch.arange(DRAFT), known)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return head.to(dtype)


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def frequencies(config) -> torch.Tensor:
    """Of the rotation of each pair of a head's numbers; scaled ones as the target has them."""
    rope = config.rope_parameters
    if rope["rope_type"] != "default":
        return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, device=None)[0].double()
    half = config.head_dim // 2
    return rope["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)


def turned(x: torch.Tensor, position: int, frequency: torch.Tensor) -> torch.Tensor:
    """x [heads, D] rotated to a position."""
    half, angle = x.shape[-1] // 2, position * frequency
    first, second = x[:, :half], x[:, half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], dim=-1)


class Reference:
    """One token at a time with a list of keys and values, from the weights alone."""

    def __init__(self, head: Eagle3Head) -> None:
        self.weights = dict(head.named_parameters())
        self.config = head.config

    def weight(self, name: str) -> torch.Tensor:
        return self.weights[name + ".weight"]

    def fuse(self, captured: torch.Tensor) -> torch.Tensor:
        return self.weight("fc") @ captured

    def read(self, embedded: torch.Tensor, state: torch.Tensor, position: int):
        """Query, key and value of a row, heads first."""
        eps, size = self.config.rms_norm_eps, self.config.head_dim
        read = torch.cat([
            rms(embedded, self.weight("midlayer.input_layernorm"), eps),
            rms(state, self.weight("midlayer.hidden_norm"), eps),
        ])  # fmt: skip
        query, key, value = (
            (self.weight(f"midlayer.self_attn.{name}_proj") @ read).view(-1, size) for name in "qkv"
        )  # fmt: skip
        frequency = frequencies(self.config)
        return turned(query, position, frequency), turned(key, position, frequency), value

    def step(self, state: torch.Tensor, query: torch.Tensor, seen: list[tuple[torch.Tensor, torch.Tensor]]):
        """z of a row that sees these keys and values."""
        group = len(query) // len(seen[0][0])
        attended = []
        for head, one in enumerate(query):
            keys = torch.stack([key[head // group] for key, _ in seen])
            values = torch.stack([value[head // group] for _, value in seen])
            attended.append(torch.softmax(keys @ one * self.config.head_dim**-0.5, dim=0) @ values)
        summed = state + self.weight("midlayer.self_attn.o_proj") @ torch.cat(attended)
        normed = rms(summed, self.weight("midlayer.post_attention_layernorm"), self.config.rms_norm_eps)
        gate, up = (self.weight(f"midlayer.mlp.{name}_proj") @ normed for name in ("gate", "up"))
        return summed + self.weight("midlayer.mlp.down_proj") @ (F.silu(gate) * up)

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        return self.weight("lm_head") @ rms(state, self.weight("norm"), self.config.rms_norm_eps)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral", "llama"])
@torch.no_grad()
def test_a_step_is_the_formula(family):
    head = tiny_head(family)
    reference, rows, size = Reference(head), 5, head.config.hidden_size
    captured = torch.randn(1, rows, 3 * size, dtype=torch.float64)
    embedded = torch.randn(1, rows, size, dtype=torch.float64)
    positions = torch.arange(3, 3 + rows)[None]
    state = head.fuse(captured)
    inputs, rotation = head.inputs(embedded, state), head.rotation(positions, state)
    keys, values = head.key_value(inputs, rotation)
    attended = F.scaled_dot_product_attention(
        head.query(inputs, rotation), keys, values, is_causal=True, enable_gqa=True
    )  # fmt: skip
    found = head.finish(state, attended)
    seen = []
    for row in range(rows):
        fused = reference.fuse(captured[0, row])
        query, key, value = reference.read(embedded[0, row], fused, 3 + row)
        seen.append((key, value))
        expected = reference.step(fused, query, seen)
        assert torch.allclose(found[0, row], expected, atol=1e-5), row  # rotation tables are float32
        assert torch.allclose(head.logits(found)[0, row], reference.logits(expected), atol=1e-5)


def test_a_checkpoint_has_the_tensors_that_servers_know():
    head = tiny_head()
    size, wide, kv = head.config.hidden_size, 4 * head.config.head_dim, 2 * head.config.head_dim
    assert {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()} == {
        "d2t": (DRAFT,), "t2d": (VOCAB,), "fc.weight": (size, 3 * size), "lm_head.weight": (DRAFT, size),
        "norm.weight": (size,), "midlayer.input_layernorm.weight": (size,), "midlayer.hidden_norm.weight": (size,),
        "midlayer.post_attention_layernorm.weight": (size,), "midlayer.self_attn.q_proj.weight": (wide, 2 * size),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * size), "midlayer.self_attn.v_proj.weight": (kv, 2 * size),
        "midlayer.self_attn.o_proj.weight": (size, wide), "midlayer.mlp.gate_proj.weight": (48, size),
        "midlayer.mlp.up_proj.weight": (48, size), "midlayer.mlp.down_proj.weight": (size, 48),
    }  # fmt: skip
    assert head.d2t.dtype == torch.int64 and head.t2d.dtype == torch.bool
    assert head.target_ids.tolist() == list(range(0, 2 * DRAFT, 2))


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral", "llama"])
def test_everything_is_written_out(family):
    target = tiny_model(family, VOCAB).config
    written = head_config(target, draft_vocab_size=DRAFT).to_dict()
    for name in ("num_attention_heads", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings"):
        assert written[name] == getattr(target, name)
    assert written["rope_parameters"]["rope_theta"] == target.rope_parameters["rope_theta"]
    assert written["head_dim"] == (getattr(target, "head_dim", None) or target.hidden_size // 4)
    assert written["num_hidden_layers"] == 1 and not written["attention_bias"] and not written["tie_word_embeddings"]


def test_a_vocabulary_that_does_not_fit_is_refused():
    head = tiny_head()
    with pytest.raises(UserError, match="the draft vocabulary has 3 of 90 tokens, the head 40 of 90"):
        head.set_vocabulary(torch.zeros(3, dtype=torch.int64), head.t2d)
    with pytest.raises(UserError, match="name different tokens"):
        head.set_vocabulary(head.d2t + 1, head.t2d)
    with pytest.raises(UserError, match="name different tokens"):
        head.set_vocabulary(head.d2t.flip(0), head.t2d)
