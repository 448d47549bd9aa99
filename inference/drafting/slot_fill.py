"""SchemaFill without a head: one drafter that joins every head-free source.

A round: where the output stands (tracker) -> likely continuations as texts (paths, weighed by evidence) -> one token
tree under the row budget (packer), with probes for later values hung in, and SIDE branches beside it where rows are
free. Where no structure is known, what followed the same tokens before (lookup).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from schemafill.inference.drafting.cursor import Cursor, cursor_of
from schemafill.inference.drafting.drafter import SIDE_ROWS, DecodeState, Observation
from schemafill.inference.drafting.lookup import lookup_continuation
from schemafill.inference.drafting.options import Expander
from schemafill.inference.drafting.packer import PackedPath, TokenTrie, harvest
from schemafill.inference.drafting.paths import Evidence, Path, search_paths
from schemafill.inference.drafting.side import SideWriter
from schemafill.inference.drafting.tool_choice import ToolChooser
from schemafill.inference.drafting.values import ValueGuesser
from schemafill.inference.model.tree import Proposal
from schemafill.inference.toolcall.forecast import rank_tools

USUAL_ROWS = 12
EXPECTED_LENGTH = 9.0
"""Prices a token: seconds of a usual round (a pass of USUAL_ROWS) over this length are what an accepted token saves."""
WINDOW_TOKENS = 8
"""Committed tokens that a proposal is tokenised with; `Vocabulary.window` takes what it needs of them."""
NGRAM_SHARE, NGRAM_DECAY = 0.55, 0.8
"""Chance that the first token of an n-gram copy is accepted, and that a next one is when the one before was."""

PROBE_DOUBT = 0.6
"""Fields whose best guess is surer than this are not probed."""
PROBE_GAIN = 1.0
"""Rounds that knowing a value's first token saves, when the value is needed and was in doubt."""
MOST_PROBES = 3
MOST_BRANCHES = 4
MOST_BRANCH_TOKENS = SIDE_ROWS // MOST_BRANCHES
FLAT_RATIO = 1.15
"""SIDE branches run where a pass of 32 rows costs at most this many times one of 8 rows: where rows are free."""


@dataclass(frozen=True, kw_only=True)
class SlotFillConfig:
    """Sources that can be switched off, for ablation."""

    uses_evidence: bool = True
    """The target's own choices behind nodes that were not accepted."""
    uses_lookup: bool = True
    """N-gram copies where no structure is known."""
    uses_siblings: bool = True
    """Alternatives at decision points; off: the likeliest chain only."""
    uses_probes: bool = True
    """Nodes that ask the target for the first token of later fields' values."""
    uses_side: bool | None = None
    """SIDE branches that write later fields' values ahead; None: where the latency curve says that rows are free."""


class SlotFill:
    """One request's drafter."""

    def __init__(self, config: SlotFillConfig, state: DecodeState) -> None:
        self.config = config
        is_flat = state.latency(32) <= FLAT_RATIO * state.latency(8)
        self._runs_side = (is_flat if config.uses_side is None else config.uses_side) and not state.is_chain_only
        self._evidence = Evidence()
        ranking = rank_tools(state.catalog, state.request_text) if state.catalog.tools else []
        self._expander = Expander(
            state.dialect, ToolChooser(state.catalog, ranking), state.styles.guesses(), ValueGuesser(state.request_text)
        )
        self._packed: list[PackedPath] = []
        self._branches = SideWriter(MOST_BRANCHES, MOST_BRANCH_TOKENS)

    def propose(self, state: DecodeState) -> Proposal:
        proposal = Proposal(state.root)
        committed = state.prompt_ids[-WINDOW_TOKENS:] + state.output_ids[-WINDOW_TOKENS:]
        window = state.vocabulary.window(committed[-WINDOW_TOKENS:])
        trie = TokenTrie(state.vocabulary, window, state.end_ids)
        cursor = cursor_of(state.tracker)
        paths = self._paths(state, cursor, trie)
        for path in paths:
            trie.add(path)
        if self.config.uses_lookup and not trie.nodes and state.output_ids:
            draft = lookup_continuation(
                state.prompt_ids + state.output_ids, longest=6, length=8, needs_full=False, is_latest=True
            )
            trie.add_tokens(draft, [NGRAM_SHARE * NGRAM_DECAY**i for i in range(len(draft))], "ngram")
        is_first = not state.output_ids
        price = (lambda rows: rows * state.latency.prompt_row_s) if is_first else state.latency
        is_chain = state.is_chain_only or not self.config.uses_siblings
        if self.config.uses_probes and not is_chain and paths:
            self._add_probes(state, trie, paths[0], price)
        token_value_s = state.latency(USUAL_ROWS) / EXPECTED_LENGTH
        self._packed = trie.pack(proposal, price, token_value_s, state.max_nodes, is_chain_only=is_chain)
        if self._runs_side and not is_first and cursor is not None:
            self._branches.extend(proposal, state, self._expander, cursor, self._evidence)
        return proposal

    def observe(self, state: DecodeState, observation: Observation) -> None:
        if self.config.uses_evidence:
            accepted = {0, *observation.path.nodes}
            harvest(self._packed, observation.proposal, observation.choices, accepted, state.vocabulary, self._evidence)
        self._branches.observe(state, observation.side, self._evidence)

    def why_rejected(self, state: DecodeState, observation: Observation) -> str:
        """The kind of spot at which the target went another way, and whether anything was proposed there."""
        last = observation.path.nodes[-1] if observation.path.nodes else 0
        spot = next((item.spot_behind(last) for item in self._packed if item.holds(last)), "no structure")
        others = observation.proposal.children[last]
        return f"{spot}: {'other' if others else 'nothing proposed'}"

    def _paths(self, state: DecodeState, cursor: Cursor | None, trie: TokenTrie) -> list[Path]:
        """Likely continuations; none where no structure is known or the tail has no text to tokenise with."""
        if cursor is None or cursor.kind == "done" or (state.output_ids and not trie.window[1]):
            return []
        return search_paths(self._expander, cursor, state.tracker.place.partial, self._evidence)

    def _add_probes(self, state: DecodeState, trie: TokenTrie, path: Path, price: Callable[[int], float]) -> None:
        """Ask for the first tokens of later fields' values, hung where the likeliest path enters an object."""
        entry = next((part for part in path.parts if part.cursor.kind == "object" and part.start >= 0), None)
        if entry is None:
            return
        reached = {part.cursor.key for part in path.parts if part.cursor.kind == "value"}
        wanted = [
            value for value in self._expander.later_fields(entry.cursor)[1:]
            if value.key not in reached and value.key not in self._evidence.texts
            and self._expander.confidence(value) < PROBE_DOUBT
        ]  # fmt: skip
        round_s = state.latency(USUAL_ROWS)
        for value in wanted[:MOST_PROBES]:
            probe = self._expander.probe_text(entry.cursor, value)
            text = path.text[: entry.start] + probe
            before = len(trie.nodes)
            nodes = trie.probe(text)
            rows = len(trie.nodes) - before
            gain = PROBE_GAIN * (1 - self._expander.confidence(value)) * entry.probability * round_s
            cost = price(USUAL_ROWS + rows) - price(USUAL_ROWS)
            if rows and gain > cost:
                trie.keep_probe(nodes, text, len(text) - len(probe) + probe.rindex(value.style.colon), value)
