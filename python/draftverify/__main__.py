"""The command line: `python -m draftverify demo`, `bench` and `gpu-check`."""

from __future__ import annotations

import argparse
import os
import sys

from draftverify import __version__, _bench, _demo, _gpu_check


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand and give the exit code: its own, or 2 for a wrong command line."""
    code = 0
    try:
        try:
            arguments = _parser().parse_args(argv)
            code = arguments.run(arguments) or 0
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left, as `head` does. What is still buffered goes nowhere, or the
        # interpreter would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m draftverify",
        description="The verification arithmetic of speculative decoding.",
    )
    parser.add_argument("--version", action="version", version=f"draftverify {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _demo.add_parser(commands)
    _bench.add_parser(commands)
    _gpu_check.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
