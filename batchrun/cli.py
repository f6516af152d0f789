"""The command `batchrun` as a whole: its commands, its help, and errors as one line each."""

from __future__ import annotations

import io
import signal
import sys
from contextlib import nullcontext, redirect_stdout
from typing import Any

import click
from click.shell_completion import CompletionItem
from click_default_group import DefaultGroup

from batchrun import options
from batchrun.cache_cli import cache
from batchrun.check_cli import check
from batchrun.errors import BatchrunError
from batchrun.job_cli import init, job
from batchrun.merge_cli import merge
from batchrun.ranks import join, launched_as
from batchrun.report.render import one_line
from batchrun.report_cli import report
from batchrun.results_cli import export, show
from batchrun.run_cli import run


class _Main(DefaultGroup):
    """The group whose help is that of its default command, and whose errors are one line."""

    def main(self, *args: Any, **extra: Any) -> Any:
        # Of several ranks the first prints: help and version too.
        with redirect_stdout(io.StringIO()) if launched_as() else nullcontext():
            return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _fail(error.format_message(), error.exit_code)
        except BatchrunError as error:
            _fail(str(error), error.exit_status)
        except KeyboardInterrupt:
            _fail("interrupted", 130)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if launched_as() is not None:
            _meet(ctx, takes_all=command in (run, job))
        return name, command, rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, and what may follow the default one's name that nobody types."""
        found = [*super().shell_complete(ctx, incomplete), *run.shell_complete(ctx, incomplete)]
        return found if incomplete.startswith("-") else [*found, CompletionItem(incomplete, "file")]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "INPUT... -o OUTPUT [FLAGS]")
        formatter.write_usage(ctx.command_path, "check INPUT... [FLAGS]", prefix=" " * 7)
        formatter.write_usage(ctx.command_path, "job FILE... [FLAGS]", prefix=" " * 7)
        formatter.write_usage(ctx.command_path, "init INPUT...", prefix=" " * 7)
        formatter.write_usage(ctx.command_path, "show OUTPUT [FLAGS]", prefix=" " * 7)
        formatter.write_usage(ctx.command_path, "export OUTPUT -o FILE", prefix=" " * 7)
        formatter.write_usage(ctx.command_path, "merge PART... -o FILE", prefix=" " * 7)
        formatter.write_usage(ctx.command_path, "report RUN... [FLAGS]", prefix=" " * 7)
        formatter.write_usage(ctx.command_path, "cache COMMAND [FLAGS]", prefix=" " * 7)
        run.format_help_text(ctx, formatter)
        options.write_groups([*run.params, *self.get_params(ctx)], ctx, formatter)
        self.format_commands(ctx, formatter)
        run.format_epilog(ctx, formatter)


def _meet(ctx: click.Context, *, takes_all: bool) -> None:
    """As one of several ranks. Rank 0 goes on with the command, which may take all of them; the
    others do then what it tells them, and else nothing."""
    if launched_as():
        if takes_all:
            from batchrun.together.follow import follow

            follow()
        ctx.exit()
    if takes_all:
        # A run listens to it. Else it comes from mlx.launch as soon as another rank is gone, when
        # this one ends by itself and has yet to say why.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        join()


def _fail(message: str, exit_status: int) -> None:
    click.echo(f"Error: {one_line(message)}", err=True)
    sys.exit(exit_status)


@click.group(cls=_Main, default="run", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="batchrun", message="%(package)s %(version)s")
def main() -> None:
    """Run a file of requests through a language model."""


main.add_command(run)
main.add_command(check)
main.add_command(job)
main.add_command(init)
main.add_command(show)
main.add_command(export)
main.add_command(merge)
main.add_command(report)
main.add_command(cache)
