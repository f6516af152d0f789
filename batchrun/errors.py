"""Everything that can go wrong, as one tree.

BatchrunError
├── UsageError      the command cannot start as asked: exit status 2
├── RunError        the run as a whole failed: exit status 1
│   └── ModelError  the model cannot be found, read or run
├── OutputBusy      another run holds this output: exit status 75
└── RowError        one row cannot be done; the run goes on

Messages say what is wrong and what to do about it, in one line.
"""

from __future__ import annotations

from typing import Any


class BatchrunError(Exception):
    """Base of all errors raised on purpose; `exit_status` is the process's."""

    exit_status = 1


class UsageError(BatchrunError):
    """The command or its arguments cannot work; nothing has been read or written."""

    exit_status = 2


class RunError(BatchrunError):
    """The run as a whole cannot go on; finished rows stay in the journal."""


class ModelError(RunError):
    """The model cannot be found, read or run."""


class OutputBusy(BatchrunError):
    """Another run holds the lock of this output."""

    exit_status = 75


class RowError(BatchrunError):
    """Why one row has no answer.

    `code` is a stable word for machines, `message` a sentence for people, `status` the HTTP
    status that a server would have given, `param` the dotted path of the field at fault.
    """

    def __init__(self, code: str, message: str, *, status: int = 400, param: str | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.param = param

    def __reduce__(self) -> tuple[Any, ...]:
        """Exceptions are copied by their `args`, which have no names."""
        return _row_error, (self.code, self.message, self.status, self.param)


def _row_error(code: str, message: str, status: int, param: str | None) -> RowError:
    return RowError(code, message, status=status, param=param)
