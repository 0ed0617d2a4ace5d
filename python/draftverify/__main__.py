"""The command line: `python -m draftverify demo` and `python -m draftverify bench`."""

from __future__ import annotations

import argparse
import os
import sys

from draftverify import __version__, _bench, _demo


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand and give the exit code: 0, or 2 for a wrong command line."""
    try:
        try:
            arguments = _parser().parse_args(argv)
            arguments.run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left, as `head` does. What is still buffered goes nowhere, or the
        # interpreter would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m draftverify",
        description="The verification arithmetic of speculative decoding.",
    )
    parser.add_argument("--version", action="version", version=f"draftverify {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _demo.add_parser(commands)
    _bench.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
