"""Rows for the journal's tables, written many at once.

SQLite is quick; but each call of it lets go of Python's lock, and then waits for it behind the
thread that prepares rows, longer than the call itself takes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from itertools import chain
from typing import Any

from batchrun.sink.statements import MAX_VALUES


class Inserts:
    """Values for one table, in the order in which they are added; written when they are enough,
    and all of them by `flush`. `statement` gives the SQL that inserts so many rows."""

    def __init__(self, db: sqlite3.Connection, statement: Callable[[int], str]) -> None:
        self._db = db
        self._statement = statement
        self._rows: list[tuple[Any, ...]] = []

    def add(self, values: tuple[Any, ...]) -> None:
        """Raises sqlite3.Error, as does `flush`."""
        self._rows.append(values)
        if (len(self._rows) + 1) * len(values) > MAX_VALUES:
            self.flush()

    def flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._db.execute(self._statement(len(rows)), [*chain.from_iterable(rows)])
