"""A run on many workers by the clock of its measured costs, chunk by chunk.

One reader, `num_workers` workers and one keeper of the books, each busy with a chunk at a time. The
reader waits while as many rows lie ready as the object store is given; a worker has its next chunk
at hand. What Ray itself takes for a chunk is put at CHUNK_SECONDS in the reader's and the books'
process: some milliseconds, measured with chunks that hold nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from costs import Costs

from batchrun.spread.reading import MOST_ROWS

CHUNK_SECONDS = 0.005
_KEY_BYTES = 24  # of a known answer, in each machine's memory
_AT_HAND = 2


def simulate(costs: Costs, *, num_workers: int, num_rows: int, rate: float) -> Iterator[str]:
    """Lines of what such a run comes to, with workers that answer `rate` rows a second."""
    seconds, busy, waiting = _run(costs.read, 1 / rate, costs.book, num_workers, num_rows)
    output = num_rows * costs.write
    ideal = num_rows / (rate * num_workers)
    yield (
        f"{num_workers} workers of {rate:g} rows/s, {num_rows:,} rows: {seconds / 3600:.2f} h"
        f" ({ideal / seconds:.0%} of what the workers could), then {output / 60:.0f} min of output"
    )
    yield f"books busy {busy:.0%} of the time, {waiting:,} chunks wait for them at most"
    ahead = 2 * num_workers * MOST_ROWS * costs.row_bytes
    stored = (_AT_HAND * num_workers) * MOST_ROWS * costs.row_bytes
    stored += (waiting + num_workers) * MOST_ROWS * costs.done_bytes
    yield (
        f"reader holds {ahead / 1e6:.0f} MB, object store {stored / 1e6:.0f} MB, the books a few"
        f" chunks ({4 * MOST_ROWS * costs.done_bytes / 1e6:.1f} MB) beside Python;"
        f" journal {num_rows * costs.journal_bytes / 1e9:.1f} GB and one part of"
        f" {num_rows * costs.output_bytes / 1e9:.1f} GB on disk"
    )
    again, busy, _ = _run(costs.read, costs.prepare, costs.reuse, num_workers, num_rows)
    yield (
        f"resumed when all is answered: {again / 60:.0f} min (books busy {busy:.0%}),"
        f" {num_rows * _KEY_BYTES / 1e6:.0f} MB of known keys on each machine"
    )
    most = 1 / (costs.book + CHUNK_SECONDS / MOST_ROWS)
    yield f"the books keep up with {most:,.0f} rows/s, the reader with {1 / costs.read:,.0f}"


def _run(
    read: float, answer: float, book: float, num_workers: int, num_rows: int
) -> tuple[float, float, int]:
    """Seconds in all, the share of them that the books are busy, most chunks that wait for them."""
    free = [0.0] * num_workers
    read_at, finished = 0.0, []
    for _ in range(num_rows // MOST_ROWS):
        read_at += read * MOST_ROWS + CHUNK_SECONDS
        start = max(heapq.heappop(free), read_at)
        end = start + answer * MOST_ROWS
        heapq.heappush(free, end)
        finished.append(end)
    finished.sort()
    return _booked(finished, book * MOST_ROWS + CHUNK_SECONDS)


def _booked(finished: list[float], each: float) -> tuple[float, float, int]:
    clock, most, arrived = 0.0, 0, 0
    for place, end in enumerate(finished):
        clock = max(clock, end) + each
        while arrived < len(finished) and finished[arrived] <= clock:
            arrived += 1
        most = max(most, arrived - place - 1)
    return clock, each * len(finished) / clock, most
