"""Options that know under which heading --help shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
_REST = "Other"
Decorator = Callable[[_Command], _Command]


class GroupedOption(click.Option):
    """An option that knows under which heading it is shown."""

    def __init__(self, *args: Any, group: str, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help shows its options group by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_groups(self.get_params(ctx), ctx, formatter)


def write_groups(
    params: Iterable[click.Parameter], ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Writes the help of all options among `params`, those without a heading last."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for param in params:
        record = param.get_help_record(ctx)
        if record is not None and isinstance(param, click.Option):
            group = param.group if isinstance(param, GroupedOption) else _REST
            groups.setdefault(group, []).append(record)
    rest = groups.pop(_REST, [])
    for heading, records in (*groups.items(), (_REST, rest)):
        with formatter.section(heading):
            formatter.write_dl(records)


def apply(options: tuple[Decorator[Any], ...]) -> Decorator[Any]:
    """One decorator that adds `options` in their order."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def group(name: str) -> Callable[..., Decorator[Any]]:
    """What makes an option under the heading `name`, as click.option does."""

    def option(*names: str, **kwargs: Any) -> Decorator[Any]:
        return click.option(*names, cls=GroupedOption, group=name, **kwargs)

    return option
