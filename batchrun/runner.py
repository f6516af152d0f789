"""The whole run: files in, answers out, and nothing lost in between.

    source -> prepare -> ledger -> plan -> engine -> ledger (journal) -> output, report

Reading and preparing run ahead in a thread of their own; everything else happens in the thread that
called, which also loads the model.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain, takewhile

from batchrun import building, device, log, models, several, sink
from batchrun.awake import kept_awake
from batchrun.config import OutputFormat, RunConfig
from batchrun.ending import Ended, concluded, finish, too_many_failures
from batchrun.engine.stats import EngineStats
from batchrun.errors import UsageError
from batchrun.ledger import Ledger
from batchrun.paths import files_beside
from batchrun.plan import in_running_order
from batchrun.prefixes.store import PrefixStore
from batchrun.prepare import Ahead, prepared_ahead
from batchrun.prepare.preparer import Begun
from batchrun.ranks import Ranks, join
from batchrun.records import Failure, Prompt, Request
from batchrun.remote import Mirror, borrowed
from batchrun.report.counting import RowCount
from batchrun.report.meter import Meter
from batchrun.report.reading import read_report
from batchrun.report.render import render
from batchrun.report.summary import Summary, report_path
from batchrun.source import kept_schema
from batchrun.source.files import STDIN
from batchrun.stopping import Stop
from batchrun.together import setup
from batchrun.together.lead import Lead
from batchrun.together.setup import Asked


@dataclass(frozen=True, slots=True)
class _Start:
    """What a run needs before it writes anything: where one is missing, it never began."""

    files: models.ModelFiles
    words: models.LoadedTokenizer
    rows: Iterator[Request | Failure]


def execute(config: RunConfig) -> Summary:
    """Run `config` to its end, or as far as it gets, and write output and report.

    Raises BatchrunError where there is nothing to report on: a wrong input or path, an output
    that another run holds, a model that cannot be loaded, a disk that cannot be written to.
    """
    with log.written_to(config.manners.log_file):
        summary = _execute(config)
        log.note(render(summary))
    return summary


def _execute(config: RunConfig) -> Summary:
    manners = config.manners
    ranks = _ranks(config)
    stop = Stop(max_time=config.max_time, grace=config.grace)
    meter = Meter()
    kind = sink.output_format(config.output, config.format)
    parts = several.parts(config)
    schema = kept_schema(config.source)
    sink.load_format(kind)
    with ExitStack() as stack:
        stack.enter_context(stop.on_signals())
        waits = (lambda: not stop.is_asked) if manners.wait else None
        stack.enter_context(sink.hold(config.output, waits, config.destination))
        stack.enter_context(kept_awake(manners.keep_awake))
        if manners.nice:
            os.nice(manners.nice)
        _check_shard(config)
        starts = [_start(part, rows, meter, ranks) for part, rows in parts]
        several.check_media(config, (start.words.processor is not None for start in starts))
        mirror = Mirror(config.output, config.destination, files_beside(config.output))
        mirror.fetch()
        journal = stack.enter_context(_journal(config, kind))
        ended: Ended | None = None
        for (part, _), start in zip(parts, starts, strict=True):
            latest = _answer_rows(part, start, journal, meter, stop, ranks)
            ended = latest if ended is None else several.joined(ended, latest)
            if len(parts) > 1:
                meter.num_rows = None  # what was read are the rows of one model
            if ended.outcome != "finished":
                break
        assert ended is not None
        return finish(config, kind, schema, journal, mirror, meter, ended)


def _check_shard(config: RunConfig) -> None:
    """Raises UsageError where the output has the rows of another shard, which would be gone."""
    shard, output = config.source.shard, config.destination or str(config.output)
    if shard is None or config.fresh or config.output.is_dir():
        return
    try:
        with borrowed(output, rather=report_path) as path:
            report = read_report(path)
    except UsageError:  # what has no report says nothing of shards
        return
    held = report["configuration"]["source"].get("shard")
    if held != list(shard):
        what = "a whole run" if held is None else f"shard {held[0]}/{held[1]}"
        raise UsageError(
            f"{output}: holds the rows of {what}; give each shard an output of its own"
        )


def _ranks(config: RunConfig) -> Ranks:
    """The ranks of this run, before anything can make the others wait for long."""
    ranks = join()
    if ranks.rank:
        raise UsageError("only rank 0 runs rows: start the command batchrun with mlx.launch")
    if ranks.are_many and config.cluster is not None:
        raise UsageError("--ray runs many models, mlx.launch one over many machines; choose one")
    if ranks.are_many and STDIN in config.source.inputs:
        raise UsageError("mlx.launch never ends what it gives on standard input; give a file")
    return ranks


def _start(
    config: RunConfig, rows: Iterator[Request | Failure], meter: Meter, ranks: Ranks
) -> _Start:
    with meter.phase("load"):
        files = models.locate(config.model, log.say)
        if ranks.are_many:
            models.check_split(files, config.model, ranks.size)
        words = models.load_tokenizer(files, config.model)
    return _Start(files, words, rows)


def _journal(config: RunConfig, kind: OutputFormat) -> closing[sink.Journal]:
    """The journal with every answer that earlier runs left, there or in the output."""
    path = sink.journal_path(config.output)
    if config.fresh:
        sink.remove_journal(path)
    is_new = not path.exists()
    journal = sink.Journal(path)
    try:
        if config.fresh:
            journal.start_over()
        if config.output.exists() and not journal.started_over:
            journal.import_answers(sink.read_answers(config.output, kind, config.destination))
        journal.start()
    except BaseException:
        if is_new:
            journal.delete()
        journal.close()
        raise
    return closing(journal)


def _answer_rows(
    config: RunConfig,
    start: _Start,
    journal: sink.Journal,
    meter: Meter,
    stop: Stop,
    ranks: Ranks,
) -> Ended:
    """Every row into the journal, those through the engine that need it."""
    files = start.files
    if config.cluster is not None:
        return _spread(config, start, journal, meter, stop)
    machine = device.prepare()
    # Rows are read and prepared while the weights load.
    with (
        _read_ahead(config, start, meter) as ahead,
        device.limits(machine),
        ExitStack() as stack,
    ):
        count = RowCount(config.source, meter)
        ledger = building.ledger(journal, meter, files, start.words)

        def is_enough() -> bool:
            return stop.is_asked or too_many_failures(config, meter)

        prompts = ledger.admit(ahead, is_enough)
        ended = Ended(EngineStats(), files.name, machine, files.notes)
        first = next((prompt for prompt in prompts if prompt is not None), None)
        if first is not None:  # else there is nothing to compute, and no need of the weights
            asked = Asked.by(config, files)
            ranks.share(asked.to_dict())
            stack.enter_context(ranks.watched(config.grace))
            with meter.phase("load"):
                _, model = setup.load(asked, lambda: (files, start.words), machine, ranks)
            ordered = in_running_order(chain([first], prompts), window=config.window)
            wanted = takewhile(lambda _: not is_enough(), ordered)
            ended = _compute(config, asked, model, machine, wanted, ledger, meter, stop, ranks)
        journal.commit()
    return concluded(config, ended, ledger, count, meter, stop)


def _spread(
    config: RunConfig, start: _Start, journal: sink.Journal, meter: Meter, stop: Stop
) -> Ended:
    try:
        from batchrun.spread.driver import answer_rows
    except ImportError as error:
        raise UsageError(f"--ray needs Ray ({error}): pip install 'batchrun[ray]'") from error
    return answer_rows(config, start.files, start.words, journal, meter, stop)


def _compute(
    config: RunConfig,
    asked: Asked,
    model: models.LoadedModel,
    machine: device.Device,
    prompts: Iterable[Prompt | None],
    ledger: Ledger,
    meter: Meter,
    stop: Stop,
    ranks: Ranks,
) -> Ended:
    """Run `prompts` through the engine until they are done or the run has to end."""
    with ExitStack() as stack:
        store = None if ranks.are_many else building.prefix_store(config, model)
        if store is not None:
            stack.enter_context(closing(store))
        with meter.phase("load"):
            engine = Lead(setup.engine(asked, model, machine, ranks, store), ranks, stop.ask)
        history = meter.recorder.history
        history.add(meter.elapsed, engine.stats)
        turns = stack.enter_context(closing(engine.run(prompts)))
        with closing(building.progress(config)) as progress:
            for finished in turns:
                with meter.phase("write"):
                    ledger.record(finished)
                progress.update(meter, engine.stats)
                history.sample(meter.elapsed, engine.stats)
                if stop.is_asked:
                    engine.drain()
                if stop.is_over or too_many_failures(config, meter):
                    break
        history.add(meter.elapsed, engine.stats)
    notes = (*model.notes, *_notes(config, store, ranks))
    return Ended(engine.stats, model.name, machine, notes)


def _notes(config: RunConfig, store: PrefixStore | None, ranks: Ranks) -> tuple[str, ...]:
    if ranks.are_many and config.prefix_cache_bytes:
        return ("prefixes are not kept on disk, as each rank has a part of them only",)
    return tuple(store.notes) if store is not None else ()


@contextmanager
def _read_ahead(
    config: RunConfig, start: _Start, meter: Meter
) -> Iterator[Ahead[Prompt | Failure]]:
    with closing(building.preparer(config, start.files, start.words)) as preparer:

        def finish(begun: Begun | Failure) -> Prompt | Failure:
            with meter.phase("prepare"):
                return preparer.finish(begun)

        with prepared_ahead(start.rows, preparer, finish, depth=config.window) as ahead:
            yield ahead
