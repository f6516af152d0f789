"""Results to disk: the journal of the run, the output written from it, the lock on the output."""

from batchrun.sink.journal import Counts, Journal, remove_journal
from batchrun.sink.lock import hold
from batchrun.sink.output import (
    errors_path,
    journal_path,
    load_format,
    named_format,
    output_format,
    read_answers,
    write_output,
)

__all__ = [
    "Counts",
    "Journal",
    "errors_path",
    "hold",
    "journal_path",
    "load_format",
    "named_format",
    "output_format",
    "read_answers",
    "remove_journal",
    "write_output",
]
