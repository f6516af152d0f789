"""The command `batchrun check`: every row validated, none run."""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
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
    from batchrun.config import RunConfig

# So many faults of a kind are printed in lines for people.
_SHOWN = 5


@click.command(
    cls=options.GroupedCommand,
    short_help="Say which rows are faulty, and answer none.",
)
@click.argument("inputs", nargs=-1, type=click.Path(), metavar="INPUT...")
@options.apply(options.ASKED)
@options.apply(options.CHECK)
def check(
    inputs: tuple[str, ...],
    more_inputs: tuple[str, ...],
    output: str | None,
    with_plan: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Read every row of INPUT and print a line for each fault; no weights are loaded, and nothing
    is written. The flags are a run's: put check before its arguments.

    Where the model is on this machine already, its chat template and context length count too;
    then --plan also forecasts what a run would compute, and what shared prefixes save. Of many
    faults of a kind the first few are printed, and how many there are; with --json all.

    Exit status: 0 no faults, 2 it cannot start as asked, 3 some rows are faulty.
    """
    asked = Flags(**flags)
    make = asked.dry_config if output is None else asked.run_config
    faults = tell_faults(make((*inputs, *more_inputs), output), with_plan, as_json)
    sys.exit(3 if faults else 0)


def tell_faults(config: RunConfig, with_plan: bool, as_json: bool) -> int:
    """Reads every row, prints a line for each fault, and returns how many there are."""
    from batchrun.check import at_hand
    from batchrun.check import check as check_rows
    from batchrun.several import check_media, parts

    if with_plan and config.model_map:
        raise UsageError("--plan is for one model: leave out --model-map")
    verdicts = _Verdicts(config, as_json)
    asked = parts(config)
    models = [at_hand(part) for part, _ in asked]
    # What is not here yet may well see.
    check_media(config, (model is None or model.preparer.takes_media for model in models))
    for (_, rows), model in zip(asked, models, strict=True):
        prompts = verdicts.of(check_rows(rows, model.preparer if model else None))
        if with_plan:
            click.echo(_plan(prompts, config.window, model, as_json))
        deque(prompts, maxlen=0)
    verdicts.tell_rest()
    counts = f"{verdicts.faults.total():,} of {verdicts.rows:,}"
    click.echo(f"Faulty rows: {counts}. {_scope(models)}", err=True)
    return verdicts.faults.total()


class _Verdicts:
    """Counts checked rows, and prints their faults: in lines for people, the first of a kind."""

    def __init__(self, config: RunConfig, as_json: bool):
        self.rows = self._unexpected = 0
        self.faults: Counter[str] = Counter()
        self._expected = config.source.expected
        self._as_json = as_json

    def of(self, checked: Iterable[Request | Prompt | Failure]) -> Iterator[Prompt]:
        """The prompts among them."""
        for item in checked:
            self.rows += 1
            if isinstance(item, Failure):
                self._tell(item)
                continue
            if self._expected is not None and item.row.kept.get(self._expected) is None:
                self._unexpected += 1
            if isinstance(item, Prompt):
                yield item

    def tell_rest(self) -> None:
        """What was only counted."""
        for code, count in self.faults.items():
            if count > _SHOWN and not self._as_json:
                click.echo(f"... and {count - _SHOWN:,} more of {code}")
        if self._unexpected:
            click.echo(
                f"Rows that are not scored, with nothing in --expected"
                f" {one_line(self._expected or '')}: {self._unexpected:,}.",
                err=True,
            )

    def _tell(self, failure: Failure) -> None:
        code = failure.error.code
        self.faults[code] += 1
        if self._as_json:
            click.echo(json.dumps(_record(failure)))
        elif self.faults[code] <= _SHOWN:
            click.echo(_line(failure))


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


def _scope(models: Sequence[AtHand | None]) -> str:
    if None in models:
        return (
            "Checked: form and fields; not images or prompt length, as the model is not on this"
            " machine yet."
        )
    media = ", images and video" if any(m and m.preparer.takes_media for m in models) else ""
    return f"Checked: form, fields{media}, chat template and prompt length."
