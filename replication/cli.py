r"""`pylog broker`, `pylog cluster`: brokers in the foreground; `pylog mirror`: topics of another Kafka, copied."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.terminal import Commands, Failure, counted, output_option, progress_bar, show, talk
from logstore.env import SYSTEM
from logstore.errors import InvalidConfigError, PylogError
from replication.config.broker import BrokerConfig, properties_of

if TYPE_CHECKING:
    from replication.local_cluster import LocalCluster

COPY_DIR = "coordination.copy.dir"
LOOK_S = 1.0  # how often the brokers of a cluster are looked at


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in values:
        key, mark, value = text.partition("=")
        if not mark:
            raise click.BadParameter(f"{text!r}: key=value is wanted, as in --set num.partitions=6")
        found[key.strip()] = value.strip()
    return found


_copy_option: Callable[[Any], Any] = click.option(
    "--copy-to",
    metavar="DIR",
    help="Also keep copies of the SQLite file in this directory, on another disk, for this cluster only.",
)
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
    help="The coordination store: sqlite:PATH, or zookeeper:HOST:PORT/CHROOT.",
)
@_copy_option
@_set_option
def start_broker(file: Path | None, coordination: str | None, copy_to: str | None, settings: dict[str, str]) -> None:
    """Run a broker in the foreground, until SIGTERM or Ctrl-C.

    The first line on stdout is `bootstrap=HOST:PORT`, once it serves. Without --coordination it is a
    cluster of its own. At the end it hands its leaderships over, so that clients see no error.

    \b
    $ pylog broker start --config conf/server.properties
    $ pylog broker start --set broker.id=2 --set log.dirs=/data/2 --coordination sqlite:/data/cluster.db
    """
    with _told_what_is_lacking():
        from replication.broker.process import run
    given = _properties_in(file)
    if coordination is not None:
        given["coordination"] = coordination
    if copy_to is not None:
        given[COPY_DIR] = copy_to
    run(BrokerConfig.from_properties({**given, **settings}), click.echo)


@contextmanager
def _told_what_is_lacking() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise Failure(f'clusters need {error.name}: pip install "pyspark-pylog[cluster]"') from error


def _properties_in(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
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
@click.option("--coordination", metavar="STORE", help="As for `pylog broker start`; a file in DIR if not given.")
@_copy_option
@_set_option
def start_cluster(
    brokers: int,
    directory: Path | None,
    coordination: str | None,
    copy_to: str | None,
    settings: dict[str, str],
) -> None:
    """Run brokers 1 to N in the foreground, until SIGTERM or Ctrl-C.

    The first line on stdout is `bootstrap=HOST:PORT,…`, once all of them serve. The exit code is 1 if no broker is
    left, for whatever reason.

    Two defaults differ from server.properties, since all brokers are on one machine (--set changes them):
    group.initial.rebalance.delay.ms=0, controlled.shutdown.max.retries=1. With metrics.port=P, the brokers have the
    ports P, P+1, and so on; 0 is a free one for each.

    \b
    $ pylog cluster start --brokers 3 --dir /tmp/cluster
    $ pylog cluster start --brokers 1 --set auto.create.topics.enable=false
    """
    with _told_what_is_lacking():
        from replication.local_cluster import LocalCluster
    if copy_to is not None:
        settings[COPY_DIR] = copy_to
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
            talk(f"not started, though partitions are on them: brokers {missing}; start them, or these lack replicas")
        _watch(running, set(range(1, brokers + 1)), is_over)


@cluster.command("recover-coordination")
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="That of `pylog cluster start`: the file and the brokers' directories in it.",
)
@click.option("--coordination", metavar="STORE", help="Where the file was: sqlite:PATH.")
@click.option(
    "--log-dir",
    "log_dirs",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The log.dirs of a broker; once for each broker of the cluster.",
)
@click.option(
    "--copy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A copy of the file; if not given, the newest one that lies beside it.",
)
@click.option("--without-copy", is_flag=True, help="From the brokers' directories alone.")
@click.option(
    "--topic-id",
    "topic_ids",
    multiple=True,
    callback=_pairs,
    metavar="TOPIC=ID",
    help="Of several topics of a name, the one to keep; may be given more than once.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
@click.option("--yes", is_flag=True, help="Do it; nothing is written without.")
@output_option
def recover_coordination(
    directory: Path | None,
    coordination: str | None,
    log_dirs: tuple[Path, ...],
    copy: Path | None,
    without_copy: bool,
    topic_ids: dict[str, str],
    dry_run: bool,
    yes: bool,
    output: str,
) -> None:
    """Make the SQLite file of a cluster again, when it was lost or damaged.

    All brokers must be stopped. Give the directory of every one: the log that was written last leads, and what only
    others have is lost. The table says what will be, and what may be lost; read it before you say --yes. A file that is
    there is put aside, and never removed. Settings of topics come from a copy; without one, nothing is deleted from a
    topic until it has settings again.

    \b
    $ pylog cluster recover-coordination --dir /data/cluster --dry-run
    $ pylog cluster recover-coordination --dir /data/cluster --yes
    $ pylog cluster recover-coordination --coordination sqlite:/data/tree.db --log-dir /data/1 --log-dir /data/2 --yes
    """
    if (directory is None) == (coordination is None):
        raise click.UsageError("give --dir, or --coordination and the --log-dir of every broker")
    if directory is not None:
        path, log_dirs = directory / "coordination.db", (*_broker_directories(directory), *log_dirs)
    else:
        kind, _, place = str(coordination).partition(":")
        if kind != "sqlite" or not place:
            raise click.UsageError("only a SQLite file is made again: --coordination sqlite:PATH")
        path = Path(place)
    from replication.tools import recover_coordination as recovering

    if copy is None and not without_copy:
        copy = recovering.newest_copy(path, SYSTEM)
    talk(f"from the copy {copy}" if copy is not None else "from the brokers' directories alone")
    with recovering.look(path, log_dirs, copy=copy, env=SYSTEM, chosen_ids=topic_ids) as recovery:
        plan = recovery.plan
        show((asdict(row) for row in plan.rows), list(recovering.COLUMNS), output)
        for note in plan.notes:
            talk(note)
        if plan.problems:
            raise Failure("\n".join(plan.problems))
        if dry_run:
            return
        if not yes:
            raise Failure("nothing was written; if this is what you want, say --yes")
        aside = recovery.write()
    talk(f"{path} is made" + (f"; what was there is {aside}" if aside is not None else ""))


def _broker_directories(directory: Path) -> list[Path]:
    names = SYSTEM.files.list(directory).names
    return [directory / name for name in sorted(names) if name.startswith("broker-") and "." not in name]


def _watch(running: LocalCluster, live: set[int], is_over: threading.Event) -> None:
    while not is_over.wait(LOOK_S):
        for broker in sorted(live - set(running.live)):
            talk(f"broker {broker} has ended; {running.log_dir(broker)}/broker/server.log says why")
        live &= set(running.live)
        if not live and not is_over.is_set():
            raise Failure("no broker is left")


def _end_of_signals() -> threading.Event:
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    return is_over


def _client_options(client: str, settings: str) -> Callable[[Any], Any]:
    of_file = click.option(
        f"--{client}-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"Settings of the {client}, a line each: the place for passwords.",
    )
    single = click.option(
        f"--{client}-property",
        f"{client}_properties",
        multiple=True,
        callback=_pairs,
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
@click.option("--follow", is_flag=True, help="Go on with what comes, until SIGTERM or Ctrl-C.")
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

    Keys, values, headers, timestamps and partitions stay; offsets may differ. It creates missing topics with
    the settings of the source, and ends where the topics ended when it began. Run it again, after whatever end, and it
    continues: no record is missing, none is there twice. Nobody else should write to the copies. The source is a
    Kafka of 1.0 or later.

    \b
    $ pylog mirror --from kafka:9092 --topics orders,payments --to data
    $ pylog mirror --from kafka:9092 --topics-regex 'shop\\..*' --to 127.0.0.1:19092 --follow
    $ pylog mirror --from kafka:9093 --consumer-config tls.properties --topics orders --to data
    """
    if (topics is None) == (pattern is None):
        raise click.UsageError("give --topics or --topics-regex")
    with _told_what_is_lacking():
        from replication.tools import mirror as mirroring
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
            consumer_properties=_properties_in(consumer_config) | consumer_properties,
            producer_properties=_properties_in(producer_config) | producer_properties,
        )
    talk(f"copied {counted(sum(each.records for each in copied), 'record')}")
    show(map(asdict, copied), ["topic", "partitions", "created", "records", "bytes"], output)
