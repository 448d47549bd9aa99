"""Where a pass's inputs lie on the device: the same addresses for the same shape, round after round.

A captured graph replays the addresses it was recorded with, so nothing that a pass reads may be allocated per round.
"""

from __future__ import annotations

import numpy as np
import torch

MOST_NODES = 256
"""Rows of the largest proposal with its root and padding."""


class StaticInputs:
    """Owns the device buffers of one arena. What `place` and `place_mask` return is valid until their next call."""

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        """num_rows: most rows of a pass. width: rows of the arena, which is the widest mask."""
        self._integers = torch.zeros(3 * num_rows, dtype=torch.long, device=device)
        self._mask = torch.zeros(min(num_rows, MOST_NODES) * width, dtype=torch.bool, device=device)

    def place(self, ids: list[int], positions: np.ndarray, rows: np.ndarray) -> torch.Tensor:
        """Token ids, their positions and the arena rows they are written to, [3, rows] int64, in one transfer."""
        return _fill(self._integers, np.stack([np.asarray(ids, np.int64), positions, rows]))

    def place_mask(self, mask: np.ndarray) -> torch.Tensor:
        """mask [nodes, width] bool as [1, 1, nodes, width]."""
        return _fill(self._mask, mask)[None, None]


def _fill(buffer: torch.Tensor, values: np.ndarray) -> torch.Tensor:
    assert values.size <= buffer.numel(), (values.shape, buffer.shape)
    view = buffer[: values.size].view(values.shape)
    host = torch.from_numpy(values)
    if buffer.device.type == "cuda":
        host = host.pin_memory()
    view.copy_(host, non_blocking=True)
    return view
