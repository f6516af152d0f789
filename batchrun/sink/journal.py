"""The journal: every finished row of the run in progress, safe from the moment of `commit`.

A SQLite file beside the output. Answers are known by (key, choice) and outlive runs; rows belong to
one run and point at answers by key, so that equal requests share theirs. It knows nothing of
the output's format, and it is used by one thread: the one that opened it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchrun.errors import RowError, RunError
from batchrun.records import Answer, Failure, Request, Result, Row
from batchrun.sink import statements as sql
from batchrun.sink.inserts import Inserts
from batchrun.sink.values import answer_values, error_values, make_result, make_row, row_values


@dataclass(frozen=True, slots=True)
class Counts:
    """How the rows of this run stand."""

    rows: int
    answered: int
    failed: int

    @property
    def pending(self) -> int:
        return self.rows - self.answered - self.failed


class Journal:
    """Opens the journal at `path`, or makes it, readable by its owner alone.

    Every method raises RunError when the file is damaged, of another version or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _create_private(path)
        with _explained(path):
            self._db = _connect(path)
        self._rows = Inserts(self._db, sql.add_rows)
        self._answers = Inserts(self._db, sql.add_answers)

    def start(self) -> None:
        """Begins a run: forgets the rows of the one before, keeps all answers."""
        with _explained(self.path), self._db:
            for statement in sql.START:
                self._db.execute(statement)

    @property
    def started_over(self) -> bool:
        """Whether this journal's first run was asked to reuse nothing: then no later one, which
        continues it, may take over the answers of the output that stands."""
        return bool(self._one(sql.STARTED_OVER)[0])

    def start_over(self) -> None:
        """Makes `started_over` true."""
        with _explained(self.path):
            self._db.execute(sql.START_OVER)

    def import_answers(self, answers: Iterable[Answer]) -> int:
        """Takes over the answers that are not here yet and returns their number.

        All or none: when `answers` raises, nothing has been imported.
        """
        with self._all_written(), self._db:
            before = self._db.total_changes
            self._db.executemany(sql.add_answers(1), map(answer_values, answers))
            return self._db.total_changes - before

    def finish_reasons(self, keys: Sequence[str]) -> dict[str, dict[int, str]]:
        """Why each choice ended that is here, by its number, of every key that has any."""
        found: dict[str, dict[int, str]] = {}
        with _explained(self.path):
            self._answers.flush()
            for start in range(0, len(keys), sql.MAX_VALUES):
                some = keys[start : start + sql.MAX_VALUES]
                for key, choice, reason in self._db.execute(sql.finish_reasons(len(some)), some):
                    found.setdefault(key, {})[choice] = reason
        return found

    def answered_keys(self) -> Iterator[tuple[str, int]]:
        """Each key that has answers, in order, and how many choices of it there are from 0 on."""
        with self._all_written():
            yield from self._db.execute(sql.ANSWERED_KEYS)

    def occurrence(self, key: str) -> int:
        """Counts one more row that asks for `key`; returns how many asked before it in this run."""
        with _explained(self.path):
            self._db.execute(sql.COUNT_ASKED, (key,))
            return int(self._one(sql.ASKED, (key,))[0])

    def add_row(self, request: Request, key: str) -> None:
        """Records that a row asks for the answers of `key`, before these need exist."""
        values = (*row_values(request.row), request.is_chat, key, request.sampling.n)
        with _explained(self.path):
            self._rows.add(values)

    def add_failure(self, failure: Failure) -> None:
        """Records a row that failed before it could be added."""
        values = (*row_values(failure.row), *error_values(failure.error))
        with _explained(self.path):
            self._db.execute(sql.ADD_FAILURE, values)

    def fail_key(self, key: str, error: RowError) -> list[Row]:
        """Gives `error` to every row under `key` that still lacks an answer; returns these rows."""
        with self._all_written():
            rows = [make_row(values) for values in self._db.execute(sql.UNANSWERED, (key,))]
            self._db.executemany(sql.FAIL_ROW, [(*error_values(error), row.index) for row in rows])
        return rows

    def add_answer(self, answer: Answer) -> None:
        """Records one finished choice; one that is already here stays as it is."""
        with _explained(self.path):
            self._answers.add(answer_values(answer))

    def commit(self) -> None:
        """Makes everything recorded so far survive the death of the process."""
        with self._all_written():
            self._db.commit()

    def counts(self) -> Counts:
        with self._all_written():
            rows, answered, failed = self._one(sql.COUNTS)
        return Counts(rows, answered, failed)

    def results(self) -> Iterator[Result]:
        """All results in the order of rows and choices, streamed; rows still pending are left out.

        Kept values come as their JSON forms (see `encode.dumps_kept`).
        """
        return self._results(sql.RESULTS)

    def failures(self) -> Iterator[Result]:
        """The results of failed rows alone, in order, streamed."""
        return self._results(sql.FAILURES)

    def kept(self) -> Iterator[dict[str, Any]]:
        """The kept values of every row that has any, in order, as their JSON forms."""
        with self._all_written():
            for (text,) in self._db.execute(sql.KEPT):
                yield json.loads(text)

    def close(self) -> None:
        """Closes the file; what was not committed is lost."""
        self._db.close()

    def delete(self) -> None:
        """Closes the journal and removes its files."""
        self.close()
        remove_journal(self.path)

    @contextmanager
    def _all_written(self) -> Iterator[None]:
        with _explained(self.path):
            self._rows.flush()
            self._answers.flush()
            yield

    def _one(self, statement: str, values: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        with _explained(self.path):
            found: tuple[Any, ...] = self._db.execute(statement, values).fetchone()
        return found

    def _results(self, statement: str) -> Iterator[Result]:
        row: Row | None = None
        with self._all_written():
            for values in self._db.execute(statement):
                if row is None or row.index != values[0]:
                    row = make_row(values[: sql.ROW_WIDTH])
                yield make_result(row, values[sql.ROW_WIDTH :])


def remove_journal(path: Path) -> None:
    """Removes a journal that is not open, readable or not, if there is one."""
    # The main file first: alone, the other two are ignored.
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what goes wrong with the file into RunError; our own misuse passes as it is."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise RunError(
            f"cannot use the journal {path}: {error}; check the disk's free space and the folder's "
            "permissions, then run again: what was saved before is kept"
        ) from error
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:
            raise
        raise RunError(
            f"the journal {path} is damaged ({error}); start over with --fresh"
        ) from error


def _create_private(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise RunError(
            f"cannot open the journal {path} ({error.strerror}); check who owns it and its folder"
        ) from error


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    try:
        _check_version(db, path)
        db.executescript(sql.SETTINGS)
    except (sqlite3.Error, RunError):
        db.close()
        raise
    return db


def _check_version(db: sqlite3.Connection, path: Path) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    is_empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if version == 0 and is_empty:
        db.executescript(sql.CREATE)
    elif version != sql.VERSION:
        raise RunError(
            f"the journal {path} was written by another version of batchrun (layout {version}, "
            f"this one writes {sql.VERSION}); finish with that version or start over with --fresh"
        )
