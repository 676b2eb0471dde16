"""`pylog perf`, `pylog verifiable-producer`, `pylog verifiable-consumer`: records made and read to try a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.places import bootstrap_option, command_config_option
from logstore.cli.terminal import Commands, Failure, show, talk
from logstore.env import SYSTEM
from replication.cli.connecting import connected, end_of_signals, on_cluster

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient

_ACKS = {"all": "all", "-1": "all", "1": 1, "0": 0}
_RATE = ("records", "seconds", "records_per_s", "mb_per_s")
_LATENCY = ("avg_ms", "p50_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms")
Options = Callable[[Any], Any]

_topic_option: Options = click.option("--topic", required=True, metavar="TOPIC", help="An existing topic.")
_throughput_option: Options = click.option(
    "--throughput", type=click.IntRange(min=-1), default=-1, help="Records a second; -1: no limit."
)
_acks_option: Options = click.option(
    "--acks", type=click.Choice(list(_ACKS)), default="all", help="acks of the producer."
)
_codec_option: Options = click.option(
    "--compression-codec", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), help="Codec of the batches."
)
_count_option: Options = click.option(
    "--max-messages",
    type=click.IntRange(min=-1),
    default=-1,
    help="Number of records; -1: until SIGTERM or Ctrl-C.",
)


@click.group(cls=Commands)
def perf() -> None:
    """Measure how fast records are produced and consumed.

    \b
    $ pylog perf produce --topic orders --num-records 1000 --record-size 100 \\
        --bootstrap-server 127.0.0.1:9092
    """


@perf.command("produce")
@_topic_option
@click.option("--num-records", type=click.IntRange(min=1), required=True, help="Number of records.")
@click.option("--record-size", type=click.IntRange(min=1), default=100, help="Bytes of a value.")
@_throughput_option
@_acks_option
@_codec_option
@click.option(
    "--reporting-interval",
    type=click.IntRange(min=1),
    default=5000,
    metavar="MS",
    help="Time between two lines of progress on stderr.",
)
@click.option("--linger-ms", type=click.IntRange(min=0), default=5, help="How long a record waits for others.")
@on_cluster
def perf_produce(
    client: KafkaClient,
    topic: str,
    num_records: int,
    record_size: int,
    throughput: int,
    acks: str,
    compression_codec: str | None,
    reporting_interval: int,
    linger_ms: int,
    output: str,
) -> None:
    """Produce records of random bytes; show the rate, and percentiles of the latency.

    \b
    $ pylog perf produce --topic orders --num-records 1000 --throughput 5000 \\
        --bootstrap-server 127.0.0.1:9092

    The latency is the time from the call of send to the acknowledgement; with --acks 0, until the records were sent.
    """
    from replication.tools.performance import Reports, produce

    settings: dict[str, Any] = {"acks": _ACKS[acks], "compression_type": compression_codec, "linger_ms": linger_ms}
    settings["reports"] = Reports(reporting_interval / 1000, _tell)
    found = produce(client, topic, num_records, record_size, throughput=throughput or -1, **settings)
    show([found], (*_RATE, *_LATENCY), output)


def _tell(found: dict[str, Any]) -> None:
    talk(
        "{records} records acknowledged, {records_per_s} records/s ({mb_per_s} MB/s), {avg_ms} ms average latency, "
        "{max_ms} ms maximum".format(**found)
    )


@perf.command("consume")
@_topic_option
@click.option("--messages", type=click.IntRange(min=1), required=True, help="How many records.")
@click.option("--group", metavar="GROUP", help="The group to join. [default: a new group]")
@click.option("--from-latest", is_flag=True, help="Let a new group begin at the end.")
@click.option(
    "--timeout",
    type=click.IntRange(min=1),
    default=10_000,
    metavar="MS",
    help="End after this time without a record.",
)
@on_cluster
def perf_consume(
    client: KafkaClient, topic: str, messages: int, group: str | None, from_latest: bool, timeout: int, output: str
) -> None:
    """Consume records as a member of a group; show the rate.

    \b
    $ pylog perf consume --topic orders --messages 1000 \\
        --bootstrap-server 127.0.0.1:9092

    The time begins when the group has assigned partitions; JOIN S is the time until then. Exit code 1
    if fewer records came.
    """
    from replication.tools.performance import consume

    group = group or f"perf-consumer-{SYSTEM.random.getrandbits(32):08x}"
    reset: Any = "latest" if from_latest else "earliest"
    found = consume(client, topic, messages, group=group, timeout_ms=timeout, reset=reset)
    show([found], (*_RATE, "join_s"), output)
    if found["records"] < messages:
        raise Failure(f"{found['records']} records of {messages} came within {timeout} ms")


@click.command("verifiable-producer")
@_topic_option
@_count_option
@_throughput_option
@_acks_option
@_codec_option
@click.option(
    "--value-prefix", type=click.IntRange(min=0), metavar="N", help="Send the values N.0, N.1, … instead of 0, 1, …"
)
@bootstrap_option
@command_config_option
@connected
def verifiable_producer(
    client: KafkaClient,
    topic: str,
    max_messages: int,
    throughput: int,
    acks: str,
    compression_codec: str | None,
    value_prefix: int | None,
) -> None:
    """Send numbered records one by one, and print a line of JSON for each that was acknowledged or failed.

    \b
    $ pylog verifiable-producer --topic orders --max-messages 10 \\
        --bootstrap-server 127.0.0.1:9092

    The names of the events and their fields are those of Kafka's tool. Exit code 1 if a record failed.
    """
    from replication.tools.verifiable import produced

    options: dict[str, Any] = {"records": max_messages, "throughput": throughput, "value_prefix": value_prefix}
    options |= {"acks": _ACKS[acks], "compression_type": compression_codec}
    names = _print(produced(client, topic, end_of_signals().is_set, **options))
    if "producer_send_error" in names:
        raise Failure("records were not acknowledged")


@click.command("verifiable-consumer")
@_topic_option
@click.option("--group-id", required=True, metavar="GROUP", help="The group.")
@_count_option
@click.option(
    "--reset-policy",
    type=click.Choice(["earliest", "latest", "none"]),
    default="earliest",
    help="Position of a group without offsets.",
)
@click.option("--verbose", is_flag=True, help="Also print a line for each record.")
@bootstrap_option
@command_config_option
@connected
def verifiable_consumer(
    client: KafkaClient, topic: str, group_id: str, max_messages: int, reset_policy: Any, verbose: bool
) -> None:
    """Read as a member of a group, and print a line of JSON for partitions, records and commits as they come.

    \b
    $ pylog verifiable-consumer --topic orders --group-id g --max-messages 0 \\
        --bootstrap-server 127.0.0.1:9092

    The names of the events and their fields are those of Kafka's tool. Records are committed once they are printed.
    """
    from replication.tools.verifiable import consumed

    is_over = end_of_signals().is_set
    _print(consumed(client, topic, group_id, is_over, records=max_messages, reset=reset_policy, verbose=verbose))


def _print(events: Iterable[dict[str, Any]]) -> set[str]:
    """Print events as they come; return their names."""
    names = set()
    for event in events:
        click.echo(json.dumps(event, ensure_ascii=False))
        names.add(event["name"])
    return names
