"""Which prefixes are stored, and how to find those that a prompt begins with.

An `Index` belongs to the thread that opened it; several processes may have the same file open.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchrun.prefixes import statements as sql
from batchrun.prefixes.blocks import BLOCK_TOKENS, chain, count, key_of

NAME = "prefixes.sqlite"
_BUSY_SECONDS = 5.0
_RETRY_SECONDS = 0.01
# Bytes, uses, seconds, and seconds since the epoch, as far as people can be shown them.
_MOST = 1e11

# Of the entries that share their last common block with a prompt, how many are compared with it.
_NUM_COMPARED = 8


@dataclass(frozen=True, slots=True)
class Use:
    """What decides how long an entry stays. `model` is the fingerprint, `nbytes` and `digest`
    (SHA-256, hex) are the file's, `seconds` is what computing it took."""

    key: str
    model: str
    nbytes: int
    digest: str
    seconds: float
    hits: int
    last_use: float


@dataclass(frozen=True, slots=True)
class Entry(Use):
    """A stored prefix of `length` tokens, kept as by `blocks.encode`."""

    model_name: str
    length: int
    tokens: bytes

    @property
    def is_consistent(self) -> bool:
        """Whether its tokens are those that it is named after, and its figures can be true."""
        if count(self.tokens) != self.length or not self._is_in_range:
            return False
        return key_of(chain(self.model, self.tokens), self.tokens, self.length) == self.key

    @property
    def _is_in_range(self) -> bool:
        figures = (self.nbytes, self.hits, self.seconds, self.last_use)
        return all(0 <= figure < _MOST for figure in figures)


class Damaged(sqlite3.DatabaseError):
    """The index cannot be read as one."""


class Index:
    """Opens the index in `folder`, or makes it, readable by its owner alone.

    Raises OSError, sqlite3.Error, of which Damaged. Methods raise sqlite3.Error.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / NAME
        _make_private(path)
        self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        with _damage_named():
            self._set_up()
            version = self._value("PRAGMA user_version")
            if version == 0:
                self._db.executescript(sql.CREATE)
        if version not in (0, sql.VERSION):
            raise Damaged(f"layout {version}")

    def _set_up(self) -> None:
        end = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                self._db.executescript(sql.SETTINGS)
                return
            except sqlite3.OperationalError as error:
                # SQLite does not wait where others open a new file at the same moment.
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                    raise
            time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        self._db.close()

    def check(self) -> None:
        """Reads all of it; raises Damaged where something is wrong."""
        with _damage_named():
            self.entries()
            self._value(sql.NUM_BLOCKS)
            fault = self._value("PRAGMA integrity_check")
        if fault != "ok":
            raise Damaged(fault)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Everything in the block or nothing; other processes' blocks wait."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def longest(self, hashes: list[bytes], tokens: bytes) -> Entry | None:
        """The longest entry that `tokens`, whose chain is `hashes`, begins with."""
        rows = self._db.execute(sql.LENGTHS.format(_marks(hashes)), hashes)
        most = count(tokens)
        keys = [key_of(hashes, tokens, length) for (length,) in rows if length <= most]
        row = self._db.execute(sql.LONGEST.format(_marks(keys)), keys).fetchone()
        return None if row is None else Entry(*row)

    def sharing(self, hashes: list[bytes]) -> list[Entry]:
        """Entries usable in part that have as many whole blocks of `hashes` as any, the smallest
        first, at least one block; not all where there are many."""
        low, high = 0, len(hashes) - 1
        while low < high:  # where a block is known, so are those before it
            middle = (low + high + 1) // 2
            if self._value(sql.HAS_BLOCK, (hashes[middle],)):
                low = middle
            else:
                high = middle - 1
        if low == 0:
            return []
        rows = self._db.execute(sql.WITH_BLOCK, (hashes[low], _NUM_COMPARED))
        return [Entry(*row) for row in rows]

    def has(self, key: str) -> bool:
        return bool(self._value(sql.HAS_ENTRY, (key,)))

    def add(self, entry: Entry, *, is_trimmable: bool) -> None:
        """To be called within `writing`, for a key that is not there."""
        hashes = chain(entry.model, entry.tokens)
        last_block = hashes[entry.length // BLOCK_TOKENS]
        place = (entry.key, entry.model, entry.model_name, entry.length, last_block)
        value = (entry.nbytes, entry.digest, entry.seconds, entry.hits, entry.last_use)
        self._db.execute(sql.ADD_ENTRY, (*place, *value, entry.tokens))
        if is_trimmable:
            blocks = [(block, entry.nbytes, entry.key) for block in hashes[1:]]
            self._db.executemany(sql.ADD_BLOCK, blocks)

    def remove(self, key: str, digest: str) -> bool:
        """To be called within `writing`. False if another process has removed or replaced it."""
        if self._db.execute(sql.REMOVE_ENTRY, (key, digest)).rowcount == 0:
            return False
        self._db.execute(sql.REMOVE_BLOCKS, (key,))
        return True

    def count_use(self, key: str) -> None:
        self._db.execute(sql.COUNT_USE, (time.time(), key))

    def entries(self) -> list[Entry]:
        """All of them, by model."""
        return [Entry(*row) for row in self._db.execute(sql.ENTRIES)]

    def uses(self) -> list[Use]:
        return [Use(*row) for row in self._db.execute(sql.USES)]

    def _value(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        return self._db.execute(statement, values).fetchone()[0]


def _make_private(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user")
    finally:
        os.close(descriptor)


@contextmanager
def _damage_named() -> Iterator[None]:
    """What is the fault of the file's content becomes `Damaged`."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if is_damage(error):
            raise Damaged(str(error)) from error
        raise


def is_damage(error: Exception) -> bool:
    """Whether the file's content is at fault, not the disk, its permissions or its use."""
    if isinstance(error, sqlite3.OperationalError):
        # Our statements are right: a table is missing, or text is none, which comes without a code.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return bool(code == sqlite3.SQLITE_ERROR)
    return type(error) in (sqlite3.DatabaseError, Damaged, UnicodeDecodeError)


def remove_index(folder: Path) -> None:
    """Removes an index that is damaged. Raises OSError."""
    for suffix in ("", "-wal", "-shm"):
        (folder / (NAME + suffix)).unlink(missing_ok=True)


def _marks(values: list[Any]) -> str:
    return ", ".join("?" * len(values))
