"""`batchrun check`: every row read and validated, nothing run.

Wires source, models and prepare only, so no weights are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from batchrun.config import ModelConfig, SourceConfig
from batchrun.prepare import Preparer
from batchrun.records import Failure
from batchrun.source import read_requests


class _WouldFetch(Exception):
    """The model is not on this machine."""


def check(config: SourceConfig, preparer: Preparer | None = None) -> Iterator[Failure | None]:
    """One item for each row, in order: its failure, or None for a row that can be run.

    With a `preparer` also what only the tokenizer knows: the chat template and the prompt's length.
    """
    for row in read_requests(config):
        checked = row if preparer is None else preparer.attempt(row)
        yield checked if isinstance(checked, Failure) else None


def preparer_at_hand(config: ModelConfig) -> Preparer | None:
    """The preparer of the model's prompts, or None where the model would have to be fetched first.

    Raises UsageError and ModelError for a model that cannot be or cannot be read.
    """
    from batchrun.models import load_tokenizer, locate

    try:
        files = locate(config, _refuse)
    except _WouldFetch:
        return None
    tokenizer = load_tokenizer(files, config).tokenizer
    return Preparer(tokenizer, model=files.identity, context_length=files.context_length)


def _refuse(line: str) -> NoReturn:
    """`locate` says a line before it fetches: there it ends."""
    raise _WouldFetch(line)
