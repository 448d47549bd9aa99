"""In which order sequences are trained: batches of like lengths, in windows that are one step of the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

BUCKET = 32
"""So many batches' worth of shuffled sequences are sorted by length: like lengths meet, and no order is the same."""


def windows(
    lengths: Sequence[int], *, batch_size: int, per_window: int, seed: int, epoch: int
) -> list[list[list[int]]]:
    """Indices of sequences: windows of batches, all of them once. A function of its arguments alone, so that a run that
    goes on finds its place again.

    per_window: batches of one step, over all processes; the last window may hold fewer.
    """
    rng = Random(f"{seed} {epoch}")
    order = rng.sample(range(len(lengths)), len(lengths))
    batches = []
    for start in range(0, len(order), BUCKET * batch_size):
        bucket = sorted(order[start : start + BUCKET * batch_size], key=lambda index: lengths[index])
        batches += [bucket[at : at + batch_size] for at in range(0, len(bucket), batch_size)]
    rng.shuffle(batches)
    return [batches[at : at + per_window] for at in range(0, len(batches), per_window)]


def own_batches(window: list[list[int]], process: int, num_processes: int, accumulation: int) -> list[list[int]]:
    """The batches of a window that a process runs, `accumulation` of them; empty ones where the window is short, since
    every process must take part in every pass."""
    own = window[process::num_processes]
    return own + [[] for _ in range(accumulation - len(own))]
