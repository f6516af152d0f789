"""The end of a run: the output, if the rows got that far, and the report in any case."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from batchrun import device, log, sink
from batchrun.config import OutputFormat, RunConfig
from batchrun.engine.stats import EngineStats
from batchrun.evaluation import Evaluation, Judge, tally
from batchrun.ledger import Ledger
from batchrun.remote import Mirror
from batchrun.report.counting import RowCount
from batchrun.report.meter import Meter
from batchrun.report.summarize import summarize
from batchrun.report.summary import (
    Outcome,
    Summary,
    page_path,
    report_path,
    report_text,
    write_report,
)
from batchrun.stopping import Stop

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Ended:
    """How the rows' part of the run ended, and what it ran on. `peak_memory` is bytes of the device
    and of the process where that was not this one."""

    stats: EngineStats
    model: str
    device: device.Device
    notes: tuple[str, ...]
    outcome: Outcome = "finished"
    reason: str | None = None
    peak_memory: tuple[int, int] | None = None


def too_many_failures(config: RunConfig, meter: Meter) -> bool:
    """Whether so many rows have failed that the run has to end."""
    most = config.fail_on_error
    if most is None:
        return False
    if most >= 1:
        return meter.num_failed >= most
    return meter.total is not None and meter.num_failed > most * meter.total


def concluded(
    config: RunConfig, ended: Ended, ledger: Ledger, count: RowCount, meter: Meter, stop: Stop
) -> Ended:
    """`ended` with its outcome, now that no more rows come."""
    if not ledger.is_complete:
        count.settle()
    if too_many_failures(config, meter):
        reason = f"{meter.num_failed:,} rows failed (--fail-on-error)"
        return replace(ended, outcome="failed", reason=reason)
    if ledger.read_error is not None:
        return replace(ended, outcome="failed", reason=str(ledger.read_error))
    if not ledger.is_complete:
        return replace(ended, outcome="stopped", reason=stop.reason)
    return ended


def finish(
    config: RunConfig,
    kind: OutputFormat,
    schema: pa.Schema | None,
    journal: sink.Journal,
    mirror: Mirror,
    meter: Meter,
    ended: Ended,
) -> Summary:
    """Write what the run came to, and bring it to where it goes. Raises RunError where output or
    report cannot be written."""
    judge = _judge(config, journal)
    evaluation = None
    if judge is not None:
        judged = judge.judged(journal.results())
        evaluation = tally(meter.recorder.wrong_among(judged, judge.column), judge)
    if ended.outcome == "finished":
        with meter.phase("write"):
            # The output carries the report as it stands before this is written.
            report = report_text(
                _summary(config, meter, ended, evaluation), meter.recorder.to_dict()
            )
            sink.write_output(
                journal,
                config.output,
                kind,
                schema,
                report,
                config.explode,
                correct=None if judge is None else judge.correct,
                drops_removed=config.drops_removed,
            )
            mirror.publish()
        journal.delete()
    summary = _summary(config, meter, ended, evaluation)
    text = report_text(summary, meter.recorder.to_dict())
    write_report(text, report_path(config.output))
    _write_page(config, text)
    mirror.publish()
    mirror.clear()
    return summary


def _judge(config: RunConfig, journal: sink.Journal) -> Judge | None:
    asked = config.evaluation
    if asked is None:
        return None
    return Judge.of_rows(asked.expected, asked.metric, journal.kept())


def _summary(
    config: RunConfig, meter: Meter, ended: Ended, evaluation: Evaluation | None
) -> Summary:
    return summarize(
        meter,
        ended.stats,
        config,
        model=ended.model,
        device=asdict(ended.device),
        peak_memory=ended.peak_memory or device.peak_memory(),
        outcome=ended.outcome,
        reason=ended.reason,
        notes=ended.notes,
        evaluation=evaluation,
    )


def _write_page(config: RunConfig, report: str) -> None:
    """Without it nothing is lost: `batchrun report` makes it again."""
    target = page_path(config.output)
    try:
        # Loaded here: matplotlib would slow the start down.
        from batchrun.report.page import render_page, write_page

        write_page(render_page(json.loads(report)), target)
    # The answers are there: no fault of a library that draws makes a failure of the run.
    except Exception as error:  # noqa: BLE001
        log.say(f"Note: there is no page {target}: {str(error) or type(error).__name__}")
