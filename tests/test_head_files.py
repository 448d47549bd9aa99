"""A head's folder: what is written is what was trained, and what is wrong with a folder is told by name."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from head_setup import DRAFT, IDENTITY, LAYERS, change_config, change_tensors, made_head, saved_head
from models import FAMILIES, tiny_config, tiny_model
from safetensors.torch import load_file
from test_eagle3_head import Reference
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from schemafill.data_prep.target_facts import target_facts
from schemafill.inference.model.head_facts import HeadFacts
from schemafill.inference.model.head_files import CONFIG, WEIGHTS, load_head, save_head
from schemafill.inference.request import UserError

FACTS = HeadFacts.of_target(
    IDENTITY, LAYERS, training_data={"rollouts": {"a.jsonl": "00"}, "rows": 7}, training={"seed": 3},
    evaluation={"acceptance": [0.5, 0.25]},
)  # fmt: skip
FAST = {"rope_type": "default", "rope_theta": 1e6}
SCALED = {
    "rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 512,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_comes_back_as_it_was(tmp_path, family):
    head = made_head(tiny_model(family, 90).config)
    save_head(tmp_path, head, FACTS)
    back, facts = load_head(tmp_path, target=tiny_config(family, 90))
    assert facts == FACTS
    assert back.config.to_dict() == head.config.to_dict()
    wanted = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in
              head.state_dict().items()}  # fmt: skip
    on_disk = load_file(tmp_path / WEIGHTS)
    assert on_disk.keys() == wanted.keys() and len(wanted) == 15
    for name, tensor in wanted.items():
        assert on_disk[name].dtype == tensor.dtype and torch.equal(on_disk[name], tensor), name
        assert torch.equal(back.state_dict()[name], tensor.to(back.state_dict()[name].dtype)), name
    assert back.fc.weight.dtype == torch.float32 and back.d2t.dtype == torch.int64
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, WEIGHTS]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_loaded_head_steps_as_the_formula_says(tmp_path, family):
    head = load_head(saved_head(tmp_path, family), dtype=torch.float64)[0]
    reference, rows, size = Reference(head), 4, head.config.hidden_size
    captured = torch.randn(1, rows, 3 * size, dtype=torch.float64)
    embedded = torch.randn(1, rows, size, dtype=torch.float64)
    state = head.fuse(captured)
    inputs, rotation = head.inputs(embedded, state), head.rotation(torch.arange(rows)[None], state)
    keys, values = head.key_value(inputs, rotation)
    query = head.query(inputs, rotation)
    found = head.logits(head.finish(state, F.scaled_dot_product_attention(
        query, keys, values, is_causal=True, enable_gqa=True
    )))  # fmt: skip
    seen = []
    for row in range(rows):
        fused = reference.fuse(captured[0, row])
        one, key, value = reference.read(embedded[0, row], fused, row)
        seen.append((key, value))
        assert torch.allclose(found[0, row], reference.logits(reference.step(fused, one, seen)), atol=1e-4)


def test_the_configuration_says_everything(tmp_path):
    fields = json.loads((saved_head(tmp_path, "qwen3") / CONFIG).read_text())
    assert {name: fields[name] for name in fields if name != "schemafill"} == {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64, "head_dim": 24,
        "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "vocab_size": 90,
        "draft_vocab_size": DRAFT, "target_hidden_size": 64, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rope_theta": 10000.0, "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
    }  # fmt: skip
    assert fields["schemafill"]["capture_layers"] == [2, 3, 4]
    assert fields["schemafill"]["capture_convention"] == "hidden_states"


@pytest.mark.parametrize("spelling", ["both", "transformers 4", "transformers 5"])
@pytest.mark.parametrize("rope", [None, SCALED, FAST], ids=["llama3", "yarn", "1e6"])
def test_rotations_are_those_that_transformers_reads(tmp_path, spelling, rope):
    """Tables of the loaded head, of the trained one, and of a fresh configuration under each spelling."""
    config = tiny_config("llama", 90)  # llama3 scaling of its own
    if rope is not None:
        config.rope_parameters = rope
    trained = made_head(config)
    save_head(tmp_path, trained, FACTS)
    legacy = {"rope_theta": ..., "rope_scaling": ...}
    gone = {"both": {}, "transformers 4": {"rope_parameters": ...}, "transformers 5": legacy}
    change_config(tmp_path, **gone[spelling])
    like, positions = torch.zeros(1), torch.arange(0, 2000, 37)[None]
    fresh = LlamaRotaryEmbedding(AutoConfig.from_pretrained(tmp_path))(like, positions)
    loaded = load_head(tmp_path, dtype=torch.bfloat16)[0].rotation(positions, like)
    for one, other, wanted in zip(fresh, loaded, trained.rotation(positions, like), strict=True):
        assert torch.equal(one, wanted) and torch.equal(other, wanted)


def test_spellings_that_differ_are_refused(tmp_path):
    change_config(saved_head(tmp_path), rope_theta=1e6)
    with pytest.raises(UserError, match="rope_parameters and rope_theta with rope_scaling say different things"):
        load_head(tmp_path)
    change_config(tmp_path, rope_theta=..., rope_parameters=...)
    with pytest.raises(UserError, match="must say how positions turn"):
        load_head(tmp_path)


def bf16(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0.5, dtype=torch.bfloat16)


def shifted(by: int) -> torch.Tensor:
    return torch.arange(DRAFT) + by


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"lm_head__weight": None}, "lm_head.weight is missing"),
        ({"t2d": None, "d2t": None}, "d2t, t2d is missing"),
        ({"embed_tokens__weight": bf16(90, 48)}, "embed_tokens.weight does not belong there"),
        ({"fc__weight": bf16(48, 48)}, r"fc.weight has shape \[48, 48\], its configuration wants \[48, 144\]"),
        ({"norm__weight": torch.full((48,), 0.5)}, "norm.weight is float32, must be bfloat16"),
        ({"d2t": shifted(0).int()}, "d2t is int32, must be int64"),
        ({"t2d": torch.ones(90, dtype=torch.uint8)}, "t2d is uint8, must be bool"),
        ({"norm__weight": bf16(48).index_fill(0, torch.tensor(3), torch.nan)}, "norm.weight holds NaN or infinity"),
        ({"fc__weight": bf16(48, 144) * torch.inf}, "fc.weight holds NaN or infinity"),
        ({"d2t": shifted(1)}, "d2t and t2d name different tokens, or unsorted ones"),
        ({"d2t": shifted(0).flip(0)}, "d2t and t2d name different tokens, or unsorted ones"),
        ({"midlayer__hidden_norm__weight": bf16(48) * 2}, "hidden_norm.weight is 1 throughout: never trained"),
        ({"norm__weight": bf16(48) * 0}, "norm.weight is 0 throughout: never trained"),
        ({"lm_head__weight": bf16(DRAFT, 48) * 0}, "lm_head.weight is 0 throughout: never trained"),
    ],
)
def test_wrong_tensors_are_refused_by_name(tmp_path, tensors, message):
    change_tensors(saved_head(tmp_path), **tensors)
    with pytest.raises(UserError, match=message) as caught:
        load_head(tmp_path)
    assert str(tmp_path / WEIGHTS) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schemafill": ...}, "has no block 'schemafill'"),
        ({"model_type": "qwen3"}, "model_type is 'qwen3', a head has 'llama'"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2, a head has 1"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"head_dim": ...}, "head_dim is None, not a whole number"),
        ({"draft_vocab_size": None}, "draft_vocab_size is None"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_attention_heads": 5}, "hidden size .48. is not a multiple"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6'"),
        ({"rope_parameters": [1]}, "rope_parameters is .1., not an object"),
        ({"norm_before_residual": True}, "norm_before_residual is True: another arithmetic"),
        ({"fc_norm": True}, "fc_norm is True: another arithmetic"),
        ({"norm_output": True}, "norm_output is True: another arithmetic"),
        ({"eagle_config": ...}, "eagle_config captures the outputs of layers None"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4]}},
            r"captures the outputs of layers \[2, 3, 4\], schemafill those of \[1, 2, 3\]",
        ),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_refused_by_field(tmp_path, fields, message):
    change_config(saved_head(tmp_path), **fields)
    with pytest.raises(UserError, match=message) as caught:
        load_head(tmp_path)
    assert str(tmp_path / CONFIG) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"capture_convention": "layer_outputs"}, "unknown capture_convention 'layer_outputs'; known: hidden_states"),
        ({"capture_convention": None}, "unknown capture_convention None"),
        ({"format": "schemafill-head/2"}, "has format 'schemafill-head/2'"),
        ({"capture_layers": [2, 3]}, "schemafill.capture_layers"),
        ({"capture_layers": [4, 3, 2]}, r"capture_layers \[4, 3, 2\] are not three layers in ascending order"),
        ({"capture_layers": [0, 3, 4]}, r"capture_layers \[0, 3, 4\] are not"),
        ({"target": 3}, "schemafill.target: Input should be a valid string"),
        ({"colour": "red"}, "schemafill.colour: "),
    ],
)
def test_wrong_facts_are_refused(tmp_path, facts, message):
    block = json.loads((saved_head(tmp_path) / CONFIG).read_text())["schemafill"]
    change_config(tmp_path, schemafill=block | facts)
    with pytest.raises(UserError, match=message):
        load_head(tmp_path)


def test_a_head_of_another_target_is_refused(tmp_path):
    saved_head(tmp_path)
    load_head(tmp_path, target=tiny_config("llama", 90))
    for target, message in (
        (tiny_config("mistral", 90), "target_hidden_size is 48, the target's is 64: a head of another target"),
        (tiny_config("llama", 91), "vocab_size is 90, the target's is 91: a head of another target"),
    ):
        with pytest.raises(UserError, match=message):
            load_head(tmp_path, target=target)
    short = tiny_config("llama", 90)
    short.num_hidden_layers = 3
    with pytest.raises(UserError, match=r"captures layers \[2, 3, 4\], the target has 3"):
        load_head(tmp_path, target=short)


def test_pickles_are_never_read(tmp_path):
    (saved_head(tmp_path) / WEIGHTS).rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no such file: .*model.safetensors \(pytorch_model.bin is a pickle"):
        load_head(tmp_path)
    torch.save({}, tmp_path / WEIGHTS)
    with pytest.raises(UserError, match="model.safetensors: cannot be read"):
        load_head(tmp_path)


def test_what_cannot_be_found_or_read_is_told(tmp_path):
    with pytest.raises(UserError, match="is no folder and no Hub id"):
        load_head(tmp_path / "nothing")
    with pytest.raises(UserError, match="cannot read .*config.json: No such file"):
        load_head(tmp_path)
    (saved_head(tmp_path) / CONFIG).write_text("{")
    with pytest.raises(UserError, match="cannot read .*config.json: not JSON"):
        load_head(tmp_path)
    (tmp_path / CONFIG).write_text("[]")
    with pytest.raises(UserError, match="must be a JSON object"):
        load_head(tmp_path)


def test_a_head_without_numbers_or_vocabulary_is_not_written(tmp_path):
    head = made_head(tiny_config("llama", 90))
    head.fc.weight.data[0, 0] = torch.nan
    with pytest.raises(UserError, match="fc.weight holds NaN"):
        save_head(tmp_path / "a", head, FACTS)
    head.fc.weight.data[0, 0] = 0.5
    head.t2d.zero_()
    with pytest.raises(UserError, match="d2t and t2d name different tokens"):
        save_head(tmp_path / "a", head, FACTS)
    assert not (tmp_path / "a").exists()


def test_a_hardly_trained_head_is_written_and_not_loaded(tmp_path):
    head = made_head(tiny_config("llama", 90))
    head.norm.weight.data[:] = 1 + 1e-3  # 1 in bfloat16
    save_head(tmp_path, head, FACTS)
    with pytest.raises(UserError, match=r"model.safetensors: norm.weight is 1 throughout"):
        load_head(tmp_path)


def test_numbers_that_happen_to_be_1_or_0_are_not_taken_for_untrained(tmp_path):
    head = made_head(tiny_config("llama", 90))
    for parameter in head.parameters():
        parameter.data.view(-1)[0], parameter.data.view(-1)[1] = 1, 0
    save_head(tmp_path, head, FACTS)
    assert load_head(tmp_path)[0].norm.weight[:2].tolist() == [1, 0]


@pytest.mark.parametrize("at", [WEIGHTS, CONFIG])
def test_a_save_that_breaks_off_leaves_no_half_head(tmp_path, monkeypatch, at):
    """What is there are whole weights, the older or the newer ones, and no configuration that vouches for them."""
    before = (saved_head(tmp_path) / WEIGHTS).read_bytes()
    replace = Path.replace

    def break_off(path, place):
        if place.name == at:
            raise KeyboardInterrupt
        return replace(path, place)

    newer = made_head(tiny_config("llama", 90), seed=1)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", break_off)
        save_head(tmp_path, newer, FACTS)
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS]
    assert ((tmp_path / WEIGHTS).read_bytes() == before) == (at == WEIGHTS)
    with pytest.raises(UserError, match="config.json"):
        load_head(tmp_path)
    save_head(tmp_path, newer, FACTS)
    assert (tmp_path / WEIGHTS).read_bytes() != before and load_head(tmp_path)[1] == FACTS


def test_a_full_disk_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write .*file/head: Not a directory"):
        save_head(tmp_path / "file" / "head", made_head(tiny_config("llama", 90)), FACTS)


def test_facts_take_a_targets_identity(tmp_path):
    from models import byte_level_tokenizer

    from schemafill.inference.toolcall.dialects import get_dialect

    config = tiny_config("llama", len(byte_level_tokenizer()))
    facts = target_facts("a/b", byte_level_tokenizer(), config, get_dialect("json"), revision="c")
    made = HeadFacts.of_target(facts.identity, (2, 3, 4))
    assert (made.target, made.revision, made.dialect) == ("a/b", "c", "json")
    assert made.tokenizer_sha256 == facts.identity["tokenizer_sha256"] and made.output_layers == [1, 2, 3]
