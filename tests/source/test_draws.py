"""Rows that ask for a draw of the same are told apart, wherever they are answered."""

from __future__ import annotations

from dataclasses import replace

from batchrun.errors import RowError
from batchrun.records import Failure, Request, Row, Sampling
from batchrun.source import counted

HOT = Sampling(temperature=1.0)


def request(index: int, prompt: str, sampling: Sampling = HOT) -> Request:
    return Request(Row(index, "in.jsonl", index + 1), sampling, prompt=prompt)


def drawn(*rows: Request | Failure) -> list[int | None]:
    return [row.drawn if isinstance(row, Request) else None for row in counted(rows)]


def test_draws_of_the_same_are_counted() -> None:
    failure = Failure(Row(2, "in.jsonl", 3), RowError("code", "why"))
    rows = [request(0, "a"), request(1, "b"), failure, request(3, "a"), request(4, "a")]
    assert drawn(*rows) == [0, 0, None, 1, 2]


def test_place_name_and_number_of_choices_are_no_part_of_it() -> None:
    rows = [request(0, "a"), request(1, "a", replace(HOT, n=3))]
    rows.append(replace(request(2, "a"), model="any"))
    assert drawn(*rows) == [0, 1, 2]


def test_what_is_asked_is() -> None:
    rows = [request(0, "a"), request(1, "a", replace(HOT, top_p=0.5))]
    rows.append(replace(request(2, "a"), echo=True))
    assert drawn(*rows) == [0, 0, 0]


def test_rows_with_one_answer_need_no_number() -> None:
    assert drawn(request(0, "a", Sampling()), request(1, "a", replace(HOT, seed=1))) == [None, None]
