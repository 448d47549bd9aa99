"""SIDE branches: private continuations that write later fields' values ahead, verified beside MAIN.

A branch sees MAIN's committed rows up to where it was opened and then its own key and value. It gains at least one of
the target's tokens a round; a finished value becomes evidence for MAIN, which the target checks again in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemafill.inference.drafting.cursor import Cursor
from schemafill.inference.drafting.drafter import DecodeState
from schemafill.inference.drafting.growth import grow
from schemafill.inference.drafting.options import Expander
from schemafill.inference.drafting.paths import Evidence
from schemafill.inference.model.tree import Proposal, SideBranch, SideVerdict
from schemafill.inference.toolcall.tracker_state import node_of_child

SURE = 0.85
"""Values that are guessed with more than this need no branch."""
DRAFT_TOKENS = 4


@dataclass
class _Writer:
    """One branch: the spot it writes for and the text of the value so far, the colon included."""

    branch: SideBranch
    spot: tuple
    forced: list[int]
    data: bytes
    tokens: list[int] = field(default_factory=list)
    is_asked: bool = False
    """Its tree is in this round's proposal."""


class SideWriter:
    """The branches of one request."""

    def __init__(self, most_branches: int, most_tokens: int) -> None:
        self._most_branches = most_branches
        self._most_tokens = most_tokens
        self._writers: list[_Writer] = []
        self._served: set[tuple] = set()

    def extend(
        self, proposal: Proposal, state: DecodeState, expander: Expander, cursor: Cursor, evidence: Evidence
    ) -> None:
        """Add a tree for every open branch, and open branches for fields of this object that nothing is known of."""
        if cursor.kind == "object":
            self._open(state, expander, cursor, evidence)
        for writer in self._writers:
            branch = writer.branch
            forced = writer.forced if branch.pending is None else [branch.pending]
            writer.is_asked = len(proposal) + len(forced) + DRAFT_TOKENS <= state.max_nodes
            if not writer.is_asked:
                continue
            last = proposal.add_side(branch, forced)
            begun = writer.data.decode("utf-8", "replace").removeprefix(cursor.style.colon)
            grown = grow(expander.values.spans, begun) if begun else []
            if grown:
                window = state.vocabulary.window(writer.forced + writer.tokens)
                rest = grown[0].text.removeprefix(begun)
                proposal.add_chain(state.vocabulary.continuation(window, rest)[:DRAFT_TOKENS], last, "side")

    def observe(self, state: DecodeState, verdicts: tuple[SideVerdict, ...], evidence: Evidence) -> None:
        """Take in what the branches gained; close those whose value is whole, too long or not needed any more."""
        gained = {id(verdict.branch): verdict for verdict in verdicts}
        for writer in self._writers:
            if not writer.is_asked:
                continue
            writer.is_asked = False
            verdict = gained.get(id(writer.branch))
            if verdict is None:  # no rows were left for it
                writer.branch.is_closed = True
                continue
            writer.tokens += verdict.tokens
            writer.data += b"".join(map(state.vocabulary.bytes_of, verdict.tokens))
            text = writer.data.decode("utf-8", "ignore")
            evidence.add(writer.spot, text)
            colon = state.tracker.state.style.colon
            is_whole = _is_whole(text.removeprefix(colon))
            writer.branch.is_closed = is_whole or len(writer.branch.rows) + DRAFT_TOKENS >= self._most_tokens
        self._writers = [writer for writer in self._writers if not writer.branch.is_closed]

    def _open(self, state: DecodeState, expander: Expander, cursor: Cursor, evidence: Evidence) -> None:
        for value in expander.later_fields(cursor)[1:]:
            spot = value.key
            if len(self._writers) >= self._most_branches:
                return
            is_known = spot in self._served or spot in evidence.texts or expander.confidence(value) > SURE
            node = node_of_child(value.frames[-1])
            if is_known or (node is not None and (node.properties or "array" in node.types)):
                continue
            text, written = expander.probe_text(cursor, value), state.tracker.place.partial
            if not text.startswith(written):
                continue
            window = state.vocabulary.window(state.output_ids[-8:])
            tokens = [state.root, *state.vocabulary.continuation(window, text[len(written) :])]
            branch = SideBranch(spot, context=len(state.prompt_ids) + len(state.output_ids) - 1)
            self._served.add(spot)
            colon = cursor.style.colon
            self._writers.append(_Writer(branch, spot, tokens, text[text.rindex(colon) :].encode()))


def _is_whole(value: str) -> bool:
    """Whether a scalar's text has come to its end."""
    if value.startswith('"'):
        rest = value[1:].replace("\\\\", "").replace('\\"', "")
        return '"' in rest
    return bool(value) and any(sign in value for sign in ",}\n]")
