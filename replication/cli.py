r"""`pylog broker`, `pylog cluster`: brokers in the foreground; `pylog mirror`: topics of another Kafka, copied."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.terminal import Commands, Failure, counted, output_option, progress_bar, show, talk
from logstore.errors import InvalidConfigError, PylogError
from replication.config import BrokerConfig, properties_of

if TYPE_CHECKING:
    from replication.local_cluster import LocalCluster

LOOK_S = 1.0  # how often the brokers of a cluster are looked at


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
    try:
        from replication.broker_process import run
    except ModuleNotFoundError as error:
        raise _lacking(error) from error
    given = _properties_in(file) if file is not None else {}
    if coordination is not None:
        given["coordination"] = coordination
    run(BrokerConfig.from_properties({**given, **settings}), click.echo)


def _lacking(error: ModuleNotFoundError) -> Failure:
    return Failure(f'brokers need {error.name}: pip install "pyspark-pylog[cluster]"')


def _properties_in(file: Path) -> dict[str, str]:
    try:
        return properties_of(file.read_text(encoding="utf-8"), str(file))
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"{file}: byte {error.start} is not UTF-8 text") from error


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

    The first line on stdout is `bootstrap=HOST:PORT,…`, once all of them serve. The exit code is 1 if no broker is
    left, for whatever reason.

    Two defaults are not those of server.properties, since all is on one machine, and --set takes others:
    group.initial.rebalance.delay.ms=0, controlled.shutdown.max.retries=1. With metrics.port=P, the brokers have the
    ports P, P+1, and so on; 0 is a free one for each.

    \b
    $ pylog cluster start --brokers 3 --dir /tmp/cluster
    $ pylog cluster start --brokers 1 --set auto.create.topics.enable=false
    """
    try:
        from replication.local_cluster import LocalCluster
    except ModuleNotFoundError as error:
        raise _lacking(error) from error

    is_over = _end_of_signals()
    with closing(LocalCluster(brokers, directory, settings, coordination=coordination)) as running:
        try:
            running.start(is_over)
        except PylogError as error:
            if not is_over.is_set():
                raise
            talk(str(error))
            return
        click.echo(f"bootstrap={running.bootstrap}")
        if missing := ", ".join(map(str, running.missing())):
            talk(
                f"not started, though partitions are on them: brokers {missing}; start them, or these lack replicas"
            )
        _watch(running, set(range(1, brokers + 1)), is_over)


def _watch(running: LocalCluster, live: set[int], is_over: threading.Event) -> None:
    """Say of each of these brokers that it has ended, until the last has or `is_over` is set."""
    while not is_over.wait(LOOK_S):
        for broker in sorted(live - set(running.live)):
            talk(f"broker {broker} has ended; {running.log_dir(broker)}/broker/server.log says why")
        live &= set(running.live)
        if not live and not is_over.is_set():
            raise Failure("no broker is left")


def _end_of_signals() -> threading.Event:
    """What is set at SIGTERM or Ctrl-C."""
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    return is_over


def _property_option(client: str) -> Callable[[Any], Any]:
    return click.option(
        f"--{client}-property",
        f"{client}_properties",
        multiple=True,
        callback=_pairs,
        metavar="KEY=VALUE",
        help=f"A setting of librdkafka for the {client} (TLS, passwords, …); may be given more than once.",
    )


@click.command()
@click.option("--from", "source", required=True, metavar="BOOTSTRAP", help="The Kafka to copy: HOST:PORT,…")
@click.option(
    "--to", "target", required=True, metavar="PATH|BOOTSTRAP", help="A directory, or a cluster: HOST:PORT,…"
)
@click.option("--topics", metavar="A,B", help="The topics to copy.")
@click.option(
    "--topics-regex", "pattern", metavar="REGEX", help="All whose whole name fits; none that begin with __."
)
@click.option("--follow", is_flag=True, help="Go on with what comes, until SIGTERM or Ctrl-C.")
@_property_option("consumer")
@_property_option("producer")
@output_option
def mirror(
    source: str,
    target: str,
    topics: str | None,
    pattern: str | None,
    follow: bool,
    consumer_properties: dict[str, str],
    producer_properties: dict[str, str],
    output: str,
) -> None:
    """Copy topics of an existing Kafka into a directory or another cluster.

    Keys, values, headers, timestamps and partitions stay; offsets may differ. Topics that are missing are made, with
    the settings of the source. It ends where the topics ended when it began. Run again, after whatever end, it goes
    on where it was: no record is missing, none is there twice. Nobody else should write to the copies. Needs
    confluent-kafka.

    \b
    $ pylog mirror --from kafka:9092 --topics orders,payments --to data
    $ pylog mirror --from kafka:9092 --topics-regex 'shop\\..*' --to 127.0.0.1:19092 --follow
    """
    if (topics is None) == (pattern is None):
        raise click.UsageError("give --topics or --topics-regex")
    try:
        from replication import mirror as mirroring
    except ModuleNotFoundError as error:
        raise Failure('mirror needs confluent-kafka: pip install "pyspark-pylog[mirror]"') from error
    stop = _end_of_signals()
    with progress_bar("copying") as progress:
        copied = mirroring.mirror(
            source,
            target,
            topics=[name.strip() for name in topics.split(",") if name.strip()] if topics else (),
            pattern=pattern,
            follow=follow,
            stop=stop,
            progress=progress,
            consumer_properties=consumer_properties,
            producer_properties=producer_properties,
        )
    talk(f"copied {counted(sum(each.records for each in copied), 'record')}")
    show(map(asdict, copied), ["topic", "partitions", "created", "records", "bytes"], output)
