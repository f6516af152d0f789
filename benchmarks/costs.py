"""What a row costs beside answering it, in each of the processes of a run on many workers."""

from __future__ import annotations

import json
import pickle
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from workloads import WORKLOADS

from batchrun import building, models
from batchrun.config import RunConfig, SourceConfig
from batchrun.records import Completion, Prompt
from batchrun.report.meter import Meter
from batchrun.sink import Journal, write_output
from batchrun.source import counted, read_requests
from batchrun.spread.messages import Chunk, Done, light
from batchrun.spread.reading import MOST_ROWS, chunks

NUM_ROWS = 20 * MOST_ROWS
T = TypeVar("T")


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes a row. `read` is reading it and packing it for a worker, `book` unpacking
    its answer and entering it in the journal, `reuse` entering a row whose answer is there."""

    read: float
    prepare: float
    book: float
    reuse: float
    write: float
    row_bytes: float
    done_bytes: float
    journal_bytes: float
    output_bytes: float


def measure() -> Costs:
    """Of labelling rows and the default model, without an engine: each answer is the same."""
    with tempfile.TemporaryDirectory() as name:
        return _measure(Path(name))


def _measure(folder: Path) -> Costs:
    path, output = folder / "rows.jsonl", folder / "out.parquet"
    path.write_text("".join(json.dumps(row) + "\n" for row in WORKLOADS["label"](NUM_ROWS)))
    source = SourceConfig(inputs=(str(path),))
    config = RunConfig(source=source, output=output)
    read, packed = _timed(
        lambda: [pickle.dumps(chunk) for chunk in chunks(counted(read_requests(source)), 1)]
    )
    files = models.locate(config.model, print)
    words = models.load_tokenizer(files, config.model)
    with closing(building.preparer(config, files, words)) as preparer:
        taken: list[Chunk] = [pickle.loads(chunk) for chunk in packed]
        prepare, prompts = _timed(
            lambda: [[preparer.attempt(row) for row in chunk.rows] for chunk in taken]
        )
    dones = [pickle.dumps(_done(some)) for some in prompts]
    rows_alone = [pickle.dumps(Done(rows=_lights(some))) for some in prompts]
    with closing(Journal(folder / "out.journal")) as journal:
        book = _booked(journal, dones, files, words)
        reuse = _booked(journal, rows_alone, files, words)
        write, _ = _timed(lambda: write_output(journal, output, "parquet"))
        journal_bytes = sum(file.stat().st_size for file in folder.glob("out.journal*"))
    return Costs(
        read=read,
        prepare=prepare,
        book=book,
        reuse=reuse,
        write=write,
        row_bytes=sum(map(len, packed)) / NUM_ROWS,
        done_bytes=sum(map(len, dones)) / NUM_ROWS,
        journal_bytes=journal_bytes / NUM_ROWS,
        output_bytes=output.stat().st_size / NUM_ROWS,
    )


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    found = work()
    return (time.perf_counter() - start) / NUM_ROWS, found


def _lights(prompts: list[Any]) -> list[Any]:
    return [light(prompt) for prompt in prompts]


def _done(prompts: list[Any]) -> Done:
    return Done(rows=_lights(prompts), finished=[_answered(prompt) for prompt in prompts])


def _answered(prompt: Prompt) -> Completion:
    return Completion(light(prompt), 0, [4021, 30, 11, 2], " negative", "stop", seconds=1.0)


def _booked(journal: Journal, dones: list[bytes], files: Any, words: Any) -> float:
    from batchrun.spread.driver import book

    journal.start()
    ledger = building.ledger(journal, Meter(), files, words)

    def work() -> None:
        for done in dones:
            book(pickle.loads(done), ledger)

    return _timed(work)[0]
