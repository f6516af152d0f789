"""An output once more, in another format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batchrun.errors import UsageError
from batchrun.records import Result
from batchrun.sink import jsonl
from batchrun.sink.atomic import replacing
from batchrun.sink.output import named_format
from batchrun.sink.results import open_results


def export(output: Path, target: Path) -> int:
    """Writes the results in `output` to `target`, in the format that its name ends in; returns how
    many there are. Raises UsageError where either is no such file, RunError where it cannot be
    written."""
    kind = "csv" if target.suffix.lower() == ".csv" else named_format(target)
    if kind is None:
        raise UsageError(
            f"cannot tell the format of {target}: end its name in .parquet, .jsonl or .csv"
        )
    source = open_results(output)
    counted = _Counted(source.results())
    with replacing(target) as file:
        if kind == "jsonl":
            jsonl.write(counted, file)
        elif kind == "csv":
            from batchrun.sink.records import write_csv

            write_csv(counted, source.kept(), file)
        else:
            from batchrun.sink import parquet

            parquet.write(iter(counted), source.kept(), file, source.schema())
    return counted.count


class _Counted:
    """Results, and how many went by."""

    def __init__(self, results: Iterator[Result]):
        self._results = results
        self.count = 0

    def __iter__(self) -> Iterator[Result]:
        for result in self._results:
            self.count += 1
            yield result
