r"""`pylog broker`, `pylog cluster`: brokers in the foreground, and what was lost of them made again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from logstore.cli.places import PlacedCommands
from logstore.cli.terminal import DIRECTORY, FILE, Commands, Failure, output_option, pairs, show, talk
from logstore.config import INT32_MAX
from logstore.env import SYSTEM
from logstore.errors import PylogError
from replication.cli.connecting import end_of_signals, naming_missing_packages, properties_in
from replication.config.broker import BrokerConfig

COPY_DIR = "coordination.copy.dir"


_copy_option: Callable[[Any], Any] = click.option(
    "--copy-to",
    metavar="DIR",
    help="Also keep copies of the SQLite file in this directory, on another disk, for this cluster only.",
)
_set_option: Callable[[Any], Any] = click.option(
    "--set",
    "settings",
    multiple=True,
    callback=pairs,
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
@click.option("--config", "file", type=FILE, metavar="FILE", help="Settings, as in conf/server.properties.")
@click.option(
    "--coordination",
    metavar="STORE",
    help="The coordination store: sqlite:PATH, or zookeeper:HOST:PORT/CHROOT.",
)
@_copy_option
@_set_option
def start_broker(file: Path | None, coordination: str | None, copy_to: str | None, settings: dict[str, str]) -> None:
    """Run a broker in the foreground, until SIGTERM or Ctrl-C.

    The first line on stdout is `bootstrap=HOST:PORT`, once the broker serves. Without --coordination the broker is a
    cluster of its own. At its end the broker hands its leaderships over, so that clients see no error.

    \b
    $ pylog broker start --config conf/server.properties
    $ pylog broker start --set broker.id=2 --set log.dirs=/data/2 \\
        --coordination sqlite:/data/cluster.db
    """
    with naming_missing_packages():
        from replication.broker.process import run
    given = properties_in(file)
    if coordination is not None:
        given["coordination"] = coordination
    if copy_to is not None:
        given[COPY_DIR] = copy_to
    run(BrokerConfig.from_properties({**given, **settings}), click.echo)


@click.group(
    cls=PlacedCommands,
    placed={"status": ("replication.cli.status:status", "Show brokers, partitions that lack replicas or a leader.")},
)
def cluster() -> None:
    """Run a whole cluster on this machine, or show a running one.

    \b
    $ pylog cluster start --brokers 3
    """


@cluster.command("start")
@click.option("--brokers", type=click.IntRange(1, 100), default=3, help="Number of brokers.")
@click.option(
    "--node-id-start",
    type=click.IntRange(0, INT32_MAX - 100),
    default=1,
    metavar="N",
    help="The broker.id of the first broker; the others have the next ids.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The directory of the cluster. [default: a temporary one, removed at the end]",
)
@click.option(
    "--coordination",
    metavar="STORE",
    help="The coordination store, as for `pylog broker start`. [default: a file in DIR]",
)
@_copy_option
@_set_option
def start_cluster(
    brokers: int,
    node_id_start: int,
    directory: Path | None,
    coordination: str | None,
    copy_to: str | None,
    settings: dict[str, str],
) -> None:
    """Run brokers 1 to N in the foreground, until SIGTERM or Ctrl-C.

    The first line on stdout is `bootstrap=HOST:PORT,…`, once all brokers serve. The exit code is 1 if no broker is
    left, unless `stop-broker` stopped the last.

    Two defaults differ from server.properties, since all brokers are on one machine (--set changes them):
    group.initial.rebalance.delay.ms=0, controlled.shutdown.max.retries=1. With metrics.port=P, the brokers use the
    ports P, P+1, and so on; with 0, each takes a free port.

    \b
    $ pylog cluster start --brokers 3 --dir /tmp/cluster
    $ pylog cluster start --brokers 1 --set auto.create.topics.enable=false
    $ pylog cluster start --brokers 3 --node-id-start 0
    """
    with naming_missing_packages():
        from replication.cli.supervisor import Supervisor
        from replication.local_cluster import LocalCluster
    if copy_to is not None:
        settings[COPY_DIR] = copy_to
    ids = range(node_id_start, node_id_start + brokers)
    is_over = end_of_signals()
    with closing(LocalCluster(ids, directory, settings, coordination=coordination)) as running:
        try:
            running.start(is_over)
        except PylogError as error:
            if not is_over.is_set():
                raise
            talk(str(error))
            return
        with closing(Supervisor(running, is_over, talk)) as supervisor:
            click.echo(f"bootstrap={running.bootstrap}")
            if missing := ", ".join(map(str, running.missing())):
                talk(
                    f"brokers {missing} have replicas and were not started; start them, or their partitions are "
                    "under-replicated"
                )
            supervisor.watch(set(ids))


_cluster_directory: Callable[[Any], Any] = click.option(
    "--dir",
    "directory",
    required=True,
    type=DIRECTORY,
    metavar="DIR",
    help="The --dir of the running `pylog cluster start`.",
)
_broker_argument: Callable[[Any], Any] = click.argument("number", metavar="ID", type=click.IntRange(0, INT32_MAX))


@cluster.command("stop-broker")
@_broker_argument
@_cluster_directory
def stop_one(number: int, directory: Path) -> None:
    """Stop one broker of a cluster that `pylog cluster start` runs, and return once it has ended.

    The leaderships of the broker move to others first. The exit code is 1 if the broker did not run, or did not stop
    cleanly.

    \b
    $ pylog cluster stop-broker 2 --dir /tmp/cluster
    """
    from replication.cli.supervisor import ask

    talk(ask(directory, "stop", number))


@cluster.command("restart-broker")
@_broker_argument
@_cluster_directory
def restart_one(number: int, directory: Path) -> None:
    """Restart one broker of a cluster that `pylog cluster start` runs, or start it if it does not run.

    The command returns once all brokers know the broker and its replicas are in sync; after 30 s it returns with the
    number of partitions that are not in sync yet. The exit code is 1 if the broker does not run then.

    \b
    $ pylog cluster restart-broker 2 --dir /tmp/cluster
    """
    from replication.cli.supervisor import ask

    talk(ask(directory, "restart", number))


@cluster.command("recover-coordination")
@click.option(
    "--dir",
    "directory",
    type=DIRECTORY,
    metavar="DIR",
    help="The --dir of `pylog cluster start`, with the file and the brokers' directories.",
)
@click.option("--coordination", metavar="STORE", help="The place of the file: sqlite:PATH.")
@click.option(
    "--log-dir",
    "log_dirs",
    multiple=True,
    type=DIRECTORY,
    metavar="DIR",
    help="The log.dirs of a broker; once for each broker of the cluster.",
)
@click.option("--copy", type=FILE, metavar="FILE", help="A copy of the file. [default: the newest copy beside it]")
@click.option("--without-copy", is_flag=True, help="Use the brokers' directories alone.")
@click.option(
    "--topic-id",
    "topic_ids",
    multiple=True,
    callback=pairs,
    metavar="TOPIC=ID",
    help="The topic to keep, where several have one name; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Show the result, and write nothing.")
@click.option("--yes", is_flag=True, help="Write the file; without --yes nothing is written.")
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
    """Recover the SQLite file of a cluster that was lost or damaged.

    Stop all brokers first. Give the directory of every broker: the log that was written last leads, and records that
    only other logs have are lost. The table shows the result and possible losses; read it before you give --yes. An
    existing file is renamed, never removed. Settings of topics come from a copy; without a copy, nothing is deleted
    from a topic until it has settings again.

    \b
    $ pylog cluster recover-coordination --dir /data/cluster --dry-run
    $ pylog cluster recover-coordination --dir /data/cluster --yes
    $ pylog cluster recover-coordination --coordination sqlite:/data/tree.db \\
        --log-dir /data/1 --log-dir /data/2 --yes
    """
    if (directory is None) == (coordination is None):
        raise click.UsageError("give --dir, or --coordination and the --log-dir of every broker")
    if directory is not None:
        path, log_dirs = directory / "coordination.db", (*_broker_directories(directory), *log_dirs)
    else:
        kind, _, place = str(coordination).partition(":")
        if kind != "sqlite" or not place:
            raise click.UsageError("only a SQLite file can be recovered: --coordination sqlite:PATH")
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
            raise Failure("nothing was written; to write this, give --yes")
        aside = recovery.write()
    talk(f"created {path}" + (f"; the former file is {aside}" if aside is not None else ""))


def _broker_directories(directory: Path) -> list[Path]:
    names = SYSTEM.files.list(directory).names
    return [directory / name for name in sorted(names) if name.startswith("broker-") and "." not in name]
