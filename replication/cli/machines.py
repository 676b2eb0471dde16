"""`pylog log-dirs`, `pylog broker-api-versions`: what the brokers of a running cluster have, and speak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from logstore.cli.terminal import show, show_json, show_table, usage_errors
from replication.cli.connecting import numbers, on_cluster

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient

_brokers_option = click.option(
    "--broker-list", "brokers", callback=numbers, metavar="1,2,…", help="Only these brokers."
)


@click.command("log-dirs")
@_brokers_option
@click.option("--topic-list", "topics", metavar="A,B", help="Only replicas of these topics.")
@on_cluster
def log_dirs(client: KafkaClient, brokers: tuple[int, ...] | None, topics: str | None, output: str) -> None:
    """Show the directories of brokers, their free space, and the size of each replica.

    \b
    $ pylog log-dirs --broker-list 1,2 --topic-list orders \\
        --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.brokers import chosen, directories

    with usage_errors():
        wanted = chosen(client, brokers)
    names = None if topics is None else {name.strip() for name in topics.split(",")}
    found = directories(client, wanted, names)
    if output == "json":
        show_json(found)
        return
    for row in found:
        room = f"Usable: {row['usable_bytes']} of {row['total_bytes']} bytes"
        click.echo(
            click.style(f"Broker: {row['broker']}", bold=True) + f"  LogDir: {row['error'] or row['log_dir']}  {room}"
        )
        show_table(row["partitions"], ("topic", "partition", "bytes", "offset_lag"))


@click.command("broker-api-versions")
@_brokers_option
@on_cluster
def broker_api_versions(client: KafkaClient, brokers: tuple[int, ...] | None, output: str) -> None:
    """Show the APIs of brokers, and which version of each pylog's own client uses.

    \b
    $ pylog broker-api-versions --broker-list 1 --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.brokers import chosen, versions

    with usage_errors():
        wanted = chosen(client, brokers)
    show(versions(client, wanted), ("broker", "api", "key", "first", "last", "used"), output)
