"""The command `batchrun check`: every row validated, none run."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from batchrun import options
from batchrun.errors import UsageError
from batchrun.flags import Flags
from batchrun.records import Failure, Prompt, Request
from batchrun.report.render import one_line

if TYPE_CHECKING:
    from batchrun.check import AtHand


@click.command(
    cls=options.GroupedCommand,
    short_help="Say which rows are faulty, and answer none.",
)
@click.argument("inputs", nargs=-1, type=click.Path(), metavar="INPUT...")
@options.apply(options.INPUT)
@options.apply(options.MEDIA)
@options.apply(options.MODEL)
@options.apply(options.CHECK)
def check(
    inputs: tuple[str, ...],
    more_inputs: tuple[str, ...],
    with_plan: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Read every row of INPUT and print a line for each fault; no weights are loaded.

    Where the model is on this machine already, its chat template and context length count too;
    then --plan also forecasts what a run would compute, and what shared prefixes save.

    Exit status: 0 no faults, 2 it cannot start as asked, 3 some rows are faulty.
    """
    faults = tell_faults(Flags(**flags), (*inputs, *more_inputs), with_plan, as_json)
    sys.exit(3 if faults else 0)


def tell_faults(asked: Flags, inputs: Sequence[str], with_plan: bool, as_json: bool) -> int:
    """Reads every row, prints a line for each fault, and returns how many there are."""
    from batchrun.check import at_hand
    from batchrun.check import check as check_rows

    source = asked.source_config(inputs)
    window = asked.checked_window()
    model = at_hand(asked.model_config(), asked.media_config())
    verdicts = _Verdicts(check_rows(source, model.preparer if model else None), as_json)
    if with_plan:
        click.echo(_plan(verdicts, window, model, as_json))
    else:
        deque(verdicts, maxlen=0)
    counts = f"{verdicts.faults:,} of {verdicts.rows:,}"
    click.echo(f"Faulty rows: {counts}. {_scope(model)}", err=True)
    return verdicts.faults


class _Verdicts:
    """Iterates over the prompts among checked rows; counts all, and prints each fault."""

    def __init__(self, checked: Iterable[Request | Prompt | Failure], as_json: bool):
        self.rows = self.faults = 0
        self._checked = checked
        self._as_json = as_json

    def __iter__(self) -> Iterator[Prompt]:
        for row in self._checked:
            self.rows += 1
            if isinstance(row, Failure):
                self.faults += 1
                click.echo(json.dumps(_record(row)) if self._as_json else _line(row))
            elif isinstance(row, Prompt):
                yield row


def _plan(prompts: Iterable[Prompt], window: int, model: AtHand | None, as_json: bool) -> str:
    from batchrun.plan import forecast
    from batchrun.report.forecast import forecast_record, render_forecast

    if model is None:
        raise UsageError(
            "--plan needs the model's tokenizer, and the model is not on this machine yet: run"
            " one row first (--limit 1), which fetches it, or name a local folder with --model"
        )
    planned = forecast(prompts, window=window)
    if as_json:
        return json.dumps({"plan": forecast_record(planned, model.decoder)})
    return render_forecast(planned, model.decoder)


def _line(failure: Failure) -> str:
    row, error = failure.row, failure.error
    return one_line(f"{row.file}:{row.line} {row.custom_id or '-'} {error.code} {error.message}")


def _record(failure: Failure) -> dict[str, Any]:
    """The validation record of OpenAI's batches, and which file and request it is about."""
    row, error = failure.row, failure.error
    return {
        "code": error.code,
        "line": row.line,
        "message": error.message,
        "param": error.param,
        "file": row.file,
        "custom_id": row.custom_id,
    }


def _scope(model: AtHand | None) -> str:
    if model is None:
        return (
            "Checked: form and fields; not images or prompt length, as the model is not on this"
            " machine yet."
        )
    media = ", images and video" if model.preparer.takes_media else ""
    return f"Checked: form, fields{media}, chat template and prompt length."
