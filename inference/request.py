"""The nouns that every part of inference shares: what comes in, what goes out, what was counted.

Knows no tokenizer, no tensor and no tool-call format.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Where a committed token came from. `target` is a token that no draft carried: the target's own choice after the
# accepted path. Everything else names the source that proposed the accepted token.
SOURCES = (
    "target", "structure", "name", "key", "copy", "choice", "evidence", "previous", "guess", "close", "ngram", "probe",
    "side",
)


class UserError(ValueError):
    """A fault of the caller (bad tools, unknown method, prompt too long): shown in one line, exit code 2."""


def first_line(error: Exception) -> str:
    """What an error of another library says, short enough for one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the target chooses a token. Temperature 0 is greedy and the default."""

    temperature: float = 0.0
    """0: argmax, lowest id on ties. Above: softmax of logits / temperature."""
    top_p: float = 1.0
    """Smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int = 0
    """Only the k likeliest tokens; 0 keeps all."""
    seed: int = 0
    """Together with the output position it fixes every draw, whatever method decodes."""
    max_new_tokens: int = 512
    """Most tokens in the output, the end sign included."""
    stop: tuple[str, ...] = ()
    """Texts that end the output; they are not part of it."""

    def __post_init__(self) -> None:
        for name in ("top_k", "seed", "max_new_tokens"):
            if not isinstance(getattr(self, name), int):
                raise UserError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        for name in ("temperature", "top_p"):
            if not isinstance(getattr(self, name), int | float):
                raise UserError(f"{name} must be a number, got {getattr(self, name)!r}")
        if not self.temperature >= 0 or self.temperature == float("inf"):
            raise UserError(f"temperature must be a finite number >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise UserError(f"top_k must be >= 0, got {self.top_k}")
        if self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens must be >= 1, got {self.max_new_tokens}")
        if not isinstance(self.stop, tuple | list) or not all(isinstance(text, str) for text in self.stop):
            raise UserError(f"stop must be a tuple of texts, got {self.stop!r}")
        if any(not text for text in self.stop):
            raise UserError("a stop text must not be empty")
        if any(0xD800 <= ord(char) <= 0xDFFF for text in self.stop for char in text):
            raise UserError("a stop text holds half of a character")


@dataclass(frozen=True)
class ToolCall:
    """One finished call. `arguments` is the JSON text exactly as the target wrote it (`{}` where it wrote none)."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True)
class UnfinishedCall:
    """A call that the end of the output cut off: its name if that was whole, and the arguments as far as written."""

    name: str | None
    arguments: str


@dataclass
class RoundTrace:
    """One round of the loop, kept only when a trace is asked for."""

    token_ids: list[int]
    """Committed in this round, in order."""
    sources: list[str]
    """One entry of SOURCES per committed token."""
    num_nodes: int
    """Distinct token nodes proposed (MAIN and SIDE), the root not counted."""
    num_side_nodes: int
    seconds: float
    rejected: str = ""
    """Why the accepted path ended where it did (`` when nothing was proposed beyond it)."""


@dataclass
class DecodeStats:
    """Counters of one request. Seconds are wall clock; phases add up to `seconds`."""

    prompt_tokens: int = 0
    tokens: int = 0
    verify_calls: int = 0
    """Target forwards that choose output tokens: the first pass, every round, every re-check."""
    rechecks: int = 0
    """Those of verify_calls that repeated one position in AR's own shape."""
    nodes: int = 0
    """Proposed token nodes over all verify calls."""
    seconds: float = 0.0
    seconds_by_phase: dict[str, float] = field(
        default_factory=lambda: {"prepare": 0.0, "prefill": 0.0, "draft": 0.0, "verify": 0.0, "other": 0.0}
    )
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    rejections: dict[str, int] = field(default_factory=dict)
    """How often the accepted path ended for which reason."""
    rounds: list[RoundTrace] = field(default_factory=list)
    """Filled only when the engine is asked for a trace."""


@dataclass
class Completion:
    """What a request gives back."""

    text: str
    """The output as text, special tokens shown, cut where the output ended."""
    token_ids: list[int]
    tool_calls: list[ToolCall]
    content: str | None
    """Text outside the calls, trimmed; None when there is only white space."""
    reasoning: str | None
    finish_reason: str
    """`tool_calls`, `stop` or `length`."""
    unfinished: UnfinishedCall | None
    stats: DecodeStats
