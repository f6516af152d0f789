"""What rank 0 tells the others of its engine's turns, and they it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from batchrun.errors import RunError
from batchrun.ranks import Ranks
from batchrun.together.lead import Lead, Order


class Overheard(Ranks):
    """Rank 0 of two: what it says is kept, and the other never asks for anything but `asked`."""

    def __init__(self, asked: Iterable[int] = ()) -> None:
        super().__init__()
        self.size = 2
        self.said: list[Any] = []
        self._asked = list(asked)

    def share(self, value: Any = None, *, by: int = 0) -> Any:
        self.said.append(value)
        return value

    def turn(self, order: int = 0) -> tuple[int, list[int]]:
        self.said.append(Order(order))
        return order, self._asked


class Turns:
    """Stands for an engine that pulls one prompt a turn."""

    def run(self, prompts: Iterable[Any]) -> Iterator[list[Any]]:
        for _ in prompts:
            yield []

    def drain(self) -> None:
        pass


def ignored(reason: str) -> None:
    pass


GO, DRAIN, END = Order


def test_every_prompt_and_turn_is_told() -> None:
    ranks = Overheard()

    assert list(Lead(Turns(), ranks, ignored).run([None, None])) == [[], []]
    assert ranks.said == [[None], GO, [None], GO, []]


def test_no_more_rows_and_no_more_turns_are_told() -> None:
    ranks = Overheard()
    leader = Lead(Turns(), ranks, ignored)
    turns = leader.run([None] * 9)

    next(turns)
    leader.drain()
    next(turns)
    turns.close()

    assert ranks.said == [[None], DRAIN, [None], END]


def test_a_source_that_fails_is_told() -> None:
    def source() -> Iterator[None]:
        yield None
        raise RunError("the disk is gone")

    ranks = Overheard()
    with pytest.raises(RunError):
        list(Lead(Turns(), ranks, ignored).run(source()))

    assert ranks.said == [[None], GO, None]


@pytest.mark.parametrize(
    ("asked", "reason"), [([1], "rank 1 was told to end"), ([0], "what launched it is gone")]
)
def test_a_rank_that_is_to_end_interrupts_the_run(asked: list[int], reason: str) -> None:
    reasons: list[str] = []
    list(Lead(Turns(), Overheard(asked), reasons.append).run([None]))

    assert reasons == [f"it was interrupted ({reason})"]
