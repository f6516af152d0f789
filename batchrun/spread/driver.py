"""The process that was started: it hands out the input, and books what comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.exceptions import RayError

from batchrun import building, device, models
from batchrun.config import RunConfig
from batchrun.ending import Ended, concluded, too_many_failures
from batchrun.engine.stats import EngineStats
from batchrun.errors import RunError
from batchrun.ledger import Ledger
from batchrun.prepare import Ahead
from batchrun.report.counting import RowCount
from batchrun.report.meter import Meter
from batchrun.sink import Journal
from batchrun.spread.cluster import Team, connected
from batchrun.spread.known import Known
from batchrun.spread.messages import Done
from batchrun.spread.origin import Origin
from batchrun.spread.reading import COLUMN, Chunks
from batchrun.spread.tally import Tally
from batchrun.spread.watch import Watch
from batchrun.spread.worker import Order, Worker
from batchrun.stopping import Stop

# So that a worker has its next chunk at hand, and no more to lose or to wait for at the end.
_CHUNKS_AT_HAND = 2
_IDLE_SECONDS = 0.1


def answer_rows(
    config: RunConfig,
    files: models.ModelFiles,
    words: models.LoadedTokenizer,
    journal: Journal,
    meter: Meter,
    stop: Stop,
) -> Ended:
    """Every row into the journal, those through the workers' engines that need it."""
    assert config.cluster is not None
    count = RowCount(config.source, meter)
    ledger = building.ledger(journal, meter, files, words)
    ended = Ended(EngineStats(), files.name, device.prepare(), files.notes)
    with connected(config.cluster) as team, _explained():
        here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        # On this machine, as it ends with it.
        watch = ray.remote(Watch).options(num_cpus=0, label_selector=here).remote(team.num_workers)
        known = ray.put(Known.of(journal.answered_keys()))
        order = Order(config, Origin.here(), files.identity, watch, known, team.num_sharing)
        tally = Tally(watch)
        _book_all(config, _answers(_dataset(order, team, here)), ledger, meter, stop, tally)
        tally.settle()
    journal.commit()
    return concluded(config, tally.ended(ended, meter), ledger, count, meter, stop)


def _dataset(order: Order, team: Team, here: dict[str, str]) -> Dataset:
    """A table of one `Done` for each chunk of the input."""
    context = DataContext.get_current().copy()
    context.enable_progress_bars = False  # there is one already
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # a block is a chunk
    with DataContext.current(context):
        chunks = ray.data.read_datasource(
            Chunks(order.config.source, order.origin, team.num_workers),
            num_cpus=0,
            concurrency=1,
            override_num_blocks=1,
            label_selector=here,  # where the files are
        )
        return chunks.map_batches(
            Worker,
            fn_constructor_args=[order],
            batch_size=None,
            batch_format="pandas",
            compute=ActorPoolStrategy(
                size=team.num_workers, max_tasks_in_flight_per_actor=_CHUNKS_AT_HAND
            ),
            num_cpus=team.num_cpus,
            num_gpus=team.num_gpus,
        )


def _answers(dataset: Dataset) -> Iterator[Done]:
    for table in dataset.iter_batches(batch_size=None, batch_format="pandas"):
        yield from table[COLUMN]


def _book_all(
    config: RunConfig,
    answers: Iterator[Done],
    ledger: Ledger,
    meter: Meter,
    stop: Stop,
    tally: Tally,
) -> None:
    """Book what comes in, until it is all or the run has to end."""
    num_rows, is_whole, has_told = 0, True, False
    history = meter.recorder.history
    with (
        closing(building.progress(config)) as progress,
        Ahead(answers, _as_it_is, depth=2) as ahead,
    ):
        for done in ahead:
            if done is None:
                time.sleep(_IDLE_SECONDS)  # the cores are the workers'
            else:
                with meter.phase("write"):
                    book(done, ledger)
                num_rows += len(done.rows)
                is_whole &= done.is_whole
            tally.look()
            progress.update(meter, tally.stats)
            history.sample(meter.elapsed, tally.stats)
            is_broken = ledger.read_error is not None and not is_whole
            if stop.is_over or is_broken or too_many_failures(config, meter):
                tally.stop()
                return
            if stop.is_asked and not has_told:
                tally.stop()
                has_told = True
    if is_whole and ledger.read_error is None:
        ledger.read_all(num_rows)


def book(done: Done, ledger: Ledger) -> None:
    """Enters what a worker made of a chunk."""
    ledger.book(done.rows)
    ledger.record(done.finished)
    if done.error is not None:
        ledger.read_error = RunError(done.error)


def _as_it_is(done: Done) -> Done:
    return done


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RayError as error:
        # Ray's messages end with what went wrong, after the stack that led there.
        raise RunError(f"the workers cannot go on: {str(error).splitlines()[-1]}") from error
