"""`pylog features`: the feature level of a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from logstore.cli.terminal import Commands, show, talk
from replication.cli.connecting import on_cluster

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient

_COLUMNS = ("broker", "feature", "supported_min", "supported_max", "finalized", "epoch")


@click.group(cls=Commands)
def features() -> None:
    """Show the feature level of a cluster, and raise it after an upgrade of its brokers.

    \b
    $ pylog features describe --bootstrap-server 127.0.0.1:9092
    """


@features.command()
@on_cluster
def describe(client: KafkaClient, output: str) -> None:
    """Show the levels that each broker supports, and the level of the cluster; all features of a Kafka that has KRaft.

    \b
    $ pylog features describe --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.features import described

    show(described(client), _COLUMNS, output)


@features.command()
@click.option("--level", type=click.IntRange(min=1), required=True, metavar="N", help="The level of pylog.version.")
@click.option("--dry-run", is_flag=True, help="Let a broker check the raise, and change nothing.")
@on_cluster
def upgrade(client: KafkaClient, level: int, dry_run: bool, output: str) -> None:
    """Raise the level of the cluster, for good, once every running broker supports it.

    From then on, brokers of releases that do not support the level cannot join the cluster. There is no way back.

    \b
    $ pylog features upgrade --level 4 --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools import features as tool

    tool.upgrade(client, level, dry_run=dry_run)
    talk(f"pylog.version {'can be' if dry_run else 'was'} raised to {level}")
    show(tool.described(client), _COLUMNS, output)
