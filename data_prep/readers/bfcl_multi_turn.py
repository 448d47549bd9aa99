"""The first decision of a BFCL multi-turn row: its tools, looked up by class, and the ground truth of its first turn.

What follows depends on results of executed calls, which the corpus does not hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemafill.data_prep.readers.bfcl_references import NoRecord
from schemafill.inference.request import UserError
from schemafill.inference.row_files import read_rows

# Class as a row names it -> file of its functions in multi_turn_func_doc/.
CLASS_FILES = {
    "GorillaFileSystem": "gorilla_file_system.json",
    "MathAPI": "math_api.json",
    "MessageAPI": "message_api.json",
    "TicketAPI": "ticket_api.json",
    "TradingBot": "trading_bot.json",
    "TravelAPI": "travel_booking.json",
    "TwitterAPI": "posting_api.json",
    "VehicleControlAPI": "vehicle_control.json",
}


class FunctionDocs:
    """The functions of each class, every file read once and only when a row asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._by_class: dict[str, list[dict[str, Any]]] = {}

    def of_row(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The functions that a row offers in its first turn. NoRecord where they cannot be found.

        A function that the row holds back until a later turn (`missed_function`), or altogether (`excluded_function`),
        is not among them.
        """
        classes = row.get("involved_classes") or _classes_of_path(row.get("path"))
        if not isinstance(classes, list) or not classes:
            raise NoRecord("no_tools", "neither involved_classes nor path names a class")
        hidden = _held_back(row)
        return [doc for name in classes for doc in self._of_class(name) if str(doc.get("name")) not in hidden]

    def _of_class(self, name: Any) -> list[dict[str, Any]]:
        if not isinstance(name, str) or name not in CLASS_FILES:
            raise NoRecord("no_tools", f"unknown class {name!r:.200}")
        if name not in self._by_class:
            try:
                self._by_class[name] = [doc for _, doc in read_rows(self._folder / CLASS_FILES[name])]
            except UserError:  # a file that is not there concerns only the rows that need it
                raise NoRecord("no_tools", f"cannot read {self._folder.name}/{CLASS_FILES[name]}") from None
        return self._by_class[name]


def first_turn(ground_truth: Any) -> list[Any]:
    """The ground truth of the first turn. NoRecord where there is none, or where it makes no call."""
    if not isinstance(ground_truth, list) or not all(isinstance(turn, list) for turn in ground_truth):
        raise NoRecord("reference_form", "the ground truth of a multi-turn row is not a list of turns")
    if not ground_truth or not ground_truth[0]:
        raise NoRecord("no_call_expected", "the first turn makes no call")
    return ground_truth[0]


def later_turns(ground_truth: Any) -> list[int]:
    """Numbers of the turns after the first that make calls."""
    turns = ground_truth if isinstance(ground_truth, list) else []
    return [number for number, turn in enumerate(turns) if number and turn]


def _classes_of_path(path: Any) -> list[str]:
    """The classes of a list like `["TradingBot.get_stock_info"]`, each once, in order of first mention."""
    names = [one.split(".")[0] for one in path if isinstance(one, str)] if isinstance(path, list) else []
    return list(dict.fromkeys(names))


def _held_back(row: dict[str, Any]) -> set[str]:
    missed, excluded = row.get("missed_function"), row.get("excluded_function")
    lists = [*(missed.values() if isinstance(missed, dict) else ()), excluded]
    return {str(name) for names in lists if isinstance(names, list) for name in names}
