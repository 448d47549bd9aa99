"""The target: loads it, runs passes over prompts and proposals, hands back logits and captured states.

One of the two contact points with transformers (the other is kv_arena.py). Knows token ids and tensors, no text.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from schemafill.inference.model.architectures import check_architecture
from schemafill.inference.model.cpu_kernels import Kernels, PackedLinear, load_kernels
from schemafill.inference.model.kv_arena import ATTENTION_NAME, ForwardPlan, KVArena
from schemafill.inference.model.tree import Proposal
from schemafill.inference.request import UserError, first_line

logger = logging.getLogger(__name__)

# Row counts that passes are padded to where a pass is launched rather than computed (a GPU): few shapes to capture.
ROW_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
WIDTH_STEP = 128
"""K/V widths are rounded up to a multiple of this there, for the same reason."""
EXACT_ROWS = 32
"""Rows of every pass in exact mode, where passes depend on their shape."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Scored:
    """One pass's result. Row 0 belongs to the root, row i to node i (idle rows are cut off).

    logits [N, V] float32, valid until the next pass. features [N, 3H] when states are captured, else None.
    """

    logits: torch.Tensor
    features: torch.Tensor | None = None


class TargetModel:
    """A loaded target. `exact` passes have one fixed shape, so that every method computes the same bits."""

    def __init__(
        self, model: nn.Module, *, name: str, kernels: Kernels | None = None, exact: bool = False,
        end_ids: tuple[int, ...] = (), capture_layers: tuple[int, ...] = (),
    ) -> None:
        self.model = model.eval()
        self.name = name
        self.config = model.config
        self.kernels = kernels
        self.exact = exact
        self.end_ids = end_ids
        self.base, self.head = model.get_decoder(), model.get_output_embeddings()
        self.device = model.get_input_embeddings().weight.device
        self.dtype = model.get_input_embeddings().weight.dtype
        parameters = inspect.signature(self.base.forward).parameters
        self._cache_keyword = "past_key_values" if "past_key_values" in parameters else "cache"
        self._captured: dict[int, torch.Tensor] = {}
        self._final = torch.empty(0)
        self._logits = torch.empty(0)
        self.capture_layers: tuple[int, ...] = ()
        self.capture(capture_layers)

    @property
    def vocab_size(self) -> int:
        return self.head.out_features

    @property
    def max_positions(self) -> int:
        return self.config.max_position_embeddings

    @property
    def is_row_invariant(self) -> bool:
        """A row's result has the same bits whatever rows stand beside it (true for the CPU kernels)."""
        return self.kernels is not None

    @property
    def shares_prompt_pass(self) -> bool:
        """A first proposal may ride in the prompt's pass without changing the first token."""
        return self.is_row_invariant and not self.exact

    def new_arena(self, capacity: int, side_rows: int = 0) -> KVArena:
        """An arena for `capacity` rows of the public stream and scratch together."""
        config = self.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return KVArena(
            config.num_hidden_layers, config.num_key_value_heads, head_dim, capacity=capacity, side_rows=side_rows,
            dtype=self.dtype, device=self.device, kernels=self.kernels,
        )

    @torch.inference_mode()
    def forward_prompt(self, arena: KVArena, prompt_ids: list[int], proposal: Proposal | None = None) -> Scored:
        """Run the prompt's rows that are not in the arena yet; `proposal` rides along, rooted in the last prompt token.

        Commits the prompt's rows. Row 0 of the result is the last prompt token.
        """
        fresh = prompt_ids[arena.length :]
        assert fresh, "at least the last prompt token must be run"
        states = self._run(arena, arena.plan_prompt(fresh, proposal))
        arena.commit_prompt(len(fresh))
        count = len(proposal) if proposal is not None else 1
        return self._score(states[len(fresh) - 1 :], count, first=len(fresh) - 1)

    @torch.inference_mode()
    def forward(self, arena: KVArena, proposal: Proposal) -> Scored:
        """Run one round's proposal, root included."""
        pad, width = self._shape(arena, len(proposal))
        states = self._run(arena, arena.plan_round(proposal, pad_to=pad, width=width))
        return self._score(states, len(proposal))

    def _shape(self, arena: KVArena, rows: int) -> tuple[int, int]:
        """Rows and K/V width to pad to: one shape in exact mode, buckets on a GPU, none with the CPU kernels."""
        if self.exact and not self.is_row_invariant:
            assert rows <= EXACT_ROWS, rows
            return EXACT_ROWS, arena.side_rows + arena.capacity
        if self.device.type == "cpu":
            return 0, 0
        pad = next((bucket for bucket in ROW_BUCKETS if bucket >= rows), rows)
        return pad, -(-(arena.side_rows + arena.length + pad) // WIDTH_STEP) * WIDTH_STEP

    def _run(self, arena: KVArena, plan: ForwardPlan) -> torch.Tensor:
        """One pass; returns the final normed states [rows, H]."""
        out = self.base(
            input_ids=plan.ids[None], position_ids=plan.positions[None], use_cache=True, plan=plan,
            **{self._cache_keyword: arena},
        )  # fmt: skip
        self._final = out.last_hidden_state[0]
        return self._final

    def _score(self, states: torch.Tensor, count: int, first: int = 0) -> Scored:
        features = None
        if self.capture_layers:
            features = self.captured_states(first, count)
        if isinstance(self.head, PackedLinear):
            if self._logits.shape[0] < count:
                self._logits = torch.empty(max(count, 64), self.vocab_size)
            self.head.into(states[:count], self._logits)
            return Scored(self._logits[:count], features)
        if self.exact:  # one shape for the head as well
            return Scored(self.head(states).float()[:count], features)
        return Scored(self.head(states[:count]).float(), features)

    def captured_states(self, first: int = 0, count: int | None = None) -> torch.Tensor:
        """[count, 3H] the captured states of the last pass's rows from `first` on; all of them without `count`."""
        end = None if count is None else first + count
        return torch.cat([self._captured[index][0, first:end] for index in self.capture_layers], dim=-1)

    def final_states(self) -> torch.Tensor:
        """[rows, H] of the last pass, behind the final norm: what the output layer sees."""
        return self._final

    @torch.inference_mode()
    def all_states(self, token_ids: list[int]) -> list[torch.Tensor]:
        """transformers' own `hidden_states` of one pass over some tokens, [T, H] each: captured states equal them."""
        arena = self.new_arena(len(token_ids))
        plan = arena.plan_prompt(token_ids)
        out = self.base(
            input_ids=plan.ids[None], position_ids=plan.positions[None], use_cache=True, plan=plan,
            output_hidden_states=True, **{self._cache_keyword: arena},
        )  # fmt: skip
        return [states[0] for states in out.hidden_states]

    def capture(self, layers: tuple[int, ...]) -> None:
        """Record `hidden_states[i]` of each pass (transformers' convention: 0 the embeddings, i the output of layer
        i - 1). A target captures one choice of layers."""
        assert not self.capture_layers or layers == self.capture_layers, (self.capture_layers, layers)
        if not self.capture_layers:
            self.capture_layers = layers
            for index in layers:
                self._capture(index)

    def _capture(self, index: int) -> None:
        assert 1 <= index < self.config.num_hidden_layers, index

        def hook(module, args, output):
            self._captured[index] = output[0] if isinstance(output, tuple) else output

        self.base.layers[index - 1].register_forward_hook(hook)


def load_target(
    source: str | Path, *, device: str = "auto", dtype: str = "auto", exact: bool = False,
    trust_remote_code: bool = False, capture_layers: tuple[int, ...] = (),
) -> TargetModel:
    """Load a Hub id or a local folder. Raises UserError for what a user can mend.

    dtype auto: bfloat16 on a GPU and on CPUs that compute in it, float32 elsewhere. float32 on a CPU uses the
    packed row-invariant kernels when they can be compiled.
    """
    device = _known_device(device)
    if dtype != "auto" and dtype not in DTYPES:
        raise UserError(f"unknown dtype {dtype!r}; known: auto, {', '.join(DTYPES)}")
    chosen = _auto_dtype(device) if dtype == "auto" else DTYPES[dtype]
    options = {"trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(source, **options)
        check_architecture(config)
        model, report = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=chosen, attn_implementation=ATTENTION_NAME, use_safetensors=True,
            output_loading_info=True, **options,
        )  # fmt: skip
    except UserError:
        raise
    except Exception as error:  # files of strangers: transformers raises whatever their faults lead to
        raise UserError(f"cannot load target {str(source)!r}: {first_line(error)}") from error
    absent = sorted(report["missing_keys"]) + sorted(str(key) for key in report.get("mismatched_keys", ()))
    if absent:  # transformers would fill them with random numbers
        raise UserError(f"target {str(source)!r} lacks {len(absent)} tensors, {absent[0]} among them")
    if device == "cpu" and chosen != _auto_dtype("cpu") == torch.float32:
        logger.warning("this CPU does not compute in %s: passes take many times as long as in float32", chosen)
    kernels = load_kernels() if device == "cpu" and chosen == torch.float32 else None
    if kernels is not None:
        pack_linears(model, kernels)
    else:
        model.to(device)
    return TargetModel(
        model, name=str(source), kernels=kernels, exact=exact, end_ids=end_ids_of(source, config, options),
        capture_layers=capture_layers,
    )


def _known_device(device: str) -> str:
    """`cpu`, `cuda` or `cuda:N` as asked for, or the best there is for `auto`."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if device != "cpu" and (kind != "cuda" or (":" in device and not index.isdecimal())):
        raise UserError(f"unknown device {device!r}; known: auto, cpu, cuda, cuda:N")
    if kind == "cuda" and not int(index or 0) < torch.cuda.device_count():
        raise UserError(f"device {device} was asked for, but torch sees {torch.cuda.device_count()} GPUs; use cpu")
    return device


def pack_linears(model: nn.Module, kernels: Kernels) -> None:
    """Replace every nn.Linear by its packed form, one at a time, so that no second copy of the model ever exists.

    An output layer tied to the embedding gets its own packed copy; the embedding stays.
    """
    linears = [(module, name) for module in model.modules() for name, child in module.named_children()
               if type(child) is nn.Linear]
    for module, name in linears:
        setattr(module, name, PackedLinear(kernels, getattr(module, name)))


def _auto_dtype(device: str) -> torch.dtype:
    if device != "cpu":
        return torch.bfloat16
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    has_bf16 = any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return torch.bfloat16 if has_bf16 else torch.float32


def end_ids_of(source: str | Path, config, options: dict) -> tuple[int, ...]:
    """All end ids of the generation config, the model config's where there is none."""
    try:
        ids = GenerationConfig.from_pretrained(source, **options).eos_token_id
    except OSError:
        ids = None
    ids = config.eos_token_id if ids is None else ids
    return tuple(ids) if isinstance(ids, (list, tuple)) else () if ids is None else (ids,)
