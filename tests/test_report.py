import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fake_engine import FakeEngine, completion, install

from schemafill.inference.bench import run_bench
from schemafill.inference.bench_config import BenchConfig
from schemafill.inference.report import write_report
from schemafill.inference.report_page import NUM_SHOWN_REQUESTS, SOURCE_MEANINGS
from schemafill.inference.report_plots import HATCHES, SOURCE_COLOURS
from schemafill.inference.request import SOURCES, UserError

PNG = b"\x89PNG\r\n\x1a\n"
PLOTS = ("speedup.png", "accepted_length.png", "sources.png", "phases.png")


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    methods: tuple[str, ...] = ("ar", "fast", "wrong", "broken"),
    num_requests: int = 2,
    engine: FakeEngine | None = None,
    repeat: int = 1,
) -> Path:
    install(monkeypatch, engine or FakeEngine())
    texts = [f"<img src=x onerror=alert({idx})> </script>" for idx in range(num_requests)]
    rows = [{"id": f"r{idx}", "messages": [{"role": "user", "content": t}], "tools": []} for idx, t in enumerate(texts)]
    suite = folder.with_suffix(".jsonl")
    suite.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_bench(BenchConfig(target="toy", suite=str(suite), methods=methods, out=folder, repeat=repeat))
    return folder


def markdown_table(text: str, title: str) -> list[list[str]]:
    """Cells of the table under a heading, the rule left out."""
    part = text.split(f"### {title}\n\n", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in part.splitlines()]
    return [rows[0], *rows[2:]]


class Page(HTMLParser):
    """Tags, attributes and the JSON data of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.data = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if tag == "script" and attributes.get("id") == "data":
            self.data += data
        elif tag in ("td", "th"):
            self.cells[-1] += data

    def viewer(self) -> dict:
        return json.loads(self.data)


def page_of(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of all four methods on two requests, twice, with its report."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = run(tmp_path_factory.mktemp("shared") / "run", monkeypatch, repeat=2)
    write_report([folder])
    return folder


def test_markdown_holds_the_figures_and_their_formulas(reported: Path) -> None:
    text = (reported / "report.md").read_text(encoding="utf-8")

    header, ar, fast, wrong, broken = markdown_table(text, "Methods")
    column = {name: header.index(name) for name in header}
    assert [row[0] for row in (ar, fast, wrong, broken)] == ["ar", "fast", r"wrong \*", "broken"]
    assert fast[column["speed-up"]] == "3.00x"
    assert fast[column["decode only"]] == "6.33x"
    assert fast[column["accepted length"]] == "3.00"
    assert fast[column["agreement"]] == "100.0% (≥34.2%)"
    assert wrong[column["agreement"]] == "0.0% (≥0.0%)"
    assert (broken[column["failed"]], broken[column["accepted length"]]) == ("4", "-")
    assert "- speed-up: tok/s of the method / tok/s of ar in the same run" in text
    assert markdown_table(text, "Output tokens by source")[2] == ["fast", "33.3%", "66.7%", "0.0%"]
    assert markdown_table(text, "Where the time goes")[1][:3] == ["ar", "250.0 (4.2%)", "1000.0 (16.7%)"]
    assert markdown_table(text, "Why fast was rejected")[1:] == [["value end", "8", "100.0%"]]
    assert markdown_table(text, "Outputs that differ from ar's")[1] == ["r0", "wrong", "0", "5", "6"]
    assert len(markdown_table(text, "Failed runs")) == 5
    assert all(f"]({name})" in text for name in PLOTS)


def test_markdown_shows_foreign_text_as_it_is(reported: Path) -> None:
    text = (reported / "report.md").read_text(encoding="utf-8")
    [_, row] = markdown_table(text, "Why wrong was rejected")
    assert row == [r"&lt;b&gt;odd&lt;/b&gt; \| reason", "12", "100.0%"]
    assert "<b>" not in text and "<img" not in text and "<memory>" not in text


def test_only_the_ten_commonest_reasons_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(method: str, request: str, trace: bool):
        done = completion(trace=trace)
        done.stats.rejections = {f"reason {idx:02}": 30 - idx for idx in range(12)}
        return done

    folder = run(tmp_path / "run", monkeypatch, ("ar",), 1, FakeEngine(script))
    write_report([folder])
    text = (folder / "report.md").read_text(encoding="utf-8")
    reasons = [row[0] for row in markdown_table(text, "Why ar was rejected")[1:]]
    assert reasons == [f"reason {idx:02}" for idx in range(10)]
    assert "294 rejections; 39 for other reasons." in text


def test_long_lists_say_how_much_they_leave_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path / "run", monkeypatch, ("broken",), 23)
    write_report([folder])
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert len(markdown_table(text, "Failed runs")) == 1 + 20
    assert "- and 3 more\n" in text


def test_plots_are_pngs_and_the_page_holds_the_same(reported: Path) -> None:
    inlined = [attributes["src"] for tag, attributes in page_of(reported).tags if tag == "img"]
    assert len(inlined) == len(PLOTS)
    for name, source in zip(PLOTS, inlined, strict=True):
        png = (reported / name).read_bytes()
        assert png.startswith(PNG) and len(png) > 5_000
        assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == png


def test_page_needs_nothing_from_elsewhere(reported: Path) -> None:
    page = page_of(reported)
    links = [a.get(name) for _, a in page.tags for name in ("src", "href", "action") if a.get(name)]
    assert links and all(link.startswith("data:") for link in links)
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "base")]
    text = (reported / "report.html").read_text(encoding="utf-8")
    assert "@import" not in text and "url(" not in text and "fetch(" not in text


def test_foreign_text_never_becomes_markup(reported: Path) -> None:
    page = page_of(reported)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not [tag for tag, attributes in page.tags if "onerror" in attributes or tag == "b"]
    assert "<b>odd</b> | reason" in page.cells  # read back from its escaped form
    first = page.viewer()["runs"][0]["requests"][0]
    assert first["messages"] == [{"role": "user", "text": "<img src=x onerror=alert(0)> </script>"}]
    assert first["outputs"][2]["texts"][-1] == "<script>"
    text = (reported / "report.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2


def test_viewer_data_is_the_trace(reported: Path) -> None:
    [shown] = page_of(reported).viewer()["runs"]
    assert [request["id"] for request in shown["requests"]] == ["r0", "r1"]
    ar, fast, wrong, broken = shown["requests"][0]["outputs"]
    assert [one["method"] for one in (ar, fast, wrong, broken)] == ["ar", "fast", "wrong", "broken"]
    assert fast["sources"] == ["key", "key", "target"] * 2
    assert fast["rounds"] == [[3, 8, 0, 0.5, "value end"]] * 2
    assert "".join(fast["texts"]) == '{"tool_calls": [{"name": "ping", "arguments": {}}]}'
    assert (fast["speedup"], fast["first_divergence"], wrong["first_divergence"]) == (3.0, None, 5)
    assert broken["error"].startswith("RuntimeError: out of <memory>") and broken["rounds"] == []


def test_a_long_suite_shows_failed_and_differing_requests_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = NUM_SHOWN_REQUESTS + 5

    def script(method: str, request: str, trace: bool):
        return completion([0, 1] if method == "fast" and f"alert({last})" in request else [0, 1, 2], trace=trace)

    folder = run(tmp_path / "run", monkeypatch, ("ar", "fast"), last + 1, FakeEngine(script))
    write_report([folder])
    [shown] = page_of(folder).viewer()["runs"]
    assert [one["id"] for one in shown["requests"]] == [
        *(f"r{idx}" for idx in range(NUM_SHOWN_REQUESTS - 1)),
        f"r{last}",
    ]


@pytest.mark.parametrize("methods", [("fast",), ("broken",), ("ar", "broken"), ("wrong", "broken")])
def test_runs_of_one_or_of_failed_methods_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, methods: tuple[str, ...]
) -> None:
    folder = run(tmp_path / "run", monkeypatch, methods, 1)
    write_report([folder])
    header, *rows = markdown_table((folder / "report.md").read_text(encoding="utf-8"), "Methods")
    assert [row[0].rstrip(r" \*") for row in rows] == list(methods)
    if "ar" not in methods:
        assert {row[header.index("speed-up")] for row in rows} == {"-"}
    assert all((folder / name).read_bytes().startswith(PNG) for name in PLOTS)
    assert page_of(folder).viewer()["runs"][0]["requests"]


def test_several_folders_share_one_report_in_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = run(tmp_path / "one", monkeypatch, ("ar", "fast"))
    two = run(tmp_path / "two", monkeypatch, ("ar", "wrong"))
    write_report([one, str(two)])
    text = (one / "report.md").read_text(encoding="utf-8").replace("\\_", "_")
    assert f"## {one}\n" in text and f"## {two}\n" in text
    assert [shown["name"] for shown in page_of(one).viewer()["runs"]] == [str(one), str(two)]
    assert not (two / "report.md").exists()


def test_rows_beyond_the_summary_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path / "run", monkeypatch, repeat=2)
    summary = json.loads((folder / "summary.json").read_text())
    summary["num_requests"], summary["repeat"] = 1, 1
    (folder / "summary.json").write_text(json.dumps(summary))
    write_report([folder])
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert [row[0] for row in markdown_table(text, "Outputs that differ from ar's")[1:]] == ["r0"]


def test_damaged_folders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path / "run", monkeypatch, ("ar",), 1)
    (folder / "summary.json").write_text('{"methods": {"ar": {"tokens": 1}}}')
    with pytest.raises(UserError, match=r"summary\.json: not a summary"):
        write_report([folder])
    (folder / "summary.json").write_text("{")
    with pytest.raises(UserError, match=r"summary\.json: not JSON"):
        write_report([folder])
    with pytest.raises(UserError, match="no folder"):
        write_report([])


def test_every_source_has_a_colour_and_a_meaning() -> None:
    assert set(SOURCE_COLOURS) == set(SOURCE_MEANINGS) == set(SOURCES)
    looks = {(colour, HATCHES[place % len(HATCHES)]) for place, colour in enumerate(SOURCE_COLOURS.values())}
    assert len(looks) == len(SOURCES)
