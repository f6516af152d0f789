"""The commands `batchrun job` and `batchrun init`: job files carried out, and begun."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from batchrun import options, remote
from batchrun.check_cli import tell_faults
from batchrun.errors import BatchrunError, UsageError
from batchrun.flags import Flags
from batchrun.jobs import Job, read_job
from batchrun.paths import check_file
from batchrun.report.render import one_line
from batchrun.run_cli import carry_out
from batchrun.stopping import INTERRUPTED

if TYPE_CHECKING:
    from batchrun.config import RunConfig
    from batchrun.report.summary import Summary

# What ended worst says how several jobs ended.
_WORST_FIRST = (1, 2, 4, 75, 3, 0)


@dataclass(frozen=True)
class _Asked:
    """A job with what the command line says `over` it."""

    job: Job
    over: Collection[str]
    flags: Flags
    inputs: tuple[str, ...]
    output: str | None
    as_json: bool

    def config(self) -> RunConfig:
        """Raises UsageError; makes the folders that the run writes to."""
        for folder in self._folders():
            _make(folder)
        with self._told():
            return self.flags.run_config(self.inputs, self.output)

    def faults(self) -> int:
        """Prints what is wrong with its rows, and returns how many are faulty; raises UsageError
        for all else that is wrong. Nothing is made or written."""
        for folder in self._folders():
            _check_can_be_made(folder)
        has_place = all(folder.is_dir() for folder in self._folders())
        make = self.flags.run_config if has_place else self.flags.dry_config
        with self._told():
            config = make(self.inputs, self.output)
            return tell_faults(config, with_plan=False, as_json=self.as_json)

    def carry_out(self, config: RunConfig) -> Summary:
        with self._told():
            return carry_out(config, self.as_json)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except UsageError as error:
            raise self.job.told(error, self.over) from error

    def _folders(self) -> list[Path]:
        targets = (self.output, self.flags.log_file)
        named = [remote.given(str(target)) for target in targets if target is not None]
        return [Path(name).parent for name in named if not remote.is_url(name)]


@click.command(cls=options.GroupedCommand, short_help="Carry out job files.")
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option(
    "--check", "only_check", is_flag=True, help="Say what is wrong with them and run nothing."
)
@options.apply(options.EVERY)
@click.pass_context
def job(ctx: click.Context, /, files: tuple[str, ...], only_check: bool, **flags: Any) -> None:
    """Each FILE is a run in TOML: flags by their names, with or without the tables [prompt],
    [sampling] and [output]. Flags of the command line go before it; with several files, for all.

    Paths start at the file, and may hold $VARIABLES of the environment and dates, as %Y-%m-%d.
    Folders for outputs are made. Several jobs run one after the other.

    Exit status: as a run's; with several jobs, that of the worst.
    """
    given = {
        name: value
        for name, value in flags.items()
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    now = datetime.now().astimezone()
    asked = [_over(read_job(remote.here(file), now), given) for file in files]
    outputs = [each.output for each in asked if each.output is not None]
    if len(set(outputs)) < len(outputs):
        raise UsageError("two jobs cannot have one output: leave -o to the job files")
    if only_check:
        sys.exit(3 if sum(each.faults() for each in asked) else 0)
    # All of them first: what is wrong with the last shows before the first has run for hours.
    jobs = [(each, each.config()) for each in asked]
    statuses = []
    for each, config in jobs:
        if len(jobs) > 1 and not each.flags.quiet:
            click.echo(
                f"{'' if each is asked[0] else chr(10)}{one_line(str(each.job.path))}", err=True
            )
        status, is_interrupted = _carry_out(each, config)
        statuses.append(status)
        if is_interrupted:
            break
    sys.exit(next(status for status in _WORST_FIRST if status in statuses))


def _over(job: Job, given: dict[str, Any]) -> _Asked:
    """The job with the flags of the command line in place of its own."""
    over = dict(given)
    inputs = over.pop("more_inputs", job.inputs)
    output = over.pop("output", job.output)
    as_json = over.pop("as_json", False)
    return _Asked(job, given, Flags.from_names(job.values | over), inputs, output, as_json)


def _carry_out(asked: _Asked, config: RunConfig) -> tuple[int, bool]:
    """The exit status, and whether somebody wants no more of it."""
    try:
        summary = asked.carry_out(config)
    except BatchrunError as error:
        click.echo(f"Error: {one_line(str(error))}", err=True)
        return error.exit_status, False
    return summary.exit_status, (summary.reason or "").startswith(INTERRUPTED)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made: {error.strerror}") from error


def _check_can_be_made(folder: Path) -> None:
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UsageError(f"{folder}: cannot be made in {nearest}")


@click.command(cls=options.GroupedCommand, short_help="Write the beginning of a job file.")
@click.argument("input", type=click.Path(), metavar="INPUT")
@click.option("-o", "--output", metavar="FILE", help="Where it goes.  [default: the screen]")
def init(input: str, output: str | None) -> None:  # noqa: A002
    """Write a job file with comments, that runs as it is, for INPUT and the columns that it has."""
    from batchrun.jobs.starter import starter
    from batchrun.source import first_columns
    from batchrun.source.files import resolve_inputs

    first = resolve_inputs((input,))[0]
    columns = first_columns(first)
    if not columns:
        raise UsageError(f"{first}: has no row to begin with")
    if output is None:
        click.echo(starter(input, columns), nl=False)
        return
    target = remote.here(output)
    if target.exists():
        raise UsageError(f"{target}: is there already; choose another name")
    check_file(target)
    path = input if remote.is_url(input) else os.path.relpath(input, target.parent)
    try:
        target.write_text(starter(path, columns), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from error
    click.echo(f"Written: {target}. Look it through, then: batchrun job {target}", err=True)
