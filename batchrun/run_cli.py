"""The command itself: flags in, a run, text and an exit status out."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from batchrun import options
from batchrun.flags import Flags
from batchrun.report.render import render

if TYPE_CHECKING:
    from batchrun.config import RunConfig
    from batchrun.report.summary import Summary

EXAMPLES = """\
\b
Examples:
  batchrun samples/questions.jsonl -o answers.parquet
  batchrun samples/reviews.csv -o labels.jsonl --keep id --max-tokens 4 \\
      --prompt "{{ review }} Positive or negative? Answer with one word."
  batchrun check samples/questions.jsonl
"""


@click.command(
    cls=options.GroupedCommand,
    hidden=True,  # it is what happens without a command
    epilog=EXAMPLES,
)
@click.argument("inputs", nargs=-1, type=click.Path(), metavar="INPUT...")
@options.apply(options.EVERY)
def run(
    inputs: tuple[str, ...],
    more_inputs: tuple[str, ...],
    output: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Answer every row of INPUT with a language model, unattended, in the file OUTPUT.

    INPUT is JSONL (also .gz and .zst), Parquet or CSV, or - for JSONL on standard input; several
    files, folders and quoted globs are read in order. INPUT and OUTPUT may be URLs, as
    s3://bucket/in/*.jsonl, with the store's usual credentials.

    A row is a chat or completion request, or data that --prompt turns into one. Typed again, the
    same command goes on where it was stopped, and later answers only new rows and those that
    failed.

    A flag that is not given comes from the environment, if it is there: --max-tokens from
    BATCHRUN_MAX_TOKENS. White space separates the values of one that is repeatable.

    Exit status: 0 every row has an answer, 1 the run failed, 2 it cannot start as asked, 3 some
    rows failed, 4 stopped early and to be continued, 75 another run holds OUTPUT.
    """
    config = Flags(**flags).run_config((*inputs, *more_inputs), output)
    sys.exit(carry_out(config, as_json).exit_status)


def carry_out(config: RunConfig, as_json: bool) -> Summary:
    """Runs `config` and prints how it ended."""
    # Arrow's own allocator would take 30 MB more than what it holds. Read when Arrow is loaded.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from batchrun.runner import execute

    summary = execute(config)
    if as_json:
        click.echo(json.dumps(summary.to_dict()))
    elif summary.exit_status or not config.quiet:
        _tell(render(summary))
    return summary


def _tell(summary: str) -> None:
    """The run is over: whether anybody can read of it on stderr changes nothing about it."""
    try:
        click.echo(summary, err=True)
    except OSError:
        # What is still buffered would fail again when the process ends, and be its exit status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
