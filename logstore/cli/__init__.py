"""`pylog`: the root command. It parses and prints; the work is done by functions that return values.

`terminal` is what all commands share; `topics`, `records`, `files` and `transactions` are the commands. Other
packages add theirs by entry points of the group `pylog.commands`, so that nothing here imports upwards.
"""

from __future__ import annotations

import importlib
import logging
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from logstore.cli.terminal import Commands, Failure, failures

__all__ = ["cli", "main"]

# name -> module:attribute, loaded when the command is used.
_OWN = {
    "topics": "logstore.cli.topics:topics",
    "produce": "logstore.cli.records:produce",
    "consume": "logstore.cli.records:consume",
    "delete-records": "logstore.cli.records:delete_records",
    "transactions": "logstore.cli.transactions:transactions",
    "dump-log": "logstore.cli.files:dump_log",
    "verify": "logstore.cli.files:verify",
    "recover": "logstore.cli.files:recover",
}


class Root(Commands):
    """The commands of this package, and those that installed packages add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_OWN, *sorted({*_added(), *self.commands})]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OWN:
            module, _, attribute = _OWN[cmd_name].partition(":")
            command = getattr(importlib.import_module(module), attribute)
            assert isinstance(command, click.Command), cmd_name
            return command
        if entry := _added().get(cmd_name):
            return _load(entry)
        return super().get_command(ctx, cmd_name)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with failures():  # `--help` prints here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with failures():
            return super().invoke(ctx)


def _added() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="pylog.commands") if entry.name not in _OWN}


def _load(entry: EntryPoint) -> click.Command:
    """The command of an entry point. One that cannot be loaded says so when used, and hides no other."""
    try:
        command = entry.load()
        assert isinstance(command, click.Command), entry.value
    except ImportError as error:
        reason = f"{entry.name} cannot be loaded ({error}); install what it needs"

        @click.command(entry.name, short_help="(cannot be loaded)")
        def broken() -> None:
            raise Failure(reason)

        return broken
    return command


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="pyspark-pylog", prog_name="pylog")
def cli() -> None:
    """Work with the topics of a pylog directory: durable, partitioned logs in Kafka's file format.

    \b
    $ pylog topics create orders --partitions 3 --path data
    $ echo 'Ada:first order' | pylog produce orders --key-separator : --path data
    $ pylog consume orders --path data
    """
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")


def main() -> None:
    cli(prog_name="pylog")
