r"""`pylog broker` and `pylog cluster`: brokers in the foreground."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from logstore.cli.terminal import Commands
from logstore.errors import InvalidConfigError
from replication.config import BrokerConfig, properties_of


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in values:
        key, mark, value = text.partition("=")
        if not mark:
            raise click.BadParameter(f"{text!r}: key=value is wanted, as in --set num.partitions=6")
        found[key.strip()] = value.strip()
    return found


_set_option: Callable[[Any], Any] = click.option(
    "--set",
    "settings",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="A setting of server.properties; may be given more than once.",
)


@click.group(cls=Commands)
def broker() -> None:
    """Run one broker of a cluster.

    \b
    $ pylog broker start --config conf/server.properties
    """


@broker.command("start")
@click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Settings, as in conf/server.properties.",
)
@click.option(
    "--coordination",
    metavar="STORE",
    help="What the cluster agrees on: sqlite:PATH, or zookeeper:HOST:PORT/CHROOT.",
)
@_set_option
def start_broker(file: Path | None, coordination: str | None, settings: dict[str, str]) -> None:
    """Run a broker in the foreground, until SIGTERM or Ctrl-C.

    The first line on stdout is `bootstrap=HOST:PORT`, once it serves. Without --coordination it is a cluster alone. At
    the end it hands its leaderships over, so that clients see no error.

    \b
    $ pylog broker start --config conf/server.properties
    $ pylog broker start --set broker.id=2 --set log.dirs=/data/2 --coordination sqlite:/data/cluster.db
    """
    from replication.broker_process import run

    given = properties_of(file.read_text(encoding="utf-8"), str(file)) if file is not None else {}
    if coordination is not None:
        given["coordination"] = coordination
    run(BrokerConfig.from_properties({**given, **settings}), click.echo)


@click.group(cls=Commands)
def cluster() -> None:
    """Run a whole cluster on this machine.

    \b
    $ pylog cluster start --brokers 3
    """


@cluster.command("start")
@click.option("--brokers", type=click.IntRange(1, 100), default=3, show_default=True, help="How many.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where everything is kept; without it, in a directory that is removed at the end.",
)
@click.option(
    "--coordination", metavar="STORE", help="As for `pylog broker start`; a file in DIR if not given."
)
@_set_option
def start_cluster(
    brokers: int, directory: Path | None, coordination: str | None, settings: dict[str, str]
) -> None:
    """Run brokers 1 to N in the foreground, until SIGTERM or Ctrl-C.

    The first line on stdout is `bootstrap=HOST:PORT,…`, once all of them serve.

    \b
    $ pylog cluster start --brokers 3 --dir /tmp/cluster
    $ pylog cluster start --brokers 1 --set auto.create.topics.enable=false
    """
    from replication.local_cluster import LocalCluster

    own = {"broker.id", "log.dirs", "listeners"} & settings.keys()
    if own:
        raise InvalidConfigError(f"{', '.join(sorted(own))}: every broker of a cluster has its own")
    BrokerConfig.from_properties(settings)
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    with LocalCluster(brokers, directory, settings, coordination=coordination) as running:
        click.echo(f"bootstrap={running.bootstrap}")
        is_over.wait()
