"""The command `batchrun merge`: the outputs of shards as one."""

from __future__ import annotations

import json
import sys

import click

from batchrun import options
from batchrun.report.render import render

EXAMPLES = """\
\b
Examples:
  batchrun samples/reviews.csv -o one.parquet --shard 1/2 --prompt "{{ review }}" --max-tokens 4
  batchrun samples/reviews.csv -o two.parquet --shard 2/2 --prompt "{{ review }}" --max-tokens 4
  batchrun merge one.parquet two.parquet -o all.parquet
"""


@click.command(
    cls=options.GroupedCommand, short_help="Join the outputs of shards.", epilog=EXAMPLES
)
@click.argument("parts", nargs=-1, required=True, type=click.Path(), metavar="PART...")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where all rows go.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")
def merge(parts: tuple[str, ...], output: str, as_json: bool) -> None:
    """Join PARTs, the outputs of all runs of one input with --shard, each with its report, and see
    that every row is there once. FILE is in the format that its name ends in, with one report for
    all beside it. PARTs and FILE may be URLs.

    Exit status: 0 every row has an answer, 1 rows are missing or there twice, 2 it cannot start as
    asked, 3 some rows failed.
    """
    from batchrun.merging import merge as join

    summary = join(parts, output)
    if as_json:
        click.echo(json.dumps(summary.to_dict()))
    else:
        click.echo(render(summary), err=True)
    sys.exit(summary.exit_status)
