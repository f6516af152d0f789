"""The results of several outputs as those of one, in the order of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import TYPE_CHECKING, Any

from batchrun.errors import RunError
from batchrun.records import Result
from batchrun.sink.results import JsonlResults, ParquetResults

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 5


class JoinedResults:
    """`parts` hold each of the rows from 0 to `num_rows` - 1 once, in all. Iterating over them
    raises RunError at the end where they do not."""

    def __init__(self, parts: Sequence[ParquetResults | JsonlResults], num_rows: int):
        self._parts = parts
        self._num_rows = num_rows

    def schema(self) -> pa.Schema:
        """Of the kept columns that have one type in all parts: that of others followed from the
        values of each part, and has to follow from those of all."""
        import pyarrow as pa

        types: dict[str, set[pa.DataType]] = {}
        for part in self._parts:
            for column in part.schema() or ():
                types.setdefault(column.name, set()).add(column.type)
        return pa.schema([(name, *found) for name, found in types.items() if len(found) == 1])

    def results(self) -> Iterator[Result]:
        check = _Check()
        found = merge(*(part.results() for part in self._parts), key=lambda one: one.row.index)
        for result in found:
            choice = 0 if result.answer is None else result.answer.choice
            if check.is_new(result.row.index, choice):
                yield result
        check.end(self._num_rows)

    def kept(self) -> Iterator[dict[str, Any]]:
        for part in self._parts:
            yield from part.kept()


@dataclass(slots=True)
class _Check:
    """Looks at rows as they come, in order, for those that are missing or there twice."""

    row: int = -1
    choice: int = -1
    missing: list[range] = field(default_factory=list)
    twice: dict[int, None] = field(default_factory=dict)

    def is_new(self, row: int, choice: int) -> bool:
        if row == self.row and choice <= self.choice:
            self.twice[row] = None
            return False
        self._skip_to(row)
        self.row, self.choice = row, choice
        return True

    def end(self, num_rows: int) -> None:
        """Raises RunError where rows were missing, or there twice."""
        self._skip_to(num_rows)
        problems = []
        if self.missing:
            count = sum(map(len, self.missing))
            problems.append(f"{count:,} rows are missing: {_shown(map(_span, self.missing))}")
        if self.twice:
            rows = map(str, self.twice)
            problems.append(f"{len(self.twice):,} rows are there twice: {_shown(rows)}")
        if problems:
            raise RunError(f"{'; '.join(problems)}; run the shards that they belong to again")

    def _skip_to(self, row: int) -> None:
        if row > self.row + 1:
            self.missing.append(range(self.row + 1, row))


def _span(rows: range) -> str:
    return str(rows[0]) if len(rows) == 1 else f"{rows[0]}-{rows[-1]}"


def _shown(names: Iterator[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_SHOWN]) + (", …" if len(listed) > _SHOWN else "")
