"""The compiled kernels against float64, row by row, and what happens on machines that cannot compile them."""

from __future__ import annotations

import hashlib
import logging
import stat

import pytest
import torch
from models import tiny_model

from schemafill.inference.model import cpu_kernels
from schemafill.inference.model.cpu_kernels import Kernels, PackedLinear, load_kernels
from schemafill.inference.model.target import load_target
from schemafill.inference.model.tree import Proposal


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    loaded = load_kernels()
    if loaded is None:
        pytest.skip("the CPU kernels cannot be compiled on this machine")
    return loaded


@pytest.fixture(scope="module")
def library(kernels) -> bytes:
    """The compiled library itself."""
    return cpu_kernels._library_path(cpu_kernels._find_compiler()).read_bytes()


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -------------------------------------------------------------------------------------------------------------- linear

SIZES = [(1, 1), (7, 5), (16, 256), (33, 257), (97, 48), (130, 300), (64, 1100)]
"""(n, k): below, at and beyond a panel's width and a block of the inner dimension."""


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_equals_the_product_in_float64(kernels, n, k, has_bias):
    weight, x, bias = random(n, k), random(19, k, seed=1), random(n, seed=2) if has_bias else None
    expected = x.double() @ weight.double().T + (bias.double() if has_bias else 0.0)
    found = kernels.linear(x, kernels.pack(weight), bias, n)
    assert torch.allclose(found.double(), expected, atol=1e-5 * k**0.5, rtol=1e-5)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_linear_gives_a_row_the_same_bits_beside_any_number_of_rows(kernels, n, k):
    packed, bias, x = kernels.pack(random(n, k)), random(n, seed=2), random(130, k, seed=1)
    alone = torch.cat([kernels.linear(x[i : i + 1], packed, bias, n) for i in range(130)])
    for count in [*range(1, 41), 95, 96, 97, 130]:
        assert torch.equal(kernels.linear(x[:count], packed, bias, n), alone[:count]), count
    assert torch.equal(kernels.linear(x[7:12], packed, bias, n), alone[7:12])


def test_linear_takes_any_layout_and_leading_dimensions(kernels):
    weight, x = random(24, 10), random(10, 6, seed=1).T  # not contiguous
    packed = kernels.pack(weight.T.contiguous().T)
    plain = kernels.linear(x.contiguous(), packed, None, 24)
    assert torch.equal(kernels.linear(x, packed, None, 24), plain)
    assert torch.equal(kernels.linear(x.reshape(1, 2, 3, 10), packed, None, 24), plain.reshape(1, 2, 3, 24))


def test_linear_into_a_buffer_leaves_its_further_rows(kernels):
    layer = torch.nn.Linear(12, 21)
    packed, x, buffer = PackedLinear(kernels, layer), random(3, 12), torch.full((5, 21), 7.0)
    packed.into(x, buffer)
    assert torch.equal(buffer[:3], packed(x))
    assert (buffer[3:] == 7.0).all()
    assert torch.allclose(buffer[:3], layer(x), atol=1e-5)


# ----------------------------------------------------------------------------------------------------------- attention


def naive_attention(query, keys, values, rows: list[list[int]], scale: float) -> torch.Tensor:
    """Each query row by itself in float64: softmax over exactly the rows it sees."""
    heads, m, d = query.shape
    group = heads // keys.shape[0]
    out = torch.zeros(m, heads, d, dtype=torch.float64)
    for i in range(m):
        for head in range(heads):
            k, v = keys[head // group, rows[i]].double(), values[head // group, rows[i]].double()
            out[i, head] = torch.softmax(scale * (k @ query[head, i].double()), 0) @ v
    return out


def attention_inputs(d: int, kv_heads: int, heads: int, width: int = 150, m: int = 6):
    keys, values = random(kv_heads, width, d, seed=1), random(kv_heads, width, d, seed=2)
    query = random(m, heads, d, seed=3).transpose(0, 1)  # [H, M, D], rows apart as transformers lays them out
    context = torch.tensor([0, 1, 40, 97, 17, 16][:m], dtype=torch.int32)
    lists = [[120], [120, 121], [120, 122, 123], [3], [120, 121, 122, 124, 125, 126, 127, 128, 129], [1, 130]][:m]
    more = torch.full((m, 9), -1, dtype=torch.int32)
    for i, rows in enumerate(lists):
        more[i, : len(rows)] = torch.tensor(rows, dtype=torch.int32)
    count = torch.tensor([len(rows) for rows in lists], dtype=torch.int32)
    seen = [[*range(20, 20 + int(own)), *rows] for own, rows in zip(context, lists, strict=True)]
    return query, keys, values, context, more, count, seen


@pytest.mark.parametrize("d", [1, 3, 8, 12, 16, 24, 33, 64, 80, 96, 128])
@pytest.mark.parametrize(("kv_heads", "heads"), [(2, 4), (3, 3), (1, 7)])
def test_attention_equals_the_formula_for_any_head_size(kernels, d, kv_heads, heads):
    query, keys, values, context, more, count, seen = attention_inputs(d, kv_heads, heads)
    found = kernels.attention(query, keys, values, context, 20, more, count, d**-0.5)
    assert torch.allclose(found.double(), naive_attention(query, keys, values, seen, d**-0.5), atol=2e-6)


@pytest.mark.parametrize("d", [3, 12, 16, 24, 40, 64, 80])
def test_attention_has_the_same_bits_however_its_rows_are_listed(kernels, d):
    """A row of a tree sees some rows as its own list that the same row sees as shared context once they are committed.

    The part of a head's size that fills no vector block was once summed differently in the two halves.
    """
    query, keys, values = random(2, 1, d), random(1, 60, d, seed=1), random(1, 60, d, seed=2)
    results = []
    for shared in (0, 1, 7, 16, 29, 30):
        context = torch.tensor([shared], dtype=torch.int32)
        more = torch.arange(10 + shared, 41, dtype=torch.int32)[None].contiguous()
        count = torch.tensor([more.shape[1]], dtype=torch.int32)
        results.append(kernels.attention(query, keys, values, context, 10, more, count, 0.3))
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_attention_reads_no_row_that_is_not_listed(kernels):
    query, keys, values, context, more, count, seen = attention_inputs(24, 2, 4)
    clean = kernels.attention(query, keys, values, context, 20, more, count, 0.2)
    hidden = sorted(set(range(keys.shape[1])) - {row for rows in seen for row in rows})
    keys[:, hidden], values[:, hidden] = float("nan"), float("nan")
    more[more < 0] = 7  # whatever stands behind the count
    assert torch.equal(kernels.attention(query, keys, values, context, 20, more, count, 0.2), clean)


def test_attention_stands_large_scores(kernels):
    """A softmax without its largest score taken off would be infinite."""
    context, count = torch.tensor([3], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)
    more, values = torch.zeros(1, 1, dtype=torch.int32), torch.arange(24.0).reshape(1, 3, 8)
    for scores in ([0.0, 7200.0, 3.0], [50.0, 100.0, 99.0], [-100.0, -50.0, -300.0], [-9e4, -9e4, -1e5]):
        keys = torch.tensor(scores)[None, :, None].expand(1, 3, 8).contiguous()
        query = torch.full((1, 1, 8), 0.125)
        found = kernels.attention(query, keys, values, context, 0, more, count, 1.0)
        expected = torch.softmax(torch.tensor(scores, dtype=torch.float64), 0) @ values[0].double()
        assert torch.allclose(found[0, 0].double(), expected, atol=1e-5), scores


# ------------------------------------------------------------------------------------------------------------- top two


@pytest.mark.parametrize("v", [2, 7, 8, 31, 64, 1001])
def test_top_two_equals_argmax_and_topk(kernels, v):
    logits = random(9, v)
    choice, margin = kernels.top_two(logits)
    best = logits.topk(2, dim=-1).values
    assert torch.equal(choice, logits.argmax(-1))
    assert torch.equal(margin, best[:, 0] - best[:, 1])


@pytest.mark.parametrize("places", [(0, 1), (3, 70), (8, 16), (69, 70), (5, 13, 21), (63, 64)])
def test_top_two_takes_the_lowest_id_on_ties(kernels, places):
    """Ties within a vector lane, across lanes, and between the vector part and the rest."""
    logits = random(1, 71)
    logits[0, list(places)] = 50.0
    choice, margin = kernels.top_two(logits)
    assert choice.tolist() == [min(places)] and margin.tolist() == [0.0]


def test_top_two_of_negative_and_masked_logits(kernels):
    logits = torch.full((2, 40), float("-inf"))
    logits[0, 33], logits[0, 4] = -5.0, -7.0
    logits[1] = -100.0 - torch.arange(40.0)
    choice, margin = kernels.top_two(logits)
    assert choice.tolist() == [33, 0] and margin.tolist() == [2.0, 1.0]


# ---------------------------------------- compiling and doing without


@pytest.fixture
def fresh_home(tmp_path, monkeypatch):
    """Nothing compiled yet, and nothing set that chooses a compiler."""
    monkeypatch.setenv("SCHEMAFILL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("SCHEMAFILL_CPU_KERNELS", raising=False)
    return tmp_path / "home"


def fake_compiler(folder, script: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_without_a_compiler_a_target_runs_on_torch(fresh_home, monkeypatch, tmp_path, caplog):
    tiny_model("qwen3", 50, attention="sdpa").save_pretrained(tmp_path / "target")
    monkeypatch.setenv("PATH", str(tmp_path))
    target = load_target(tmp_path / "target", device="cpu", dtype="float32")
    assert "no C++ compiler" in caplog.text
    assert target.kernels is None and not target.is_row_invariant
    arena = target.new_arena(9)
    target.forward_prompt(arena, [1, 2])
    tree = Proposal(3)
    tree.add_chain([4, 5], 0, "guess")
    assert torch.isfinite(target.forward(arena, tree).logits).all()


def test_a_compiler_that_does_not_exist_leaves_no_trace(fresh_home, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert load_kernels() is None
    assert not fresh_home.exists()


@pytest.mark.parametrize("said", ["fatal error: no omp.h", "", " "])
def test_a_compiler_that_fails_is_reported_in_one_line(fresh_home, monkeypatch, tmp_path, caplog, said):
    """One that fails without a word once raised an IndexError instead."""
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, f'test "$1" = --version && exit 0\necho "{said}" >&2\nexit 1'))
    with caplog.at_level(logging.WARNING):
        assert load_kernels() is None
    (record,) = caplog.records
    assert "not usable" in record.getMessage() and said.strip() in record.getMessage()
    assert "\n" not in record.getMessage()


def test_the_compiler_may_be_given_with_options(fresh_home, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, f'echo "$@" >> {tmp_path}/words; exit 1') + " -m64 '-DA=b c'")
    assert load_kernels() is None
    assert (tmp_path / "words").read_text().splitlines()[-1].startswith("-m64 -DA=b c -O3")


def test_a_library_that_does_not_load_is_reported(fresh_home, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv(
        "CXX", fake_compiler(tmp_path, 'while [ "$1" != -o ]; do shift || exit 0; done\necho junk > "$2"')
    )
    assert load_kernels() is None
    assert "not usable" in caplog.text


def test_a_home_that_cannot_be_written_is_no_error(fresh_home, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SCHEMAFILL_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, "exit 0"))
    assert load_kernels() is None
    assert "not usable" in caplog.text


def test_kernels_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("SCHEMAFILL_CPU_KERNELS", "0")
    assert load_kernels() is None


def test_the_library_is_compiled_once_and_found_again(library, fresh_home, monkeypatch):
    """A copy of the known library stands in for what a compiler would write."""
    compiled = []

    def compile_once(compiler, path):
        compiled.append(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(library)
        path.with_suffix(".sha256").write_text(hashlib.sha256(library).hexdigest())

    monkeypatch.setattr(cpu_kernels, "_compile", compile_once)
    assert load_kernels() is not None and load_kernels() is not None
    assert len(compiled) == 1


def test_a_library_that_is_cut_is_not_taken_for_whole(library, fresh_home):
    """Loading it would end the process without a word."""
    seal = hashlib.sha256(library).hexdigest()

    def cut(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(library[: len(library) // 2])
        path.with_suffix(".sha256").write_text(seal)

    path = cpu_kernels._library_path(cpu_kernels._find_compiler())
    cut(path)
    assert not cpu_kernels._is_whole(path)
    path.write_bytes(library)
    assert cpu_kernels._is_whole(path)
