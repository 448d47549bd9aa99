"""Corpora from the Hub, with a local stand-in for its client."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from corpus_reading import FIXTURES, write_lines

from schemafill.data_prep import corpora, hub
from schemafill.data_prep.manifest import read_manifest
from schemafill.inference.request import UserError


class StandIn:
    """Takes the place of `snapshot_download`: notes what is asked for and gives the folder of that commit."""

    def __init__(self, folder: Path, newest: str = "1" * 40) -> None:
        self.folder = folder
        self.newest = newest
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, repo_id: str, **options: Any) -> str:
        self.asked.append((repo_id, options))
        commit = self.folder / (options["revision"] or self.newest)
        rows = (FIXTURES / "toolace" / "rows.json").read_text(encoding="utf-8")
        write_lines(commit / "data.json", rows)
        return str(commit)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(tmp_path / "snapshots")
    monkeypatch.setattr(hub, "snapshot_download", made)
    return made


def args(out: Path, *more: str, corpus: str = "toolace") -> list[str]:
    return ["--corpus", corpus, "--source", "hub", "--out", str(out), *more]


def test_of_every_corpus_it_is_known_where_it_is() -> None:
    assert sorted([*hub.HUB_SOURCES, *hub.OTHER_SOURCES]) == sorted(corpora.CORPORA)
    pinned = [source.revision for source in hub.HUB_SOURCES.values() if source.revision]
    assert pinned and all(re.fullmatch("[0-9a-f]{40}", revision) for revision in pinned)


@pytest.mark.parametrize("name", hub.HUB_SOURCES)
def test_the_pinned_commit_and_the_files_of_rows_are_asked_for(stand_in: StandIn, name: str) -> None:
    source = hub.HUB_SOURCES[name]
    folder = hub.fetch_corpus(name)
    assert folder == stand_in.folder / (source.revision or stand_in.newest)
    options = {"repo_type": "dataset", "revision": source.revision, "allow_patterns": list(source.patterns)}
    assert stand_in.asked == [(source.repo_id, options)]


@pytest.mark.parametrize("name", ["bfcl", "glaive", "api-bank", "toolace"])
def test_every_file_that_a_reader_opens_is_asked_for(name: str, monkeypatch) -> None:
    home = {"api-bank": FIXTURES / "api_bank" / "hub"}.get(name, FIXTURES / name)
    opened: set[Path] = set()
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.add(path) or read_bytes(path))
    assert list(corpora.CORPORA[name].read(home))
    patterns = hub.HUB_SOURCES[name].patterns
    for path in opened:
        upstream = path.relative_to(home).as_posix().removesuffix(".gz")
        upstream = re.sub(r"\.jsonl$", ".json", upstream) if name != "bfcl" else upstream
        assert any(fnmatch(upstream, pattern) for pattern in patterns), upstream
    assert not any(fnmatch("README.md", pattern) for pattern in patterns)


@pytest.mark.parametrize("name", hub.HUB_SOURCES)
def test_another_commit_is_asked_for_by_name(stand_in: StandIn, name: str) -> None:
    assert hub.fetch_corpus(name, "abc") == stand_in.folder / "abc"
    assert [options["revision"] for _, options in stand_in.asked] == ["abc"]


def test_the_commit_stands_in_the_manifest_and_another_one_is_refused(stand_in: StandIn, tmp_path, capsys) -> None:
    out = tmp_path / "records.jsonl"
    assert corpora.main(args(out)) == 0
    manifest = read_manifest(out)
    assert manifest.settings == {"corpus": "toolace", "source": f"hub@{stand_in.newest}"}
    assert list(manifest.inputs) == ["data.json"] and manifest.counts["written"] == 3
    assert corpora.main(args(out)) == 0
    assert capsys.readouterr().out.endswith(f"{out} is there already\n")
    stand_in.newest = "2" * 40
    assert corpora.main(args(out)) == 2
    assert f"source was 'hub@{'1' * 40}', is 'hub@{'2' * 40}'" in capsys.readouterr().err
    assert read_manifest(out) == manifest


def test_a_revision_is_passed_on_by_the_command(stand_in: StandIn, tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    assert corpora.main(args(out, "--revision", "abc123")) == 0
    assert stand_in.asked[0][1]["revision"] == "abc123"
    assert read_manifest(out).settings["source"] == "hub@abc123"


# What the Hub's client says -> what of it has to be told.
FAILURES = {
    "401 Client Error. (Request ID: Root=1-6)\n\nRepository Not Found for url: https://hub/api/x.\nPlease make sure":
        "Repository Not Found for url: https://hub/api/x.",
    "403 Client Error. (Request ID: Root=1-6)\n\nCannot access gated repo for url https://hub/x.\nAsk for access.":
        "Cannot access gated repo for url https://hub/x. Ask for access.",
    "404 Client Error.\n\nRevision Not Found for url: https://hub/x.": "Revision Not Found",
    "Got: ConnectError: [Errno -2] Name or service not known\nAn error happened": "Name or service not known",
    "\n \n": "ConnectionError",
}  # fmt: skip


@pytest.mark.parametrize(("said", "told"), FAILURES.items(), ids=["no repo", "gated", "no commit", "offline", "silent"])
def test_a_failed_download_is_one_line_with_its_reason(tmp_path, capsys, monkeypatch, said: str, told: str) -> None:
    """The client's first line is a status code; only that was told, and not what is missing."""

    def failing(repo_id: str, **options: Any) -> str:
        raise ConnectionError(said)

    monkeypatch.setattr(hub, "snapshot_download", failing)
    assert corpora.main(args(tmp_path / "records.jsonl")) == 2
    error = capsys.readouterr().err
    assert error.startswith("corpora: error: cannot fetch Team-ACE/ToolACE from the Hub: ")
    assert told in error and error.endswith("; or use --source DIR\n") and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_long_complaint_of_the_client_is_cut(monkeypatch) -> None:
    def failing(repo_id: str, **options: Any) -> str:
        raise ConnectionError("word " * 1000)

    monkeypatch.setattr(hub, "snapshot_download", failing)
    with pytest.raises(UserError) as caught:
        hub.fetch_corpus("glaive")
    assert len(str(caught.value)) < 450 and str(caught.value).endswith("; or use --source DIR")


@pytest.mark.parametrize("more", [(), ("--revision", "abc")])
def test_what_is_not_on_the_hub_is_told_where_to_find(stand_in: StandIn, tmp_path, capsys, more: tuple) -> None:
    assert corpora.main(args(tmp_path / "records.jsonl", *more, corpus="toolalpaca")) == 2
    error = capsys.readouterr().err
    assert "toolalpaca is not on the Hub" in error and "https://github.com/tangqiaoyu/ToolAlpaca" in error
    assert "--source" in error and error.count("\n") == 1
    assert stand_in.asked == []


# -------------------------------------------------------------------------------------------------------- local sources


def test_a_local_source_is_a_folder_or_file_and_needs_no_hub(stand_in: StandIn, tmp_path: Path, monkeypatch) -> None:
    file = write_lines(tmp_path / "rows.jsonl", {})
    assert hub.locate_source("glaive", str(tmp_path)) == tmp_path
    assert hub.locate_source("glaive", str(file)) == file
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.locate_source("glaive", "~/rows.jsonl") == file
    assert stand_in.asked == []


@pytest.mark.parametrize(
    "source", ["nowhere/corpus", "~no_such_user/corpus", "long" * 100], ids=["missing", "user", "long"]
)
def test_a_source_that_is_not_there_is_named(source: str) -> None:
    """Of a user without a home, and of a name that is too long, Path raises errors of its own."""
    with pytest.raises(UserError, match=f"no such folder or file: {source}"):
        hub.locate_source("glaive", source)


def test_a_revision_without_the_hub_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--revision belongs to --source hub"):
        hub.locate_source("glaive", str(tmp_path), "abc")


def test_a_local_source_is_called_by_its_own_name(tmp_path: Path, monkeypatch) -> None:
    """`.` was called the empty text in the manifest, whatever the folder."""
    (tmp_path / "corpus" / "part").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "corpus")
    for source in (".", "../corpus", "part/..", f"{tmp_path}/corpus/"):
        assert hub.described_source(source, hub.locate_source("glaive", source)) == "corpus"
    os.symlink("part", "link")
    assert hub.described_source("link", hub.locate_source("glaive", "link")) == "link"
    assert hub.described_source("hub", Path("snapshots/abc")) == "hub@abc"
