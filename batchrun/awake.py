"""Keeps the machine awake while a run goes on, where the system has a program for that."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

# Each runs a command and lets the machine sleep again when that ends.
_PROGRAMS = (
    ("caffeinate", ("-i",)),  # macOS
    (
        "systemd-inhibit",
        ("--what=idle:sleep", "--who=batchrun", "--why=answering rows", "--mode=block"),
    ),
)


@contextmanager
def kept_awake(asked: bool) -> Iterator[None]:
    """Inside, the machine does not fall asleep by itself, if that is `asked` and can be had."""
    command = _command() if asked else None
    if command is None:
        yield
        return
    # `cat` ends when our end of the pipe closes, and so also when we are killed.
    with subprocess.Popen(
        [*command, "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us: the last rows still have to finish
    ):
        yield


def _command() -> list[str] | None:
    for program, arguments in _PROGRAMS:
        path = shutil.which(program)
        if path is not None:
            return [path, *arguments]
    return None
