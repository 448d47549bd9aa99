"""A GGUF file of a Qwen2 target so small that a test can convert it."""

import gguf
import numpy as np

HIDDEN, MLP, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins for bytes, as in GPT-2's vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = {byte: 256 + i for i, byte in enumerate(byte for byte in range(256) if byte not in plain)}
    return [chr(shifted.get(byte, byte)) for byte in range(256)]


def write_tiny_gguf(path, *, has_output=True) -> dict[str, np.ndarray]:
    """A Qwen2 file with 288 tokens and quantised matrices. Returns what its tensors mean, in fp32."""
    rng = np.random.default_rng(0)
    merges = ["t o", "to o", "too l", "Ġ t", "1 2"]  # digits are cut apart before this one can act
    tokens = byte_alphabet() + [merge.replace(" ", "") for merge in merges]
    types = [1] * len(tokens) + [3, 3, 3, 4, 4]
    tokens += SPECIAL_TOKENS
    types += [5] * (288 - len(tokens))
    tokens += [f"[PAD{i}]" for i in range(len(tokens), 288)]

    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")

    kv_size = HIDDEN // HEADS * KV_HEADS
    shapes = {"token_embd.weight": (288, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if has_output:
        shapes["output.weight"] = (288, HIDDEN)
    for layer in range(LAYERS):
        block = {
            "attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,),
            "attn_q.weight": (HIDDEN, HIDDEN), "attn_q.bias": (HIDDEN,),
            "attn_k.weight": (kv_size, HIDDEN), "attn_k.bias": (kv_size,),
            "attn_v.weight": (kv_size, HIDDEN), "attn_v.bias": (kv_size,),
            "attn_output.weight": (HIDDEN, HIDDEN),
            "ffn_gate.weight": (MLP, HIDDEN), "ffn_up.weight": (MLP, HIDDEN), "ffn_down.weight": (HIDDEN, MLP),
        }  # fmt: skip
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    meaning = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
            meaning[name] = values
            continue
        packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        meaning[name] = gguf.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meaning
