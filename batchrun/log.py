"""What a run tells its user: on stderr, and in a log file where one is asked for."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from batchrun.errors import BatchrunError, UsageError

# A log is at most so large, and so many before it are kept.
MOST_BYTES = 1_000_000
NUM_OLD = 4

_LOGGER = logging.getLogger("batchrun")
_LOGGER.propagate = False
_FORMAT = "%(asctime)s %(process)d %(levelname)s %(message)s"


def say(line: str) -> None:
    """One line, on stderr and in the log."""
    print(line, file=sys.stderr, flush=True)
    note(line)


def note(text: str) -> None:
    """Lines for the log alone."""
    if _LOGGER.handlers:
        for line in filter(None, text.splitlines()):
            _LOGGER.info(line)


@contextmanager
def written_to(path: Path | None) -> Iterator[None]:
    """Inside, what is said also goes to the end of the file at `path`, and so does an error that
    ends the block. Raises UsageError where the file cannot be opened."""
    if path is None:
        yield
        return
    handler = _handler(path)
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    except BatchrunError as error:
        _LOGGER.error(str(error))
        raise
    finally:
        _LOGGER.removeHandler(handler)
        handler.close()


def _handler(path: Path) -> logging.Handler:
    try:
        handler = RotatingFileHandler(
            path, maxBytes=MOST_BYTES, backupCount=NUM_OLD, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        raise UsageError(f"--log-file {path}: cannot be written: {error.strerror}") from error
    handler.setFormatter(logging.Formatter(_FORMAT))
    return handler


class LogStream(io.StringIO):
    """A stream, no terminal, of which each line goes to the log."""

    def write(self, text: str) -> int:
        note(text)
        return len(text)
