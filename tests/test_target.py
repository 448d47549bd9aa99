"""Passes over prompts and trees: what a row computes depends on what it sees, not on what stands beside it."""

from __future__ import annotations

import random

import pytest
import torch
from models import FAMILIES, kernels_or_none, tiny_model, tiny_target
from safetensors.torch import load_file, save_file
from transformers import GPT2Config

from schemafill.inference.model.cpu_kernels import PackedLinear
from schemafill.inference.model.target import EXACT_ROWS, TargetModel, load_target
from schemafill.inference.model.tree import Proposal, SideBranch
from schemafill.inference.request import UserError

VOCAB = 97
BACKENDS = pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def some_ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


def random_tree(root: int, num_nodes: int, seed: int = 0) -> Proposal:
    draw = random.Random(seed)
    proposal = Proposal(root)
    while proposal.num_nodes < num_nodes:
        proposal.add(draw.randrange(VOCAB), draw.randrange(len(proposal)), "guess")
    return proposal


def path_to(proposal: Proposal, node: int) -> list[int]:
    """Tokens from the tree's root to a node, by walking up."""
    tokens = []
    while node >= 0:
        tokens.insert(0, proposal.tokens[node])
        node = proposal.parents[node]
    return tokens


def some_nodes(tree: Proposal) -> list[int]:
    """A third of a tree's nodes, the root and the deepest one among them."""
    return sorted({*range(0, len(tree), 4), max(range(len(tree)), key=lambda node: len(path_to(tree, node)))})


def one_by_one(target: TargetModel, prompt_ids: list[int], tokens: list[int]) -> torch.Tensor:
    """Logits behind the last of `tokens` when the prompt is prefilled and each token is decoded in a pass of its
    own."""
    arena = target.new_arena(len(prompt_ids) + len(tokens))
    scored = target.forward_prompt(arena, prompt_ids)
    for token in tokens:
        scored = target.forward(arena, Proposal(token))
        arena.commit([])
    return scored.logits[0].clone()


def check_same(target: TargetModel, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits with the row-invariant kernels, equal up to rounding with torch's own."""
    if target.is_row_invariant:
        assert torch.equal(found, expected)
    else:
        assert torch.allclose(found, expected, atol=1e-4)
        assert found.argmax() == expected.argmax()


@BACKENDS
@EACH_FAMILY
def test_prefill_gives_the_logits_of_transformers_own_attention(family, has_kernels):
    ids = some_ids(23)
    reference = tiny_model(family, VOCAB, attention="eager")
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    target = tiny_target(family, has_kernels=has_kernels, vocab_size=VOCAB)
    for length in (1, 2, 23):
        found = target.forward_prompt(target.new_arena(30), ids[:length]).logits[0]
        assert torch.allclose(found, expected[length - 1], atol=1e-4)


@BACKENDS
@EACH_FAMILY
def test_tree_forward_equals_separate_causal_forwards(family, has_kernels):
    target = tiny_target(family, has_kernels=has_kernels, vocab_size=VOCAB)
    prompt, root = some_ids(17), 5
    tree = random_tree(root, 20)
    arena = target.new_arena(60)
    target.forward_prompt(arena, prompt)
    logits = target.forward(arena, tree).logits.clone()
    assert logits.shape == (21, VOCAB)
    for node in some_nodes(tree):
        check_same(target, logits[node], one_by_one(target, prompt, path_to(tree, node)))


@BACKENDS
@EACH_FAMILY
def test_commit_then_continue_equals_a_fresh_prefill(family, has_kernels):
    """Three rounds, each committing a path that lies scattered in scratch."""
    target = tiny_target(family, has_kernels=has_kernels, vocab_size=VOCAB)
    arena = target.new_arena(120)
    stream = some_ids(9)
    target.forward_prompt(arena, stream)
    for number in range(3):
        tree = random_tree(number, 24, seed=number)
        target.forward(arena, tree)
        node = max(range(len(tree)), key=lambda node: len(path_to(tree, node)))
        nodes = []
        while node > 0:
            nodes.insert(0, node)
            node = tree.parents[node]
        arena.commit(nodes)
        stream += [tree.tokens[node] for node in (0, *nodes)]
        assert arena.length == len(stream)
    found = target.forward(arena, Proposal(7)).logits[0].clone()
    fresh = target.forward_prompt(target.new_arena(120), [*stream, 7]).logits[0]
    assert torch.allclose(found, fresh, atol=1e-4)
    assert found.argmax() == fresh.argmax()
    if target.is_row_invariant:
        assert torch.equal(found, one_by_one(target, stream[:9], [*stream[9:], 7]))


@BACKENDS
@EACH_FAMILY
def test_proposal_in_the_prompts_pass_equals_separate_passes(family, has_kernels):
    target = tiny_target(family, has_kernels=has_kernels, vocab_size=VOCAB)
    prompt = some_ids(13)
    tree = random_tree(prompt[-1], 15)
    arena = target.new_arena(60)
    together = target.forward_prompt(arena, prompt, tree).logits.clone()
    assert arena.length == len(prompt)
    alone = target.new_arena(60)
    check_same(target, together[0], target.forward_prompt(alone, prompt).logits[0].clone())
    for node in some_nodes(tree)[1:]:
        check_same(target, together[node], one_by_one(target, prompt, path_to(tree, node)[1:]))
    node = 15
    path = [node]
    while tree.parents[path[0]] > 0:
        path.insert(0, tree.parents[path[0]])
    arena.commit(path, root_in_stream=True)
    assert arena.length == len(prompt) + len(path)
    found = target.forward(arena, Proposal(3)).logits[0].clone()
    check_same(target, found, one_by_one(target, prompt, [*(tree.tokens[n] for n in path), 3]))


@BACKENDS
@EACH_FAMILY
def test_side_branch_equals_a_stream_of_its_own(family, has_kernels):
    """A branch on the first seven rows of the stream, over two rounds, beside MAIN and another branch."""
    target = tiny_target(family, has_kernels=has_kernels, vocab_size=VOCAB)
    prompt = some_ids(12)
    arena = target.new_arena(80, side_rows=16)
    target.forward_prompt(arena, prompt)
    branch, other = SideBranch("a", context=7), SideBranch("b", context=12)
    for forced in ([1, 2, 3], [4]):
        proposal = random_tree(8, 6)
        last = proposal.add_side(branch, forced)
        proposal.add_side(other, [9, 9])
        child = proposal.add(50, last, "side")
        logits = target.forward(arena, proposal).logits.clone()
        history = [1, 2, 3] if forced == [1, 2, 3] else [1, 2, 3, 4]
        for node, tokens in ((last, history), (child, [*history, 50])):
            alone = one_by_one(target, prompt[:7], tokens)
            assert torch.allclose(logits[node], alone, atol=1e-4) and logits[node].argmax() == alone.argmax()
        check_same(target, logits[0], one_by_one(target, prompt, [8]))
        first = proposal.side_roots[0]
        assert arena.keep_side(branch, list(range(first, last + 1)))


@BACKENDS
def test_captured_states_are_hidden_states_of_transformers(has_kernels):
    """`hidden_states[i]`: 0 is the embedding, i the output of layer i - 1."""
    layers, ids = (1, 3, 6), some_ids(11)
    with torch.inference_mode():
        states = tiny_model("qwen3", VOCAB, attention="sdpa")(
            torch.tensor([ids]), output_hidden_states=True
        ).hidden_states
    expected = torch.cat([states[layer][0] for layer in layers], dim=-1)
    target = tiny_target("qwen3", has_kernels=has_kernels, vocab_size=VOCAB, capture_layers=layers)
    arena = target.new_arena(40)
    tree = Proposal(ids[7])
    tree.add(90, 0, "guess")
    tree.add_chain(ids[8:], 0, "guess")
    scored = target.forward_prompt(arena, ids[:8], tree)
    assert scored.features.shape == (5, 3 * 64)
    rows = [0, 2, 3, 4]  # node 1 is on no path of ids
    assert torch.allclose(scored.features[rows], expected[7:], atol=1e-4)
    arena.commit([2], root_in_stream=True)
    features = target.forward(arena, Proposal(ids[9])).features
    assert torch.allclose(features[0], expected[9], atol=1e-4)


def test_states_are_not_kept_unless_asked_for():
    target = tiny_target("llama", has_kernels=False, vocab_size=VOCAB)
    assert target.forward_prompt(target.new_arena(8), [1, 2]).features is None


@EACH_FAMILY
def test_exact_passes_of_any_row_count_give_the_same_bits(family):
    target = tiny_target(family, has_kernels=False, vocab_size=VOCAB, exact=True)
    prompt, tokens = some_ids(9), some_ids(EXACT_ROWS - 1, seed=1)
    expected = []
    arena = target.new_arena(80)
    target.forward_prompt(arena, prompt)
    for token in tokens:
        expected.append(target.forward(arena, Proposal(token)).logits[0].clone())
        arena.commit([])
    for count in (2, 5, EXACT_ROWS - 1):
        arena = target.new_arena(80)
        target.forward_prompt(arena, prompt)
        chain = Proposal(tokens[0])
        chain.add_chain(tokens[1:count], 0, "guess")
        assert torch.equal(target.forward(arena, chain).logits, torch.stack(expected[:count]))


def test_reused_prompt_rows_give_the_logits_of_a_whole_prefill():
    for has_kernels in (True, False):
        target = tiny_target("mistral", has_kernels=has_kernels, vocab_size=VOCAB)
        ids = some_ids(20)
        arena = target.new_arena(40)
        target.forward_prompt(arena, [*ids[:12], 1, 2, 3, 4])
        arena.reset()
        arena.length = 12
        found = target.forward_prompt(arena, ids).logits[0].clone()
        assert torch.allclose(found, target.forward_prompt(target.new_arena(40), ids).logits[0], atol=1e-4)
        assert arena.length == 20


def test_a_pass_larger_than_any_before_gets_its_logits():
    target = tiny_target("qwen2", has_kernels=True, vocab_size=VOCAB)
    arena = target.new_arena(220)
    target.forward_prompt(arena, some_ids(4))
    for count in (2, 90, 5):
        tree = random_tree(1, count)
        assert target.forward(arena, tree).logits.shape == (count + 1, VOCAB)
    assert target.vocab_size == VOCAB
    assert target.max_positions == 2048


def test_packing_replaces_every_linear_and_leaves_tied_embeddings():
    target = tiny_target("qwen2", has_kernels=True, vocab_size=VOCAB)
    linears = [module for module in target.model.modules() if isinstance(module, torch.nn.Linear)]
    assert not linears
    assert isinstance(target.head, PackedLinear)
    assert target.model.get_input_embeddings().weight.shape == (VOCAB, 48)


# ------------------------------------------------------------------------------------------------------------- loading


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny Qwen2 on disk with two end signs in its generation configuration."""
    folder = tmp_path_factory.mktemp("tiny-qwen2")
    model = tiny_model("qwen2", VOCAB, attention="sdpa")
    model.generation_config.eos_token_id = [7, 9]
    model.save_pretrained(folder)
    return folder


def test_loaded_target_computes_what_the_saved_model_does(saved):
    kernels_or_none(True)
    target = load_target(saved, device="cpu", dtype="float32")
    assert target.is_row_invariant and target.end_ids == (7, 9)
    with torch.inference_mode():
        expected = tiny_model("qwen2", VOCAB, attention="eager")(torch.tensor([some_ids(10)])).logits[0, -1]
    found = target.forward_prompt(target.new_arena(16), some_ids(10)).logits[0]
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])
def test_tied_and_sharded_checkpoints_load_as_they_were_saved(tmp_path, monkeypatch, is_tied, has_kernels):
    if has_kernels:
        kernels_or_none(True)
    monkeypatch.setenv("SCHEMAFILL_CPU_KERNELS", str(int(has_kernels)))
    model = tiny_model("qwen2", VOCAB, attention="eager", tie_word_embeddings=is_tied)
    model.save_pretrained(tmp_path, max_shard_size="60kB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    target = load_target(tmp_path, device="cpu", dtype="float32")
    with torch.inference_mode():
        expected = model(torch.tensor([some_ids(10)])).logits[0, -1]
    assert torch.allclose(target.forward_prompt(target.new_arena(16), some_ids(10)).logits[0], expected, atol=1e-4)
    sorted(tmp_path.glob("model-*.safetensors"))[-1].unlink()
    with pytest.raises(UserError, match="cannot load target|lacks"):
        load_target(tmp_path, device="cpu", dtype="float32")


def test_a_checkpoint_that_lacks_a_tensor_is_refused_by_the_tensors_name(saved, tmp_path):
    """transformers would fill it with random numbers and only warn."""
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in tensors if name.endswith("k_proj.weight"))
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"lacks 1 tensors, {lost}"):
        load_target(tmp_path, device="cpu", dtype="float32")


def test_half_precision_where_the_cpu_has_none_is_warned_of(saved, caplog, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    load_target(saved, device="cpu", dtype="float32")
    assert "many times as long" not in caplog.text
    load_target(saved, device="cpu", dtype="bfloat16")
    assert "bfloat16: passes take many times as long" in caplog.text


def test_half_precision_targets_use_torch(saved):
    target = load_target(saved, device="cpu", dtype="bfloat16")
    assert not target.is_row_invariant and target.dtype == torch.bfloat16
    assert target.forward_prompt(target.new_arena(4), [1, 2]).logits.dtype == torch.float32


def test_end_ids_come_from_the_model_config_where_there_is_no_generation_config(saved, tmp_path):
    for file in saved.iterdir():
        if file.name != "generation_config.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"eos_token_id": null', '"eos_token_id": 5'))
    assert load_target(tmp_path, device="cpu", dtype="float32").end_ids == (5,)


@pytest.mark.parametrize(
    ("options", "part"),
    [({"dtype": "float8"}, "unknown dtype 'float8'; known: auto, float32"), ({"device": "cuda:0"}, "sees 0 GPUs")],
)
def test_faulty_options_are_named(saved, options, part, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match=part):
        load_target(saved, **options)


def test_what_is_no_target_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot load target") as caught:
        load_target(tmp_path)
    assert "\n" not in str(caught.value)
    GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="gpt2"):
        load_target(tmp_path)
