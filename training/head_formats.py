"""The forms in which servers and trainers keep an EAGLE-3 head, as data, and how each says what a head is.

    sglang   SpecForge and SGLang; the form of our own folders
    vllm     the speculators package and vLLM: other names, and the target's embeddings inside
    eagle    SafeAILab's own code: the names of sglang, a configuration that leaves much unsaid

What a form cannot say is refused by name, in both directions: a server reads such a head without a complaint, and then
computes something else. Knows no folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig

from schemafill.inference.model.architectures import eagle3_layers
from schemafill.inference.model.head_facts import BLOCK, HeadFacts
from schemafill.inference.model.head_form import (
    COUNTS,
    DTYPE,
    FIXED,
    Contract,
    config_fields,
    config_from_fields,
    expected_tensors,
    layer_fields,
)
from schemafill.inference.request import UserError

OUR_LAYER, EMBEDDING = "midlayer.", "embed_tokens.weight"
SPECULATORS_VERSION = "0.9.0"
DRAFT_TOKENS = 3
"""Tokens that a server is told to draft in a round."""
EAGLE_THETA = 10000.0
"""What SafeAILab's code turns by where its configuration says nothing."""
SPECULATORS_FLAGS = {
    "norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False,
    "embed_requires_grad": False,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """The target, as a head's configuration names it: Hub id or folder, and its classes."""

    name: str
    architectures: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HeadFormat:
    """One form. fields_of: configuration, facts, target -> `config.json`. read: its path and content -> configuration
    and the captured `hidden_states`, None where it does not say."""

    name: str
    layer: str
    """What the names of the layer's tensors begin with."""
    has_embedding: bool
    fields_of: Callable[[LlamaConfig, HeadFacts, Verifier | None], dict[str, Any]]
    read: Callable[[Path, Mapping[str, Any]], tuple[LlamaConfig, tuple[int, ...] | None]]

    def expected(self, config: LlamaConfig) -> Contract:
        """Names, shapes and dtypes of the tensors."""
        contract = {self.name_of(name): what for name, what in expected_tensors(config).items()}
        embedding: Contract = {EMBEDDING: ((config.vocab_size, config.hidden_size), DTYPE)}
        return contract | (embedding if self.has_embedding else {})

    def name_of(self, ours: str) -> str:
        return self.layer + ours.removeprefix(OUR_LAYER) if ours.startswith(OUR_LAYER) else ours


def _sglang_fields(config: LlamaConfig, facts: HeadFacts, _: Verifier | None) -> dict[str, Any]:
    return config_fields(config, facts)


def _read_sglang(path: Path, fields: Mapping[str, Any]) -> tuple[LlamaConfig, tuple[int, ...] | None]:
    block = fields.get("eagle_config") or {}
    if block.get("use_aux_hidden_state", True) is not True:
        raise UserError(f"{path}: use_aux_hidden_state is {block['use_aux_hidden_state']!r}: no EAGLE-3 head")
    outputs = block.get("eagle_aux_hidden_state_layer_ids")
    if outputs is not None and (not outputs or outputs[0] != 1):
        raise UserError(
            f"{path}: eagle_aux_hidden_state_layer_ids {outputs} do not begin with 1: readers disagree about what they "
            "count, layers' outputs or hidden_states"
        )
    unsaid = {"target_hidden_size": fields.get("hidden_size"), "attention_bias": False, "mlp_bias": False}
    return config_from_fields(path, unsaid | dict(fields)), outputs and tuple(layer + 1 for layer in outputs)


def _vllm_fields(config: LlamaConfig, facts: HeadFacts, verifier: Verifier | None) -> dict[str, Any]:
    assert verifier is not None
    return {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION, **SPECULATORS_FLAGS,
        "draft_vocab_size": config.draft_vocab_size, "target_hidden_size": config.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(facts.capture_layers), "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformer_layer_config": layer_fields(config),
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [{
                "proposal_type": "greedy", "speculative_tokens": DRAFT_TOKENS, "accept_tolerance": 0.0,
                "verifier_accept_k": 1,
            }],
            "verifier": {"name_or_path": verifier.name, "architectures": list(verifier.architectures)},
        },
        BLOCK: facts.to_json(),
    }  # fmt: skip


def _read_vllm(path: Path, fields: Mapping[str, Any]) -> tuple[LlamaConfig, tuple[int, ...] | None]:
    if (kind := fields.get("speculators_model_type")) != "eagle3":
        raise UserError(f"{path}: speculators_model_type is {kind!r}, not 'eagle3'")
    for name, value in SPECULATORS_FLAGS.items():
        if fields.get(name, value) != value:
            raise UserError(f"{path}: {name} is {fields[name]!r}: a head of ours cannot say that")
    if "norm_before_residual" not in fields:
        raise UserError(f"{path}: norm_before_residual is not said, and readers' defaults differ")
    layer = fields.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise UserError(f"{path}: transformer_layer_config is missing")
    told = {name: fields.get(name) for name in ("draft_vocab_size", "target_hidden_size")}
    told["target_hidden_size"] = told["target_hidden_size"] or layer.get("hidden_size")
    layers = fields.get("eagle_aux_hidden_state_layer_ids")
    defaults = {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
    return config_from_fields(path, defaults | layer | told), layers and tuple(layers)


def _eagle_fields(config: LlamaConfig, facts: HeadFacts, _: Verifier | None) -> dict[str, Any]:
    """Its code derives the size of heads and the captured layers itself, and knows no scaled rotations."""
    derived = config.hidden_size // config.num_attention_heads
    if config.head_dim != derived:
        raise UserError(f"form eagle cannot say head_dim {config.head_dim}: its readers take {derived}")
    if (kind := config.rope_parameters["rope_type"]) != "default":
        raise UserError(f"form eagle cannot say rope_type {kind!r}")
    layers = facts.capture_layers
    if layers[-1] < 4 or layers != eagle3_layers(layers[-1] + 3):
        raise UserError(f"form eagle cannot say capture_layers {list(layers)}: its readers take their own choice")
    ours = layer_fields(config)
    names = [name for name in COUNTS if name != "head_dim"]
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", **{name: ours[name] for name in names},
        "num_hidden_layers": 1, "hidden_act": "silu", "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": ours["rope_theta"], "draft_vocab_size": config.draft_vocab_size, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        BLOCK: facts.to_json(),
    }  # fmt: skip


def _read_eagle(path: Path, fields: Mapping[str, Any]) -> tuple[LlamaConfig, tuple[int, ...] | None]:
    """What the form leaves unsaid is what SafeAILab's code takes."""
    size, heads = fields.get("hidden_size"), fields.get("num_attention_heads")
    if type(size) is not int or type(heads) is not int or heads < 1:
        raise UserError(f"{path}: hidden_size is {size!r}, num_attention_heads is {heads!r}: not whole numbers from 1")
    if fields.get("head_dim", size // heads) != size // heads:
        raise UserError(f"{path}: head_dim is {fields['head_dim']!r}, this form's readers take {size // heads}")
    derived = {"head_dim": size // heads, "target_hidden_size": size}
    unsaid = {"rope_theta": EAGLE_THETA} if "rope_parameters" not in fields else {}
    return config_from_fields(path, FIXED | unsaid | dict(fields) | derived), None


FORMATS = {
    form.name: form
    for form in (
        HeadFormat(
            name="sglang", layer=OUR_LAYER, has_embedding=False, fields_of=_sglang_fields, read=_read_sglang
        ),
        HeadFormat(name="vllm", layer="layers.0.", has_embedding=True, fields_of=_vllm_fields, read=_read_vllm),
        HeadFormat(name="eagle", layer=OUR_LAYER, has_embedding=False, fields_of=_eagle_fields, read=_read_eagle),
    )
}  # fmt: skip
