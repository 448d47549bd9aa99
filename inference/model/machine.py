"""The machine that passes run on, as far as compiled and measured files depend on it, and where those are kept."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def home_folder() -> Path:
    """`$SCHEMAFILL_HOME`, else `~/.cache/schemafill`; it need not exist yet."""
    return Path(os.environ.get("SCHEMAFILL_HOME") or "~/.cache/schemafill").expanduser()


def cpu_name() -> str:
    """The processor's name for people."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def cpu_description() -> str:
    """Model and features of the processor as Linux tells them, empty elsewhere: for cache keys, not for people."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return "|".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
