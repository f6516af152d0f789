"""Runs a file of requests through a language model on this machine, unattended."""

from __future__ import annotations

from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchrun.engine import Engine as Engine
    from batchrun.report.summary import Summary

    __version__: str

__all__ = ["Engine", "__version__", "run"]


def run(*inputs: str | Path, output: str | Path, **flags: Any) -> Summary:
    """Does what the command does: answers the rows of `inputs` in the file `output`.

    `flags` are the command's, by their names with underscores:
    `run("in.jsonl", output="out.parquet", max_tokens=64, stop=["\\n"])`. Only the progress is
    printed, on stderr, and with `quiet=True` not even that. The summary's `exit_status` is what the
    command would have exited with.

    Raises TypeError for an unknown flag, and BatchrunError where the command would print an error.
    """
    # That module cannot be called run: once imported, it would take this function's place.
    from batchrun.flags import Flags
    from batchrun.runner import execute

    return execute(Flags.from_names(flags).run_config([fspath(path) for path in inputs], output))


def __getattr__(name: str) -> Any:
    # Loaded when asked for, so that the command starts quickly.
    if name == "Engine":
        from batchrun.engine import Engine

        return Engine
    if name == "__version__":
        from importlib.metadata import version

        return version("batchrun")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
