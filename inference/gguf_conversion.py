"""A folder that `transformers` loads, converted from the GGUF file of a Qwen2 target.

Knows the names of fields, tensors and token types in such a file and dequantises every weight to bf16. torch, gguf and
tokenizers are imported where they are needed: asking for a target that is already there must not cost their start-up
time.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from schemafill.inference.request import UserError

if TYPE_CHECKING:
    from gguf import GGUFReader

CONVERTER_VERSION = 1
"""Raised when the conversion writes other bytes; a folder of another version is made anew."""
BLOCK_VALUES = 8 << 20
"""Most weights held in fp32 at once, 32 MB of them."""

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 cuts text before BPE: every digit alone. Source: tokenizer.json of the Qwen2.5 models."""
NORMAL_TOKEN, CONTROL_TOKEN, USER_DEFINED_TOKEN = 1, 3, 4
"""GGUF token types. The rest (5, unused) only pads the embedding to a round size; no text encodes to it."""
END_SIGNS = ("<|im_end|>", "<|endoftext|>")

TENSOR_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSOR_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(gguf_path: Path, folder: Path) -> None:
    """Write config, weights, tokenizer and generation config of a Qwen2 GGUF file into `folder`."""
    from gguf import GGUFReader

    # Its vocabulary is some 300,000 strings, read one by one: 20 s in which no bar can move.
    tqdm.write(f"reading the tables of {gguf_path.name} ...", file=sys.stderr)
    reader = GGUFReader(gguf_path)
    architecture = read_field(reader, "general.architecture")
    if architecture != "qwen2":
        raise UserError(f"{gguf_path} holds the architecture {architecture!r}; only qwen2 is converted")
    write_config(reader, folder)
    write_tokenizer(reader, folder)
    write_weights(reader, folder)


def read_field(reader: GGUFReader, key: str) -> object:
    field = reader.get_field(key)
    if field is None:
        raise UserError(f"the GGUF file lacks the field {key!r}")
    return field.contents()


def read_float(reader: GGUFReader, key: str) -> float:
    """A 32-bit float as the shortest decimal that means it: 1e-06, not 9.999999974752427e-07."""
    import numpy as np

    return float(str(np.float32(read_field(reader, key))))


def write_config(reader: GGUFReader, folder: Path) -> None:
    tokens = read_field(reader, "tokenizer.ggml.tokens")
    eos_id = read_field(reader, "tokenizer.ggml.eos_token_id")
    bos_id = read_field(reader, "tokenizer.ggml.bos_token_id")
    pad_id = read_field(reader, "tokenizer.ggml.padding_token_id")
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": len(tokens),
        "hidden_size": read_field(reader, "qwen2.embedding_length"),
        "intermediate_size": read_field(reader, "qwen2.feed_forward_length"),
        "num_hidden_layers": read_field(reader, "qwen2.block_count"),
        "num_attention_heads": read_field(reader, "qwen2.attention.head_count"),
        "num_key_value_heads": read_field(reader, "qwen2.attention.head_count_kv"),
        "hidden_act": "silu",
        "max_position_embeddings": read_field(reader, "qwen2.context_length"),
        "rms_norm_eps": read_float(reader, "qwen2.attention.layer_norm_rms_epsilon"),
        "rope_theta": read_float(reader, "qwen2.rope.freq_base"),
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_sliding_window": False,
        # The original ties both; a quantised file may hold a second, finer copy for the output, and that one counts.
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "use_cache": True,
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "torch_dtype": "bfloat16",
        "transformers_version": "5.0.0",  # without one, loading the tokenizer warns of a fault that only Mistral's has
    }
    write_json(folder / "config.json", config)
    end_ids = [eos_id] + [tokens.index(sign) for sign in END_SIGNS if sign in tokens and sign != tokens[eos_id]]
    generation = {"bos_token_id": bos_id, "eos_token_id": end_ids, "pad_token_id": pad_id, "do_sample": False}
    write_json(folder / "generation_config.json", generation)


def write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json, the second with the chat template."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    for key, expected in {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}.items():
        if read_field(reader, key) != expected:
            raise UserError(f"the GGUF file's {key} is {read_field(reader, key)!r}; only {expected!r} is converted")
    tokens = read_field(reader, "tokenizer.ggml.tokens")
    token_types = read_field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in read_field(reader, "tokenizer.ggml.merges")]
    vocab = {tokens[token_id]: token_id for token_id, kind in enumerate(token_types) if kind == NORMAL_TOKEN}
    added_ids = [token_id for token_id, kind in enumerate(token_types) if kind in (CONTROL_TOKEN, USER_DEFINED_TOKEN)]

    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    for token_id in added_ids:
        special = token_types[token_id] == CONTROL_TOKEN
        tokenizer.add_tokens([AddedToken(tokens[token_id], special=special, normalized=False)])
        # The library numbers added tokens itself; a gap in the file's ids would shift every one after it.
        got_id = tokenizer.token_to_id(tokens[token_id])
        assert got_id == token_id, f"token {tokens[token_id]!r} got id {got_id}, the file says {token_id}"
    tokenizer.save(str(folder / "tokenizer.json"))

    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": tokens[read_field(reader, "tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[read_field(reader, "tokenizer.ggml.padding_token_id")],
        "unk_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "model_max_length": read_field(reader, "qwen2.context_length"),
        "additional_special_tokens": [tokens[i] for i in added_ids if token_types[i] == CONTROL_TOKEN],
        "added_tokens_decoder": {
            str(token_id): {
                "content": tokens[token_id],
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token_types[token_id] == CONTROL_TOKEN,
            }
            for token_id in added_ids
        },
        "chat_template": read_field(reader, "tokenizer.chat_template"),
    }
    write_json(folder / "tokenizer_config.json", config)


def write_weights(reader: GGUFReader, folder: Path) -> None:
    """model.safetensors in bf16. q and k keep their order: Qwen2 files, unlike Llama's, are not permuted for RoPE."""
    import numpy as np
    import torch
    from gguf import dequantize
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    weights: dict[str, torch.Tensor] = {}
    num_bytes = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    with tqdm(total=num_bytes, unit="B", unit_scale=True, desc="dequantise") as bar:
        for tensor in reader.tensors:
            shape = [int(size) for size in reversed(tensor.shape)]  # GGUF counts the fastest axis first
            weight = torch.empty(shape, dtype=torch.bfloat16)
            rows_per_block = max(1, BLOCK_VALUES // (shape[-1] if len(shape) > 1 else 1))
            for start in range(0, shape[0], rows_per_block):
                rows = slice(start, start + rows_per_block)
                values = dequantize(tensor.data[rows], tensor.tensor_type)
                weight[rows] = torch.from_numpy(np.array(values, dtype=np.float32))  # copied: the file is read-only
            weights[hf_tensor_name(tensor.name)] = weight
            bar.update(int(tensor.n_bytes))
    path = folder / "model.safetensors"
    try:
        save_file(weights, path, metadata={"format": "pt"})
    except SafetensorError as fault:  # the library reports a full disk in words only
        raise OSError(errno.ENOSPC if "os error 28" in str(fault) else errno.EIO, str(fault), str(path)) from fault
    path.chmod((folder / "config.json").stat().st_mode)  # the library lets only the owner read it


def hf_tensor_name(name: str) -> str:
    """`blk.3.attn_q.bias` -> `model.layers.3.self_attn.q_proj.bias`."""
    if name in TENSOR_NAMES:
        return TENSOR_NAMES[name]
    prefix, _, rest = name.partition(".")
    layer, _, rest = rest.partition(".")
    part, _, kind = rest.partition(".")
    if prefix != "blk" or part not in LAYER_TENSOR_NAMES:
        raise UserError(f"the GGUF file holds an unknown tensor {name!r}")
    return f"model.layers.{layer}.{LAYER_TENSOR_NAMES[part]}.{kind}"


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
