"""The input in chunks: every row once, in order, in chunks that suit the workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray")

from batchrun.errors import RunError
from batchrun.records import Request, Row, Sampling
from batchrun.spread.reading import LEAST_ROWS, MOST_ROWS, chunks


def rows(count: int) -> Iterator[Request]:
    return (Request(Row(i, "in.jsonl", i + 1), Sampling(), prompt="a") for i in range(count))


@given(st.integers(0, 5000), st.integers(1, 9))
def test_every_row_is_in_one_chunk(count: int, num_workers: int) -> None:
    found = list(chunks(rows(count), num_workers))

    assert [row.row.index for chunk in found for row in chunk.rows] == list(range(count))
    assert [chunk.number for chunk in found] == list(range(len(found)))
    sizes = [len(chunk.rows) for chunk in found]
    assert sizes == sorted(sizes, reverse=True)
    assert all(LEAST_ROWS <= size <= MOST_ROWS for size in sizes[:-1])


def test_all_workers_have_work_at_the_end() -> None:
    sizes = [len(chunk.rows) for chunk in chunks(rows(4 * MOST_ROWS), 4)]

    assert max(sizes) <= MOST_ROWS // 2
    assert sizes[-5:-1] == [LEAST_ROWS] * 4


def test_where_the_input_breaks_off_the_last_chunk_says_so() -> None:
    def broken() -> Iterator[Request]:
        yield from rows(20)
        raise RunError("cut off")

    *before, last = chunks(broken(), 2)
    assert sum(len(chunk.rows) for chunk in before) == 20
    assert {chunk.error for chunk in before} == {None}
    assert (last.rows, last.error) == ([], "cut off")
