"""Answers from a server: the ids that it wrote, exactly, or none at all."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from completions_server import CompletionsServer, Refusal, Reply, serving
from rollout_setup import echo_call, prompt_of, read_rows, record_row, roll_out, tiny_facts, write_rows

from schemafill.data_prep.openai_backend import OpenAIBackend
from schemafill.data_prep.prompts import Prompt
from schemafill.data_prep.rollout_row import row_of
from schemafill.data_prep.target_facts import TargetFacts
from schemafill.inference.request import SamplingParams, UserError

pytest.importorskip("openai", reason="the client is a development requirement: make setup")

JSON, HERMES = tiny_facts("json"), tiny_facts("hermes")
ENDS = HERMES.end_ids


def backend_of(server: CompletionsServer, facts: TargetFacts = HERMES, **options) -> OpenAIBackend:
    params = options.pop("params", SamplingParams())
    return OpenAIBackend(server.url, "m", facts, params, **({"retries": 1} | options))


def pieces_of(facts: TargetFacts, text: str, *, has_ids: bool = True) -> list[tuple[str, list[int] | None]]:
    """One piece for each token, as servers stream."""
    ids = facts.vocabulary.encode(text)
    return [(facts.vocabulary.text_of([token]), [token] if has_ids else None) for token in ids]


def ask(reply: Reply | Refusal, facts: TargetFacts = HERMES, **options) -> tuple[dict, CompletionsServer]:
    """The row that comes of one prompt, and the server that was asked."""
    with serving(lambda _: reply) as server:
        [answer] = backend_of(server, facts, **options).answer([prompt_of(facts, "hi")])
        return row_of(answer, facts), server


def test_ids_are_kept_as_the_server_wrote_them():
    """A split of the text that no tokenizer would make: the ids count, not the text."""
    ids = [HERMES.vocabulary.encode(sign)[0] for sign in "Hello"]
    assert HERMES.vocabulary.encode("Hello") != ids
    pieces = [(sign, [token]) for sign, token in zip("Hello", ids, strict=True)] + [("", [ENDS[1]])]
    row, _ = ask(Reply(pieces))
    assert row["completion_ids"] == [*ids, ENDS[1]]
    assert (row["text"], row["usable"]) == ("Hello", True)


def test_text_is_split_again_where_a_server_returns_no_ids():
    text = "The north gate, größe 北区."
    row, _ = ask(Reply(pieces_of(HERMES, text, has_ids=False), stop_reason=ENDS[2]))
    assert row["completion_ids"] == [*HERMES.vocabulary.encode(text), ENDS[2]]
    assert row["text"] == text and row["usable"]


@pytest.mark.parametrize("text", ["broken \ufffd character", "half \ud83d pair"])
def test_text_that_does_not_come_back_is_not_usable(text):
    row, _ = ask(Reply([(text, None)], stop_reason=ENDS[0]))
    if "\ufffd" in text:  # a replacement sign spells itself: it may be the target's own
        assert row["usable"] and row["text"] == text
    else:
        assert (row["usable"], row["why_not"], row["completion_ids"]) == (False, "not_reencodable", [])


def test_a_vocabulary_that_loses_text_makes_it_not_usable(monkeypatch):
    monkeypatch.setattr(HERMES.vocabulary, "continuation", lambda _, text: HERMES.vocabulary.encode(text.lower()))
    row, _ = ask(Reply([("Hello", None)], stop_reason=ENDS[0]))
    assert (row["usable"], row["why_not"], row["text"]) == (False, "not_reencodable", "Hello")
    assert row["completion_ids"] == []


@pytest.mark.parametrize(
    ("end_signs", "stop_reason", "expected"),
    [
        (("<|im_end|>", "<|endoftext|>"), None, None),  # either may have ended it
        (("<|im_end|>", "<|endoftext|>"), 1, 1),  # the server says which
        (("<|im_end|>",), None, 0),
    ],
)
def test_an_end_sign_that_a_server_keeps_is_only_added_where_it_is_known(end_signs, stop_reason, expected):
    facts = tiny_facts("hermes", end_signs=end_signs)
    named = None if stop_reason is None else facts.end_ids[stop_reason]
    row, _ = ask(Reply(pieces_of(facts, "Hello"), stop_reason=named), facts)
    ids = facts.vocabulary.encode("Hello")
    if expected is None:
        assert (row["usable"], row["why_not"], row["completion_ids"]) == (False, "no_end", ids)
    else:
        assert row["usable"] and row["completion_ids"] == [*ids, facts.end_ids[expected]]


@pytest.mark.parametrize("has_ids", [True, False], ids=["ids", "text"])
def test_an_answer_that_the_server_cut_is_not_usable(has_ids):
    row, _ = ask(Reply(pieces_of(HERMES, "Hello", has_ids=has_ids), finish_reason="length"))
    assert (row["usable"], row["why_not"], row["finish_reason"]) == (False, "length", "length")


@pytest.mark.parametrize("has_ids", [True, False], ids=["ids", "text"])
def test_what_follows_the_object_is_not_waited_for(has_ids):
    """The stream is left when the object closes: without that, this test takes ten seconds."""
    call = echo_call("hi")
    pieces = pieces_of(JSON, call, has_ids=has_ids)
    reply = Reply([*pieces, *[(" more", JSON.vocabulary.encode(" more") if has_ids else None)] * 1000], pause_s=0.01)
    row, server = ask(reply, JSON)
    assert row["text"] == call and row["usable"]
    assert row["completion_ids"] == JSON.vocabulary.encode(call)
    assert server.num_sent < len(pieces) + 500


def test_everything_that_decides_the_answer_is_sent():
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=5, max_new_tokens=20)
    with serving(lambda _: Reply([("Hi", [*HERMES.vocabulary.encode("Hi"), ENDS[1]])])) as server:
        prompt = prompt_of(HERMES, "hi", max_new_tokens=20)
        list(backend_of(server, params=params).answer([prompt]))
        list(backend_of(server, sends_text=True).answer([prompt]))
    asked, greedy = server.requests
    assert asked["prompt"] == prompt.ids and greedy["prompt"] == prompt.text
    assert (asked["model"], asked["max_tokens"], asked["stream"]) == ("m", 20, True)
    assert (asked["temperature"], asked["top_p"], asked["top_k"], asked["seed"]) == (0.7, 0.9, 5, prompt.seed)
    assert (greedy["temperature"], greedy["top_k"]) == (0.0, -1)
    assert asked["return_token_ids"] is True and asked["skip_special_tokens"] is False
    assert asked["repetition_penalty"] == 1.0 and asked["min_p"] == 0.0


def test_a_server_that_reads_another_prompt_is_found_out():
    prompt = prompt_of(HERMES, "hi")
    pieces = pieces_of(HERMES, "Hello")
    row, _ = ask(Reply(pieces, stop_reason=ENDS[0], prompt_ids=[1, *prompt.ids]))
    assert (row["usable"], row["why_not"].partition(":")[0]) == (False, "prompt_differs")
    row, _ = ask(Reply(pieces, stop_reason=ENDS[0], prompt_ids=prompt.ids))
    assert row["usable"]


def test_requests_run_side_by_side_and_no_more_than_asked_for():
    gate = threading.Barrier(4, timeout=10)

    def respond(_: dict) -> Reply:
        gate.wait()  # opens when four stand before it
        return Reply([("Hi", [*HERMES.vocabulary.encode("Hi"), ENDS[1]])])

    prompts = [prompt_of(HERMES, str(number), str(number)) for number in range(8)]
    with serving(respond) as server:
        answers = list(backend_of(server, concurrency=4).answer(prompts))
    assert {answer.prompt.record.id for answer in answers} == {prompt.record.id for prompt in prompts}
    assert server.most_at_once == 4


class Flaky:
    """Fails so many times, then answers."""

    def __init__(self, *failures: Reply | Refusal) -> None:
        self.left = list(failures)

    def __call__(self, _: dict) -> Reply | Refusal:
        return self.left.pop(0) if self.left else Reply([("Hi", [*HERMES.vocabulary.encode("Hi"), ENDS[1]])])


@pytest.mark.parametrize(
    "failure", [Refusal(503), Refusal(429), Reply([("H", HERMES.vocabulary.encode("H"))], breaks_off=True)],
    ids=["not available", "too many requests", "broken off"],
)  # fmt: skip
def test_a_failure_that_may_pass_is_tried_again(failure):
    prompts = [prompt_of(HERMES, "hi")]
    with serving(Flaky(failure)) as server:
        [answer] = backend_of(server, retries=1).answer(prompts)
    assert not answer.failure and len(server.requests) == 2
    with serving(Flaky(failure)) as server:
        [answer] = backend_of(server, retries=0).answer(prompts)
    assert answer.failure.startswith("failed: ")
    assert answer.token_ids == []


def test_a_request_that_is_refused_is_one_row_s_failure():
    def respond(body: dict) -> Reply | Refusal:
        bad = "bad one" in HERMES.vocabulary.text_of(body["prompt"])
        return Refusal(400, "too odd") if bad else Flaky()(body)

    prompts = [prompt_of(HERMES, "bad one", "a"), prompt_of(HERMES, "good one", "b")]
    with serving(respond) as server:
        answers = {answer.prompt.record.id: answer for answer in backend_of(server).answer(prompts)}
    assert "too odd" in answers["a"].failure and not answers["b"].failure


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_address_or_name_ends_the_job(status):
    refusal = Refusal(status, "who are you")
    with serving(lambda _: refusal) as server, pytest.raises(UserError, match="refuses.*who are"):
        list(backend_of(server).answer([prompt_of(HERMES, "hi")]))


def test_a_server_that_is_not_there_ends_the_job_and_keeps_what_came(tmp_path: Path):
    records = write_rows(tmp_path / "r.jsonl", [record_row(text, text) for text in "ab"])
    out = tmp_path / "out.jsonl"

    def respond(body: dict) -> Reply:
        request = "a" if "request: a" in JSON.vocabulary.text_of(body["prompt"]) else "b"
        return Reply(pieces_of(JSON, echo_call(request)))

    with serving(respond) as server:
        address = server.url
        backend = backend_of(server, JSON, retries=0)
    with pytest.raises(UserError, match=f"cannot reach {address}"):
        roll_out(records, out, JSON, backend)
    with serving(respond) as server:
        roll_out(records, out, JSON, backend_of(server, JSON))
    assert [row["text"] for row in read_rows(out)] == [echo_call("a"), echo_call("b")]


@pytest.mark.parametrize(
    "token_ids", [[10**6], [-1], [None], ["5"], [True], 5], ids=["large", "negative", "null", "text", "bool", "number"]
)
def test_ids_that_are_none_of_the_vocabulary_are_not_taken(token_ids):
    """They ended the row as a failure after all tries, or went into the file."""
    hello = HERMES.vocabulary.encode("Hello")
    row, server = ask(Reply([("Hello", hello), ("!", token_ids)], stop_reason=ENDS[0]))
    assert (row["usable"], row["why_not"].partition(":")[0], row["completion_ids"]) == (False, "ids_differ", [])
    assert "vocabulary" in row["why_not"] and len(server.requests) == 1


def test_ids_that_spell_another_text_are_not_taken():
    """A server with another tokenizer: its ids are no ids of the target."""
    row, _ = ask(Reply([("Hello", HERMES.vocabulary.encode("Help!"))], stop_reason=ENDS[0]))
    assert (row["usable"], row["why_not"]) == (False, "ids_differ: the server's ids do not spell its text")
    assert row["text"] == "Hello"


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("Hello", "Hello<|im_end|>"),  # the end sign is hidden
        ("Hello<|im_end|>", "Hello<|im_end|>"),  # and shown
        ("Hello", " Hello"),
        ("nor\ufffd", "nor\ufffd\ufffd"),
        ("nor\ufffdth", "nor\ufffd\ufffdth"),
    ],
)
def test_what_servers_show_differently_is_no_difference(text, spelt):
    row, _ = ask(Reply([(text, HERMES.vocabulary.encode(spelt))], stop_reason=ENDS[0]))
    ids = HERMES.vocabulary.encode(spelt)
    assert row["usable"] and row["completion_ids"] == (ids if ids[-1] in ENDS else [*ids, ENDS[0]])


@pytest.mark.parametrize("at", [0, -1], ids=["first", "last"])
def test_text_counts_where_only_a_part_of_it_has_ids(at):
    """The ids alone would be an answer without its beginning, and end where the object inside it does."""
    call = echo_call("hi").replace("[{", "[\n{").replace("}]", "}\n]")
    pieces = pieces_of(JSON, call)
    pieces[at] = (pieces[at][0], None)
    row, _ = ask(Reply(pieces, stop_reason=JSON.end_ids[0]), JSON)
    assert row["usable"] and row["text"] == call and row["completion_ids"] == JSON.vocabulary.encode(call)


def test_ids_that_cover_more_than_the_output_are_cut_at_its_end():
    """One piece for the whole answer and what follows it: text and ids are compared before they are cut."""
    call = echo_call("hi")
    row, _ = ask(Reply([(call + " more", JSON.vocabulary.encode(call + " more"))]), JSON)
    assert row["usable"] and row["text"] == call


def test_nobody_waits_for_a_server_that_says_nothing():
    """Leaving waited for every request that was under way, up to ten minutes."""
    gate = threading.Event()

    def respond(body: dict) -> Reply:
        if "the first" not in HERMES.vocabulary.text_of(body["prompt"]):
            gate.wait(30)
        return Flaky()(body)

    prompts = [prompt_of(HERMES, text, text) for text in ("the first", "second", "third")]
    with serving(respond) as server:
        answers = backend_of(server, concurrency=3).answer(prompts)
        assert next(answers).prompt.record.id == "the first"
        started = time.monotonic()
        answers.close()
        took_s = time.monotonic() - started
        gate.set()
    assert took_s < 1


def test_sigterm_ends_a_job_at_once_and_keeps_what_is_done(tmp_path: Path, capsys):
    gate = threading.Event()
    rows = [record_row(text, text) for text in ("first", "second")]
    records, out = write_rows(tmp_path / "r.jsonl", rows), tmp_path / "out.jsonl"

    def respond(body: dict) -> Reply:
        if "request: second" in JSON.vocabulary.text_of(body["prompt"]):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
            gate.wait(30)
        return Reply(pieces_of(JSON, echo_call("first")))

    with serving(respond) as server:
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            roll_out(records, out, JSON, backend_of(server, JSON))
        took_s = time.monotonic() - started
        gate.set()
    assert took_s < 3 and "the same command goes on" in capsys.readouterr().err
    lines = (tmp_path / "out.jsonl.part.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"]["record_id"] for line in lines] == ["first"]


def test_leaving_early_ends_what_is_under_way():
    first = Reply([("Hi", [*HERMES.vocabulary.encode("Hi"), ENDS[1]])])
    slow = Reply([(" more", HERMES.vocabulary.encode(" more"))] * 1000, pause_s=0.01)

    def respond(body: dict) -> Reply:
        return first if "the first" in HERMES.vocabulary.text_of(body["prompt"]) else slow

    prompts: list[Prompt] = [prompt_of(HERMES, "the first", "a")]
    prompts += [prompt_of(HERMES, f"number {n}", str(n)) for n in range(6)]
    with serving(respond) as server:
        answers = backend_of(server, concurrency=3).answer(prompts)
        assert next(answers).prompt.record.id == "a"
        answers.close()
        assert len(server.requests) <= 4, "what was not under way is not begun"


def test_requests_are_json_that_a_strict_server_reads():
    """A prompt with signs outside ASCII and half-known options: the body is one JSON object with known types."""
    with serving(lambda _: Flaky()({})) as server:
        list(backend_of(server, sends_text=True).answer([prompt_of(HERMES, "größe 北区 \u2028")]))
    [body] = server.requests
    assert "größe 北区 \u2028" in body["prompt"]
    assert json.loads(json.dumps(body)) == body
