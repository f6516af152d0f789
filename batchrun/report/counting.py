"""The number of rows to expect, counted while the run has begun: long files take a while."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread

from batchrun.config import SourceConfig
from batchrun.errors import RunError
from batchrun.report.meter import Meter
from batchrun.source import count_rows

_SECONDS = 1.0


class RowCount:
    """Counts in a thread of its own, and tells the meter when it knows."""

    def __init__(self, config: SourceConfig, meter: Meter):
        self._config = config
        self._meter = meter
        self._thread = Thread(target=self._work, name="row-count", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Gives it a second more: the report of a run that ended early wants the number."""
        self._thread.join(_SECONDS)

    def _work(self) -> None:
        with suppress(RunError):  # where a file cannot be read, the run itself says so
            self._meter.expected = count_rows(self._config)
