"""The `speculators` package itself loads our form for vLLM and computes what our head computes."""

from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from head_setup import LAYERS, made_head, saved_target
from transformers import AutoModelForCausalLM

from schemafill.inference.model.eagle3_head import Eagle3Head
from schemafill.inference.model.head_facts import HeadFacts
from schemafill.inference.model.head_files import load_head, read_head_files, save_head
from schemafill.training.export import export_head, read_target_parts
from schemafill.training.head_formats import FORMATS, SPECULATORS_VERSION
from schemafill.training.ttt_loss import TrainedRows, draft_steps

ROOT = Path(__file__).parents[1]
ROWS, STEPS = 11, 3


@pytest.fixture(params=["llama", "qwen2", "qwen3", "mistral"])
def exported(request, tmp_path):
    """Our head in float32; theirs, loaded from the vllm form of its folder; the target's parts and embeddings."""
    speculators = pytest.importorskip("speculators", reason="the speculators package is not installed (make setup)")
    target = saved_target(tmp_path / "target", request.param)
    parts = read_target_parts(str(target))
    save_head(tmp_path / "head", made_head(parts.config), HeadFacts.of_target(parts.identity, LAYERS))
    export_head(read_head_files(tmp_path / "head"), FORMATS["vllm"], tmp_path / "vllm", parts)
    config = speculators.SpeculatorModelConfig.from_pretrained(str(tmp_path / "vllm"))
    config.transformer_layer_config._attn_implementation = "eager"  # its own choice wants whole blocks of 128 rows
    theirs = speculators.SpeculatorModel.from_pretrained(str(tmp_path / "vllm"), config=config, dtype=torch.float32)
    table = AutoModelForCausalLM.from_pretrained(target).get_input_embeddings().weight.detach().bfloat16().float()
    return load_head(tmp_path / "head")[0], theirs.eval(), parts, table


@torch.no_grad()
def our_logits(head: Eagle3Head, embedding: torch.Tensor, ids: torch.Tensor, captured: torch.Tensor):
    rows = torch.arange(ROWS)[None]
    batch = TrainedRows(
        token_ids=ids, captured=captured, rows=rows, num_steps=(ROWS - rows).clamp(max=STEPS),
        final=torch.zeros(1, 1, head.config.hidden_size), weights=torch.zeros(1, 1), first_row=torch.zeros(1).long(),
    )  # fmt: skip
    return [head.logits(state)[0] for state, _ in draft_steps(head, embedding, batch, STEPS)]


@torch.no_grad()
def their_logits(model: torch.nn.Module, ids: torch.Tensor, captured: torch.Tensor) -> list[torch.Tensor]:
    """It returns drafted tokens only; the logits pass by at its output layer."""
    seen: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    model(captured, ids[:, 1:], document_ids=torch.zeros(1, ROWS, dtype=torch.int64), ttt_steps=STEPS)
    hook.remove()
    return seen


def test_it_gives_the_same_logits_at_every_step(exported):
    head, theirs, _, table = exported
    torch.manual_seed(5)
    ids = torch.randint(0, head.config.vocab_size, (1, ROWS + 1))
    captured = torch.randn(1, ROWS, 3 * head.config.hidden_size)
    ours = our_logits(head, table, ids, captured)
    found = their_logits(theirs, ids, captured)
    assert len(ours) == len(found) == STEPS
    for step in range(STEPS):
        rows = slice(ROWS - step)  # later rows read behind the end of the text
        assert float(ours[step][rows].std()) > 0.1
        assert torch.allclose(ours[step][rows], found[step][rows], atol=1e-4), step


def test_it_holds_every_tensor_and_every_word(exported):
    head, theirs, parts, table = exported
    loaded, ours = theirs.state_dict(), head.state_dict()
    for name, tensor in ours.items():
        assert torch.equal(loaded[FORMATS["vllm"].name_of(name)], tensor), name
    assert torch.equal(theirs.embed_tokens.weight, table)
    assert theirs.target_layer_ids == [2, 3, 4] and theirs.config.draft_vocab_size == head.config.draft_vocab_size
    assert theirs.config.speculators_config.verifier.architectures == list(parts.verifier.architectures)


def test_the_version_is_the_pinned_one():
    pytest.importorskip("speculators", reason="the speculators package is not installed (make setup)")
    pins = (ROOT / "requirements/no_deps.txt").read_text().split()
    assert f"speculators=={version('speculators')}" in pins and version("speculators") == SPECULATORS_VERSION
