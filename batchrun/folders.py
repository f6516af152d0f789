"""Where batchrun keeps what later runs can use."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """batchrun's folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "batchrun"


def state_root() -> Path:
    """batchrun's folder for what must not be lost, as the journals of outputs elsewhere."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "batchrun"


def prefix_cache(asked: Path | None) -> Path:
    """The folder of stored prefixes: the one asked for, or the usual one."""
    return cache_root() / "prefixes" if asked is None else asked.expanduser()
