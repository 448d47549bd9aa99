"""How long a pass takes on this machine: t(rows), measured once, and what numeric noise the passes have.

The drafter decides with it how many rows are worth proposing; the loop decides with it which choices to doubt.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch

from schemafill.inference.model.kv_arena import KVArena
from schemafill.inference.model.machine import cpu_description, home_folder
from schemafill.inference.model.target import EXACT_ROWS, TargetModel
from schemafill.inference.model.tree import Proposal

# Row counts that are measured; 12 and 13 both, because there the AVX-512 kernels start another block of rows.
logger = logging.getLogger(__name__)

ROWS = (1, 2, 4, 6, 8, 12, 13, 16, 18, 20, 24, 28, 32, 40, 48, 64, 96)
CONTEXT = 256
"""Tokens that the measured passes look back on."""
REPEATS = 4
"""Each row count is measured so often, the fastest counts."""
NOISE_STEPS = 24
"""Tokens that are decoded one by one and in one pass to see the noise."""
NOISE_FLOOR = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}
"""Margins below these are doubted whatever was measured: NOISE_STEPS tokens do not show the worst case."""
SAFETY = 4.0
"""A choice is doubted when its margin is below this many times the largest difference seen between shapes."""


@dataclass(frozen=True)
class LatencyCurve:
    """What passes of one target cost on one machine, and how far their numbers differ.

    seconds[i]: of a verify pass of rows[i] rows, the root included. prompt_row_s: of a further row in a prompt's pass.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    prompt_row_s: float
    noise: float
    """Largest difference of a top-1/top-2 distance between a one-row pass and a row of a many-row pass."""

    def __call__(self, rows: int) -> float:
        """Seconds of a pass of so many rows, interpolated."""
        if rows >= self.rows[-1]:
            return self.seconds[-1] * rows / self.rows[-1]
        right = next(i for i, known in enumerate(self.rows) if known >= rows)
        if self.rows[right] == rows or right == 0:
            return self.seconds[right]
        low, high = self.rows[right - 1], self.rows[right]
        share = (rows - low) / (high - low)
        return self.seconds[right - 1] + share * (self.seconds[right] - self.seconds[right - 1])

    def threshold(self, dtype: torch.dtype) -> float:
        """Margins below this are looked at again in guarded decoding; never below the noise of the number format."""
        return max(NOISE_FLOOR[dtype], SAFETY * self.noise)


FLAT = LatencyCurve(rows=(1, 256), seconds=(1.0, 1.0), prompt_row_s=0.0, noise=0.0)
"""Rows cost nothing: for tests, and where nothing was measured."""


def calibrate(target: TargetModel, *, refresh: bool = False) -> LatencyCurve:
    """The curve of this target on this device with this number of threads; measured once and kept on disk."""
    path = _cache_path(target)
    if path.exists() and not refresh:
        try:
            return _read_curve(path)
        except (ValueError, KeyError, TypeError, OSError, RecursionError):
            pass  # unreadable: measure again and overwrite
    curve = _measure(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_text(json.dumps(asdict(curve)))
            written.replace(path)
    except OSError as error:
        logger.warning("the latency curve cannot be kept and is measured at every start: %s", error)
    return curve


def _read_curve(path: Path) -> LatencyCurve:
    """The stored curve; ValueError where its numbers cannot be a curve."""
    stored = json.loads(path.read_text())
    rows, seconds = tuple(stored["rows"]), tuple(stored["seconds"])
    numbers = (*seconds, stored["prompt_row_s"], stored["noise"])
    is_curve = len(rows) == len(seconds) >= 2 and all(a < b for a, b in zip(rows, rows[1:], strict=False))
    if not is_curve or min(seconds) <= 0 or not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise ValueError(f"{path}: not a latency curve")
    return LatencyCurve(rows, seconds, stored["prompt_row_s"], stored["noise"])


def _measure(target: TargetModel) -> LatencyCurve:
    generator = torch.Generator().manual_seed(0)
    has_one_shape = target.exact and not target.is_row_invariant
    row_counts = tuple(rows for rows in ROWS if rows <= EXACT_ROWS) if has_one_shape else ROWS
    context = min(CONTEXT, target.max_positions - max(ROWS) - NOISE_STEPS - 1)
    tokens = torch.randint(0, target.vocab_size, (context + max(ROWS),), generator=generator).tolist()
    arena = target.new_arena(context + 2 * max(ROWS) + NOISE_STEPS)
    target.forward_prompt(arena, tokens[:context])
    seconds = [float("inf")] * len(row_counts)
    for _ in range(REPEATS):  # row counts in turn, so that a slow moment hits all alike
        for at, rows in enumerate(row_counts):
            proposal = Proposal(tokens[context])
            proposal.add_chain(tokens[context + 1 : context + rows], 0, "guess")
            started = perf_counter()
            target.forward(arena, proposal).logits[0, 0].item()
            seconds[at] = min(seconds[at], perf_counter() - started)
    for at in range(len(seconds) - 2, -1, -1):  # fewer rows never cost more
        seconds[at] = min(seconds[at], seconds[at + 1])
    half = len(row_counts) // 2  # a row more in a pass of many rows, which a prompt's pass is
    row_s = (seconds[-1] - seconds[half]) / (row_counts[-1] - row_counts[half])
    return LatencyCurve(row_counts, tuple(seconds), row_s, _noise(target, arena))


def _noise(target: TargetModel, arena: KVArena) -> float:
    """Decode a few tokens one by one, then all in one pass, and compare how far the best two logits lie apart."""
    if target.is_row_invariant:
        return 0.0
    start, root, tokens, margins = arena.length, 1, [], []
    for _ in range(NOISE_STEPS):
        top = target.forward(arena, Proposal(root)).logits[0].topk(2)
        arena.commit([])
        tokens.append(root)
        margins.append((top.values[0] - top.values[1]).item())
        root = int(top.indices[0])
    arena.length = start
    proposal = Proposal(tokens[0])
    proposal.add_chain(tokens[1:], 0, "guess")
    top = target.forward(arena, proposal).logits.topk(2, dim=-1).values
    return max(abs((top[i, 0] - top[i, 1]).item() - margins[i]) for i in range(len(margins)))


def _cache_path(target: TargetModel) -> Path:
    device = torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else cpu_description()
    parts = (target.name, str(target.config.to_dict()), str(target.dtype), device, torch.get_num_threads(),
             torch.__version__, target.is_row_invariant, target.exact, ROWS)  # fmt: skip
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return home_folder() / "latency" / f"{digest}.json"
