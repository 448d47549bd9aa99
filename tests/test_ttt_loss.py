"""The loss: exactly the pairs that a draft can meet, the same numbers as one row at a time, in whatever batch."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from test_eagle3_head import DRAFT, VOCAB, Reference, tiny_head

from schemafill.data_prep.feature_store import TargetStates
from schemafill.training.trained_rows import Example, collate, trained_rows
from schemafill.training.ttt_loss import Teacher, ttt_loss

SHAPES = ((5, 12), (9, 13), (3, 5), (7, 9))  # tokens of prompt and of all
DECAY = 0.8


def example(num_prompt: int, length: int, size: int, seed: int = 0, weights: torch.Tensor | None = None) -> Example:
    torch.manual_seed(1000 * seed + length)
    states = TargetStates(
        torch.randint(VOCAB, (length,)).tolist(), num_prompt, torch.randn(length - 1, 3 * size, dtype=torch.float64),
        torch.randn(length - num_prompt, size, dtype=torch.float64),
    )  # fmt: skip
    return Example(states, torch.ones(length - num_prompt) if weights is None else weights)


def setting(seed: int = 0):
    head = tiny_head(seed=seed)
    size = head.config.hidden_size
    torch.manual_seed(7)
    embedding = torch.randn(VOCAB, size, dtype=torch.float64)
    output = torch.randn(VOCAB, size, dtype=torch.float64)[head.target_ids]
    return head, Teacher(output, embedding), [example(*shape, size) for shape in SHAPES]


def expected_pairs(one: TargetStates, horizons: int) -> set[tuple[int, int]]:
    """By the definition: every token from i + 1 to i + 2 + k was written by the target."""
    written = range(one.num_prompt, len(one.token_ids))
    return {
        (row, step)
        for row in range(len(one.token_ids))
        for step in range(horizons)
        if all(at in written for at in range(row + 1, row + 3 + step))
    }


@pytest.mark.parametrize("horizons", [1, 2, 3, 9])
@pytest.mark.parametrize("shape", [*SHAPES, (4, 5), (4, 6)])
def test_the_trained_pairs_are_those_of_the_definition(shape, horizons):
    one = example(*shape, 4)
    rows, steps = trained_rows(one.states, one.weights, horizons)
    found = {(row, step) for row, count in zip(rows.tolist(), steps.tolist(), strict=True) for step in range(count)}
    assert found == expected_pairs(one.states, horizons)


def reference_loss(head, teacher: Teacher, one: Example, horizons: int, state_weight: float = 0.0):
    """One pair at a time: loss, pairs, known, right."""
    reference, states = Reference(head), one.states
    ids, known_ids = states.token_ids, head.target_ids.tolist()
    embedded = [teacher.embedding[token] for token in ids]
    fused = [reference.fuse(one) for one in states.captured]
    seen = [reference.read(embedded[row + 1], fused[row], row)[1:] for row in range(len(ids) - 1)]
    total, counts = torch.zeros((), dtype=torch.float64), torch.zeros(horizons, 3)
    pairs = expected_pairs(states, horizons)
    for row in sorted({row for row, _ in pairs}):
        state, own = fused[row], []
        for step in range(horizons):
            if (row, step) not in pairs:
                break
            query, key, value = reference.read(embedded[row + 1 + step], state, row + step)
            own += [(key, value)] if step else []
            state = reference.step(state, query, seen[: row + 1] + own)
            right, place = ids[row + 2 + step], row + 2 + step - states.num_prompt
            logits = reference.logits(state)
            counts[step] += torch.tensor([1, right in known_ids, known_ids[int(logits.argmax())] == right])
            if right in known_ids:
                taught = torch.softmax(teacher.output @ states.final[place], dim=0)
                loss = -(taught * torch.log_softmax(logits, dim=0)).sum()
                if state_weight:
                    normed = torch.linalg.lstsq(reference.weight("lm_head"), logits).solution
                    final = states.final[place]
                    loss = loss + state_weight * (normed - final).square().sum() / final.square().sum()
                total = total + DECAY**step * one.weights[place] * loss
    return total, counts


def gradients(head, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    names = dict(head.named_parameters())
    return dict(zip(names, torch.autograd.grad(loss, names.values()), strict=True))


@pytest.mark.parametrize("horizons", [1, 3])
def test_loss_and_gradients_are_those_of_one_pair_at_a_time(horizons):
    head, teacher, examples = setting()
    sums = ttt_loss(head, teacher, collate(examples, horizons), horizons=horizons, decay=DECAY)
    parts = [reference_loss(head, teacher, one, horizons) for one in examples]
    expected, counts = sum(loss for loss, _ in parts), sum(counts for _, counts in parts)
    assert torch.allclose(sums.loss, expected, rtol=1e-5)
    assert torch.equal(torch.stack([sums.rows, sums.known, sums.right], dim=1), counts)
    assert 0 < sums.known.sum() < sums.rows.sum()
    found, wanted = gradients(head, sums.loss), gradients(head, expected)
    for name, gradient in found.items():
        assert torch.allclose(gradient, wanted[name], rtol=1e-4, atol=1e-4 * float(wanted[name].abs().max())), name


def test_running_the_trained_rows_alone_changes_nothing():
    """All rows as queries, the loss on the trained ones: the same sums and the same gradients."""
    head, teacher, examples = setting()
    batch = collate(examples, 3)
    every = torch.arange(batch.captured.shape[1]).expand(len(examples), -1)
    steps = torch.zeros_like(every)
    for at, one in enumerate(examples):
        rows, counts = trained_rows(one.states, one.weights, 3)
        steps[at, rows] = counts
    alone = ttt_loss(head, teacher, batch, horizons=3, decay=DECAY)
    among = ttt_loss(head, teacher, replace(batch, rows=every, num_steps=steps), horizons=3, decay=DECAY)
    assert torch.allclose(alone.loss, among.loss, rtol=1e-12)
    assert torch.equal(alone.right, among.right) and torch.equal(alone.rows, among.rows)
    wanted = gradients(head, among.loss)
    for name, gradient in gradients(head, alone.loss).items():
        assert torch.allclose(gradient, wanted[name], rtol=1e-9, atol=1e-12), name


def test_loss_is_the_sum_over_its_sequences_however_they_are_batched():
    head, teacher, examples = setting()
    whole = ttt_loss(head, teacher, collate(examples, 3), horizons=3, decay=DECAY)
    parts = [ttt_loss(head, teacher, collate([one], 3), horizons=3, decay=DECAY) for one in examples]
    assert torch.allclose(whole.loss, sum(part.loss for part in parts), rtol=1e-10)
    assert torch.equal(whole.rows, sum(part.rows for part in parts))


def test_the_first_draft_behind_a_prompt_is_taught_from_the_prompt_s_last_state_and_nothing_from_beyond():
    head, teacher, examples = setting()
    batch = collate(examples[:1], 3)
    batch.captured.requires_grad_()
    ttt_loss(head, teacher, batch, horizons=3, decay=DECAY).loss.backward()
    touched = batch.captured.grad[0].abs().sum(dim=-1)
    num_prompt, length = SHAPES[0]
    assert touched[num_prompt - 1] > 0
    assert not touched[length - 2 :].any(), "the last token's row drafts nothing that is known"


def test_what_stands_at_padded_places_changes_nothing():
    head, teacher, examples = setting()
    batch = collate(examples, 3)
    before = ttt_loss(head, teacher, batch, horizons=3, decay=DECAY).loss
    for at, one in enumerate(examples):
        batch.captured[at, len(one.states.token_ids) - 1 :] = 99.0
        batch.token_ids[at, len(one.states.token_ids) :] = 3
        batch.final[at, len(one.weights) :] = -7.0
    assert torch.equal(ttt_loss(head, teacher, batch, horizons=3, decay=DECAY).loss, before)


def test_weights_count_by_the_token_that_is_taught():
    head, teacher, (first, *_) = setting()
    weights = torch.tensor([1.0, 0.0, 0.0, 2.0, 0.0, 0.5, 0.0])
    weighted = replace(first, weights=weights)
    sums = ttt_loss(head, teacher, collate([weighted], 2), horizons=2, decay=DECAY)
    expected, _ = reference_loss(head, teacher, weighted, 2)
    assert torch.allclose(sums.loss, expected, rtol=1e-5)
    rows, _ = trained_rows(first.states, weights, 2)
    assert rows.tolist() == [5, 6, 7, 8], "row 4 teaches tokens of weight 0 only, so do rows 9 and later"


def test_the_state_term_pulls_towards_the_target_s_final_state():
    head, teacher, examples = setting()
    head.lm_head.weight.data = torch.randn_like(head.lm_head.weight)
    batch = collate(examples, 2)
    plain = ttt_loss(head, teacher, batch, horizons=2, decay=DECAY).loss
    pulled = ttt_loss(head, teacher, batch, horizons=2, decay=DECAY, state_weight=3.0).loss
    assert pulled > plain
    size = head.config.hidden_size
    if size <= DRAFT:  # the logits tell the state
        expected = sum(reference_loss(head, teacher, one, 2, 3.0)[0] for one in examples)
        assert torch.allclose(pulled, expected, rtol=1e-4)


def test_a_row_that_teaches_nothing_gives_nothing():
    head, teacher, _ = setting()
    one = example(4, 5, head.config.hidden_size)
    other = example(4, 9, head.config.hidden_size)
    alone = ttt_loss(head, teacher, collate([other], 2), horizons=2, decay=DECAY)
    both = ttt_loss(head, teacher, collate([one, other], 2), horizons=2, decay=DECAY)
    assert torch.allclose(alone.loss, both.loss) and torch.equal(alone.rows, both.rows)


def test_taught_distribution_is_the_target_s_over_the_draft_vocabulary():
    """With the head's own logits equal to the target's, no step can do better than the entropy."""
    head, teacher, examples = setting()
    batch = collate(examples, 1)
    sums = ttt_loss(head, teacher, batch, horizons=1, decay=1.0)
    entropy = 0.0
    for one in examples:
        for place in range(1, len(one.states.token_ids) - one.states.num_prompt):
            if head.t2d[one.states.token_ids[one.states.num_prompt + place]]:
                taught = F.softmax(teacher.output @ one.states.final[place], dim=0)
                entropy -= float((taught * taught.log()).sum())
    assert float(sums.cross_entropy[0]) >= entropy - 1e-9
