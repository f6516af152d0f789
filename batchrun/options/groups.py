"""Options that know under which heading --help shows them, and from which variable of the
environment they come where they are not given: --max-tokens from BATCHRUN_MAX_TOKENS."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from batchrun.errors import UsageError

_PREFIX = "BATCHRUN_"
_Command = TypeVar("_Command", bound=Callable[..., Any])
_REST = "Other"
Decorator = Callable[[_Command], _Command]


class GroupedOption(click.Option):
    """An option that knows under which heading it is shown, and its variable."""

    def __init__(self, *args: Any, group: str, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.group = group
        self.flag = max(self.opts, key=len)
        self.variable = _PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()
        self.envvar = self.variable

    def is_from_environment(self, ctx: click.Context) -> bool:
        return ctx.get_parameter_source(self.name or "") is ParameterSource.ENVIRONMENT

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Names where the value at fault stands."""
        if ctx is not None and self.is_from_environment(ctx):
            return f"'{self.variable}'"
        return super().get_error_hint(ctx)


class GroupedCommand(click.Command):
    """A command whose help shows its options group by group, and whose errors about a flag that
    came from the environment say so."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            names = _variables(self.get_params(ctx), ctx, str(error))
            if not names:
                raise
            raise UsageError(f"{error} (from {', '.join(names)} in the environment)") from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_groups(self.get_params(ctx), ctx, formatter)


def _variables(params: Iterable[click.Parameter], ctx: click.Context, message: str) -> list[str]:
    """Those that hold the flags which `message` names."""
    flags = re.findall(r"(?<![\w-])--[a-z][a-z-]*", message)
    return [
        param.variable
        for param in params
        if isinstance(param, GroupedOption)
        and param.flag in flags
        and param.is_from_environment(ctx)
    ]


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
