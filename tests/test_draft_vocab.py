"""The draft vocabulary: what is always in it, in which order the rest comes, and what it says of itself."""

import json
import os
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
import torch
from models import byte_level_tokenizer, weather_tools
from rollout_setup import StubBackend, record_row, roll_out, tiny_facts, write_rows
from safetensors import safe_open
from safetensors.torch import load_file
from sealed_files import sealed

from schemafill.data_prep import draft_vocab
from schemafill.data_prep.manifest import manifest_path, read_manifest
from schemafill.data_prep.token_regions import token_regions
from schemafill.data_prep.tool_words import tool_words
from schemafill.data_prep.vocab_choice import choose_vocab
from schemafill.inference.request import UserError
from schemafill.inference.toolcall.dialects import get_dialect

FACTS = tiny_facts()
TEXTS = [FACTS.vocabulary.text_of([token]) for token in range(FACTS.vocab_size)]
SIZE = 250


def token(text: str) -> int:
    [found] = FACTS.vocabulary.encode(text)
    return found


def rollouts(path: Path, *requests: str, **options: object) -> Path:
    records = write_rows(path.with_suffix(".records"), [record_row(text, str(n)) for n, text in enumerate(requests)])
    roll_out(records, path, FACTS, StubBackend(FACTS), **options)
    return path


@pytest.fixture
def as_target(monkeypatch):
    """Lets the command find the small target under any name."""
    monkeypatch.setattr("schemafill.data_prep.target_facts.read_target", lambda *_, **__: FACTS)


def run(*argv: object) -> int:
    return draft_vocab.main([str(one) for one in argv])


# ------------------------------------------------------------------------------------------------------------- choice


def test_what_every_call_needs_is_always_there():
    chosen = set(choose_vocab(SIZE, FACTS, Counter(), Counter()).ids)
    for signs in ("{", "}", "[", "]", '"', ":", ",", "`", '":', ' "', "{\"", *"0123456789"):
        assert set(FACTS.vocabulary.encode(signs)) <= chosen, signs
    assert set(FACTS.end_ids) <= chosen


def test_white_space_is_there_where_it_was_written():
    line_break = token("\n")
    assert line_break not in choose_vocab(60, FACTS, Counter(), Counter()).ids
    assert line_break in choose_vocab(60, FACTS, Counter([line_break]), Counter()).ids


def test_the_most_frequent_tokens_come_first():
    fixed = choose_vocab(SIZE, FACTS, Counter(), Counter())
    room = 3
    size = len(fixed.ids) - fixed.counts["filled"] + room
    letters = [token(sign) for sign in "qwxyz"]
    written = Counter({one: count for count, one in enumerate(letters, start=1)})
    choice = choose_vocab(size, FACTS, written, Counter())
    assert set(letters) & set(choice.ids) == set(letters[2:])
    assert choice.counts["by_frequency"] == 3 and choice.counts["by_frequency_left_out"] == 2
    assert choice.counts["filled"] == 0


def test_words_of_tools_come_before_completions_and_take_half_at_most():
    fixed = choose_vocab(SIZE, FACTS, Counter(), Counter())
    num_fixed = len(fixed.ids) - fixed.counts["filled"]
    letters = [token(sign) for sign in "qwxyz"]
    words = Counter({one: 5 - at for at, one in enumerate(letters)})
    written = Counter({token("A"): 9})
    choice = choose_vocab(num_fixed + 4, FACTS, written, words)
    assert set(letters[:4]) <= set(choice.ids) and token("A") not in choice.ids
    many = Counter(range(60, 260))
    choice = choose_vocab(200, FACTS, written, many)
    assert choice.counts["tool_words"] <= 100 and token("A") in choice.ids
    assert choice.counts["tool_words"] + choice.counts["tool_words_left_out"] >= 100


def test_too_few_tokens_are_filled_up_with_the_lowest_ids_of_plain_text():
    written = Counter([token("w")])
    choice = choose_vocab(SIZE, FACTS, written, Counter())
    without = choose_vocab(SIZE - choice.counts["filled"], FACTS, written, Counter())
    filled = sorted(set(choice.ids) - set(without.ids))
    assert without.counts["filled"] == 0 and len(filled) == choice.counts["filled"] > 20
    highest = filled[-1]
    for one in range(highest):
        is_plain = not FACTS.vocabulary.is_special(one) and "\ufffd" not in TEXTS[one]
        assert (one in choice.ids) or not is_plain, (one, TEXTS[one])
    assert not any(FACTS.vocabulary.is_special(one) for one in filled)


def test_ids_ascend_and_are_as_many_as_asked_for():
    for size in (60, 150, SIZE):
        ids = choose_vocab(size, FACTS, Counter(range(50, 300)), Counter()).ids
        assert len(ids) == size == len(set(ids)) and ids == sorted(ids)


@pytest.mark.parametrize(("size", "fault"), [(5, "too small"), (2000, "too large")])
def test_a_size_that_cannot_be_is_refused(size, fault):
    with pytest.raises(UserError, match=fault):
        choose_vocab(size, FACTS, Counter(), Counter())


def test_words_of_tools_are_names_parameters_and_listed_values():
    words = list(tool_words(weather_tools()))
    for word in (': "get_weather", "', ', "city": "', ', "zip": "', ', "place": "', ': "kelvin", '):
        assert word in words
    assert not any("[]" in word or "Name of the city" in word for word in words)


# ------------------------------------------------------------------------------------------------------------ regions


def regions_of(text: str, dialect: str = "json") -> list[tuple[str, str]]:
    """Runs of text of one region."""
    facts = tiny_facts(dialect)
    ids = [*facts.vocabulary.encode(text), facts.end_ids[0]]
    regions = zip(ids, token_regions(ids, facts.vocabulary, facts.dialect, facts.end_ids), strict=True)
    runs = [([one for one, _ in run], region) for region, run in groupby(regions, key=lambda pair: pair[1])]
    return [(facts.vocabulary.text_of(run), region) for run, region in runs]


CALL = '{"name": "get_weather", "arguments": {"city": "São \\" Paulo", "days": 12, "tags": ["a", true]}}'
PARTS = [("get_weather", "name"), ("city", "key"), ('São \\" Paulo', "value"), ("days", "key"), ("12", "value")]


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        (f'{{"tool_calls": [{CALL}]}}', "json"),
        (f'```json\n{{"tool_calls": [\n {CALL}\n]}}', "json"),
        (f"<tool_call>\n{CALL}\n</tool_call>", "hermes"),
        (f"[TOOL_CALLS] [{CALL}]", "mistral"),
        (CALL.replace("arguments", "parameters"), "llama3"),
    ],
)
def test_each_token_has_the_region_it_stands_in(text, dialect):
    runs = regions_of(text, dialect)
    assert "".join(spelt for spelt, _ in runs) == text + "<|endoftext|>"
    found = [(spelt.strip(' "'), region) for spelt, region in runs if region not in ("structure", "other")]
    assert found[:5] == PARTS
    assert [region for spelt, region in found[5:]] == ["key", "value", "value"]
    assert not any(region == "other" for _, region in runs)


def test_text_outside_calls_is_no_structure():
    assert regions_of("The gate is open.")[0] == ("The gate is open.", "other")
    assert regions_of("")[0][1] == "structure"  # the end sign alone


# ---------------------------------------------------------------------------------------------------- file and command


def test_the_file_maps_draft_ids_to_target_ids_and_back(tmp_path, as_target, capsys):
    one = rollouts(tmp_path / "one.jsonl", "say hi", "say ho")
    out = tmp_path / "vocab.safetensors"
    assert run("--rollouts", one, "--size", SIZE, "--out", out) == 0
    maps = load_file(out)
    assert maps.keys() == {"d2t", "t2d"}
    assert maps["d2t"].dtype == torch.int64 and maps["d2t"].shape == (SIZE,)
    assert maps["t2d"].dtype == torch.bool and maps["t2d"].shape == (FACTS.vocab_size,)
    targets = torch.arange(SIZE) + maps["d2t"]
    assert (targets.diff() > 0).all()
    assert maps["t2d"].nonzero()[:, 0].equal(targets)
    with safe_open(out, "pt") as file:
        assert file.metadata() == {"target": "tiny", "tokenizer_sha256": FACTS.identity["tokenizer_sha256"]}
    printed = capsys.readouterr().out
    assert f"{SIZE} of {FACTS.vocab_size} tokens, from 2 rollouts" in printed
    assert "filled up with the lowest ids" in printed and "covers 100.00%" in printed
    assert "no words of tools are forced in" in printed


def test_coverage_is_told_by_region(tmp_path, as_target):
    one = rollouts(tmp_path / "one.jsonl", "qqqq", "zzzz")
    run("--rollouts", one, "--size", SIZE, "--out", tmp_path / "v.safetensors")
    counts = read_manifest(tmp_path / "v.safetensors").counts
    coverage = counts["coverage"]
    assert coverage["all"][1] == sum(total for region, (_, total) in coverage.items() if region != "all")
    assert all(coverage[region][1] for region in ("structure", "name", "key", "value"))
    assert coverage["value"] == [8, 8] and counts["read"] == 2
    tight = 45
    run("--rollouts", one, "--size", tight, "--out", tmp_path / "w.safetensors")
    small = read_manifest(tmp_path / "w.safetensors").counts["coverage"]
    assert small["all"][0] < small["all"][1] and small["structure"][0] >= small["structure"][1] * 0.5


def test_unusable_rows_are_not_counted(tmp_path, as_target):
    one = rollouts(tmp_path / "one.jsonl", "short", "q" * 600, max_prompt_tokens=500)
    run("--rollouts", one, "--size", SIZE, "--out", tmp_path / "v.safetensors")
    assert read_manifest(tmp_path / "v.safetensors").counts["read"] == 1


def test_words_of_the_records_tools_are_forced_in(tmp_path, as_target, capsys):
    one = rollouts(tmp_path / "one.jsonl", "say hi")
    rows = [record_row("x", "x") | {"tools": weather_tools()}]
    records = write_rows(tmp_path / "r.jsonl", rows)
    for name, more in (("without", []), ("with", ["--records", records, "--unsealed"])):
        assert run("--rollouts", one, "--size", 100, "--out", tmp_path / name, *more) == 0
    needed = set(FACTS.vocabulary.encode(': "kelvin", '))
    chosen = {name: set(load_file(tmp_path / name)["t2d"].nonzero()[:, 0].tolist()) for name in ("without", "with")}
    assert needed <= chosen["with"] and not needed <= chosen["without"]
    assert read_manifest(tmp_path / "with").counts["tool_words"] > 0
    assert capsys.readouterr().out.count("no words of tools are forced in") == 1


def test_records_that_were_not_rolled_out_are_refused(tmp_path, as_target, capsys):
    rows = [record_row("say hi", "x") | {"tools": weather_tools()}]
    records, one = sealed(tmp_path / "r.jsonl", rows), tmp_path / "one.jsonl"
    roll_out(records, one, FACTS, StubBackend(FACTS))
    assert run("--rollouts", one, "--records", records, "--size", SIZE, "--out", tmp_path / "v") == 0
    others = sealed(tmp_path / "others.jsonl", [record_row("x", "x")])
    paths = ["--rollouts", one, "--records", records, others, "--size", SIZE, "--out", tmp_path / "w"]
    assert run(*paths) == 2
    assert f"no rollouts file was made from {others}" in capsys.readouterr().err
    assert run(*paths, "--unsealed") == 0


@pytest.mark.parametrize("option", ["--rollouts", "--records"])
def test_a_file_that_is_named_twice_is_refused(tmp_path, as_target, capsys, option):
    """Its tokens counted twice."""
    one = rollouts(tmp_path / "one.jsonl", "a")
    twice = {"--rollouts": [one], "--records": [one.with_suffix(".records")]}
    twice[option] *= 2
    paths = [one for name, named in twice.items() for one in (name, *named)]
    assert run(*paths, "--unsealed", "--size", SIZE, "--out", tmp_path / "v") == 2
    assert "the same file is named twice" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", ".", "/", "n" * 250, "folder", "fifo"])
def test_an_output_that_is_no_file_is_refused(tmp_path, as_target, capsys, monkeypatch, name):
    one = rollouts(tmp_path / "one.jsonl", "a")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert run("--rollouts", one, "--size", SIZE, "--out", name) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and (tmp_path / "fifo").is_fifo()


@pytest.mark.parametrize("field", ["target", "dialect", "end_ids", "vocab_size", "revision", "tokenizer_sha256"])
def test_a_manifest_without_a_field_is_named(tmp_path, as_target, capsys, field):
    one = rollouts(tmp_path / "one.jsonl", "a")
    facts = json.loads(manifest_path(one).read_text())
    del facts["settings"][field]
    manifest_path(one).write_text(json.dumps(facts))
    assert run("--rollouts", one, "--size", SIZE, "--out", tmp_path / "v") == 2
    assert f"one.jsonl.manifest.json: settings.{field}: " in capsys.readouterr().err


def test_rollouts_of_two_targets_are_not_mixed(tmp_path, as_target, capsys):
    one, two = rollouts(tmp_path / "one.jsonl", "a"), rollouts(tmp_path / "two.jsonl", "b")
    facts = json.loads(manifest_path(two).read_text())
    facts["settings"]["template_sha256"] = "0" * 64
    manifest_path(two).write_text(json.dumps(facts))
    assert run("--rollouts", one, two, "--size", SIZE, "--out", tmp_path / "v") == 2
    assert "not made with the same target: template_sha256 is" in capsys.readouterr().err
    assert not (tmp_path / "v").exists()


def test_another_tokenizer_is_refused(tmp_path, monkeypatch, capsys):
    one = rollouts(tmp_path / "one.jsonl", "a")
    other = tiny_facts("hermes", end_signs=("<|im_end|>",))
    monkeypatch.setattr("schemafill.data_prep.target_facts.read_target", lambda *_, **__: other)
    assert run("--rollouts", one, "--size", SIZE, "--out", tmp_path / "v", "--target", "o") == 2
    assert "is not the one that wrote the rollouts: end_ids is" in capsys.readouterr().err


def test_a_file_that_is_no_rollouts_file_is_refused(tmp_path, as_target, capsys):
    records = write_rows(tmp_path / "r.jsonl", [record_row("a", "a")])
    assert run("--rollouts", records, "--size", SIZE, "--out", tmp_path / "v") == 2
    assert "has no manifest" in capsys.readouterr().err


def test_a_target_that_is_not_found_asks_for_its_place(tmp_path, capsys):
    one = rollouts(tmp_path / "one.jsonl", "a")
    facts = json.loads(manifest_path(one).read_text())
    facts["settings"]["target"] = str(tmp_path / "nowhere")
    manifest_path(one).write_text(json.dumps(facts))
    assert run("--rollouts", one, "--size", SIZE, "--out", tmp_path / "v") == 2
    assert "say with --target where it is" in capsys.readouterr().err


def test_running_again_says_so(tmp_path, as_target, capsys):
    one = rollouts(tmp_path / "one.jsonl", "a")
    for _ in range(2):
        assert run("--rollouts", one, "--size", SIZE, "--out", tmp_path / "v") == 0
    assert "is there already" in capsys.readouterr().out
    assert run("--rollouts", one, "--size", SIZE + 1, "--out", tmp_path / "v") == 2
    assert "size was 250, is 251" in capsys.readouterr().err


def test_the_small_vocabulary_is_what_these_tests_take_it_for():
    """Letters and line breaks are tokens of their own; the tests above count on it."""
    assert all(len(FACTS.vocabulary.encode(sign)) == 1 for sign in "qwxyzA\n")
    assert len(byte_level_tokenizer()) > SIZE and get_dialect("json").stops_at_object
