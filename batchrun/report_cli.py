"""The command `batchrun report`: the page of a run made again, or several runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from batchrun import options, remote
from batchrun.paths import check_file
from batchrun.report.compare import comparison_text
from batchrun.report.reading import read_report


@click.command(
    cls=options.GroupedCommand, short_help="Make a run's page again, or compare several runs."
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(), metavar="RUN...")
@click.option("-o", "--output", metavar="FILE", help="Where the HTML page goes.")
@click.option("--json", "as_json", is_flag=True, help="Print each report as one line of JSON.")
def report(runs: tuple[str, ...], output: str | None, as_json: bool) -> None:
    """RUN is an output, or its .report.json. A Parquet output that was moved carries its report.

    Of one run, write the page beside it again, or to --output. Of several, print the figures in
    columns; with --output, also write a page with them.
    """
    reports = [_report(run) for run in runs]
    if as_json:
        for content in reports:
            click.echo(json.dumps(content))
        return
    if len(reports) > 1:
        click.echo(comparison_text(reports))
    target = output or (remote.beside(remote.given(runs[0]), _page) if len(runs) == 1 else None)
    if target is not None:
        with remote.lent(target) as path:
            check_file(path)
            _write(reports, path)
        click.echo(f"Written: {remote.given(target)}", err=True)


def _report(run: str) -> dict[str, Any]:
    from batchrun.report.summary import report_path

    with remote.borrowed(run, report_path) as path:
        return read_report(path)


def _page(run: Path) -> Path:
    from batchrun.report.summary import page_path

    if run.name.endswith(".report.json"):
        return run.with_suffix(".html")
    return page_path(run)


def _write(reports: list[dict[str, Any]], target: Path) -> None:
    from batchrun.report.page import render_comparison, render_page, write_page

    page = render_page(reports[0]) if len(reports) == 1 else render_comparison(reports)
    write_page(page, target)
