"""Where the target's states of a rollout come from: kept with it, or computed now."""

from __future__ import annotations

from collections.abc import Callable

import torch

from schemafill.data_prep.feature_store import DTYPE, FeatureStore, TargetStates
from schemafill.inference.model.architectures import eagle3_layers
from schemafill.inference.model.target import TargetModel
from schemafill.training.examples import Rollout


class StateSource:
    """Gives a rollout's states. The target is loaded when the first states are missing."""

    def __init__(
        self, load_target: Callable[[], TargetModel], store: FeatureStore | None = None, *, keep: bool = False
    ) -> None:
        """keep: what had to be computed is added to the store."""
        self._load_target = load_target
        self._target: TargetModel | None = None
        self._store = store
        self._keep = keep
        self.num_computed = 0

    @property
    def target(self) -> TargetModel:
        if self._target is None:
            self._target = self._load_target()
            self._target.capture(eagle3_layers(self._target.config.num_hidden_layers))
        return self._target

    def states(self, rollout: Rollout) -> TargetStates:
        kept = self._store.load(rollout.token_ids) if self._store is not None else None
        if kept is not None:
            return kept
        computed = compute_states(self.target, rollout.token_ids, len(rollout.prompt_ids))
        self.num_computed += 1
        if self._keep and self._store is not None:
            self._store.save(computed)
        return computed


def compute_states(target: TargetModel, token_ids: list[int], num_prompt: int) -> TargetStates:
    """The states of a sequence from one pass over all its tokens but the last."""
    arena = target.new_arena(len(token_ids) - 1)
    target.forward_prompt(arena, token_ids[:-1])
    captured, final = target.captured_states(), target.final_states()
    rows = len(token_ids) - 1
    return TargetStates(token_ids, num_prompt, captured[:rows].to(DTYPE), final[num_prompt - 1 : rows].to(DTYPE))


def check_capture(target: TargetModel, token_ids: list[int]) -> float:
    """The largest difference between captured states and transformers' own `hidden_states` of a sequence, relative to
    the largest state. A trainer that captured other layers than it says would learn well and draft badly."""
    target.forward_prompt(target.new_arena(len(token_ids)), token_ids)
    captured = target.captured_states()
    states = target.all_states(token_ids)
    wanted = torch.cat([states[layer] for layer in target.capture_layers], dim=-1)
    return float((captured - wanted).abs().max() / wanted.abs().max())
