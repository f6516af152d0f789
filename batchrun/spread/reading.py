"""The input as chunks of rows, read by Ray Data in a process of its own.

Not with Ray's own readers: rows have to be what they are on one machine, in every kind of file and
with the same numbers, so they come from `source`. One process reads all of it, as a row's number
is known only by who has counted those before; reading takes a small part of what answering does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count, islice

import pandas as pd
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from batchrun.config import SourceConfig
from batchrun.errors import RunError
from batchrun.records import Failure, Request
from batchrun.source import counted, read_requests
from batchrun.spread.messages import Chunk
from batchrun.spread.origin import Origin

LEAST_ROWS, MOST_ROWS = 8, 256

COLUMN = "item"
_UNKNOWN = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)

Row = Request | Failure


class Chunks(Datasource):
    """Each block is a table of one chunk, as a Python object in the column COLUMN."""

    def __init__(self, config: SourceConfig, origin: Origin, num_workers: int):
        super().__init__()
        self._config = config
        self._origin = origin
        self._num_workers = num_workers

    def get_read_tasks(
        self,
        parallelism: int,  # noqa: ARG002
        per_task_row_limit: int | None = None,
        data_context: object = None,  # noqa: ARG002
    ) -> list[ReadTask]:
        config, origin, num_workers = self._config, self._origin, self._num_workers

        def read() -> Iterator[pd.DataFrame]:
            origin.enter()
            for chunk in chunks(counted(read_requests(config)), num_workers):
                yield pd.DataFrame({COLUMN: [chunk]})

        return [ReadTask(read, _UNKNOWN, per_task_row_limit=per_task_row_limit)]

    def estimate_inmemory_data_size(self) -> None:
        return None


def chunks(rows: Iterable[Row], num_workers: int) -> Iterator[Chunk]:
    """`rows` in chunks of MOST_ROWS, smaller towards the end so that all workers end together.

    Neighbours stay together, as those that share a prefix mostly are. Where `rows` raise RunError
    the last chunk says so.
    """
    source, waiting = _Readable(rows), deque[Row]()
    for number in count():
        waiting.extend(islice(source, 2 * num_workers * MOST_ROWS - len(waiting)))
        if not waiting:
            break
        size = max(LEAST_ROWS, min(MOST_ROWS, len(waiting) // (2 * num_workers)))
        yield Chunk(number, [waiting.popleft() for _ in range(min(size, len(waiting)))])
    if source.error is not None:
        yield Chunk(number, [], source.error)


class _Readable:
    """`rows` up to where they raise RunError, and what that said."""

    def __init__(self, rows: Iterable[Row]):
        self.error: str | None = None
        self._rows = self._read(rows)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def _read(self, rows: Iterable[Row]) -> Iterator[Row]:
        try:
            yield from rows
        except RunError as error:
            self.error = str(error)
