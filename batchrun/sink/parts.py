"""The output as a folder of Parquet parts: each run adds one with the rows that are new.

A row is known by what it asks, its custom_id and its kept columns together (the column `row_key`):
one that is in a part already is not written again. Failed rows are in no part, so that a later
answer does not stand beside the failure.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchrun.errors import RunError
from batchrun.records import Answer, Result
from batchrun.sink import parquet
from batchrun.sink.atomic import remove, replacing
from batchrun.sink.encode import dumps_kept
from batchrun.sink.explode import Fields
from batchrun.sink.journal import Journal
from batchrun.sink.parquet import ROW_KEY, Extra

_NAME = "part-{:05}.parquet"
_NUMBER = re.compile(r"part-(\d+)\.parquet", re.ASCII)


@dataclass(frozen=True)
class PartsPlan:
    """How a folder is written: what `parquet.write` takes, and whether rows that the input no
    longer has are dropped from the parts of earlier runs."""

    kept_schema: pa.Schema | None = None
    report: str | None = None
    explode: Fields = ()
    drops_removed: bool = False


def part_paths(folder: Path) -> list[Path]:
    """The parts in the folder, in the order in which they were written."""
    return sorted(folder.glob("part-*.parquet"))


def read(folder: Path) -> Iterator[Answer]:
    """The answers in all parts; raises ValueError or OSError for a file that is no part."""
    for path in part_paths(folder):
        if ROW_KEY.name not in pq.read_schema(path).names:
            raise ValueError(f"{path.name} has no column {ROW_KEY.name}")
        yield from parquet.read(path)


def write(journal: Journal, results: Iterator[Result], folder: Path, plan: PartsPlan) -> None:
    """Adds a part with those of the journal's `results` that are new, if there are any. Where the
    run was asked to start over, it takes the place of all parts. Raises RunError where it cannot.
    """
    before = part_paths(folder)
    try:
        folder.mkdir(exist_ok=True)
        with closing(_Written()) as written:
            if not journal.started_over:
                written.add(key for path in before for key in _row_keys(path))
            _add_part(journal, _new(results, written), folder, plan)
            if plan.drops_removed and not journal.started_over:
                _drop(before, written)
    except (OSError, pa.ArrowException, sqlite3.Error) as error:
        raise RunError(f"cannot write {folder}: {error}; finished rows are kept") from error
    if journal.started_over:
        for path in before:
            remove(path)


def row_key(result: Result) -> str:
    """What tells a row from others, as a hex digest."""
    kept = dumps_kept(dict(sorted(result.row.kept.items())))
    parts = (result.key or "", result.row.custom_id or "", kept)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


class _Written:
    """How often each row is in the parts, in a database of its own that is gone at the end: there
    may be more rows than memory has room for."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("")
        self._db.execute("CREATE TABLE written (key TEXT PRIMARY KEY, times INTEGER) WITHOUT ROWID")

    def add(self, keys: Iterable[str]) -> None:
        statement = "INSERT INTO written VALUES (?, 1) ON CONFLICT DO UPDATE SET times = times + 1"
        self._db.executemany(statement, ((key,) for key in keys))

    def take(self, key: str) -> bool:
        """Whether the row is there once more; then it counts once less."""
        statement = "UPDATE written SET times = times - 1 WHERE key = ? AND times > 0"
        return self._db.execute(statement, (key,)).rowcount > 0

    @property
    def is_empty(self) -> bool:
        return self._db.execute("SELECT 1 FROM written WHERE times > 0").fetchone() is None

    def close(self) -> None:
        self._db.close()


def _row_keys(path: Path) -> Iterator[str]:
    """One for each row; choices after the first are part of the same row."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["choice", ROW_KEY.name], use_threads=False):
            columns = (batch.column(name).to_pylist() for name in ("choice", ROW_KEY.name))
            yield from (key for choice, key in zip(*columns, strict=True) if choice == 0)


def _add_part(journal: Journal, new: Iterator[Result], folder: Path, plan: PartsPlan) -> None:
    first = next(new, None)
    if first is None:
        return
    with replacing(_next_path(folder)) as file:
        parquet.write(
            chain([first], new),
            journal.kept(),
            file,
            plan.kept_schema,
            plan.report,
            plan.explode,
            [Extra(ROW_KEY, row_key)],
        )


def _new(results: Iterator[Result], written: _Written) -> Iterator[Result]:
    for _, group in groupby(results, key=lambda result: result.row.index):
        choices = list(group)
        if choices[0].answer is not None and not written.take(row_key(choices[0])):
            yield from choices


def _next_path(folder: Path) -> Path:
    # Copies that people make, as "part-00001 (1).parquet", have no number of their own.
    named = (_NUMBER.fullmatch(path.name) for path in part_paths(folder))
    numbers = (int(match[1]) for match in named if match)
    return folder / _NAME.format(max(numbers, default=0) + 1)


def _drop(paths: Iterable[Path], written: _Written) -> None:
    """Writes the parts again without the rows that are left in `written`."""
    for path in paths:
        if written.is_empty:
            return
        masks = list(_masks(path, written))
        if not any(False in mask for mask in masks):
            continue
        if not any(True in mask for mask in masks):
            remove(path)
            continue
        _filter(path, masks)


def _filter(path: Path, masks: Iterable[list[bool]]) -> None:
    """Writes a part again with the rows that stay."""
    with (
        pq.ParquetFile(path) as file,
        replacing(path) as target,
        pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as writer,
    ):
        batches = file.iter_batches(parquet.BATCH_ROWS, use_threads=False)
        for batch, mask in zip(batches, masks, strict=True):
            writer.write_batch(batch.filter(pa.array(mask)))


def _masks(path: Path, written: _Written) -> Iterator[list[bool]]:
    """For each batch of a part, which of its rows stay."""
    stays = True
    with pq.ParquetFile(path) as file:
        columns = ["choice", ROW_KEY.name]
        for batch in file.iter_batches(parquet.BATCH_ROWS, columns=columns, use_threads=False):
            mask = []
            for choice, key in zip(*(column.to_pylist() for column in batch), strict=True):
                stays = stays if choice else not written.take(key)
                mask.append(stays)
            yield mask
