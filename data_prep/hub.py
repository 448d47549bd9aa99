"""Where the corpora are on the Hugging Face Hub, and how a copy is fetched. Knows no format."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download

from schemafill.inference.request import UserError


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """A public dataset repository. revision None: no commit is pinned; the one fetched is recorded in the manifest."""

    repo_id: str
    revision: str | None
    patterns: tuple[str, ...]


HUB_SOURCES = {
    "bfcl": HubSource(
        repo_id="gorilla-llm/Berkeley-Function-Calling-Leaderboard",
        revision="069792401e40006bfd99008cfb176c2e3d341f71",
        patterns=("BFCL_v*.json", "possible_answer/*", "unused_datasets/*", "multi_turn_func_doc/*"),
    ),
    "glaive": HubSource(
        repo_id="glaiveai/glaive-function-calling-v2",
        revision="e7f4b6456019f5d8bcb991ef0dd67d8ff23221ac",
        patterns=("*.json",),
    ),
    "api-bank": HubSource(repo_id="liminghao1630/API-Bank", revision=None, patterns=("*.json",)),
    "toolace": HubSource(repo_id="Team-ACE/ToolACE", revision=None, patterns=("*.json",)),
}
# What is published elsewhere only.
OTHER_SOURCES = {"toolalpaca": "the folder `data` of https://github.com/tangqiaoyu/ToolAlpaca (commit 189069998d64)"}


def fetch_corpus(name: str, revision: str | None = None) -> Path:
    """The folder of a corpus, downloaded into the Hub's own cache where it is not there yet; named by its commit.

    Raises UserError where the corpus is not on the Hub, or the Hub cannot be reached.
    """
    if name in OTHER_SOURCES:
        raise UserError(f"{name} is not on the Hub: download {OTHER_SOURCES[name]} and name it with --source")
    source = HUB_SOURCES[name]
    try:
        folder = snapshot_download(
            source.repo_id, repo_type="dataset", revision=revision or source.revision,
            allow_patterns=list(source.patterns),
        )  # fmt: skip
    except Exception as error:  # network, rights, unknown revision: the Hub's client has a class for each
        message = f"cannot fetch {source.repo_id} from the Hub: {_in_one_line(error)}; or use --source DIR"
        raise UserError(message) from error
    return Path(folder)


def locate_source(corpus: str, source: str, revision: str | None = None) -> Path:
    """The folder or file that `--source` names, or the fetched copy for `hub`."""
    if source == "hub":
        return fetch_corpus(corpus, revision)
    if revision is not None:
        raise UserError("--revision belongs to --source hub")
    path = Path(os.path.expanduser(source))
    if not os.path.exists(path):  # unlike Path.exists, no error where a folder on the way may not be entered
        raise UserError(f"no such folder or file: {path}")
    return path


def described_source(source: str, folder: Path) -> str:
    """What a manifest says of a source: the Hub's commit, or the folder's own name."""
    return f"hub@{folder.name}" if source == "hub" else Path(os.path.abspath(folder)).name


def _in_one_line(error: Exception) -> str:
    """What the Hub's client says: its first line is often a status code alone, the reason stands below it."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
