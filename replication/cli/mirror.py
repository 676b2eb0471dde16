r"""`pylog mirror`: topics of another Kafka, copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from logstore.cli.terminal import FILE, counted, output_option, pairs, progress_bar, show, talk
from replication.cli.connecting import end_of_signals, naming_missing_packages, properties_in


def _client_options(client: str, settings: str) -> Callable[[Any], Any]:
    of_file = click.option(
        f"--{client}-config",
        type=FILE,
        metavar="FILE",
        help=f"Settings of the {client}, a line each; put passwords there.",
    )
    single = click.option(
        f"--{client}-property",
        f"{client}_properties",
        multiple=True,
        callback=pairs,
        metavar="KEY=VALUE",
        help=f"A setting of the {client}: {settings}, and those of TLS and SASL (docs/client.md); may be given more "
        "than once.",
    )
    return lambda function: of_file(single(function))


@click.command()
@click.option("--from", "source", required=True, metavar="BOOTSTRAP", help="The Kafka to copy: HOST:PORT,…")
@click.option("--to", "target", required=True, metavar="PATH|BOOTSTRAP", help="A directory, or a cluster: HOST:PORT,…")
@click.option("--topics", metavar="A,B", help="The topics to copy.")
@click.option(
    "--topics-regex",
    "pattern",
    metavar="REGEX",
    help="All topics whose whole name matches, except those that begin with __.",
)
@click.option("--follow", is_flag=True, help="Continue with new records, until SIGTERM or Ctrl-C.")
@_client_options("consumer", "default.api.timeout.ms")
@_client_options("producer", "default.api.timeout.ms, compression.type")
@output_option
def mirror(
    source: str,
    target: str,
    topics: str | None,
    pattern: str | None,
    follow: bool,
    consumer_config: Path | None,
    consumer_properties: dict[str, str],
    producer_config: Path | None,
    producer_properties: dict[str, str],
    output: str,
) -> None:
    """Copy topics of an existing Kafka into a directory or another cluster.

    Keys, values, headers, timestamps and partitions stay; offsets may differ. The command creates missing topics with
    the settings of the source, and ends at the offsets where the topics ended when it began. A new run continues
    where an earlier one ended, for any reason: no record is missing, and none is copied twice. No other program should
    write to the copies. The source is a Kafka of 1.0 or later.

    \b
    $ pylog mirror --from kafka:9092 --topics orders,payments --to data
    $ pylog mirror --from kafka:9092 --topics-regex 'shop\\..*' \\
        --to 127.0.0.1:19092 --follow
    $ pylog mirror --from kafka:9093 --consumer-config tls.properties \\
        --topics orders --to data
    """
    if (topics is None) == (pattern is None):
        raise click.UsageError("give --topics or --topics-regex")
    with naming_missing_packages():
        from replication.tools import mirror as mirroring
    stop = end_of_signals()
    with progress_bar("copying") as progress:
        copied = mirroring.mirror(
            source,
            target,
            topics=[name.strip() for name in topics.split(",") if name.strip()] if topics else (),
            pattern=pattern,
            follow=follow,
            stop=stop,
            progress=progress,
            consumer_properties=properties_in(consumer_config) | consumer_properties,
            producer_properties=properties_in(producer_config) | producer_properties,
        )
    talk(f"copied {counted(sum(each.records for each in copied), 'record')}")
    show(map(asdict, copied), ["topic", "partitions", "created", "records", "bytes"], output)
