"""Python processes that tests start: strict, with a time limit, and gone when it is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

TIME_LIMIT_S = 120


def run_python(*arguments: str, **environment: str) -> str:
    """Run Python to its good end and answer what it printed.

    A hang, also of a child of the process, is a failure. Warnings are errors, but for the one about
    forks of processes with threads: that is the very thing under test.
    """
    warnings = ["-W", "error", "-W", "ignore::DeprecationWarning"]
    process = subprocess.Popen(
        [sys.executable, *warnings, *arguments],
        # A pool of threads on every machine.
        env=os.environ | {"RAYON_NUM_THREADS": "3"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            printed, _ = process.communicate(timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"no end within {TIME_LIMIT_S} s")
    assert process.returncode == 0, printed
    return printed
