"""`pylog cluster status`: the state of a running cluster on one screen."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.terminal import Failure, show_json, show_table
from replication.cli.connecting import end_of_signals, on_cluster

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient

_BROKERS = ("broker", "address", "rack", "controller", "leaders", "replicas", "log_bytes", "usable_bytes")
_NAMED = 10  # partitions of a kind


@click.command()
@click.option("--groups", type=click.IntRange(min=0), default=5, help="Number of groups, by their lag.")
@click.option("--watch", is_flag=True, help="Repeat, until SIGTERM or Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2,
    metavar="S",
    help="Time between two repeats of --watch.",
)
@on_cluster
def status(client: KafkaClient, groups: int, watch: bool, interval: float, output: str) -> None:
    """Show brokers, partitions that lack replicas or a leader, and the groups with the largest lag.

    \b
    $ pylog cluster status --bootstrap-server 127.0.0.1:9092

    Exit code 1 if there is no controller, a broker is missing, or a partition lacks a leader or replicas in sync.
    """
    from replication.tools import status as tool

    is_over = end_of_signals() if watch else threading.Event()
    while True:
        found = tool.status(client, groups=groups)
        if output == "json":
            show_json(found)
        else:
            if watch:
                click.clear()
            _show(found)
        if not watch or is_over.wait(interval):
            break
    if not found["is_sound"]:
        raise Failure("a controller, broker, leader or in-sync replica is missing")


def _show(found: dict[str, Any]) -> None:
    controller = "none" if found["controller"] is None else found["controller"]
    click.echo(
        click.style(f"Cluster: {found['cluster_id']}", bold=True)
        + f"  Controller: {controller}  Topics: {found['topics']}  Partitions: {found['partitions']}"
    )
    for problem in ("missing_brokers", "offline_partitions", "under_replicated_partitions"):
        if names := found[problem]:
            more = "" if len(names) <= _NAMED else f" and {len(names) - _NAMED} more"
            said = (
                f"{problem.replace('_', ' ').capitalize()}: {len(names)}: {', '.join(map(str, names[:_NAMED]))}{more}"
            )
            click.echo(click.style(said, fg="red"))
    show_table(found["brokers"], _BROKERS)
    show_table(found["groups"], ("group", "state", "lag"))
