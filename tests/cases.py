"""The shared case files: small inputs on which software for tool calling is known to fail.

`load_items` gives the items of some files with their generators expanded, `case_params` the same as pytest parameters.
The files are not part of this repository; without them the parameters are one skipped entry that says so.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class CaseItem:
    """One item of a case file: `given` as described in the folder's README, tool sets already looked up."""

    case_id: str
    name: str
    given: dict
    expect: dict


def cases_folder() -> Path | None:
    """The folder with the case files, or None: $SCHEMAFILL_SHARED, beside $SCHEMAFILL_DATA, beside the repository."""
    candidates = [Path(__file__).resolve().parents[2] / "shared" / "cases"]
    if data := os.environ.get("SCHEMAFILL_DATA"):
        candidates.insert(0, Path(data).resolve().parent / "cases")
    if shared := os.environ.get("SCHEMAFILL_SHARED"):
        candidates.insert(0, Path(shared) / "cases")
    return next((folder for folder in candidates if folder.is_dir()), None)


def load_items(area: str, *prefixes: str) -> list[CaseItem]:
    """The items of an area in the files whose names start with one of the prefixes (no prefix: all files)."""
    folder = cases_folder()
    items = []
    for path in sorted(folder.glob("*.json")) if folder else []:
        if prefixes and not path.name.startswith(prefixes):
            continue
        case = json.loads(path.read_text(encoding="utf-8"))
        for raw in case["items"]:
            if raw["area"] == area:
                given = dict(raw["given"])
                for key in given.keys() & {"tools", "each_beside"}:
                    given[key] = _tools(given[key], expand(case.get("tool_sets", {})))
                items.append(CaseItem(case["id"], raw["name"], expand(given), expand(raw["expect"])))
    return items


def case_params(area: str, *prefixes: str) -> list:
    """Parameters for `pytest.mark.parametrize("item", ...)`, named by case and item."""
    if cases_folder() is None:
        reason = "the case files are not here: set SCHEMAFILL_SHARED to the folder that holds cases/"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="no-case-files")]
    return [pytest.param(item, id=f"{item.case_id}/{item.name}") for item in load_items(area, *prefixes)]


def expand(value: object) -> object:
    """A value with its generators written out: `{"repeat": N, "with": x}` and `{"nest_objects": N}`."""
    if isinstance(value, list):
        return [expand(element) for element in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"repeat", "with"}:
        return [expand(_filled(value["with"], number)) for number in range(value["repeat"])]
    if value.keys() == {"nest_objects"}:
        schema: dict = {"type": "string"}
        for _ in range(value["nest_objects"]):
            schema = {"type": "object", "properties": {"d": schema}}
        return schema
    return {key: expand(element) for key, element in value.items()}


def _filled(value: object, number: int) -> object:
    """A copy for one repetition: `{k}` is its number, `{pad N}` is N characters of filler, keys included."""
    if isinstance(value, str):
        return re.sub(r"\{pad (\d+)\}", lambda match: "x" * int(match[1]), value.replace("{k}", str(number)))
    if isinstance(value, list):
        return [_filled(element, number) for element in value]
    if isinstance(value, dict):
        return {_filled(key, number): _filled(element, number) for key, element in value.items()}
    return value


def _tools(tools: object, tool_sets: dict) -> object:
    """A tool list given as itself, as the name of a set, or as `{"sets": [...], "without": [...]}`."""
    if isinstance(tools, str):
        return tool_sets[tools]
    if isinstance(tools, dict) and "sets" in tools:
        without = set(tools.get("without", []))
        together = [tool for name in tools["sets"] for tool in tool_sets[name]]
        return [tool for tool in together if tool["function"]["name"] not in without]
    return tools
