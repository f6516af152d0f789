"""`batchrun check`: every row read and validated, nothing run.

Wires source and prepare only, so no weights are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchrun.config import SourceConfig
from batchrun.prepare import Preparer
from batchrun.records import Failure
from batchrun.source import read_requests


def check(config: SourceConfig, preparer: Preparer | None = None) -> Iterator[Failure | None]:
    """One item for each row, in order: its failure, or None for a row that can be run.

    With a `preparer` also what only the tokenizer knows: the chat template and the prompt's length.
    """
    for row in read_requests(config):
        checked = row if preparer is None else preparer.attempt(row)
        yield checked if isinstance(checked, Failure) else None
