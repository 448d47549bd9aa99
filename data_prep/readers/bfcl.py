"""BFCL in its upstream layout, versions 3 and 4, as records.

    BFCL_v3_<category>.json                       questions, JSON lines, plain or .gz
    possible_answer/BFCL_v3_<category>.json       their ground truth, by id; some rows carry their own instead
    unused_datasets/{question,possible_answer}/   the retired categories, laid out alike
    multi_turn_func_doc/<class>.json              the tools of multi-turn rows

A question without a call to make or without ground truth gives no record. Of a multi-turn row the first decision is
cut. How a ground truth is read stands in `bfcl_references`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemafill.data_prep.readers.bfcl_multi_turn import FunctionDocs, first_turn, later_turns
from schemafill.data_prep.readers.bfcl_references import NoRecord, reference_calls, reference_flags
from schemafill.data_prep.readers.conversation import tool_list
from schemafill.data_prep.readers.source_files import SourceFile, rows_of
from schemafill.data_prep.records import ROLES, LeftOut, Record
from schemafill.data_prep.tool_definitions import canonical_json, content_hash
from schemafill.inference.request import UserError

NAME = "bfcl"
REASONS = (
    "row_form",  # not a JSON object, or without an id, a question or messages of the usual form
    "id_twice",
    "flat_question",  # one list of messages where the layout has a list of turns (`sql`)
    "no_tools",
    "tool_form",
    "tool_declared_twice",
    "no_reference",  # the row is not answered
    "no_call_expected",  # no tool fits, or the turn makes no call
    "recorded_response",  # the ground truth is what a service answered (`rest`)
    "reference_form",
    "call_form",
    "needs_execution",  # a later turn: its history holds results that are not in the corpus
)
# A leaderboard run leaves files of the same beginning in its own folders.
QUESTION_FILE = re.compile(r"(?P<stem>BFCL_v\d+_(?P<category>\w+?)(?P<of_a_run>_result|_score)?)\.json(\.gz)?")
ANSWERS, RETIRED, DOCS = "possible_answer", "unused_datasets", "multi_turn_func_doc"
MAX_DEPTH = 3  # of the data folder in a clone of the upstream repository


@dataclass(frozen=True, kw_only=True)
class QuestionFile:
    """One category: where its questions, its ground truth and the multi-turn tools are."""

    category: str
    questions: SourceFile
    answers: SourceFile | None
    """None where there is no such file; then the rows may carry their ground truth."""
    docs: Path

    @property
    def is_multi_turn(self) -> bool:
        return self.category.startswith("multi_turn")


def read(source: Path) -> Iterator[Record | LeftOut]:
    """Every decision of the corpus below `source`, file by file and in the order of the rows.

    source: the data folder, or a folder that contains it. UserError where none is found, or several are.
    """
    for file in question_files(source):
        yield from read_file(file)


def question_files(source: Path) -> list[QuestionFile]:
    """The question files of a corpus by name, the retired ones last. UserError where one stands in two places."""
    root = _data_folder(source)
    found: dict[str, QuestionFile] = {}
    for path in _question_paths(root):
        name, match = path.name.removesuffix(".gz"), QUESTION_FILE.fullmatch(path.name)
        if name in found:
            raise UserError(f"{name} stands twice, as {found[name].questions.path} and {path}: remove one")
        folders = (path.parent / ANSWERS, root / RETIRED / ANSWERS, root / ANSWERS)
        packings = [folder / packed for folder in folders for packed in (name, f"{name}.gz")]
        answers = [
            SourceFile(path=answers, name=f"{ANSWERS}/{name}", stem=match["stem"])
            for answers in packings
            if answers.is_file()
        ]
        found[name] = QuestionFile(
            category=match["category"], questions=SourceFile(path=path, name=name, stem=match["stem"]),
            answers=answers[0] if answers else None, docs=root / DOCS,
        )  # fmt: skip
    return list(found.values())


def read_file(file: QuestionFile) -> Iterator[Record | LeftOut]:
    """The decisions of one question file, and every row of it or of its answers that gives none."""
    truths, bad_answers = _ground_truths(file.answers)
    yield from bad_answers
    docs, seen, name = FunctionDocs(file.docs), set(), file.questions.name
    for one in rows_of(file.questions):
        if isinstance(one, LeftOut):
            yield one
            continue
        line, row = one
        row_id = str(row.get("id", line))
        truth = row.get("ground_truth", truths.get(row_id))
        try:
            if row_id in seen:
                raise NoRecord("id_twice", row_id)
            seen.add(row_id)
            yield _first_decision(file, line, row, truth, docs)
        except NoRecord as none:
            yield LeftOut(file=name, row=line, turn=0, reason=none.reason, detail=none.detail)
        for turn in later_turns(truth) if file.is_multi_turn else ():
            yield LeftOut(file=name, row=line, turn=turn, reason="needs_execution")


def tool_set_key(tools: list[dict[str, Any]]) -> str:
    """16 hex digits that two lists of tools share when they hold the same definitions, in whatever order."""
    return content_hash(sorted(tools, key=canonical_json))[:16]


def _first_decision(file: QuestionFile, line: int, row: dict[str, Any], truth: Any, docs: FunctionDocs) -> Record:
    """The record of a row's first, mostly its only decision. NoRecord says why it has none."""
    row_id = row.get("id", line)
    if not isinstance(row_id, (str, int)) or row_id == "":
        raise NoRecord("row_form", f"id {row_id!r:.200}")
    tools = _openai_tools(docs.of_row(row) if file.is_multi_turn else row.get("function"))
    if truth is None:
        raise NoRecord("no_call_expected" if "irrelevance" in file.category else "no_reference")
    if file.is_multi_turn:
        truth = first_turn(truth)
    messages = _first_messages(row.get("question"), file.is_multi_turn)
    calls = reference_calls(truth, tools)
    meta = {"file": file.questions.name, "row": line, "turn": 0, "category": file.category}
    if flags := reference_flags(calls, tools):
        meta["flags"] = flags
    return Record(
        id=f"{NAME}/{file.questions.stem}/{row_id}" + ("/0" if file.is_multi_turn else ""), source=NAME,
        messages=messages, tools=tools, reference_calls=calls, group=tool_set_key(tools), meta=meta,
    )  # fmt: skip


def _first_messages(question: Any, is_multi_turn: bool) -> list[dict[str, Any]]:
    if not isinstance(question, list) or not question:
        raise NoRecord("row_form", "question is not a list of turns")
    if all(isinstance(turn, dict) for turn in question):
        raise NoRecord("flat_question")
    if len(question) > 1 and not is_multi_turn:
        raise NoRecord("row_form", f"{len(question)} turns in a category of single turns")
    messages = question[0]
    if not isinstance(messages, list) or not messages:
        raise NoRecord("row_form", "the first turn is not a list of messages")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES or "content" not in message:
            raise NoRecord("row_form", f"not a message: {message!r:.200}")
    return messages


def _openai_tools(functions: Any) -> list[dict[str, Any]]:
    if not functions:
        raise NoRecord("no_tools")
    if not isinstance(functions, list):
        raise NoRecord("tool_form", "function is not a list")
    try:
        declared = tool_list(functions)
    except ValueError as error:
        raise NoRecord("tool_form", str(error)) from None
    if declared.declared_twice:
        raise NoRecord("tool_declared_twice", ", ".join(sorted(declared.declared_twice)))
    return declared.tools


def _ground_truths(answers: SourceFile | None) -> tuple[dict[str, Any], list[LeftOut]]:
    """Ground truth by question id, and the rows of the answer file that give none."""
    truths: dict[str, Any] = {}
    bad: list[LeftOut] = []
    for one in rows_of(answers) if answers else ():
        if isinstance(one, LeftOut):
            bad.append(one)
            continue
        line, row = one
        row_id = row.get("id")
        if not isinstance(row_id, str) or "ground_truth" not in row:
            bad.append(LeftOut(file=answers.name, row=line, reason="row_form", detail="no id, or no ground_truth"))
        elif row_id in truths:
            bad.append(LeftOut(file=answers.name, row=line, reason="id_twice", detail=row_id))
        else:
            truths[row_id] = row["ground_truth"]
    return truths, bad


def _data_folder(source: Path) -> Path:
    """The folder that holds question files: `source`, or the one nearest below it."""
    if not source.is_dir():
        raise UserError(f"not a folder: {source}; BFCL is read from its folder of question files and {ANSWERS}/")
    level = [source]
    for _ in range(MAX_DEPTH + 1):
        found = [folder for folder in level if _question_paths(folder)]
        if len(found) > 1:
            raise UserError(f"{source} holds several copies of BFCL, name one: {', '.join(map(str, found))}")
        if found:
            return found[0]
        level = [child for folder in level for child in sorted(folder.iterdir()) if _may_hold_data(child)]
    raise UserError(f"{source} holds no BFCL question file (BFCL_v3_<category>.json or .json.gz)")


def _may_hold_data(folder: Path) -> bool:
    return folder.is_dir() and not folder.name.startswith(".") and folder.name not in (ANSWERS, RETIRED, DOCS)


def _question_paths(root: Path) -> list[Path]:
    """The question files directly in a data folder, then the retired ones, each by name; of two packings the plain."""
    found = []
    for folder in (root, root / RETIRED, root / RETIRED / "question"):
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        names = {path.name for path in paths}
        for path in paths:
            match = QUESTION_FILE.fullmatch(path.name)
            is_packed_copy = path.suffix == ".gz" and path.stem in names
            if match and not match["of_a_run"] and not is_packed_copy and path.is_file():
                found.append(path)
    return found
