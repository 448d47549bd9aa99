"""The HTML page of a report: tables, figures, and outputs round by round. One file, no network.

Outputs, requests and reasons are foreign text: the template escapes them, and what the script shows travels as JSON
and enters the page as text nodes only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from schemafill.inference.figures import ResultRow
from schemafill.inference.report_plots import OTHER_COLOUR, SOURCE_COLOURS
from schemafill.inference.report_tables import tables_of
from schemafill.inference.request import SOURCES
from schemafill.inference.results import FinishedRun
from schemafill.inference.toolcall.schema import parse_tools

TEMPLATES = Path(__file__).with_name("templates")
NUM_SHOWN_REQUESTS = 24

SOURCE_MEANINGS = {
    "target": "no draft carried it: the target's own choice after the accepted ones",
    "structure": "fixed text of a call: brackets, fixed keys, white space",
    "name": "tool name",
    "key": "argument name",
    "copy": "value copied from the request",
    "choice": "enum, constant, default or example of the schema",
    "evidence": "what the target had shown behind a rejected or probing node, against the first guess",
    "previous": "as in the previous call",
    "guess": "the value ends here",
    "close": "end of an object, a call or the list",
    "ngram": "continuation of a repeated token sequence",
    "probe": "probe for a later field that came true",
    "side": "written ahead on a side branch",
}


def render_page(runs: Sequence[FinishedRun], plots: dict[str, bytes]) -> str:
    files = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=files, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html").render(
        runs=[{"name": run.name, "tables": tables_of(run)} for run in runs],
        plots={name: base64.b64encode(png).decode() for name, png in plots.items()},
        viewer=_viewer_data(runs),
    )


def _viewer_data(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    return {
        "runs": [{"name": run.name, "requests": _shown_requests(run)} for run in runs],
        "sources": [
            {"name": source, "colour": SOURCE_COLOURS.get(source, OTHER_COLOUR), "meaning": SOURCE_MEANINGS[source]}
            for source in SOURCES
        ],
        "other_colour": OTHER_COLOUR,
    }


def _shown_requests(run: FinishedRun) -> list[dict[str, Any]]:
    """Requests of the viewer in suite order; of a long suite first those that failed or differ, then the earliest."""
    rows: dict[str, list[ResultRow]] = {item.id: [] for item in run.items}
    for row in run.rows:
        if row.repeat == 0:
            rows[row.request_id].append(row)
    odd = [id_ for id_, own in rows.items() if any(row.error or row.agreement is False for row in own)]
    shown = set(list(dict.fromkeys([*odd, *rows]))[:NUM_SHOWN_REQUESTS])
    order = list(run.summary.methods)
    return [
        {
            "id": item.id,
            "messages": [_message(message) for message in item.messages],
            "tools": [tool.name for tool in parse_tools(item.tools).tools],
            "outputs": [_output(row) for row in sorted(rows[item.id], key=lambda row: order.index(row.method))],
        }
        for item in run.items
        if item.id in shown
    ]


def _message(message: dict[str, Any]) -> dict[str, str]:
    rest = {key: value for key, value in message.items() if key != "role"}
    is_plain = list(rest) == ["content"] and isinstance(rest["content"], str)
    return {"role": message["role"], "text": rest["content"] if is_plain else json.dumps(rest, ensure_ascii=False)}


def _output(row: ResultRow) -> dict[str, Any]:
    """What the viewer shows of one output."""
    trace = row.trace or {"token_texts": [], "token_sources": [], "rounds": []}
    return {
        "method": row.method,
        "error": row.error,
        "seconds": row.seconds,
        "speedup": row.speedup,
        "accepted_length": row.accepted_length,
        "first_divergence": row.first_divergence,
        "finish_reason": row.finish_reason,
        "texts": trace["token_texts"],
        "sources": trace["token_sources"],
        "rounds": trace["rounds"],
    }
