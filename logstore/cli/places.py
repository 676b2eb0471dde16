"""Where a command acts: on a directory (`--path`), or on a running cluster (`--bootstrap-server`).

A command of both places is one command. `logstore` does it on a directory; what does it on a cluster is above this
package, so it is named by text and loaded when it is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from logstore.cli.terminal import FILE, Commands, store_option

Function = Callable[..., Any]

bootstrap_option = click.option(
    "--bootstrap-server",
    "bootstrap",
    envvar="PYLOG_BOOTSTRAP",
    show_envvar=True,
    metavar="HOST:PORT,…",
    help="Brokers of the cluster.",
)
command_config_option = click.option(
    "--command-config",
    type=FILE,
    metavar="FILE",
    help="Settings of the client, a line each: default.api.timeout.ms, and those of TLS, SASL and a schema registry "
    "(docs/client.md).",
)


class ClusterOption(click.Option):
    """An option that only a command on a cluster has."""


class PlacedCommands(Commands):
    """A group with commands that are loaded when they are used: name -> where it is, and what its help says first.

    The help of the group loads none of them.
    """

    def __init__(self, *arguments: Any, placed: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.placed = placed

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.placed]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.placed:
            return super().get_command(ctx, cmd_name)
        command = loaded(self.placed[cmd_name][0])
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._line(ctx, name, limit)) for name in names])

    def _line(self, ctx: click.Context, name: str, limit: int) -> str:
        if name in self.placed:
            return self.placed[name][1]
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(limit)


def loaded(place: str) -> Any:
    """The object that `module:attribute` names."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def either_place(in_cluster: str) -> Callable[[Function], Function]:
    """Add the options that say where. The function is called with `path`, without the options of clusters.

    On a cluster the function that `in_cluster` names is called instead: with `bootstrap`, `command_config` and all
    options but `path`. A place of the command line counts before one of the environment.
    """

    def decorate(function: Function) -> Function:
        @store_option(required=False)
        @bootstrap_option
        @command_config_option
        @wraps(function)
        def call(path: Path | None, bootstrap: str | None, command_config: Path | None, **options: Any) -> Any:
            ctx = click.get_current_context()
            if _is_cluster(ctx, path, bootstrap):
                return loaded(in_cluster)(bootstrap=bootstrap, command_config=command_config, **options)
            for option in ctx.command.params:
                if isinstance(option, ClusterOption):
                    options.pop(str(option.name))
                    if _is_given(ctx, str(option.name)):
                        raise click.UsageError(f"{option.opts[0]} needs a cluster: --bootstrap-server HOST:PORT", ctx)
            return function(path=path, **options)

        return call  # type: ignore[no-any-return]  # click's decorators

    return decorate


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _is_cluster(ctx: click.Context, path: Path | None, bootstrap: str | None) -> bool:
    if path is None and bootstrap is None:
        raise click.UsageError("say where: --path DIR, or --bootstrap-server HOST:PORT", ctx)
    if path is not None and bootstrap is not None and _is_given(ctx, "path") == _is_given(ctx, "bootstrap"):
        raise click.UsageError("give --path or --bootstrap-server, not both", ctx)
    return bootstrap is not None and (path is None or _is_given(ctx, "bootstrap"))
