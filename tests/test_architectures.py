"""The allow-list: dense families pass, everything else is refused in one line that names what was found."""

from types import SimpleNamespace

import pytest

from schemafill.inference.model.architectures import FAMILIES, check_architecture
from schemafill.inference.request import UserError


def config(model_type="qwen2", **fields):
    return SimpleNamespace(model_type=model_type, max_position_embeddings=32768, **fields)


@pytest.mark.parametrize("name", FAMILIES)
def test_dense_families_pass(name):
    named = config(name, architectures=[FAMILIES[name].architecture], sliding_window=None)
    assert check_architecture(named) is FAMILIES[name]
    assert check_architecture(config(name)) is FAMILIES[name]


@pytest.mark.parametrize(
    ("found", "part"),
    [
        (config("gpt2", architectures=["GPT2LMHeadModel"]), r"gpt2 \(GPT2LMHeadModel\).*qwen2, qwen3, mistral, llama"),
        (SimpleNamespace(), "unknown"),
        (config("qwen3_moe"), "mixture of experts"),
        (config("llama", num_local_experts=8), "mixture of experts"),
        (config("qwen2", architectures=["Qwen2ForSequenceClassification"]), "not a language model"),
        (config("mistral", sliding_window=4096), "4096"),
        (config("qwen2", sliding_window=4096, layer_types=["full_attention", "sliding_attention"]), "4096"),
        (config("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0}), "dynamic"),
        (config("llama", rope_scaling={"type": "longrope"}), "longrope"),
        (config("qwen2", quantization_config={"quant_method": "awq"}), r"quantised \(awq\)"),
    ],
)
def test_others_are_refused_with_what_was_found(found, part):
    with pytest.raises(UserError, match=part) as caught:
        check_architecture(found)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "found",
    [
        config("mistral", sliding_window=32768),
        config("qwen2", sliding_window=4096, use_sliding_window=False),
        config("qwen2", sliding_window=4096, layer_types=["full_attention"]),
        config("llama", rope_parameters={"rope_type": "llama3"}),
        config("qwen2", rope_parameters={"rope_type": "yarn"}),
    ],
)
def test_settings_that_change_nothing_pass(found):
    check_architecture(found)
