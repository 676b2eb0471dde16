"""`pylog get-offsets`; `pylog delete-records` on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from logstore.cli.records import wanted_deletions
from logstore.cli.terminal import show
from logstore.cli.topics import topic_argument
from replication.cli.connecting import connected, numbers, on_cluster

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient


@click.command("get-offsets")
@topic_argument(required=False)
@click.option("--partitions", callback=numbers, metavar="0,1,…", help="Only these partitions.")
@click.option(
    "--time",
    default="latest",
    metavar="latest|earliest|max-timestamp|TIME",
    help="The end; the start; behind the record with the largest timestamp; or the first record at or after a time, in "
    "milliseconds or as 2026-11-28T16:00:00+01:00. -1, -2 and -3 mean the first three.",
)
@click.option("--exclude-internal", is_flag=True, help="Leave out internal topics.")
@on_cluster
def get_offsets(
    client: KafkaClient,
    name: str | None,
    partitions: tuple[int, ...] | None,
    time: str,
    exclude_internal: bool,
    output: str,
) -> None:
    """Show an offset of each partition of a topic, or of all topics.

    \b
    $ pylog get-offsets orders --time earliest --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.offsets import asked_time, offsets

    asked = asked_time(time)
    if asked is None:
        raise click.BadParameter(
            f"{time!r} is not latest, earliest, max-timestamp, milliseconds, or a time with a zone",
            param_hint="--time",
        )
    rows = offsets(client, name, partitions, asked, with_internal=not exclude_internal)
    show(rows, ("topic", "partition", "offset"), output)


@connected
def delete_records(
    client: KafkaClient, name: str | None, partition: int | None, offset: int | None, plan: Any, output: str
) -> None:
    from replication.tools.offsets import delete

    rows = delete(client, wanted_deletions(name, partition, offset, plan))
    show(rows, ("topic", "partition", "start", "end"), output)
