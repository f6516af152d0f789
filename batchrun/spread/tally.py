"""What all workers of a run say of themselves, taken together."""

from __future__ import annotations

import time
from typing import Any

import ray

from batchrun.ending import Ended
from batchrun.engine.stats import EngineStats
from batchrun.report.meter import Meter
from batchrun.several import summed
from batchrun.spread.state import State

LOOK_SECONDS = 0.5


class Tally:
    """Asks the `watch` for the workers' states, without waiting for it while the run goes on."""

    def __init__(self, watch: Any):
        self.stats = EngineStats()
        self._watch = watch
        self._states: list[State] = []
        self._num_deaths = 0
        self._asked: Any = None
        self._due = 0.0

    def look(self) -> None:
        """Takes what the watch has answered, and asks anew every so often."""
        if self._asked is None and time.monotonic() >= self._due:
            self._asked = self._watch.look.remote()
        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            self._take()

    def stop(self) -> None:
        """Tells the workers to take up no more rows."""
        self._watch.stop.remote()

    def settle(self) -> None:
        """Waits for the latest."""
        self._asked = self._watch.look.remote()
        self._take()

    def ended(self, ended: Ended, meter: Meter) -> Ended:
        """`ended` as the workers' run; their times go to the `meter`."""
        for state in self._states:
            for phase, seconds in state.seconds.items():
                meter.seconds[phase] += seconds
        notes = dict.fromkeys((*ended.notes, *(n for state in self._states for n in state.notes)))
        devices = [state.device for state in self._states if state.device is not None]
        peaks = [state.peak_memory for state in self._states]
        return Ended(
            self.stats,
            ended.model,
            devices[0] if devices else ended.device,
            (*self._lines(), *notes),
            peak_memory=(max(peak[0] for peak in peaks), max(peak[1] for peak in peaks))
            if peaks
            else None,
        )

    def _lines(self) -> list[str]:
        if not self._states:
            return []
        machines = len({state.node for state in self._states})
        lines = [
            f"{_number(len(self._states), 'worker')} on {_number(machines, 'machine')};"
            " times are those of all together, memory is the largest one's"
        ]
        if self._num_deaths:
            lines.append(
                f"A worker died {_number(self._num_deaths, 'time')} and was replaced; what it was"
                " doing was done again"
            )
        return lines

    def _take(self) -> None:
        self._states, self._num_deaths = ray.get(self._asked)
        self._asked, self._due = None, time.monotonic() + LOOK_SECONDS
        total = EngineStats()
        for state in self._states:
            total = summed(total, state.stats)
        total.running = sum(state.stats.running for state in self._states)
        total.notes = list(dict.fromkeys(total.notes))
        self.stats = total


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
