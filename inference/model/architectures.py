"""Which model families can be a target, and the few facts of a family that its configuration does not hold.

Reads a `transformers` configuration by its attributes; knows no tensor and imports neither torch nor transformers.
Layer counts, sizes and end signs come from the target's own files and are not repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemafill.inference.request import UserError


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type` of `transformers` whose tree forward is tested against its causal forward."""

    name: str
    """The `model_type`."""
    architecture: str
    """The class that a checkpoint must name, where it names one."""
    call_id_length: int | None = None
    """Length that the chat template demands of a tool call's id; None: any."""


FAMILIES = {
    family.name: family
    for family in (
        Family(name="qwen2", architecture="Qwen2ForCausalLM"),
        Family(name="qwen3", architecture="Qwen3ForCausalLM"),
        Family(name="mistral", architecture="MistralForCausalLM", call_id_length=9),
        Family(name="llama", architecture="LlamaForCausalLM"),
    )
}

LEAST_LAYERS = 7
"""Below it the three states of `eagle3_layers` would not be three."""
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""These choose rotation frequencies by the longest position in the pass. Draft rows reach further than the row that
plain decoding computes, so drafting would change the target's own choice."""
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


def eagle3_layers(num_layers: int) -> tuple[int, int, int]:
    """The states that an EAGLE-3 head reads, as indices into transformers' `hidden_states`: 2, 14, 25 of 28 layers.

    These are the outputs of the layers 1, N/2 - 1 and N - 4, from 0: what vLLM and SGLang take unless told otherwise.
    """
    if num_layers < LEAST_LAYERS:
        raise UserError(f"a head reads three layers' states: a target of {num_layers} layers has too few")
    return 2, num_layers // 2, num_layers - 3


def check_architecture(config: Any) -> Family:
    """The family of a target, from its `transformers` configuration. UserError where this decoder cannot run it."""
    found = getattr(config, "model_type", None) or "unknown"
    classes = list(getattr(config, "architectures", None) or [])
    label = f"{found} ({', '.join(classes)})" if classes else found
    supported = f"supported model types: {', '.join(FAMILIES)}"

    # Dense first: `qwen3_moe` is better told what is the matter than that its name is unknown.
    num_experts = max((getattr(config, name, None) or 0 for name in EXPERT_COUNTS), default=0)
    if num_experts > 1 or found.endswith("_moe"):
        raise UserError(f"target {label} is a mixture of experts; only dense models can be decoded; {supported}")
    if found not in FAMILIES:
        raise UserError(f"target architecture {label} cannot be decoded; {supported}")
    family = FAMILIES[found]
    if classes and family.architecture not in classes:
        raise UserError(f"target {label} is not a language model; expected {family.architecture}; {supported}")
    if window := sliding_window_in_use(config):
        raise UserError(f"target {label} attends through a window of {window} tokens; only full attention is supported")
    if rope_type := length_dependent_rope(config):
        raise UserError(f"target {label} uses {rope_type!r} RoPE, which changes with the length of a pass: unsupported")
    if quantisation := getattr(config, "quantization_config", None):
        method = read(quantisation, "quant_method") or "unknown method"
        raise UserError(f"target {label} is quantised ({method}); load its bf16, fp16 or fp32 weights instead")
    return family


def sliding_window_in_use(config: Any) -> int | None:
    """The window, if it is shorter than the context and at least one layer has it."""
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    is_used = "sliding_attention" in layer_types if layer_types else getattr(config, "use_sliding_window", True)
    max_positions = getattr(config, "max_position_embeddings", None)
    if not window or not is_used or (max_positions and window >= max_positions):
        return None
    return window


def length_dependent_rope(config: Any) -> str | None:
    for name in ("rope_parameters", "rope_scaling"):  # the second is the older name
        parameters = getattr(config, name, None) or {}
        rope_type = read(parameters, "rope_type") or read(parameters, "type")
        if rope_type in LENGTH_DEPENDENT_ROPE:
            return rope_type
    return None


def read(block: Any, name: str) -> Any:
    """A member of a configuration block, which is a dict in a file and may be an object once loaded."""
    return block.get(name) if isinstance(block, dict) else getattr(block, name, None)
