"""What every command of the project shares: one-line complaints, exit codes, and checks of single options.

Exit code 0; 2 for a fault of the user (one line on stderr); 1 for a fault of ours (traceback); 130 when interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from schemafill.inference.request import UserError


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are UserErrors: one line, without the usage text."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def run_command(name: str, build_parser: Callable[[], Parser], argv: Sequence[str] | None = None) -> int:
    """Parse `argv`, call the `run` that the parser set as a default with the arguments, return the exit code."""
    try:
        args = build_parser().parse_args(argv)
        args.run(args)
        sys.stdout.flush()
    except SystemExit as done:  # argparse after --help
        return int(done.code or 0)
    except UserError as error:
        print(f"{name}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone: nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit flush would raise once more
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def positive(text: str) -> int:
    """A whole number from 1, as an option's type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)
