"""What each token of an output is part of: a tool's name, an argument's key, a value, the structure around them.

Told by the tracker, which reads the output as the decoder does; knows no schema.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from schemafill.inference.model.vocabulary import Vocabulary
from schemafill.inference.toolcall.dialects import Dialect
from schemafill.inference.toolcall.schema import parse_tools
from schemafill.inference.toolcall.style import BARE
from schemafill.inference.toolcall.tracker import Tracker
from schemafill.inference.toolcall.tracker_state import TrackerState

REGIONS = ("structure", "name", "key", "value", "other")
"""`structure` also holds fences, markers, end signs and the fixed keys of a call; `other` is text outside calls."""
IN_ARGUMENTS = ("args", "object", "array")
FENCE = re.compile(r"\s*(?:`{1,3}(?:j|js|jso|json)?[\s`]*)?")
"""What stands around calls without meaning anything, or its beginning: a token may hold a letter of it."""


def token_regions(
    token_ids: Sequence[int], vocabulary: Vocabulary, dialect: Dialect, end_ids: Sequence[int] = ()
) -> list[str]:
    """The region of each token of an output from its start; a token across a border counts as what it begins to spell.

    So the token that opens a string and holds its first letters is part of the string, and the one that closes it is
    structure.
    """
    tracker = Tracker(dialect, parse_tools([]), BARE)
    regions, outside = [], ""  # outside: what was written since the last call ended
    for token_id in token_ids:
        if token_id in end_ids:
            regions.append("structure")
            continue
        data, before = vocabulary.bytes_of(token_id), tracker.state
        tracker.advance(data)
        text = data.decode("utf-8", "replace")
        outside = "" if before.frames or tracker.state.frames else outside + text
        regions.append(_region(text, before, tracker.state, dialect, _is_around(outside, dialect)))
    return regions


def _region(text: str, before: TrackerState, after: TrackerState, dialect: Dialect, is_around: bool) -> str:
    if before.literal and not _closes(text, before):
        return _literal_region(before, dialect)
    if not before.frames and not after.frames:
        return "structure" if is_around and before.kind != "lost" else "other"
    if after.literal and len(after.text) > after.literal_start + (after.literal != "0"):
        return _literal_region(after, dialect)
    if re.search(r"\w", text) and after.frames and after.frames[-1].role in IN_ARGUMENTS:
        return "value"  # a whole scalar and what ends it, such as `true,`
    return "structure"


def _is_around(outside: str, dialect: Dialect) -> bool:
    """Whether text outside calls is fences and markers only, the last of them perhaps not whole yet."""
    markers = [marker for marker in (dialect.call_marker, dialect.end_marker) if marker]
    for marker in markers:
        outside = outside.replace(marker, "")
    return bool(FENCE.fullmatch(outside)) or any(marker.startswith(outside.strip()) for marker in markers)


def _closes(text: str, before: TrackerState) -> bool:
    """Whether the token ends the literal that is open before it without adding to it."""
    return text[:1] == '"' if before.literal == '"' else before.literal == "0" and text[:1] in " \t\r\n,}])"


def _literal_region(state: TrackerState, dialect: Dialect) -> str:
    """The region of the text or number that is open."""
    if not state.frames:
        return "other"
    frame = state.frames[-1]
    is_key = frame.is_object and frame.state in ("first", "next")
    if frame.role in IN_ARGUMENTS:
        return "key" if is_key else "value"
    if frame.role == "call" and not is_key:
        return "name" if frame.keys[-1:] == (dialect.name_key,) else "value"
    return "structure"
