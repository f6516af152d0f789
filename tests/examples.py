"""Examples in documents: fenced blocks, and the commands in them with what they print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A command as typed, and the lines that it is shown to print."""

    command: str
    shown: tuple[str, ...] = ()


def blocks(document: str, language: str) -> list[str]:
    """The text of its fenced blocks in `language`."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def _is_whole(command: str) -> bool:
    """Whether a shell would begin to run it."""
    try:
        shlex.split(command, comments=True)
    except ValueError:  # an open quote, or a line that goes on
        return False
    return True


def _typed(lines: list[str]) -> tuple[str, list[str]]:
    """The command that `lines` begin with, and the lines after it."""
    command, *rest = lines
    while not _is_whole(command):
        command, rest = f"{command}\n{rest[0]}", rest[1:]
    return command, rest


def session(text: str) -> Iterator[Example]:
    """The commands of a console block, each after a "$ ", with their output."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, shown = _typed(part.splitlines())
        yield Example(command, tuple(shown))


def script(text: str) -> Iterator[Example]:
    """The commands of plain shell text."""
    lines = text.splitlines()
    while lines:
        command, lines = _typed(lines)
        if shlex.split(command, comments=True):
            yield Example(command)
