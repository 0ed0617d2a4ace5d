"""The machine that figures are from."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TypedDict


class Machine(TypedDict):
    """What a reader of figures has to know."""

    cpu: str
    logical_cores: int
    system: str


def machine() -> Machine:
    """Describe the machine that this runs on."""
    return {
        "cpu": _cpu_model(),
        "logical_cores": os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_model() -> str:
    """Name the CPU; Linux keeps it where `platform` does not look."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown CPU"
