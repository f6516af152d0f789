"""Rank 0's engine, with the others in step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from enum import IntEnum

from batchrun.engine import Engine
from batchrun.engine.loop import Turns
from batchrun.engine.stats import EngineStats
from batchrun.ranks import Ranks
from batchrun.records import Prompt
from batchrun.stopping import INTERRUPTED
from batchrun.together.prompts import Packer


class Order(IntEnum):
    """What follows a turn of the engines: the next, the next with no new rows from here on, or
    none."""

    GO = 0
    DRAIN = 1
    END = 2


@dataclass
class Lead:
    """`engine` of rank 0, to be used as one: the other `ranks` do what it does. `interrupt` is told
    why one of them has to end."""

    engine: Engine
    ranks: Ranks
    interrupt: Callable[[str], None]
    _order: Order = field(default=Order.GO, init=False)

    def run(self, prompts: Iterable[Prompt | None]) -> Turns:
        told = self._told(prompts) if self.ranks.are_many else prompts
        with closing(self.engine.run(told)) as turns:
            for finished in turns:
                try:
                    yield finished
                except GeneratorExit:
                    self.ranks.turn(Order.END)
                    raise
                self._turn()

    @property
    def stats(self) -> EngineStats:
        return self.engine.stats

    def drain(self) -> None:
        self.engine.drain()
        self._order = Order.DRAIN

    def _turn(self) -> None:
        _, asked = self.ranks.turn(self._order)
        if asked:
            who = f"rank {asked[-1]} was told to end" if asked[-1] else "what launched it is gone"
            self.interrupt(f"{INTERRUPTED} ({who})")

    def _told(self, prompts: Iterable[Prompt | None]) -> Iterator[Prompt | None]:
        """`prompts`, told to the others as they are pulled: one in a list, and an empty list after
        the last."""
        pack = Packer()
        for prompt in self._pulled(prompts):
            self.ranks.share([prompt and pack(prompt)])
            yield prompt
        self.ranks.share([])

    def _pulled(self, prompts: Iterable[Prompt | None]) -> Iterator[Prompt | None]:
        """`prompts`; where these fail, the others get a None."""
        try:
            yield from prompts
        except Exception:
            self.ranks.share(None)
            raise
