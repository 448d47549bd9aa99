"""The rollout command: which options it hands on, which it refuses, and what a job is recognised by."""

import subprocess
import sys
from pathlib import Path

import pytest
from rollout_setup import tiny_facts

from schemafill.data_prep import rollout, rollout_job
from schemafill.inference.request import SamplingParams

FACTS = tiny_facts()


def run_main(monkeypatch, *more: str) -> tuple[int, object]:
    """Exit code of the command and the configuration that it came to, None where it did not."""
    seen = []
    monkeypatch.setattr(rollout_job, "run_rollout", seen.append)
    code = rollout.main(["--target", "t", "--records", "r.jsonl", "--out", "o.jsonl", *more])
    return code, seen[0] if seen else None


def test_the_command_hands_every_option_on(monkeypatch):
    common = [
        "--temperature", "0.5", "--top-p", "0.9", "--top-k", "7", "--seed", "11", "--limit", "9", "--max-new-tokens",
        "33", "--max-prompt-tokens", "44", "--dialect", "hermes", "--unsealed", "--trust-remote-code",
    ]  # fmt: skip
    server = ["--backend", "openai", "--base-url", "http://h/v1", "--model", "m", "--concurrency", "3"]
    code, config = run_main(monkeypatch, *common, *server, "--send", "text")
    assert code == 0
    assert (config.backend, config.base_url, config.model) == ("openai", "http://h/v1", "m")
    assert (config.concurrency, config.send, config.limit) == (3, "text", 9)
    assert config.sampling == SamplingParams(temperature=0.5, top_p=0.9, top_k=7, seed=11, max_new_tokens=33)
    assert (config.max_prompt_tokens, config.dialect) == (44, "hermes")
    assert (config.unsealed, config.trust_remote_code) == (True, True)
    assert config.records == [Path("r.jsonl")] and config.out == Path("o.jsonl")
    local = ["--batch-size", "5", "--device", "cpu", "--dtype", "float32", "--threads", "2", "--features", "f"]
    code, config = run_main(monkeypatch, *local)
    assert code == 0 and (config.batch_size, config.device, config.dtype) == (5, "cpu", "float32")
    assert (config.threads, config.features) == (2, Path("f"))


def test_options_that_are_not_given_have_the_defaults_of_their_backend(monkeypatch):
    config = run_main(monkeypatch)[1]
    assert (config.backend, config.batch_size, config.device, config.dtype) == ("batched", 16, "auto", "auto")
    assert (config.threads, config.features, config.base_url, config.concurrency) == (None, None, None, None)
    config = run_main(monkeypatch, "--backend", "openai", "--base-url", "u", "--model", "m")[1]
    assert (config.concurrency, config.send, config.device, config.batch_size) == (16, "ids", None, None)


@pytest.mark.parametrize(
    ("backend", "option", "value"),
    [
        ("openai", "--batch-size", "16"), ("openai", "--threads", "2"), ("openai", "--device", "auto"),
        ("openai", "--dtype", "float32"), ("openai", "--features", "f"), ("engine", "--batch-size", "2"),
        ("engine", "--features", "f"), ("batched", "--send", "ids"), ("batched", "--concurrency", "16"),
        ("local", "--base-url", "u"), ("engine", "--model", "m"),
    ],
)  # fmt: skip
def test_an_option_of_another_backend_is_refused(monkeypatch, capsys, backend, option, value):
    """They were read and ignored."""
    more = ["--base-url", "u", "--model", "m"] if backend == "openai" else []
    code, config = run_main(monkeypatch, "--backend", backend, *more, option, value)
    err = capsys.readouterr().err
    assert code == 2 and config is None and f"{option} belongs to the " in err and err.count("\n") == 1


def test_the_settings_of_a_job_that_runs_keep_their_names_and_values(monkeypatch):
    """A job goes on under equal settings only: with another name or default none that was begun could go on."""
    settings = run_main(monkeypatch)[1].asked_settings(FACTS)
    assert list(settings) == [
        "target", "revision", "files_sha256", "tokenizer_sha256", "prompt", "template_sha256", "template_options",
        "dialect", "vocab_size", "end_ids", "temperature", "top_p", "top_k", "seed", "max_new_tokens",
        "max_prompt_tokens", "backend", "model", "dtype_asked", "device_asked",
    ]  # fmt: skip
    assert settings["template_options"] == {} and settings["model"] is None
    assert (settings["backend"], settings["dtype_asked"], settings["device_asked"]) == ("batched", "auto", "auto")
    server = run_main(monkeypatch, "--backend", "openai", "--base-url", "u", "--model", "m")[1].asked_settings(FACTS)
    assert (server["send"], server["model"]) == ("ids", "m")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--backend", "openai"], "needs --base-url and --model"),
        (["--base-url", "http://h"], "--base-url belongs to the openai backend, not to batched"),
        (["--backend", "vllm"], "invalid choice"),
        (["--temperature", "-1"], "temperature must be"),
    ],
)
def test_wrong_options_are_one_line(monkeypatch, capsys, options, fault):
    code, config = run_main(monkeypatch, *options)
    err = capsys.readouterr().err
    assert code == 2 and config is None and fault in err and err.count("\n") == 1


def test_local_is_the_batched_backend(monkeypatch):
    local, batched = (run_main(monkeypatch, "--backend", name)[1] for name in ("local", "batched"))
    assert local.asked_settings(FACTS) == batched.asked_settings(FACTS)


def test_help_needs_no_model_library():
    """Nor does the file of a job, which knows nothing of targets; importing it took seconds."""
    script = """
import sys
from importlib import import_module
import schemafill.data_prep.rollout_file
for step in ("corpora", "suites", "split", "augment", "rollout", "draft_vocab", "data_card"):
    import_module(f"schemafill.data_prep.{step}").main(["--help"])
print("torch" in sys.modules, "transformers" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False False"
