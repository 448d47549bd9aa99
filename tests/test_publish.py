"""A published head: the folder and its card, and the Hub's own client against a stand-in of the Hub."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch
import yaml
from head_setup import LAYERS, made_head, saved_target
from hub_server import COMMIT, TOKEN, serving
from huggingface_hub import ModelCard, constants

from schemafill.data_prep.target_facts import read_target
from schemafill.inference.model.head_facts import HeadFacts
from schemafill.inference.model.head_files import CONFIG, WEIGHTS, load_head, read_head_files, save_head
from schemafill.inference.request import UserError
from schemafill.training.evaluate import Acceptance
from schemafill.training.export import import_head
from schemafill.training.head_formats import FORMATS
from schemafill.training.model_card import CardInputs, card_text
from schemafill.training.publish import FILES, main

BASE = "org/Target-0.5B"
INPUTS = CardInputs(repo="me/head", base_model=BASE, license="mit", datasets=["org/calls"])


def evaluation() -> dict:
    """Figures as the evaluation gives them, of two depths; one region was never seen, another at the first only."""
    counts = Acceptance.empty(2)
    counts.tried[:] = torch.tensor([[40, 20, 20, 20, 0], [30, 10, 10, 0, 0]])
    counts.right[:] = torch.tensor([[36, 15, 10, 5, 0], [15, 5, 5, 0, 0]])
    counts.known[:] = torch.tensor([95, 45])
    return counts.figures()


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return saved_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, target):
    """The folder of a head of the target, with everything that a run writes down."""
    identity = read_target(str(target)).identity
    facts = HeadFacts.of_target(
        identity, LAYERS, training_data={"rows": 979, "tokens": 41234, "files": {"train.jsonl": "ab12"}},
        training={"learning_rate": 8e-5, "horizons": 2, "region_weights": {"name": 2.0}, "limit": None},
        evaluation=evaluation(),
    )  # fmt: skip
    out = tmp_path_factory.mktemp("heads") / "head"
    save_head(out, made_head(read_config(target)), facts)
    return out


def read_config(target):
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(target)


def arguments(folder, target, *more: str) -> list[str]:
    return ["--head", str(folder), "--repo", "me/head", "--target", str(target), "--base-model", BASE, *more]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A running stand-in that the client takes for the Hub, and a token for it."""
    with serving() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        files = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


# ------------------------------------------------------------------------------------------------------------ the card


def test_the_cards_metadata_is_what_the_hub_reads(folder):
    head = read_head_files(folder)
    data = ModelCard(card_text(head.config, head.facts, INPUTS)).data.to_dict()
    assert data["base_model"] == BASE and data["base_model_relation"] == "adapter"
    assert {"eagle3", "speculative-decoding", "draft-model", "tool-calling"} <= set(data["tags"])
    assert data["library_name"] == "schemafill" and data["license"] == "mit" and data["datasets"] == ["org/calls"]


def test_without_a_licence_the_base_models_is_named(folder):
    head = read_head_files(folder)
    text = card_text(head.config, head.facts, CardInputs(repo="me/head", base_model=BASE))
    data = yaml.safe_load(text.split("---\n")[1])
    assert data["license"] == "other" and data["license_link"] == f"https://huggingface.co/{BASE}"
    assert "datasets" not in data


def test_the_card_shows_the_figures_of_the_head(folder):
    head = read_head_files(folder)
    text = card_text(head.config, head.facts, INPUTS)
    length = 1 + 0.66 + 0.66 * 0.5
    for told in (
        f"**{length:.2f}** tokens per pass", "over 100 starts of drafts", "| 1 | 66.0% | 95.0% |",
        "| 2 | 50.0% | 90.0% |", "| depth | structure | name | key | value |", "| 1 | 90.0% | 75.0% | 50.0% | 25.0% |",
        "| 2 | 50.0% | 50.0% | 50.0% |  |",
        "| rows | 979 |", "| files.train.jsonl | ab12 |", "| learning_rate | 8e-05 |", "| region_weights.name | 2 |",
        "| drafts | 40 of ", "`hidden_states` 2, 3, 4: outputs of layers 1, 2, 3, counted from 0",
        f"schemafill generate --target {BASE} --head me/head --dialect json",
        f"vllm serve {BASE} --speculative-config '{{\"method\": \"eagle3\", \"model\": \"head/vllm\"",
        "--speculative-draft-model-path me/head --speculative-num-steps 3",
    ):  # fmt: skip
        assert told in text, told
    assert "None" not in text and "limit" not in text


def test_a_section_without_figures_is_left_out(folder):
    head = read_head_files(folder)
    full = card_text(head.config, head.facts, INPUTS)
    bare = HeadFacts.of_target(json.loads((folder / CONFIG).read_text())["schemafill"], LAYERS)
    text = card_text(head.config, bare, INPUTS)
    for section in ("## Training data", "## Measured", "## Hyper-parameters", "Figures are of a simulation"):
        assert section in full and section not in text, section
    assert "## Use" in text and "%" not in text
    some = HeadFacts.of_target(
        json.loads((folder / CONFIG).read_text())["schemafill"], LAYERS, evaluation={"acceptance": [0.5]}
    )
    text = card_text(head.config, some, INPUTS)
    assert "| 1 | 50.0% |  |" in text and "accepted length" not in text and "part of:" not in text


# ---------------------------------------------------------------------------------------------------------- the upload


def test_a_dry_run_writes_what_would_be_uploaded(folder, target, tmp_path, hub, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN")
    out = tmp_path / "out"
    assert main(arguments(folder, target, "--dry-run", "--out", str(out))) == 0
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == sorted(FILES)
    assert capsys.readouterr().out.strip() == str(out) and hub.calls == []
    for name in (WEIGHTS, CONFIG):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    assert import_head(out / "vllm", FORMATS["vllm"]).facts == read_head_files(folder).facts
    verifier = json.loads((out / "vllm" / CONFIG).read_text())["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": BASE, "architectures": ["LlamaForCausalLM"]}
    assert main(arguments(folder, target, "--dry-run", "--out", str(out))) == 2
    assert "is not an empty folder" in capsys.readouterr().err


def test_the_uploaded_repository_is_that_of_a_dry_run_and_loads(folder, target, tmp_path, hub, capsys):
    out = tmp_path / "out"
    assert main(arguments(folder, target, "--dry-run", "--out", str(out))) == 0
    assert main(arguments(folder, target, "--private")) == 0
    printed = capsys.readouterr()
    assert f"{hub.url}/me/head/commit/{COMMIT}" in printed.out and TOKEN not in printed.out + printed.err
    repository = hub.repositories["me/head"]
    assert repository["private"] and not [path for path in hub.without_token if "me/head" in path]
    assert repository["files"] == {name: (out / name).read_bytes() for name in FILES}
    assert len(hub.stored) == 2  # weights went as large files
    head, facts = load_head("me/head")
    ours, wanted = load_head(folder)
    assert facts == wanted and all(torch.equal(head.state_dict()[name], t) for name, t in ours.state_dict().items())
    fetched = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_symlink()]
    assert sorted(fetched) == [CONFIG, WEIGHTS]  # not the other form


def test_a_repository_that_is_there_is_filled_again(folder, target, hub):
    hub.repositories["me/head"] = {"private": False, "files": {"other.txt": b"stays"}}
    assert main(arguments(folder, target)) == 0
    assert hub.repositories["me/head"]["files"].keys() == {"other.txt", *FILES}


def test_what_is_to_be_private_is_not_put_where_all_can_see_it(folder, target, hub, capsys):
    hub.repositories["me/head"] = {"private": False, "files": {}}
    assert main(arguments(folder, target, "--private")) == 2
    assert "cannot publish me/head: it is there and public" in capsys.readouterr().err
    assert hub.repositories["me/head"]["files"] == {} and hub.stored == {}
    hub.repositories["me/head"]["private"] = True
    assert main(arguments(folder, target, "--private")) == 0


def test_the_endpoint_and_the_token_come_from_the_environment(folder, target, tmp_path):
    """In a process of its own, as a user runs it."""
    with serving() as server:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path)}
        environment["HF_HUB_DISABLE_XET"] = "1"  # its storage is no HTTP that could be stood in for
        command = [sys.executable, "-m", "schemafill.training.publish", *arguments(folder, target)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert server.repositories["me/head"]["files"].keys() == set(FILES)
        assert TOKEN not in done.stdout + done.stderr
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "cannot publish me/head: the Hub does not know the token"),
        (403, "cannot publish me/head: the token has no right to write there"),
        (400, "cannot publish me/head: "),
    ],
)
def test_a_refusal_is_told_in_one_line_without_the_token(folder, target, hub, capsys, status, message):
    hub.status = status
    assert main(arguments(folder, target)) == 2
    told = capsys.readouterr()
    last = told.err.strip().splitlines()[-1]
    assert message in last and TOKEN not in told.out + told.err and "Traceback" not in told.err


def test_a_hub_that_does_not_know_us_halfway_is_told(folder, target, hub, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    assert main(arguments(folder, target)) == 2
    assert "the Hub does not know the token" in capsys.readouterr().err and hub.repositories == {}


def test_without_a_token_nothing_is_tried(folder, target, hub, monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no"))
    assert main(arguments(folder, target)) == 2
    assert "no Hub token: set HF_TOKEN or run `hf auth login`" in capsys.readouterr().err and hub.calls == []


def test_a_network_that_is_down_is_told_in_one_line(folder, target, hub, monkeypatch, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    assert main(arguments(folder, target)) == 2
    told = capsys.readouterr().err
    assert f"cannot publish me/head to {address}: " in told and "Traceback" not in told and told.count("\n") == 1


def test_a_head_on_a_hub_that_fails_is_told_in_one_line(hub):
    with pytest.raises(UserError, match="no folder me/nothing, and the Hub does not give head me/nothing") as caught:
        load_head("me/nothing")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--repo", "head"], "--repo head: must be of the form org/name"),
        (["--repo", "a/b/c"], "--repo a/b/c: "),
        (["--dry-run"], "--dry-run and --out belong together"),
        (["--out", "x"], "--dry-run and --out belong together"),
        (["--base-model", "a folder"], "target 'a folder' is no Hub id: name the model it is with --base-model"),
        (["--head", "no/where/at/all"], "no such head"),
    ],
)
def test_faults_of_a_user_are_one_line_and_code_2(folder, target, hub, capsys, change, message):
    assert main([*arguments(folder, target), *change]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1 and hub.calls == []
