"""`batchrun check`: every row read and validated, nothing run.

Wires source, models and prepare only, so no weights are loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from batchrun.config import RunConfig
from batchrun.prepare import Preparer, prepared_ahead
from batchrun.records import Failure, Prompt, Request

if TYPE_CHECKING:
    from batchrun.engine.finishing import Decoder

_ROWS_AHEAD = 256


class _WouldFetch(Exception):
    """The model is not on this machine."""


@dataclass(frozen=True, slots=True)
class AtHand:
    """What there is of a model without its weights."""

    preparer: Preparer
    decoder: Decoder


def check(
    rows: Iterable[Request | Failure], preparer: Preparer | None = None
) -> Iterator[Request | Prompt | Failure]:
    """One item for each of `rows`, in order: its failure, or what is run in the end.

    That is the prompt where there is a `preparer`, which also knows what only the tokenizer does:
    the chat template and the prompt's length.
    """
    if preparer is None:
        yield from rows
        return
    with (
        closing(preparer),
        prepared_ahead(rows, preparer, preparer.finish, depth=_ROWS_AHEAD) as ahead,
    ):
        yield from (row for row in ahead if row is not None)


def at_hand(config: RunConfig) -> AtHand | None:
    """What prepares the model's prompts, or None where the model would have to be fetched first.

    Raises UsageError and ModelError for a model that cannot be or cannot be read.
    """
    from batchrun import building
    from batchrun.models import load_tokenizer, locate

    try:
        files = locate(config.model, _refuse)
    except _WouldFetch:
        return None
    words = load_tokenizer(files, config.model)
    return AtHand(building.preparer(config, files, words), words.tokenizer)


def _refuse(line: str) -> NoReturn:
    """`locate` says a line before it fetches: there it ends."""
    raise _WouldFetch(line)
