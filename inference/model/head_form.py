"""What a head's files say: the fields of `config.json` and the tensors of `model.safetensors`, and what is refused.

Nothing is left to a reader's defaults: the configuration says everything that the arithmetic depends on, and rotations
in the spelling of both transformers generations. Tensors are checked one by one, because servers pass over what is
missing or wrong without a word and then accept no draft. Knows no folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from schemafill.inference.model.eagle3_head import NUM_CAPTURED
from schemafill.inference.model.head_facts import BLOCK, HeadFacts
from schemafill.inference.request import UserError

DTYPE = torch.bfloat16
COUNTS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "vocab_size",
)  # fmt: skip
FIXED = {
    "model_type": "llama", "num_hidden_layers": 1, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False,
}  # fmt: skip
"""What all heads of this form have in common."""
VARIANTS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "bias")
"""Fields that, where they are true, mean another arithmetic than this head's."""

Contract = dict[str, tuple[tuple[int, ...], torch.dtype]]


def config_fields(config: LlamaConfig, facts: HeadFacts) -> dict[str, Any]:
    """`config.json` of a head."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"], **layer_fields(config),
        "draft_vocab_size": config.draft_vocab_size, "target_hidden_size": config.target_hidden_size,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": facts.output_layers, "use_aux_hidden_state": True,
        },
        BLOCK: facts.to_json(),
    }  # fmt: skip


def layer_fields(config: LlamaConfig) -> dict[str, Any]:
    """What every form of a head's configuration says of its layer. Rotations are spelled for both generations."""
    rope = dict(config.rope_parameters)
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    return {
        **FIXED, **{name: getattr(config, name) for name in COUNTS}, "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": rope["rope_theta"], "rope_scaling": None if rope["rope_type"] == "default" else scaling,
        "rope_parameters": rope, "torch_dtype": "bfloat16",
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip


def config_from_fields(path: Path, fields: Mapping[str, Any]) -> LlamaConfig:
    """A head's configuration from what `config.json` says. UserError names the field that is missing or says what this
    head does not do."""
    for name in VARIANTS:
        if fields.get(name):
            raise UserError(f"{path}: {name} is {fields[name]!r}: another arithmetic than this head's")
    for name, value in FIXED.items():
        if fields.get(name) != value:
            raise UserError(f"{path}: {name} is {fields.get(name)!r}, a head has {value!r}")
    counts = {name: fields.get(name) for name in (*COUNTS, "draft_vocab_size", "target_hidden_size")}
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise UserError(f"{path}: {name} is {value!r}, not a whole number from 1")
    eps = fields.get("rms_norm_eps")
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise UserError(f"{path}: rms_norm_eps is {eps!r}, not a number between 0 and 1")
    try:
        return LlamaConfig(
            **FIXED, **counts, rms_norm_eps=eps, rope_parameters=_rope(path, fields),
            bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
    except UserError:
        raise
    except Exception as error:  # transformers checks what it is given, with a class of its own
        raise UserError(f"{path}: {' '.join(str(error).split())[:300]}") from None


def _rope(path: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Rotations as transformers 5 spells them; UserError where the spellings contradict each other or none is there."""
    spellings = []
    for name in ("rope_parameters", "rope_scaling"):
        if not isinstance(fields.get(name) or {}, dict):
            raise UserError(f"{path}: {name} is {fields[name]!r}, not an object")
    if fields.get("rope_parameters"):
        spellings.append(dict(fields["rope_parameters"]))
    if fields.get("rope_theta"):
        scaling = dict(fields.get("rope_scaling") or {})
        kind = scaling.pop("type", None) or scaling.get("rope_type") or "default"
        spellings.append({"rope_theta": fields["rope_theta"], **scaling, "rope_type": kind})
    if not spellings or not all("rope_theta" in one and "rope_type" in one for one in spellings):
        raise UserError(f"{path}: rope_parameters, or rope_theta and rope_scaling, must say how positions turn")
    if any(one != spellings[0] for one in spellings):
        raise UserError(f"{path}: rope_parameters and rope_theta with rope_scaling say different things")
    return spellings[0]


def expected_tensors(config: LlamaConfig) -> Contract:
    """Shape and dtype of each tensor of a head."""
    size, inner = config.hidden_size, config.intermediate_size
    wide, narrow = (count * config.head_dim for count in (config.num_attention_heads, config.num_key_value_heads))
    weights = {
        "fc": (size, NUM_CAPTURED * config.target_hidden_size), "lm_head": (config.draft_vocab_size, size),
        "norm": (size,), "midlayer.input_layernorm": (size,), "midlayer.hidden_norm": (size,),
        "midlayer.post_attention_layernorm": (size,), "midlayer.self_attn.q_proj": (wide, 2 * size),
        "midlayer.self_attn.k_proj": (narrow, 2 * size), "midlayer.self_attn.v_proj": (narrow, 2 * size),
        "midlayer.self_attn.o_proj": (size, wide), "midlayer.mlp.gate_proj": (inner, size),
        "midlayer.mlp.up_proj": (inner, size), "midlayer.mlp.down_proj": (size, inner),
    }  # fmt: skip
    vocabulary: Contract = {"d2t": ((config.draft_vocab_size,), torch.int64), "t2d": ((config.vocab_size,), torch.bool)}
    return {f"{name}.weight": (shape, DTYPE) for name, shape in weights.items()} | vocabulary


def check_tensors(path: Path, tensors: Mapping[str, torch.Tensor], expected: Contract) -> None:
    """UserError where tensors are not exactly the expected ones, hold what is no number, or name two vocabularies."""
    for found, wanted, told in ((tensors, expected, "is missing"), (expected, tensors, "does not belong there")):
        if names := sorted(wanted.keys() - found.keys()):
            raise UserError(f"{path}: {', '.join(names[:5])} {told}")
    for name, (shape, dtype) in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise UserError(f"{path}: {name} has shape {list(tensor.shape)}, its configuration wants {list(shape)}")
        if tensor.dtype != dtype:
            raise UserError(f"{path}: {name} is {_name(tensor.dtype)}, must be {_name(dtype)}")
        if not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{path}: {name} holds NaN or infinity")
    target_ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    if not torch.equal(tensors["t2d"].nonzero()[:, 0], target_ids):
        raise UserError(f"{path}: d2t and t2d name different tokens, or unsorted ones")


def check_trained(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """UserError where a norm still is what it was before training, or where a tensor is all zero."""
    for name, tensor in tensors.items():
        if name.endswith("norm.weight") and bool((tensor == 1).all()):
            raise UserError(f"{path}: {name} is 1 throughout: never trained, or never loaded")
        if name.endswith(".weight") and not bool(tensor.any()):
            raise UserError(f"{path}: {name} is 0 throughout: never trained, or never loaded")


def check_target(path: Path, config: LlamaConfig, facts: HeadFacts, target: Any) -> None:
    """target: a `transformers` configuration. UserError where the head cannot read this target's states."""
    layers = facts.capture_layers
    for name, found, wanted in (
        ("target_hidden_size", config.target_hidden_size, target.hidden_size),
        ("hidden_size", config.hidden_size, target.hidden_size),  # it reads the target's embeddings
        ("vocab_size", config.vocab_size, target.vocab_size),
    ):
        if found != wanted:
            raise UserError(f"{path}: {name} is {found}, the target's is {wanted}: a head of another target")
    if layers[-1] > target.num_hidden_layers:
        raise UserError(f"{path}: captures layers {list(layers)}, the target has {target.num_hidden_layers}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
