"""The worked examples of data_prep/README.md: what stands there as upstream gives what stands there as the record."""

import json
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from schemafill.data_prep.corpora import CORPORA
from schemafill.data_prep.records import Record

README = Path(__file__).parents[1] / "data_prep" / "README.md"
EXAMPLES = re.search(r"<!-- examples: start -->(.*)<!-- examples: end -->", README.read_text(), re.DOTALL)[1]
SECTIONS = dict(zip(*[iter(re.split(r"^### (.+)$", EXAMPLES, flags=re.MULTILINE)[1:])] * 2, strict=True))
BLOCK = re.compile(r"^(?:`(?P<file>[^`\n]+)`|record)\n```json\n(?P<text>.*?)\n```$", re.MULTILINE | re.DOTALL)


def test_every_corpus_has_an_example() -> None:
    assert list(SECTIONS) == list(CORPORA)


@pytest.mark.parametrize("name", SECTIONS)
def test_the_rows_give_the_record(name: str, tmp_path: Path) -> None:
    *files, record = BLOCK.finditer(SECTIONS[name])
    for file in files:
        path = tmp_path / file["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["text"])
    [found] = CORPORA[name].read(tmp_path)
    assert isinstance(found, Record) and found.to_json() == json.loads(record["text"])


COMMANDS = [
    line.split("  #")[0]
    for line in re.search(r"```bash\n(.*?)```", README.read_text(), re.DOTALL)[1].splitlines()
    if line.startswith("python -m ")
]


@pytest.mark.parametrize("command", COMMANDS, ids=[command.split()[2].rpartition(".")[2] for command in COMMANDS])
def test_the_commands_are_understood(command: str) -> None:
    _, _, module, *options = shlex.split(command)
    args = import_module(module).build_parser().parse_args(options)
    assert callable(args.run)


def test_every_step_has_a_command() -> None:
    steps = {path.stem for path in README.parent.glob("*.py") if "__main__" in path.read_text()}
    assert {command.split()[2].rpartition(".")[2] for command in COMMANDS} == steps
