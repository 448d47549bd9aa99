"""By what a target is recognised: any change of weights, tokenizer or template shows, nothing else does."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from models import byte_level_tokenizer, sentencepiece_tokenizer, tiny_model

from schemafill.data_prep import target_facts as facts_module
from schemafill.data_prep.target_facts import files_sha256, read_target, target_facts
from schemafill.inference.request import UserError
from schemafill.inference.toolcall.dialects import get_dialect

CONFIG = SimpleNamespace(vocab_size=500, max_position_embeddings=64, num_hidden_layers=2)


def identity(tokenizer, dialect: str = "hermes") -> dict:
    return target_facts("t", tokenizer, CONFIG, get_dialect(dialect)).identity


def test_a_tokenizer_is_recognised():
    same, split = byte_level_tokenizer(dialect="hermes"), byte_level_tokenizer(is_split=False)
    other = sentencepiece_tokenizer()
    hashes = [identity(one, "json")["tokenizer_sha256"] for one in (same, split, other)]
    assert len(set(hashes)) == 3
    assert identity(same, "json")["tokenizer_sha256"] == hashes[0]


def test_a_chat_template_is_recognised():
    hermes, llama = byte_level_tokenizer(dialect="hermes"), byte_level_tokenizer(dialect="llama3")
    assert identity(hermes)["template_sha256"] != identity(llama, "llama3")["template_sha256"]
    assert identity(hermes)["prompt"] == "chat template"


def test_the_wording_of_the_plain_prompt_is_recognised(monkeypatch):
    from schemafill.inference.toolcall import plain_prompt

    tokenizer = byte_level_tokenizer()
    before = identity(tokenizer, "json")
    assert before["prompt"] == "plain"
    monkeypatch.setattr(plain_prompt, "INSTRUCTION", plain_prompt.INSTRUCTION + " Please.")
    assert identity(tokenizer, "json")["template_sha256"] != before["template_sha256"]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(facts_module, "BLOCK_BYTES", 8)
    monkeypatch.setattr(facts_module, "NUM_BLOCKS", 4)


@pytest.mark.parametrize("size", [0, 20, 32, 33, 1000])
def test_weights_that_were_trained_on_are_another_target(tmp_path: Path, small_blocks, size):
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(size))
    before = files_sha256(tmp_path)
    assert files_sha256(tmp_path) == before
    path.write_bytes(bytes([1]) * size + b"\1" * (size == 0))
    assert files_sha256(tmp_path) != before
    path.write_bytes(bytes(size))
    (tmp_path / "README.md").write_text("words")
    assert files_sha256(tmp_path) == before
    path.rename(tmp_path / "other.safetensors")
    assert files_sha256(tmp_path) != before


def test_first_and_last_byte_of_a_large_file_count(tmp_path: Path, small_blocks):
    path = tmp_path / "model.safetensors"
    hashes = set()
    for at in (None, 0, 999):
        data = bytearray(1000)
        if at is not None:
            data[at] = 1
        path.write_bytes(data)
        hashes.add(files_sha256(tmp_path))
    assert len(hashes) == 3


def saved_target(folder: Path) -> Path:
    """A target's folder without weights."""
    tokenizer = byte_level_tokenizer(dialect="hermes")
    tokenizer.save_pretrained(folder)
    model = tiny_model("qwen2", len(tokenizer) + 3)
    model.config.save_pretrained(folder)
    ends = [tokenizer.convert_tokens_to_ids(sign) for sign in ("<|im_end|>", "<|endoftext|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


def test_a_folder_is_read_without_weights(tmp_path: Path):
    facts = read_target(str(saved_target(tmp_path / "my-target")))
    assert facts.dialect.name == "hermes" and facts.max_positions == 2048
    assert facts.vocab_size == len(byte_level_tokenizer()) + 3
    assert [facts.vocabulary.text_of([one]) for one in facts.end_ids] == ["<|im_end|>", "<|endoftext|>"]
    assert (facts.identity["target"], facts.identity["revision"]) == ("my-target", None)
    assert facts.identity == json.loads(json.dumps(facts.identity))
    assert read_target(str(tmp_path / "my-target"), dialect="json").identity["prompt"] == "plain"


def test_a_target_that_is_none_is_one_line(tmp_path: Path):
    with pytest.raises(UserError, match="cannot read the configuration of target"):
        read_target(str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="unknown dialect 'french'"):
        read_target(str(tmp_path / "nothing"), dialect="french")
