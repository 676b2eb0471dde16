"""`pylog verify-replicas`: are the replicas of partitions the same?"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.terminal import Failure, counted, show, talk, usage_errors
from replication.cli.connecting import end_of_signals, on_cluster

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient

_COLUMNS = ("topic", "partition", "replicas", "start", "end", "bytes", "lag", "differs_at", "how")


@click.command("verify-replicas")
@click.option(
    "--topics-include",
    "pattern",
    default=".*",
    metavar="REGEX",
    help="A regular expression for whole topic names.",
)
@click.option(
    "--fetch-size",
    type=click.IntRange(min=1),
    default=1024 * 1024,
    metavar="BYTES",
    help="Bytes of a replica to read at a time; a larger batch is read as a whole.",
)
@click.option("--parallel", type=click.IntRange(1, 1000), default=8, help="Partitions at a time.")
@click.option(
    "--report-interval",
    "interval_ms",
    type=click.IntRange(min=100),
    metavar="MS",
    help="Repeat, from the last compared offsets on, until SIGTERM or Ctrl-C.",
)
@on_cluster
def verify_replicas(
    client: KafkaClient, pattern: str, fetch_size: int, parallel: int, interval_ms: int | None, output: str
) -> None:
    """Read all replicas of partitions, and compare them batch by batch, with their checksums.

    \b
    $ pylog verify-replicas --topics-include 'orders|payments-.*' \\
        --bootstrap-server 127.0.0.1:9092

    The command compares committed batches, and shows the first offset at which a replica differs from the leader's, or
    cannot be read. A replica that is behind is compared up to its log end offset: a lag is no failure. Readers and
    writers continue. Memory holds about --parallel times --fetch-size of each replica. Exit code 1 if replicas differ,
    or could not be compared.
    """
    from replication.tools.replica_verification import ReplicaVerification

    with usage_errors():
        verification = ReplicaVerification(client, pattern, fetch_bytes=fetch_size, parallel=parallel)
    is_over = end_of_signals() if interval_ms is not None else threading.Event()
    failed = 0
    while True:
        rows = verification.run()
        failed = _print(rows, output, only_wrong=interval_ms is not None)
        if interval_ms is None or is_over.wait(interval_ms / 1000):
            break
    if failed:
        raise Failure(f"replicas of {counted(failed, 'partition')} differ, or could not be compared")


def _print(rows: Sequence[dict[str, Any]], output: str, *, only_wrong: bool) -> int:
    """Print them; how many partitions are wrong."""
    wrong = [row for row in rows if row["findings"]]
    chosen = [row for row in rows if row["findings"] or row["lag"]] if only_wrong and output == "table" else rows
    if output == "table":
        chosen = [line for row in chosen for line in _lines(row)]
    show(chosen, _COLUMNS, output)
    worst = max(rows, key=lambda row: row["lag"])
    talk(
        f"compared {sum(row['bytes'] for row in rows)} bytes of {counted(len(rows), 'partition')}; largest lag "
        f"{worst['lag']}, of {worst['topic']}-{worst['partition']} at offset {worst['end']}"
    )
    return len(wrong)


def _lines(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A line of the table for each finding, or one."""
    return [
        {**row, "differs_at": found["offset"], "how": f"broker {found['broker']}: {found['reason']}"}
        for found in row["findings"]
    ] or [{**row, "differs_at": None, "how": None}]
