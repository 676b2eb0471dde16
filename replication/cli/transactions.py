"""`pylog transactions` on a cluster; `logstore.cli.transactions` has the options that directories have, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from logstore.cli.terminal import show, talk
from replication.cli.connecting import connected, on_cluster

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient

_LISTED = ("transactional_id", "producer_id", "state")
_DESCRIBED = ("transactional_id", "state", "producer_id", "epoch", "start_ms", "timeout_ms", "partitions")
_HANGING = ("topic", "partition", "producer_id", "epoch", "first_offset", "last_append_ms")


@connected
def list_transactions(client: KafkaClient, committed: bool, states: tuple[str, ...], output: str) -> None:
    from replication.tools.transactions import listed

    if committed:
        raise click.UsageError("--committed is for directories; on a cluster use --state CompleteCommit")
    show(listed(client, states), _LISTED, output)


@connected
def abort(
    client: KafkaClient,
    name: str | None,
    dead: bool,
    dry_run: bool,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    output: str,
) -> None:
    from replication.tools.transactions import abort, abort_hanging, described

    place = (topic, partition, start_offset)
    if dead:
        raise click.UsageError("--dead is for directories; on a cluster use find-hanging")
    if name is not None and place == (None, None, None):
        if not dry_run:
            abort(client, name)
        talk(f"{'would abort' if dry_run else 'aborted'} the open transaction of {name}")
        show(described(client, [name]), _DESCRIBED, output)
    elif name is None and topic is not None and partition is not None and start_offset is not None and not dry_run:
        row = abort_hanging(client, topic, partition, start_offset)
        talk(f"aborted the transaction at offset {start_offset} of {topic}-{partition}")
        show([row], _HANGING, output)
    else:
        raise click.UsageError("give a transactional id; or --topic, --partition and --start-offset")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@on_cluster
def describe(client: KafkaClient, names: tuple[str, ...], output: str) -> None:
    """Show the last transaction of transactional ids, and its partitions.

    \b
    $ pylog transactions describe payments-1 --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.transactions import described

    show(described(client, names), _DESCRIBED, output)


@click.command("find-hanging")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only in this topic; may be repeated.")
@click.option(
    "--max-transaction-timeout",
    "minutes",
    type=click.IntRange(min=0),
    default=15,
    metavar="MINUTES",
    help="Leave out transactions with appends in the last MINUTES.",
)
@on_cluster
def find_hanging(client: KafkaClient, topics: tuple[str, ...], minutes: int, output: str) -> None:
    """Show transactions that no coordinator will end, and for which read_committed readers of a partition wait.

    \b
    $ pylog transactions find-hanging --topic orders \\
        --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.transactions import hanging

    rows = hanging(client, topics or None, older_than_ms=minutes * 60_000)
    show(rows, _HANGING, output)
    for row in rows:
        talk(
            f"to abort: pylog transactions abort --topic {row['topic']} --partition {row['partition']} "
            f"--start-offset {row['first_offset']}"
        )
