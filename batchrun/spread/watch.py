"""What is known of the workers while they come and go: the one actor that outlives them.

It tells a worker whether what it is about to do has killed another one, and whether to go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from batchrun.spread.messages import Done
from batchrun.spread.state import State

_DEATHS_LOADING = 3


@dataclass(slots=True)
class Trial:
    """A chunk whose worker died: its rows run one at a time from then on. `kept` are those done,
    by their place in the chunk; `deadly` those that were alone in a worker when it died."""

    kept: dict[int, Done] = field(default_factory=dict)
    deadly: set[int] = field(default_factory=set)


class Watch:
    """A Ray actor. Workers call it before and after all that may kill them."""

    def __init__(self, num_workers: int) -> None:
        self._loads = 0
        self._most_loads = num_workers + _DEATHS_LOADING
        self._begun: dict[int, Trial | None] = {}
        self._alone: dict[int, int] = {}
        self._states: dict[str, State] = {}
        self._stops = False
        self.num_deaths = 0

    def begin(self, chunk: int) -> Trial | None:
        """A worker begins a chunk. None where no worker died of it."""
        if chunk not in self._begun:
            self._begun[chunk] = None
            return None
        self.num_deaths += 1
        trial = self._begun[chunk] = self._begun[chunk] or Trial()
        if chunk in self._alone:
            trial.deadly.add(self._alone.pop(chunk))
        return trial

    def begin_row(self, chunk: int, place: int) -> None:
        """A worker begins a row of a chunk under trial, alone."""
        self._alone[chunk] = place

    def end_row(self, chunk: int, place: int, done: Done) -> None:
        del self._alone[chunk]
        trial = self._begun[chunk]
        assert trial is not None
        trial.kept[place] = done

    def end(self, chunk: int) -> None:
        """A worker lived through a chunk."""
        # Gone already where Ray lost sight of a worker that went on, and gave its chunk to another.
        self._begun.pop(chunk, None)

    def begin_load(self) -> bool:
        """A worker begins to load the model; returns whether it may: it may not where so many have
        begun and not ended that some must have died of it."""
        self._loads += 1
        return self._loads <= self._most_loads

    def end_load(self) -> None:
        self._loads -= 1

    def tell(self, worker: str, state: State) -> bool:
        """A worker's state; returns whether it has to stop."""
        self._states[worker] = state
        return self._stops

    def stop(self) -> None:
        self._stops = True

    def look(self) -> tuple[list[State], int]:
        """The state of every worker there was, and how often one died."""
        return list(self._states.values()), self.num_deaths
