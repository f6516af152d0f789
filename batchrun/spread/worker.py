"""A worker: the steps of a run on one machine over a chunk of rows, with one model in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal
from uuid import uuid4

import pandas as pd
import ray

from batchrun import building, device, log, models
from batchrun.config import RunConfig
from batchrun.engine import Engine
from batchrun.errors import BatchrunError, ModelError, RowError
from batchrun.plan import in_running_order
from batchrun.prefixes.store import PrefixStore
from batchrun.prepare import prepared_ahead, with_occurrence
from batchrun.prepare.preparer import Begun
from batchrun.records import Completion, Failure, Prompt, Request
from batchrun.spread.messages import Chunk, Done, light
from batchrun.spread.origin import Origin
from batchrun.spread.reading import COLUMN
from batchrun.spread.state import State
from batchrun.spread.watch import Trial

TELL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is told when it starts. `identity` is that of the model, `watch` and `known`
    are Ray's handles of these, `num_sharing` workers are on a machine."""

    config: RunConfig
    origin: Origin
    identity: str
    watch: Any
    known: Any
    num_sharing: int


class Worker:
    """Ray Data calls it with tables of one chunk. The model lives in a thread of its own, as MLX's
    streams belong to threads, and Ray calls from any."""

    def __init__(self, order: Order):
        self._order = order
        self._thread = ThreadPoolExecutor(1, "engine")
        self._bench: Bench | None = None

    def __call__(self, table: pd.DataFrame) -> pd.DataFrame:
        done = self._thread.submit(self._do, table[COLUMN].iloc[0]).result()
        return pd.DataFrame({COLUMN: [done]})

    def _do(self, chunk: Chunk) -> Done:
        try:
            self._bench = self._bench or Bench(self._order)
            return self._bench.do(chunk)
        except BatchrunError as error:
            return Done(error=str(error), is_whole=False)


class Bench:
    """Where a worker's chunks are done. The weights are loaded when a row first needs them."""

    def __init__(self, order: Order):
        order.origin.enter()
        self._order = order
        self._known = ray.get(order.known)
        self._state = State(node=ray.get_runtime_context().get_node_id())
        self._line = _Line(order.watch, self._state)
        self._open = ExitStack()  # what is in it stays until the process ends
        with self._timed("load"):
            self._files = models.locate(order.config.model, log.say)
            if self._files.identity != order.identity:
                host = ray.util.get_node_ip_address()
                raise ModelError(f"{host} has other files for the model {self._files.name}")
            self._machine = self._state.device = device.prepare()
            self._open.enter_context(device.limits(self._machine))
            self._words = models.load_tokenizer(self._files, order.config.model)
            self._preparer = building.preparer(order.config, self._files, self._words)
        self._engine: Engine | None = None
        self._store: PrefixStore | None = None

    def do(self, chunk: Chunk) -> Done:
        """The chunk's rows, together; or each alone where a worker died of them before."""
        if self._line.has_to_stop():
            return Done(is_whole=False)
        trial = self._line.ask("begin", chunk.number)
        done = self._run(chunk.rows) if trial is None else self._run_alone(chunk, trial)
        if self._store is not None:
            self._state.notes = tuple(dict.fromkeys((*self._state.notes, *self._store.notes)))
        self._line.has_to_stop()  # it is told where things stand
        self._line.ask("end", chunk.number)
        return replace(done, error=chunk.error)

    def _run_alone(self, chunk: Chunk, trial: Trial) -> Done:
        self._loaded_engine()  # if it dies of this, that was no row's fault
        together = Done()
        for place, row in enumerate(chunk.rows):
            if place in trial.kept:
                together.add(trial.kept[place])
            elif place in trial.deadly:
                together.add(Done([Failure(row.row, _died())]))
            elif self._line.has_to_stop():
                together.is_whole = False
            else:
                self._line.ask("begin_row", chunk.number, place)
                done = self._run([row])
                self._line.ask("end_row", chunk.number, place, done)
                together.add(done)
        return together

    def _run(self, rows: list[Request | Failure]) -> Done:
        done = Done()
        with prepared_ahead(rows, self._preparer, self._finish, depth=len(rows) + 1) as ahead:
            prompts = self._wanted(ahead, done)
            first = next((prompt for prompt in prompts if prompt is not None), None)
            if first is not None:
                self._compute(chain([first], prompts), done)
        done.is_whole &= len(done.rows) == len(rows)
        return done

    def _compute(self, prompts: Iterator[Prompt | None], done: Done) -> None:
        engine = self._loaded_engine()
        for finished in engine.run(in_running_order(prompts, window=self._order.config.window)):
            done.finished += map(_light, finished)
            if self._line.is_due and self._line.has_to_stop():
                done.is_whole = False
                engine.drain()

    def _wanted(
        self, rows: Iterable[Prompt | Failure | None], done: Done
    ) -> Iterator[Prompt | None]:
        """Books `rows`, and yields those that have to be computed, each once."""
        asked = set[tuple[str, int]]()
        for row in rows:
            if row is None:
                yield None
                continue
            done.rows.append(row if isinstance(row, Failure) else light(row))
            if isinstance(row, Prompt) and row.request.drawn is not None:
                row = with_occurrence(row, row.request.drawn)
            if isinstance(row, Failure) or self._known.has(row.key, row.sampling.n):
                continue
            if (row.key, row.sampling.n) not in asked:
                asked.add((row.key, row.sampling.n))
                yield row

    def _finish(self, begun: Begun | Failure) -> Prompt | Failure:
        with self._timed("prepare"):
            return self._preparer.finish(begun)

    def _loaded_engine(self) -> Engine:
        if self._engine is None:
            order = self._order
            if not self._line.ask("begin_load"):
                raise ModelError(
                    "workers die while they load the model: memory may have no room for so many;"
                    " give fewer --workers"
                )
            with self._timed("load"):
                model = models.load(self._files, order.config.model, self._machine, self._words)
                self._store = building.prefix_store(order.config, model)
                device.fit(self._machine, model.weights_bytes)
                room = device.memory_for_kv(self._machine, model.weights_bytes)
                # The other workers of this machine take as much.
                kv_bytes = room // order.num_sharing
                self._engine = building.engine(order.config, model, self._store, kv_bytes=kv_bytes)
                self._state.stats = self._engine.stats
                self._state.notes = model.notes
            self._line.ask("end_load")
        return self._engine

    @contextmanager
    def _timed(self, name: Literal["load", "prepare"]) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._state.seconds[name] += time.perf_counter() - start


class _Line:
    """A worker's line to the watch."""

    def __init__(self, watch: Any, state: State):
        self._watch = watch
        self._state = state
        self._worker = uuid4().hex
        self._told_at = 0.0
        self._stops = False

    @property
    def is_due(self) -> bool:
        """Whether it has been silent for long."""
        return not self._stops and time.monotonic() >= self._told_at + TELL_SECONDS

    def has_to_stop(self) -> bool:
        """Tells the worker's state."""
        self._told_at = time.monotonic()
        if self._state.device is not None:
            self._state.peak_memory = device.peak_memory()
        self._stops = self.ask("tell", self._worker, self._state)
        return self._stops

    def ask(self, what: str, *given: Any) -> Any:
        """Raises what Ray raises where the run is over."""
        return ray.get(getattr(self._watch, what).remote(*given))


def _light(finished: Completion | Failure) -> Completion | Failure:
    if isinstance(finished, Failure):
        return finished
    return replace(finished, prompt=light(finished.prompt))


def _died() -> RowError:
    return RowError(
        "worker_died",
        "its worker died twice of it, once with this row alone: memory may have run out, or a"
        " library crashed; see the worker's log below /tmp/ray on its machine",
        status=500,
    )
