"""The contract between the loop and whoever proposes, and the state of a request that drafters read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from schemafill.inference.model.latency import LatencyCurve
from schemafill.inference.model.tree import AcceptedPath, Proposal, SideVerdict
from schemafill.inference.model.vocabulary import Vocabulary
from schemafill.inference.toolcall.dialects import Dialect
from schemafill.inference.toolcall.schema import Catalog
from schemafill.inference.toolcall.style import StyleMemory
from schemafill.inference.toolcall.tracker import Tracker

MAX_NODES = 96
"""Most nodes in one proposal; scratch rows are laid out for it."""
SIDE_ROWS = 128
"""Arena rows that the SIDE branches of a request share, whatever the method (equal layout for all)."""


@dataclass
class DecodeState:
    """One request while it is decoded. Written by the loop only; drafters read it."""

    prompt_ids: list[int]
    request_text: str
    """What values may be copied from: the conversation without the catalogue."""
    catalog: Catalog
    dialect: Dialect
    vocabulary: Vocabulary
    tracker: Tracker
    styles: StyleMemory
    latency: LatencyCurve
    end_ids: tuple[int, ...]
    max_nodes: int
    is_chain_only: bool
    """Proposals must be single chains (exact numerics on a target whose passes depend on their shape)."""
    output_ids: list[int] = field(default_factory=list)

    @property
    def root(self) -> int:
        """The last known token: the prompt's, then the output's."""
        return self.output_ids[-1] if self.output_ids else self.prompt_ids[-1]


@dataclass(frozen=True)
class Observation:
    """What a round showed: the target's choice after every node, not only after the accepted ones."""

    proposal: Proposal
    path: AcceptedPath
    choices: Sequence[int]
    side: tuple[SideVerdict, ...] = ()
    num_kept: int = 0
    """Tokens of the path (bonus included) that became output; fewer than the path has when the output ended."""


class Drafter(Protocol):
    """Proposes continuations; whatever it proposes, the output is the target's own.

    One drafter serves one request. `propose` returns a forest whose node 0 carries `state.root`; `observe` is called
    after every round that it proposed for, when the state holds the committed tokens. Neither changes the state.
    """

    def propose(self, state: DecodeState) -> Proposal: ...

    def observe(self, state: DecodeState, observation: Observation) -> None: ...

    def why_rejected(self, state: DecodeState, observation: Observation) -> str:
        """A short name for why the accepted path ended, empty when nothing more was proposed there."""
        ...


class NoDraft:
    """Autoregressive decoding: the empty proposal."""

    def propose(self, state: DecodeState) -> Proposal:
        return Proposal(state.root)

    def observe(self, state: DecodeState, observation: Observation) -> None:
        return None

    def why_rejected(self, state: DecodeState, observation: Observation) -> str:
        return ""
