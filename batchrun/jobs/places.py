"""Paths in job files: environment variables, dates, the home folder, and where the file lies."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime
from glob import escape, has_magic
from pathlib import Path

from batchrun.errors import UsageError
from batchrun.remote import is_url

_VARIABLE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})", re.ASCII)
STDIN = "-"


def place(text: str, folder: Path, environment: Mapping[str, str], now: datetime) -> str:
    """`text` with `$NAME` and `${NAME}` from `environment` and with the parts of a date, such as
    `%Y-%m-%d`, of `now`; `$$` and `%%` stand for themselves. A relative path starts at `folder`.

    Raises UsageError for a variable that is not set.
    """
    if text == STDIN:
        return text
    dated = now.strftime(text) if "%" in text else text
    whole = os.path.expanduser(_VARIABLE.sub(lambda match: _value(match, environment), dated))
    if is_url(whole) or os.path.isabs(whole):
        return whole
    base = escape(str(folder)) if has_magic(whole) else str(folder)
    return _plain(os.path.join(base, whole))


def looks_like_a_path(text: str) -> bool:
    """Whether a value that may also be a name, or text, is meant as a path."""
    return text.startswith(("./", "../", "/", "~", "$"))


def _plain(path: str) -> str:
    """`path` without detours, where they lead nowhere else; a slash at its end, which says that it
    is a folder, stays."""
    short = os.path.normpath(path)
    if os.path.realpath(short) != os.path.realpath(path):
        return path
    return short + os.sep * path.endswith(os.sep)


def _value(match: re.Match[str], environment: Mapping[str, str]) -> str:
    name = match[1] or match[2]
    if name is None:
        return "$"
    if name not in environment:
        raise UsageError(f"the environment has no variable {name}; set it, or write $$ for a $")
    return environment[name]
