"""A head in other programs' forms: their names, shapes and words, no bit changed on the way there and back."""

import json
from dataclasses import replace

import pytest
import torch
from head_setup import DRAFT, LAYERS, change_config, change_tensors, made_head, saved_target
from models import byte_level_tokenizer, tiny_config
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from schemafill.inference.model.head_facts import HeadFacts
from schemafill.inference.model.head_files import CONFIG, WEIGHTS, load_head, save_head
from schemafill.inference.request import UserError
from schemafill.training.export import (
    export_head,
    import_head,
    main,
    read_embedding,
    read_head_files,
    read_target_parts,
)
from schemafill.training.head_formats import FORMATS

SIZE, INNER, HEADS, KEY_HEADS, DIM, VOCAB = 48, 48, 4, 2, 12, len(byte_level_tokenizer())
LAYER = {
    "input_layernorm": (SIZE,), "hidden_norm": (SIZE,), "post_attention_layernorm": (SIZE,),
    "self_attn.q_proj": (HEADS * DIM, 2 * SIZE), "self_attn.k_proj": (KEY_HEADS * DIM, 2 * SIZE),
    "self_attn.v_proj": (KEY_HEADS * DIM, 2 * SIZE), "self_attn.o_proj": (SIZE, HEADS * DIM),
    "mlp.gate_proj": (INNER, SIZE), "mlp.up_proj": (INNER, SIZE), "mlp.down_proj": (SIZE, INNER),
}  # fmt: skip
REST = {"fc": (SIZE, 3 * SIZE), "lm_head": (DRAFT, SIZE), "norm": (SIZE,)}
# Form -> what its layer is called, what it has besides, and fields that its readers look for.
CONTRACTS = {
    "sglang": ("midlayer", {}, {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "head_dim": DIM, "draft_vocab_size": DRAFT,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
    }),
    "vllm": ("layers.0", {"embed_tokens": (VOCAB, SIZE)}, {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "norm_before_residual": False,
        "norm_before_fc": False, "fc_norm": False, "norm_output": False, "embed_requires_grad": False,
        "draft_vocab_size": DRAFT, "target_hidden_size": SIZE, "eagle_aux_hidden_state_layer_ids": [2, 3, 4],
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [{
                "proposal_type": "greedy", "speculative_tokens": 3, "accept_tolerance": 0.0, "verifier_accept_k": 1,
            }],
            "verifier": {"name_or_path": "org/Target", "architectures": ["Qwen2ForCausalLM"]},
        },
    }),
    "eagle": ("midlayer", {}, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1, "hidden_act": "silu",
        "hidden_size": SIZE, "intermediate_size": INNER, "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rope_theta": 10000.0,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }),
}  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return saved_target(tmp_path_factory.mktemp("target"), "qwen2")


@pytest.fixture(scope="module")
def parts(target):
    return read_target_parts(str(target), "org/Target")


@pytest.fixture
def head(tmp_path, parts):
    """The folder of a head of the target."""
    folder = tmp_path / "head"
    save_head(folder, made_head(parts.config), HeadFacts.of_target(parts.identity, LAYERS, evaluation={"starts": 3}))
    return folder


def content(folder):
    return {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS)}


@pytest.mark.parametrize("form", FORMATS)
def test_a_form_is_what_its_readers_look_for(head, tmp_path, parts, form):
    export_head(read_head_files(head), FORMATS[form], tmp_path / "out", parts)
    layer, more, fields = CONTRACTS[form]
    weights = {f"{layer}.{name}": shape for name, shape in LAYER.items()} | REST | more
    wanted = {f"{name}.weight": (list(shape), "BF16") for name, shape in weights.items()}
    wanted |= {"d2t": ([DRAFT], "I64"), "t2d": ([VOCAB], "BOOL")}
    with safe_open(tmp_path / "out" / WEIGHTS, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        found = {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}
    assert found == wanted
    told = json.loads((tmp_path / "out" / CONFIG).read_text())
    assert {name: told.get(name) for name in fields} == fields
    if form == "eagle":
        assert told.keys() == fields.keys() | {"schemafill"}
    if form == "vllm":
        inner, ours = told["transformer_layer_config"], json.loads((head / CONFIG).read_text())
        assert inner == {name: ours[name] for name in inner} and inner["rope_theta"] == 10000.0


@pytest.mark.parametrize("form", FORMATS)
def test_there_and_back_changes_no_bit(head, tmp_path, target, form):
    argv = ["--head", str(head), "--format", form, "--out", str(tmp_path / "there"), "--target", str(target)]
    assert main(argv) == 0
    back = ["--head", str(tmp_path / "there"), "--from-format", form, "--out", str(tmp_path / "back")]
    assert main(back) == 0
    assert content(tmp_path / "back") == content(head)
    assert main([*argv[:5], str(tmp_path / "again"), *argv[6:]]) == 0
    assert content(tmp_path / "again") == content(tmp_path / "there")
    if form != "vllm":
        assert content(tmp_path / "there")[WEIGHTS] == content(head)[WEIGHTS]


def test_vllms_form_holds_the_targets_embeddings(head, tmp_path, target, parts):
    export_head(read_head_files(head), FORMATS["vllm"], tmp_path / "out", parts)
    table = AutoModelForCausalLM.from_pretrained(target).get_input_embeddings().weight
    assert torch.equal(load_file(tmp_path / "out" / WEIGHTS)["embed_tokens.weight"], table.detach().bfloat16())


def test_embeddings_are_found_in_one_file_and_in_several(tmp_path):
    one, many = saved_target(tmp_path / "one"), saved_target(tmp_path / "many", is_sharded=True)
    assert not (many / WEIGHTS).exists()
    assert torch.equal(read_embedding(str(one)), read_embedding(str(many)))
    for path in many.glob("*.json"):
        path.unlink()
    with pytest.raises(UserError, match="has no model.safetensors"):
        read_embedding(str(many))


@pytest.mark.parametrize("form", FORMATS)
def test_a_folder_of_others_becomes_a_head_of_the_target_that_is_named(head, tmp_path, parts, form):
    """The same head without the block that only this project writes."""
    export_head(read_head_files(head), FORMATS[form], tmp_path / "out", parts)
    change_config(tmp_path / "out", schemafill=...)
    with pytest.raises(UserError, match="does not say what it was made for: name its target with --target"):
        import_head(tmp_path / "out", FORMATS[form])
    found = import_head(tmp_path / "out", FORMATS[form], parts)
    assert found.facts == HeadFacts.of_target(parts.identity, LAYERS)
    assert found.config.to_dict() == read_head_files(head).config.to_dict()


def test_what_eagles_form_leaves_unsaid_is_what_its_code_takes(head, tmp_path, parts):
    export_head(read_head_files(head), FORMATS["eagle"], tmp_path / "out", parts)
    change_config(tmp_path / "out", schemafill=..., rope_theta=..., bos_token_id=...)
    found = import_head(tmp_path / "out", FORMATS["eagle"], parts)
    assert found.config.head_dim == DIM and found.config.rope_parameters["rope_theta"] == 10000.0
    assert found.facts.capture_layers == (2, 3, 4)


@pytest.mark.parametrize(
    ("form", "fields", "message"),
    [
        ("vllm", {"norm_before_residual": True}, "norm_before_residual is True: a head of ours cannot say that"),
        ("vllm", {"norm_before_residual": ...}, "norm_before_residual is not said, and readers' defaults differ"),
        ("vllm", {"norm_before_fc": True}, "norm_before_fc is True"),
        ("vllm", {"fc_norm": True}, "fc_norm is True"),
        ("vllm", {"norm_output": True}, "norm_output is True"),
        ("vllm", {"embed_requires_grad": True}, "embed_requires_grad is True"),
        ("vllm", {"speculators_model_type": "dflash"}, "speculators_model_type is 'dflash', not 'eagle3'"),
        ("vllm", {"transformer_layer_config": ...}, "transformer_layer_config is missing"),
        ("vllm", {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, r"captures hidden_states \[1, 2, 3\], schemafill"),
        ("sglang", {"norm_output": True}, "norm_output is True: another arithmetic"),
        ("sglang", {"bias": True}, "bias is True: another arithmetic"),
        ("sglang", {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is False"),
        (
            "sglang", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4]}},
            r"eagle_aux_hidden_state_layer_ids \[2, 3, 4\] do not begin with 1",
        ),
        ("eagle", {"head_dim": 16}, "head_dim is 16, this form's readers take 12"),
        ("eagle", {"draft_vocab_size": None}, "draft_vocab_size is None"),
    ],
)  # fmt: skip
def test_what_a_head_of_ours_cannot_say_is_refused_by_name(head, tmp_path, parts, form, fields, message):
    export_head(read_head_files(head), FORMATS[form], tmp_path / "out", parts)
    change_config(tmp_path / "out", **fields)
    with pytest.raises(UserError, match=message):
        import_head(tmp_path / "out", FORMATS[form], parts)


def test_tensors_that_do_not_belong_to_a_form_are_refused(head, tmp_path, parts):
    out = tmp_path / "out"
    export_head(read_head_files(head), FORMATS["vllm"], out, parts)
    for tensors, message in (
        ({"layers__0__self_attn__q_norm__weight": torch.ones(DIM)}, "q_norm.weight does not belong there"),
        ({"layers__0__self_attn__q_norm__weight": None, "embed_tokens__weight": None}, "embed_tokens.weight is miss"),
        ({"embed_tokens__weight": parts.embedding + 1}, "embed_tokens.weight is not the target's"),
        ({"embed_tokens__weight": parts.embedding, "norm__weight": torch.ones(SIZE).bfloat16()}, "never trained"),
    ):
        change_tensors(out, **tensors)
        with pytest.raises(UserError, match=message):
            import_head(out, FORMATS["vllm"], parts)
    with pytest.raises(UserError, match="midlayer.hidden_norm.weight, .* is missing"):
        change_config(out, **json.loads((head / CONFIG).read_text()))
        import_head(out, FORMATS["sglang"])


@pytest.mark.parametrize(
    ("family", "layers", "message"),
    [
        ("qwen3", (2, 3, 4), "form eagle cannot say head_dim 24: its readers take 16"),
        ("llama", (2, 3, 4), "form eagle cannot say rope_type 'llama3'"),
        ("qwen2", (2, 3, 5), r"form eagle cannot say capture_layers \[2, 3, 5\]"),
    ],
)
def test_what_eagles_form_cannot_say_is_refused_by_name(tmp_path, parts, family, layers, message):
    save_head(tmp_path / "a", made_head(tiny_config(family, 90)), HeadFacts.of_target(parts.identity, layers))
    with pytest.raises(UserError, match=message):
        export_head(read_head_files(tmp_path / "a"), FORMATS["eagle"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_target_of_the_same_size_is_refused(head, tmp_path, parts):
    other = replace(parts, identity=parts.identity | {"files_sha256": "00"})
    with pytest.raises(UserError, match="is not the one the head was made for: another files_sha256"):
        export_head(read_head_files(head), FORMATS["vllm"], tmp_path / "out", other)


def test_faults_of_a_user_are_one_line_and_code_2(head, tmp_path, capsys):
    out = str(tmp_path / "out")
    for argv, message in (
        (["--head", str(head), "--format", "vllm", "--out", out], "say with --target where it is"),
        (["--head", str(head), "--format", "sglang", "--out", str(head)], "is the head itself"),
        (["--head", str(head), "--format", "onnx", "--out", out], "invalid choice"),
        (["--head", str(tmp_path / "no"), "--format", "eagle", "--out", out], "no such head"),
        (["--head", str(head), "--format", "eagle", "--from-format", "vllm", "--out", out], "not allowed with"),
        (["--head", str(head), "--from-format", "vllm", "--out", out], "speculators_model_type is None"),
    ):
        assert main(argv) == 2
        told = capsys.readouterr().err
        assert message in told and told.count("\n") == 1, told
    assert load_head(head)[1].target == json.loads((head / CONFIG).read_text())["schemafill"]["target"]
