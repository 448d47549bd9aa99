"""What a converted folder holds: a tiny GGUF file's meaning, and promises about the embedded target."""

import unicodedata

import pytest
import torch
from safetensors.torch import load_file
from tiny_gguf import HEADS, HIDDEN, KV_HEADS, LAYERS, MLP, write_tiny_gguf
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from schemafill.inference import gguf_conversion
from schemafill.inference.fetch import target_folder
from schemafill.inference.gguf_conversion import convert_gguf, hf_tensor_name
from schemafill.inference.model.architectures import check_architecture

TEXTS = (
    "def f(x):\n\treturn  x+1   \n\n\n",
    "naïve Ünïcödé 日本語 한국어 🎉🏳️‍🌈 Ελληνικά עברית",
    "12345.678 -9 1e10",
    "   \t\n \r\n  x",
    "<|im_start|>user\nhi<|im_end|>\n<tool_call>\n</tool_call><|endoftext|>",
    '{"tool_calls": [{"name": "x"}]}',
    "I'll DON'T we've",
    "\u00a0\u2028\ufeff",
    "cafe\u0301",  # decomposed: the normaliser composes it
    "",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Path of the tiny GGUF, and what its tensors mean."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return path, write_tiny_gguf(path)


def check_round_trips(folder):
    """Texts come back composed, and tokenizer.json alone, which `transformers` partly overrides, gives the same ids."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        token_ids = tokenizer(text).input_ids
        assert tokenizer.decode(token_ids) == unicodedata.normalize("NFC", text)
        assert plain.encode(text).ids == token_ids


def test_folder_loads_in_transformers(tiny, tmp_path):
    path, meaning = tiny
    convert_gguf(path, tmp_path)
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.bfloat16
    assert check_architecture(model.config).name == "qwen2"
    config = model.config
    sizes = (config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.vocab_size)
    assert sizes == (LAYERS, HIDDEN, MLP, 288)
    assert (config.num_attention_heads, config.num_key_value_heads) == (HEADS, KV_HEADS)
    assert config.rope_parameters["rope_theta"] == 1e6 and config.rms_norm_eps == 1e-6
    assert config.tie_word_embeddings is False and config.max_position_embeddings == 128
    assert model.generation_config.eos_token_id == [263, 261]  # <|im_end|> and <|endoftext|>

    weights = load_file(tmp_path / "model.safetensors")
    assert len(weights) == len(meaning)
    for name, values in meaning.items():
        assert torch.equal(weights[hf_tensor_name(name)], torch.from_numpy(values).bfloat16()), name


def test_large_tensor_is_converted_in_blocks_of_rows(tiny, tmp_path, monkeypatch):
    path, meaning = tiny
    monkeypatch.setattr(gguf_conversion, "BLOCK_VALUES", 3 * HIDDEN)
    convert_gguf(path, tmp_path)
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(embedding, torch.from_numpy(meaning["token_embd.weight"]).bfloat16())


def test_file_without_an_output_matrix_ties_it_to_the_embedding(tmp_path):
    write_tiny_gguf(tmp_path / "tied.gguf", has_output=False)
    (tmp_path / "out").mkdir()
    convert_gguf(tmp_path / "tied.gguf", tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_tokenizer_follows_the_file(tiny, tmp_path):
    convert_gguf(tiny[0], tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 266  # the unused tokens that pad the embedding are no tokens
    assert tokenizer.convert_ids_to_tokens(tokenizer("tool").input_ids) == ["tool"]  # merges in the file's order
    assert len(tokenizer("123").input_ids) == 3
    assert tokenizer("<tool_call>").input_ids == [264]
    assert 264 not in tokenizer.all_special_ids and 263 in tokenizer.all_special_ids
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token) == ("<|im_end|>", "<|endoftext|>", None)
    messages = [{"role": "user", "content": "a"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|im_start|>a<|im_end|>"
    check_round_trips(tmp_path)


@pytest.mark.real
def test_embedded_tokenizer_is_qwens():
    tokenizer = AutoTokenizer.from_pretrained(target_folder("embedded"))
    assert len(tokenizer) == 151665
    # Ids of the published Qwen2.5 tokenizer.
    assert tokenizer('{"tool_calls": [{"name": "x"}]}').input_ids == [
        4913, 14172, 45636, 788, 61753, 606, 788, 330, 87, 9207, 13989,
    ]  # fmt: skip
    signs = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    assert tokenizer.convert_tokens_to_ids(signs) == [151643, 151644, 151645, 151657, 151658]
    check_round_trips(target_folder("embedded"))


@pytest.mark.real
def test_embedded_target_writes_sense():
    """Weights in the wrong order, a permuted q or k above all, would write noise."""
    folder = target_folder("embedded")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer("The capital of France is Paris. The capital of Italy is", return_tensors="pt")
    output = model.generate(**prompt, max_new_tokens=3)
    assert tokenizer.decode(output[0, prompt.input_ids.shape[1] :]) == " Rome. The"
