"""A head on the Hugging Face Hub: `python -m schemafill.training.publish`.

The repository holds the form that SGLang and this project read at its top, the one that vLLM reads in `vllm/`, and a
card. `--dry-run --out DIR` writes the very folder that would be uploaded. The token is the Hub client's own business
($HF_TOKEN, or `hf auth login`); it is never printed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from schemafill.inference.command_line import Parser, run_command
from schemafill.inference.fetch import TARGETS
from schemafill.inference.model.head_files import CONFIG, HUB_ID, WEIGHTS, HeadFiles, locate_head, read_head_files
from schemafill.inference.request import UserError
from schemafill.inference.results import write_atomically
from schemafill.training.export import TargetParts, export_head, read_target_parts
from schemafill.training.head_formats import FORMATS
from schemafill.training.model_card import VLLM_FOLDER, CardInputs, card_text

CARD = "README.md"
FILES = (WEIGHTS, CONFIG, CARD, f"{VLLM_FOLDER}/{WEIGHTS}", f"{VLLM_FOLDER}/{CONFIG}")
"""Everything that is uploaded."""
DENIED = {401: "the Hub does not know the token", 403: "the token has no right to write there"}


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("publish", build_parser, argv)


def build_parser() -> Parser:
    parser = Parser(prog="publish", description="Put a trained head on the Hugging Face Hub.")
    parser.add_argument("--head", required=True, metavar="DIR", help="folder of the head")
    parser.add_argument("--repo", required=True, metavar="ORG/NAME", help="repository; made where it is not there")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument("--target", help="where the target is (default: what the head names)")
    parser.add_argument("--base-model", metavar="ID", help="the target's Hub id (default: what the head names)")
    parser.add_argument("--license", metavar="ID", help="the Hub's name of a licence (default: the base model's holds)")
    parser.add_argument(
        "--dataset", action="append", default=[], metavar="ID", help="Hub id of a corpus it was trained on (repeatable)"
    )
    parser.add_argument("--dry-run", action="store_true", help="write the folder to --out, upload nothing")
    parser.add_argument("--out", type=Path, help="folder of a dry run")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> None:
    if args.dry_run != (args.out is not None):
        raise UserError("--dry-run and --out belong together")
    _check_repo(args.repo)
    if not args.dry_run and get_token() is None:
        raise UserError("no Hub token: set HF_TOKEN or run `hf auth login`")
    head = read_head_files(locate_head(args.head))
    base_model = args.base_model or head.facts.target
    if not HUB_ID.fullmatch(base_model):
        raise UserError(f"the head's target {base_model!r} is no Hub id: name the model it is with --base-model")
    inputs = CardInputs(repo=args.repo, base_model=base_model, license=args.license, datasets=args.dataset)
    packaged = {one.folder: name for name, one in TARGETS.items()}
    target = args.target or packaged.get(head.facts.target, head.facts.target)
    parts = read_target_parts(target, base_model)
    if args.dry_run:
        if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
            raise UserError(f"{args.out} is not an empty folder: choose another --out")
        write_repository(args.out, head, parts, inputs)
        print(args.out)
        return
    folder = Path(tempfile.mkdtemp(prefix="schemafill-publish-"))
    try:
        write_repository(folder, head, parts, inputs)
        print(upload(folder, args.repo, is_private=args.private))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_repository(folder: Path, head: HeadFiles, target: TargetParts, inputs: CardInputs) -> None:
    """Everything that the repository is to hold."""
    export_head(head, FORMATS["sglang"], folder, target)
    export_head(head, FORMATS["vllm"], folder / VLLM_FOLDER, target)
    write_atomically(folder / CARD, card_text(head.config, head.facts, inputs).encode())


def upload(folder: Path, repo: str, *, is_private: bool = False) -> str:
    """Make the repository where it is not there, and upload. Returns the address of the commit."""
    api = HfApi()
    try:
        api.create_repo(repo, private=is_private or None, exist_ok=True)
        if is_private and not api.repo_info(repo).private:
            raise UserError(f"cannot publish {repo}: it is there and public; change that on the Hub or drop --private")
        done = api.upload_folder(
            repo_id=repo, folder_path=folder, allow_patterns=list(FILES), commit_message="EAGLE-3 head for tool calls"
        )
    except UserError:
        raise
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        raise UserError(f"cannot publish {repo}: {DENIED.get(status, _told(error))}") from None
    except Exception as error:  # network, storage: the Hub's client has a class for each, httpx others
        raise UserError(f"cannot publish {repo} to {api.endpoint}: {_told(error)}") from None
    return str(done)


def _check_repo(repo: str) -> None:
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"--repo {repo}: {_told(error)}") from None
    if not HUB_ID.fullmatch(repo):
        raise UserError(f"--repo {repo}: must be of the form org/name")


def _told(error: Exception) -> str:
    """What another library says, in one line and without the token."""
    told = " ".join(str(error).split())[:300] or type(error).__name__
    token = get_token()
    return told.replace(token, "***") if token else told


if __name__ == "__main__":
    sys.exit(main())
