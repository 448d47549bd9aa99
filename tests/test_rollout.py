"""Rollout jobs: what becomes of records, what a stopped job keeps, and that prompts are those of the engine."""

import json
import os
import signal
from pathlib import Path

import pytest
from cases import CaseItem, case_params, load_items
from models import scripted_engine, weather_tools
from rollout_setup import (
    StubBackend,
    echo_call,
    item_of,
    prompt_of,
    read_rows,
    record_row,
    roll_out,
    tiny_facts,
    write_rows,
)

from schemafill.data_prep import rollout_job
from schemafill.data_prep.engine_backend import EngineBackend
from schemafill.data_prep.manifest import manifest_path, read_manifest
from schemafill.data_prep.prompts import Answer, PromptMaker, seed_of
from schemafill.data_prep.rollout_row import row_of
from schemafill.inference.request import SamplingParams, UserError

FACTS = tiny_facts()


def parts_of(out: Path) -> list[str]:
    """Names of what a job has left beside its output."""
    names = [path.name for path in out.parent.iterdir()]
    return sorted(name for name in names if name.startswith((out.name + ".part", "." + out.name)))


# ---------------------------------------------------------------------------------------------------------------- rows


def test_a_row_holds_what_was_asked_and_what_was_written(tmp_path):
    records = write_rows(tmp_path / "r.jsonl", [record_row("say hi", "a")])
    roll_out(records, tmp_path / "out.jsonl")
    [row] = read_rows(tmp_path / "out.jsonl")
    ids = FACTS.vocabulary.encode(echo_call("say hi"))
    assert row["completion_ids"] == ids, "behind the object that ends it, nothing counts"
    assert FACTS.vocabulary.text_of(row["prompt_ids"]).endswith("Answer:\n")
    assert "say hi" in FACTS.vocabulary.text_of(row["prompt_ids"])
    del row["completion_ids"], row["prompt_ids"]
    assert row == {
        "record_id": "a", "text": echo_call("say hi"), "finish_reason": "tool_calls", "usable": True, "why_not": None,
    }  # fmt: skip


def test_an_end_sign_that_the_target_wrote_is_part_of_the_completion():
    facts = tiny_facts("hermes")
    prompt = prompt_of(facts, "hi")
    ids = [*facts.vocabulary.encode("Hello."), facts.end_ids[1]]
    row = row_of(Answer(prompt, [*ids, 5, 6]), facts)
    assert row["completion_ids"] == ids
    assert (row["text"], row["finish_reason"], row["usable"]) == ("Hello.", "stop", True)


@pytest.mark.parametrize(
    ("text", "end", "is_cut", "why_not", "finish_reason"),
    [
        ("Hello there, this is long.", False, False, "length", "length"),  # longer than the limit of 4 tokens
        ("Hi", False, True, "length", "length"),  # the server stopped at a limit of its own
        ("Hi", False, False, "no_end", "stop"),
        ("", True, False, "empty", "stop"),
        (" \n", True, False, "empty", "stop"),
    ],
)
def test_what_is_no_example_is_kept_and_says_why(text, end, is_cut, why_not, finish_reason):
    facts = tiny_facts("hermes")
    prompt = prompt_of(facts, "hi", max_new_tokens=4)
    ids = facts.vocabulary.encode(text) + [facts.end_ids[0]] * end
    row = row_of(Answer(prompt, ids, is_cut=is_cut), facts)
    assert (row["usable"], row["why_not"], row["finish_reason"]) == (False, why_not, finish_reason)
    assert row["completion_ids"] == ids[:4]


def test_a_prompt_that_is_too_long_is_not_asked_and_not_cut(tmp_path):
    rows = [record_row("short", "a"), record_row("long " * 200, "b")]
    backend = roll_out(
        write_rows(tmp_path / "r.jsonl", rows), tmp_path / "out.jsonl", max_prompt_tokens=500
    )
    long = read_rows(tmp_path / "out.jsonl")[1]
    assert backend.asked == ["a"]
    assert (long["usable"], long["why_not"], long["completion_ids"]) == (False, "prompt_too_long", [])
    assert len(long["prompt_ids"]) > 500
    assert read_manifest(tmp_path / "out.jsonl").left_out == {"prompt_too_long": 1}


def test_an_answer_never_reaches_beyond_the_context():
    facts = tiny_facts(max_positions=400)
    prompt = prompt_of(facts, "hi", max_new_tokens=10_000)
    assert len(prompt.ids) + prompt.limit == 400
    assert prompt_of(facts, "long " * 200).refusal == "prompt_too_long"


def test_a_prompt_that_cannot_be_rendered_is_one_row_s_fault(tmp_path):
    broken = record_row("x", "b") | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
    records = write_rows(tmp_path / "r.jsonl", [record_row("hi", "a"), broken])
    roll_out(records, tmp_path / "out.jsonl")
    fine, row = read_rows(tmp_path / "out.jsonl")
    assert fine["usable"]
    assert row["why_not"].startswith("prompt_failed: messages[0]") and row["finish_reason"] is None


def test_each_record_has_a_seed_of_its_own():
    keys = [item_of(record_row("same", name)).key for name in "ab"]
    assert len({seed_of(seed, key) for seed in (0, 1) for key in keys}) == 4
    assert all(0 <= seed_of(0, key) < 2**31 for key in keys)


@pytest.mark.parametrize("dialect", ["json", "hermes", "mistral", "llama3"])
def test_prompts_are_those_that_the_engine_builds(dialect):
    scripted = scripted_engine("hello", dialect)
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    row = record_row("x", "a") | {
        "messages": [
            {"role": "user", "content": "Weather in Oslo, größe?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
            {"role": "user", "content": "And in Lisbon?"},
        ],
        "tools": weather_tools(),
    }
    scripted.engine.generate(messages=row["messages"], tools=row["tools"], method="ar")
    prompt = PromptMaker(tiny_facts(dialect), SamplingParams()).make(item_of(row))
    assert not prompt.refusal
    assert prompt.ids == scripted.model.prompt_ids


def test_the_engine_as_a_backend_writes_what_the_engine_writes():
    scripted = scripted_engine(echo_call("hi") + "\n```")
    backend = EngineBackend(scripted.engine, SamplingParams())
    [answer] = backend.answer([prompt_of(FACTS, "hi")])
    row = row_of(answer, FACTS)
    assert (row["text"], row["usable"]) == (echo_call("hi"), True)
    assert backend.facts == {"dtype": "float32", "device": "cpu", "row_invariant": False}


def test_an_error_inside_the_engine_is_one_row_s_failure():
    scripted = scripted_engine("hello")
    prompts = [prompt_of(FACTS, "hi", "a"), prompt_of(FACTS, "ho", "b")]
    scripted.engine.generate = lambda **_: 1 // 0
    answers = list(EngineBackend(scripted.engine, SamplingParams()).answer(prompts))
    assert [answer.failure.partition(":")[0] for answer in answers] == ["failed", "failed"]
    assert "ZeroDivisionError" in answers[0].failure


# ------------------------------------------------------------------------------------------------------ shared cases


@pytest.mark.parametrize("item", case_params("data", "D01"))
def test_row_files_are_read_as_the_cases_say(item: CaseItem, tmp_path, capsys):
    [given] = item.given["files"]
    path, out = tmp_path / given["name"], tmp_path / "out.jsonl"
    path.write_bytes(given["text"].encode())
    expect = item.expect
    if not expect["rows"]:
        with pytest.raises(UserError, match=expect["error_mentions"][0]):
            roll_out(path, out)
        return
    roll_out(path, out)
    rows = read_rows(out)
    assert [row["record_id"] for row in rows] == expect["ids"]
    assert len(rows) == expect["rows"] and all(row["usable"] for row in rows)
    for row in rows:
        wanted = expect.get("row_text", {}).get(row["record_id"])
        assert wanted is None or wanted in row["text"]
    counts, err = read_manifest(out).counts, capsys.readouterr().err
    for line in expect.get("reported_lines", ()):
        assert f"left out {path}:{line}: " in err
    for name, count in expect.get("summary_counts", {}).items():
        assert counts[name] == count


def case_rows() -> list[dict]:
    """The rows of the case of a stopped job, as records."""
    items = {item.name: item for item in load_items("data", "D02")}
    if not items:
        pytest.skip("the case files are not here: set SCHEMAFILL_SHARED to the folder that holds cases/")
    [given] = items["kill-and-resume"].given["files"]
    rows = [json.loads(line) for line in given["text"].splitlines()]
    return [record_row(row["prompt"], row.get("id")) for row in rows]


def last_first(count: int) -> list[int]:
    """The first prompt is answered last."""
    return [*range(1, count), 0]


def killed_job(records: Path, out: Path, facts, after: int) -> None:
    """Run a job in a process of its own that is killed, as `kill -9` does it, before answer number `after` (from 0)."""
    child = os.fork()
    if not child:
        backend = StubBackend(
            facts, order=last_first, fails=["this one fails"],
            before=lambda number: number == after and os.kill(os.getpid(), signal.SIGKILL),
        )  # fmt: skip
        try:
            roll_out(records, out, facts, backend)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_a_killed_job_goes_on_and_ends_as_one_that_was_never_stopped(tmp_path, capsys):
    records = write_rows(tmp_path / "prompts.jsonl", case_rows())
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    roll_out(records, whole, FACTS, StubBackend(FACTS, fails=["this one fails"]))
    killed_job(records, out, FACTS, after=3)
    part = tmp_path / "out.jsonl.part.jsonl"
    lines = part.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3 and not out.exists()
    part.write_bytes(b"".join(lines[:2]) + lines[2][: len(lines[2]) // 2])
    capsys.readouterr()

    backend = roll_out(records, out, FACTS, StubBackend(FACTS, order=last_first, fails=["this one fails"]))
    answered_before = {json.loads(line)["row"]["record_id"] for line in lines[:2]}
    cut = json.loads(lines[2])["row"]["record_id"]
    assert cut in backend.asked and not answered_before & set(backend.asked)
    rows = read_rows(out)
    usable = [row for row in rows if row["usable"]]
    assert [row["record_id"] for row in usable if row["record_id"] in "abcg"] == ["a", "b", "c", "g"]
    assert len(rows) == 7 and len({row["record_id"] for row in rows}) == 7
    assert sum("no id here" in row["text"] for row in usable) == 2
    [failed] = [row for row in rows if not row["usable"]]
    assert failed["record_id"] == "f" and failed["why_not"].startswith("failed") and failed["completion_ids"] == []
    assert "f: failed: RuntimeError: the server hung up" in capsys.readouterr().err
    counts = read_manifest(out).counts
    assert counts["read"] == 7 == counts["usable"] + counts["unusable"] and counts["unusable"] == 1
    assert read_manifest(out).left_out == {"failed": 1}
    assert out.read_bytes() == whole.read_bytes()
    assert parts_of(out) == []


CHANGES = {
    "target": ({}, {"target": "another"}),
    "tokenizer_sha256": ({}, {"tokenizer_sha256": "0"}),
    "template_sha256": ({}, {"template_sha256": "0"}),
    "files_sha256": ({}, {"files_sha256": "0"}),
    "temperature": ({"sampling": SamplingParams(temperature=0.8)}, {}),
    "max_new_tokens": ({"sampling": SamplingParams(max_new_tokens=9)}, {}),
    "max_prompt_tokens": ({"max_prompt_tokens": 77}, {}),
    "backend": ({"backend": "engine"}, {}),
}


class Stop(BaseException):
    """Ends a job in a way that nothing catches."""


def stopped_job(records: Path, out: Path, facts, after: int) -> None:
    def stop(number: int) -> None:
        if number == after:
            raise Stop

    with pytest.raises(Stop):
        roll_out(records, out, facts, StubBackend(facts, before=stop))


@pytest.mark.parametrize("name", CHANGES)
def test_a_job_does_not_go_on_under_other_settings(name, tmp_path):
    config, identity = CHANGES[name]
    records = write_rows(tmp_path / "r.jsonl", [record_row(text, text) for text in "abcd"])
    facts, out = tiny_facts(), tmp_path / "out.jsonl"
    stopped_job(records, out, facts, after=2)
    before = (tmp_path / "out.jsonl.part.jsonl").read_bytes()
    facts.identity.update(identity)
    with pytest.raises(UserError, match=rf"other settings \({name} was .*choose another --out"):
        roll_out(records, out, facts, **config)
    assert (tmp_path / "out.jsonl.part.jsonl").read_bytes() == before


def test_a_job_does_not_go_on_with_a_target_in_another_format(tmp_path):
    records = write_rows(tmp_path / "r.jsonl", [record_row(text, text) for text in "abcd"])
    stopped_job(records, tmp_path / "out.jsonl", FACTS, after=2)
    backend = StubBackend(FACTS)
    backend.facts = backend.facts | {"dtype": "bfloat16"}
    with pytest.raises(UserError, match="dtype was 'float32', is 'bfloat16'"):
        roll_out(records, tmp_path / "out.jsonl", FACTS, backend)
    assert backend.asked == []


def test_rows_put_in_between_shift_nothing(tmp_path):
    rows = [record_row(text, text) for text in "abcd"]
    records, out = write_rows(tmp_path / "r.jsonl", rows), tmp_path / "out.jsonl"
    stopped_job(records, out, FACTS, after=2)
    write_rows(records, [record_row("top", "t"), *rows])
    backend = roll_out(records, out, FACTS)
    assert backend.asked == ["t", "c", "d"]
    assert [row["record_id"] for row in read_rows(out)] == ["t", "a", "b", "c", "d"]
    assert all(row["text"] == echo_call(row["record_id"].replace("t", "top")) for row in read_rows(out))


def test_a_record_that_was_changed_is_asked_again(tmp_path):
    records, out = tmp_path / "r.jsonl", tmp_path / "out.jsonl"
    stopped_job(write_rows(records, [record_row("old", "a"), record_row("b", "b")]), out, FACTS, after=1)
    backend = roll_out(write_rows(records, [record_row("new", "a"), record_row("b", "b")]), out, FACTS)
    assert backend.asked == ["a", "b"]
    assert read_rows(out)[0]["text"] == echo_call("new")


def test_a_row_that_failed_is_tried_again_when_the_job_goes_on(tmp_path):
    records, out = write_rows(tmp_path / "r.jsonl", [record_row(t, t) for t in "abc"]), tmp_path / "out.jsonl"

    def stop(number: int) -> None:
        if number == 2:
            raise Stop

    with pytest.raises(Stop):
        roll_out(records, out, FACTS, StubBackend(FACTS, fails=["a"], before=stop))
    backend = roll_out(records, out, FACTS)
    assert backend.asked == ["a", "c"]
    assert all(row["usable"] for row in read_rows(out))


# ---------------------------------------------------------------------------------------------------- the whole job


def test_sigterm_keeps_what_is_there_and_says_how_to_go_on(tmp_path, capsys):
    records, out = write_rows(tmp_path / "r.jsonl", [record_row(t, t) for t in "abc"]), tmp_path / "out.jsonl"
    before = signal.getsignal(signal.SIGTERM)
    backend = StubBackend(FACTS, before=lambda number: number == 1 and os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        roll_out(records, out, FACTS, backend)
    assert "the same command goes on" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before
    assert roll_out(records, out, FACTS).asked == ["b", "c"]


def test_a_finished_job_says_so_and_loads_nothing(tmp_path, capsys):
    records, out = write_rows(tmp_path / "r.jsonl", [record_row("a", "a")]), tmp_path / "out.jsonl"
    roll_out(records, out)
    capsys.readouterr()
    again = roll_out(records, out)
    assert again.asked == [] and "is there already" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"temperature was 0\.0, is 1\.0"):
        roll_out(records, out, sampling=SamplingParams(temperature=1.0))
    with pytest.raises(UserError, match="limit was None, is 1"):
        roll_out(records, out, limit=1)
    assert parts_of(out) == []


def test_several_files_are_one_job_and_limit_counts_over_all(tmp_path):
    one = write_rows(tmp_path / "one.jsonl", [record_row("a", "a"), record_row("b", "b")])
    two = write_rows(tmp_path / "two.jsonl", [record_row("c", "c"), record_row("d", "d")])
    roll_out([one, two], tmp_path / "out.jsonl", limit=3)
    assert [row["record_id"] for row in read_rows(tmp_path / "out.jsonl")] == ["a", "b", "c"]


def test_an_id_that_stands_twice_is_left_out_and_reported(tmp_path, capsys):
    one = write_rows(tmp_path / "one.jsonl", [record_row("a", "a")])
    two = write_rows(tmp_path / "two.jsonl", [record_row("other", "a"), record_row("b", "b")])
    roll_out([one, two], tmp_path / "out.jsonl")
    assert [row["record_id"] for row in read_rows(tmp_path / "out.jsonl")] == ["a", "b"]
    assert f"left out {two}:1: id 'a' stands twice" in capsys.readouterr().err
    assert read_manifest(tmp_path / "out.jsonl").left_out == {"bad_row": 1}


def test_the_manifest_says_what_made_the_rows(tmp_path):
    records, out = write_rows(tmp_path / "r.jsonl", [record_row("a", "a")]), tmp_path / "out.jsonl"
    roll_out(records, out, stub=StubBackend(FACTS), sampling=SamplingParams(seed=3))
    settings = read_manifest(out).settings
    assert settings["target"] == "tiny" and settings["dialect"] == "json" and settings["prompt"] == "plain"
    assert (settings["seed"], settings["row_invariant"], settings["backend"]) == (3, True, "batched")
    assert len(settings["tokenizer_sha256"]) == len(settings["template_sha256"]) == 64
    assert settings["end_ids"] == list(FACTS.end_ids)


def test_settings_that_fail_every_row_end_the_job_early(tmp_path):
    records = write_rows(tmp_path / "r.jsonl", [record_row("same", str(number)) for number in range(40)])
    backend = StubBackend(FACTS, fails=["same"])
    with pytest.raises(UserError, match="the first 25 rows all failed, most with failed: RuntimeError"):
        roll_out(records, tmp_path / "out.jsonl", FACTS, backend)


def test_prompts_are_made_chunk_by_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_job, "CHUNK", 2)
    records = write_rows(tmp_path / "r.jsonl", [record_row(t, t) for t in "abcde"])
    sizes = []

    class Counting(StubBackend):
        def answer(self, prompts):
            sizes.append(len(prompts))
            return super().answer(prompts)

    roll_out(records, tmp_path / "out.jsonl", FACTS, Counting(FACTS))
    assert sizes == [2, 2, 1]
    assert len(read_rows(tmp_path / "out.jsonl")) == 5


def test_an_input_that_was_changed_since_it_was_made_is_refused(tmp_path):
    records, out = write_rows(tmp_path / "r.jsonl", [record_row("a", "a")]), tmp_path / "out.jsonl"
    with pytest.raises(UserError, match="has no manifest"):
        roll_out(records, out, unsealed=False)
    roll_out(records, out)
    manifest_path(out).rename(manifest_path(records))
    with pytest.raises(UserError, match="was changed after it was written"):
        roll_out(records, tmp_path / "other.jsonl")
