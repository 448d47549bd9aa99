"""The decoding methods: what each is called, whether its output equals plain decoding, and how its drafter is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from schemafill.inference.drafting.drafter import DecodeState, Drafter, NoDraft
from schemafill.inference.drafting.lookup import PromptLookup
from schemafill.inference.drafting.slot_fill import SlotFill, SlotFillConfig
from schemafill.inference.request import UserError


@dataclass(frozen=True)
class Method:
    """`make` builds the drafter of one request."""

    summary: str
    make: Callable[[DecodeState], Drafter]
    lossless: bool = True


METHODS: dict[str, Method] = {
    "ar": Method("plain autoregressive decoding, one token a pass", lambda state: NoDraft()),
    "pld": Method("prompt lookup: n-gram copies from prompt and output", lambda state: PromptLookup()),
    "schemafill": Method(
        "everything that is lossless and helps: schema, copies, evidence, siblings, probes",
        lambda state: SlotFill(SlotFillConfig(), state),
    ),
}


def get_method(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise UserError(f"unknown method {name!r}, known are {', '.join(METHODS)}")
    return METHODS[name]
