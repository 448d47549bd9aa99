"""Lets the target answer records: `python -m schemafill.data_prep.rollout`.

A head learns to imitate its target, so it is trained on what the target itself writes behind the prompts that it will
be served with. Stopped at any moment, by a kill too, the same command goes on where it was; when it has ended, the same
command tries again what failed, and with a larger `--limit` goes on behind it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from schemafill.data_prep.rollout_config import BACKENDS, RolloutConfig
from schemafill.inference.command_line import Parser, positive, run_command
from schemafill.inference.request import SamplingParams
from schemafill.inference.toolcall.dialects import DIALECTS


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("rollout", build_parser, argv)


def build_parser() -> Parser:
    parser = Parser(prog="rollout", description="Let the target answer records, for a head to learn from.")
    parser.add_argument("--target", required=True, help="Hub id, local folder, or embedded")
    parser.add_argument("--records", type=Path, nargs="+", required=True, metavar="FILE", help="records files")
    parser.add_argument("--out", type=Path, required=True, help="rollouts file; the same command goes on with it")
    parser.add_argument("--limit", type=positive, help="only the first so many records")
    parser.add_argument("--max-prompt-tokens", type=positive, help="leave out longer prompts (default: the context)")
    parser.add_argument("--unsealed", action="store_true", help="take input files without a manifest")
    _add_sampling_options(parser)
    _add_backend_options(parser)
    parser.set_defaults(run=run)
    return parser


def _add_sampling_options(parser: Parser) -> None:
    default, group = SamplingParams(), parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, default=default.temperature, help="0 is greedy (default)")
    group.add_argument("--top-p", type=float, default=default.top_p)
    group.add_argument("--top-k", type=int, default=default.top_k, help="0 keeps all (default)")
    group.add_argument("--seed", type=int, default=default.seed)
    group.add_argument("--max-new-tokens", type=positive, default=default.max_new_tokens, help="default: %(default)s")


def _add_backend_options(parser: Parser) -> None:
    group = parser.add_argument_group("backend")
    group.add_argument("--backend", choices=BACKENDS, default="batched", help="local is batched (default)")
    group.add_argument("--batch-size", type=positive, help="batched: answers at a time (default: 16)")
    group.add_argument(
        "--features", type=Path, metavar="DIR",
        help="batched: keep what the target computed behind the tokens, so that training need not run it again",
    )  # fmt: skip
    group.add_argument("--base-url", help="openai: the server, for example http://127.0.0.1:8000/v1")
    group.add_argument("--model", help="openai: the target's name there")
    group.add_argument("--concurrency", type=positive, help="openai: requests at a time (default: 16)")
    group.add_argument("--send", choices=("ids", "text"), help="openai: how the prompt is sent (default: ids)")
    group.add_argument("--dialect", choices=("auto", *DIALECTS), default="auto", help="how the target writes calls")
    group.add_argument("--device", help="batched, engine: cpu, cuda, cuda:0, ... (default: auto)")
    group.add_argument("--dtype", help="batched, engine: bfloat16, float32, ... (default: auto)")
    group.add_argument("--threads", type=positive, help="batched, engine: CPU threads (default: torch's)")
    group.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the target")


def run(args: argparse.Namespace) -> None:
    from schemafill.data_prep.rollout_job import run_rollout  # torch: --help need not wait for it

    options = {name: value for name, value in vars(args).items() if name != "run"}
    sampling = {name: options.pop(name) for name in ("temperature", "top_p", "top_k", "seed", "max_new_tokens")}
    run_rollout(RolloutConfig(**options, sampling=SamplingParams(**sampling)))


if __name__ == "__main__":
    sys.exit(main())
