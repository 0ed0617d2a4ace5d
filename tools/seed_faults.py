"""Seed faults into copies of the Python layer, and see that the tests catch every one.

Each fault of `faults.py`, `chain_faults.py` and `gpu_faults.py` goes into a copy of the installed
package, which the tests then import in its stead. Prints which test caught each; ends with status 1
if a fault survives, no longer fits the source, or breaks more than it should.

    python tools/seed_faults.py            # all faults, some minutes
    python tools/seed_faults.py mixed out  # those with one of these words in their name
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import draftverify
from chain_faults import CHAIN_FAULTS
from faults import CONTROLS, Fault
from faults import FAULTS as ROW_FAULTS
from gpu_faults import GPU_FAULTS

FAULTS = (*ROW_FAULTS, *CHAIN_FAULTS, *GPU_FAULTS)
TESTS = Path(__file__).parents[1] / "tests"
ALL_PASSED, SOME_FAILED = 0, 1  # pytest's exit statuses; others mean that it could not run them
PASSED = False, "no test failed"


def main(words: list[str]) -> int:
    """Run the faults whose names have one of the words, or all; answer the exit status."""
    chosen = [fault for fault in (*CONTROLS, *FAULTS) if _matches(fault, words)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = 0
        for fault, (caught, finding) in zip(chosen, pool.map(_seed, chosen), strict=True):
            expected = caught is (fault in FAULTS)
            failures += not expected
            print(f"{'ok' if expected else 'WRONG':5}  {fault.name}: {finding}", flush=True)
    seeded = sum(fault in FAULTS for fault in chosen)
    print(f"{seeded} faults and {len(chosen) - seeded} controls, {failures} not as they should be")
    return 1 if failures or not chosen else 0


def _matches(fault: Fault, words: list[str]) -> bool:
    return not words or any(word in fault.name for word in words)


def _seed(fault: Fault) -> tuple[bool | None, str]:
    """Say whether the tests catch a fault, and how; None if they could not be run."""
    installed = Path(draftverify.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "draftverify")
        unneeded = shutil.ignore_patterns("__pycache__")
        shutil.copytree(installed, package, ignore=unneeded)
        source = package / fault.file
        text = source.read_text(encoding="utf-8")
        old = fault.old if fault.old is not None else text
        if text.count(old) != 1:
            return None, f"{fault.file} has {text.count(old)} times {old!r}"
        new = fault.new if fault.old is not None else text + fault.new
        source.write_text(text.replace(old, new), encoding="utf-8")
        first = [next(TESTS.rglob(f"test_{name}.py")) for name in fault.first.split()]
        finding = _test(folder, *first)
        return finding if finding != PASSED or not first else _test(folder)


def _test(folder: str, *chosen: Path) -> tuple[bool | None, str]:
    """Run some tests, or all, on the package in a folder, up to the first failure."""
    options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, chosen)]
    done = subprocess.run(
        command,
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == ALL_PASSED:
        return PASSED
    failed = re.search(r"^FAILED (?:\S*/)?(test_\S+)", done.stdout, re.MULTILINE)
    if done.returncode != SOME_FAILED or failed is None:
        return None, f"pytest ended with status {done.returncode}\n{done.stdout}{done.stderr}"
    return True, failed[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
