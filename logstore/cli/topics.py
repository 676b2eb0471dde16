"""`pylog topics`: create, list, describe, alter, delete, with the flags of kafka-topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from logstore.cli.places import ClusterOption, either_place
from logstore.cli.terminal import (
    Commands,
    Failure,
    ask_first,
    counted,
    open_store,
    output_option,
    pairs,
    show,
    show_json,
    show_table,
    talk,
)
from logstore.store.description import TopicDescription
from logstore.store.store import LogStore
from logstore.store.topics import new_topic
from logstore.tools.describe import describe_topic


def topic_argument(*, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Take the topic's name by position or by `--topic`, and pass it on as `name`."""

    def chosen(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        given = ctx.params.pop("topic_option", None)
        if value and given and value != given:
            raise click.UsageError(f"two topics are named: {value} and {given}", ctx)
        if required and not (value or given) and not ctx.resilient_parsing:
            raise click.UsageError("name a topic", ctx)
        return value or given

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        named = click.option(
            "--topic", "topic_option", metavar="TOPIC", is_eager=True, help="The topic; also by position."
        )
        placed = click.argument("name", metavar="TOPIC" if required else "[TOPIC]", required=False, callback=chosen)
        return placed(named(function))

    return decorate


if_exists_option = click.option(
    "--if-exists", is_flag=True, help="Do nothing, successfully, if there is no such topic."
)

config_option = click.option(
    "--config",
    multiple=True,
    metavar="KEY=VALUE",
    callback=pairs,
    help="A topic setting; may be repeated.",
)


assignment_option = click.option(
    "--replica-assignment",
    metavar="1:2,2:3,…",
    cls=ClusterOption,
    help="The brokers of each new partition, the preferred leader first.",
)


@click.group(cls=Commands)
def topics() -> None:
    """Create, list, describe, alter and delete topics.

    \b
    $ pylog topics list --path data
    """


@topics.command()
@topic_argument()
@click.option("--partitions", type=click.IntRange(min=1), default=1, help="Number of partitions.")
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    cls=ClusterOption,
    help="Replicas of each partition. [default: default.replication.factor]",
)
@assignment_option
@config_option
@click.option("--if-not-exists", is_flag=True, help="Do nothing, successfully, if the topic exists.")
@either_place("replication.cli.topics:create")
@output_option
def create(name: str, partitions: int, config: dict[str, str], if_not_exists: bool, path: Path, output: str) -> None:
    """Create a topic, and the directory if it is missing.

    \b
    $ pylog topics create orders --partitions 6 --config retention.ms=86400000 \\
        --path data
    $ pylog topics create orders --partitions 6 --replication-factor 3 \\
        --bootstrap-server 127.0.0.1:9092
    """
    new_topic(name, partitions, config)  # refused before the directory is made
    with open_store(path, create=True) as store:
        if if_not_exists and name in _names(store):
            talk(f"topic {name} exists already")
        else:
            store.create_topic(name, partitions=partitions, config=config, if_not_exists=if_not_exists)
            talk(f"created topic {name}")
        show([_summary(store.topic(name))], _SUMMARY, output)


def filter_option(name: str, which: str) -> Callable[[Any], Any]:
    """An option that leaves only such partitions."""
    return click.option(f"--{name}-partitions", is_flag=True, cls=ClusterOption, help=f"Only partitions {which}.")


@topics.command("list")
@click.option("--topics-with-overrides", is_flag=True, help="Only topics with settings of their own.")
@click.option("--exclude-internal", is_flag=True, cls=ClusterOption, help="Leave out internal topics.")
@either_place("replication.cli.topics:list_topics")
@output_option
def list_topics(topics_with_overrides: bool, path: Path, output: str) -> None:
    """List the topics.

    \b
    $ pylog topics list --path data
    $ pylog topics list --exclude-internal --bootstrap-server 127.0.0.1:9092

    Exit code 1 if the description of a topic is damaged; the others are shown.
    """
    with open_store(path, mode="r") as store:
        found = _selected(store, None, topics_with_overrides)
    show(map(_summary, found), _SUMMARY, output)
    damage = [info.damage for info in found if info.damage]
    for error in damage:
        talk(str(error))
    if damage:
        raise Failure(f"{counted(len(damage), 'topic description')} cannot be read")


@topics.command()
@topic_argument(required=False)
@click.option("--topics-with-overrides", is_flag=True, help="Only topics with settings of their own.")
@filter_option("under-replicated", "with fewer replicas in sync than there are")
@filter_option("under-min-isr", "with fewer replicas in sync than min.insync.replicas")
@filter_option("at-min-isr", "with exactly min.insync.replicas in sync")
@filter_option("unavailable", "without a leader")
@if_exists_option
@either_place("replication.cli.topics:describe")
@output_option
def describe(name: str | None, topics_with_overrides: bool, if_exists: bool, path: Path, output: str) -> None:
    """Show the partitions and settings of one topic, or of all.

    \b
    $ pylog topics describe orders --path data
    $ pylog topics describe --under-replicated-partitions \\
        --bootstrap-server 127.0.0.1:9092

    For a directory, partitions have offsets, segments and bytes; for a cluster, the leader, the replicas, the ISR and
    the offline replicas.

    A partition may have fewer records than offsets: each end of a transaction takes an offset, and
    compaction leaves gaps.

    Exit code 1 if a partition cannot be read; the others are shown.
    """
    with open_store(path, mode="r") as store:
        is_nothing = name is not None and if_exists and is_absent(name, _names(store))
        chosen = [] if is_nothing else _selected(store, name, topics_with_overrides)
        found = [describe_topic(store, info) for info in chosen]
    if output == "json":
        show_json(found)
    else:
        show_described(found, _PARTITION)
    errors = [partition["error"] for topic in found for partition in topic["partitions"] if partition["error"]]
    for error in errors:
        talk(error)
    if errors:
        raise Failure(f"{counted(len(errors), 'partition')} cannot be read; `pylog verify` checks all files")


def show_described(found: Iterable[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print topics as `describe` has them, with these columns of their partitions."""
    for number, topic in enumerate(found):
        overrides = ",".join(f"{key}={value}" for key, value in topic["config"].items()) or "-"
        click.echo("\n" * bool(number) + click.style(f"Topic: {topic['topic']}", bold=True), nl=False)
        click.echo(f"  TopicId: {topic['topic_id']}  Partitions: {len(topic['partitions'])}  Configs: {overrides}")
        show_table(topic["partitions"], columns)


@topics.command()
@topic_argument()
@click.option("--partitions", type=click.IntRange(min=1), help="New number of partitions; it can only grow.")
@assignment_option
@config_option
@click.option("--delete-config", multiple=True, metavar="KEY", help="Go back to the default; may be repeated.")
@if_exists_option
@either_place("replication.cli.topics:alter")
@output_option
def alter(
    name: str,
    partitions: int | None,
    config: dict[str, str],
    delete_config: tuple[str, ...],
    if_exists: bool,
    path: Path,
    output: str,
) -> None:
    """Change settings, or add partitions.

    \b
    $ pylog topics alter orders --config segment.bytes=104857600 \\
        --delete-config retention.ms --path data
    """
    if partitions is None and not config and not delete_config:
        raise click.UsageError("nothing to change: give --partitions, --config or --delete-config")
    with open_store(path) as store:
        if if_exists and is_absent(name, _names(store)):
            show([], _SUMMARY, output)
            return
        before = store.topic(name)
        info = store.alter_topic(name, partitions=partitions, config=config | dict.fromkeys(delete_config))
        if info.partitions > before.partitions:
            talk(KEYS_MOVE)
        talk(f"altered topic {name}")
        show([_summary(info)], _SUMMARY, output)


@topics.command()
@topic_argument()
@if_exists_option
@click.option("--yes", is_flag=True, help="Do not ask. Without a terminal nobody is asked.")
@either_place("replication.cli.topics:delete")
@output_option
def delete(name: str, if_exists: bool, yes: bool, path: Path, output: str) -> None:
    """Delete a topic and its records at once; the files go after file.delete.delay.ms.

    \b
    $ pylog topics delete orders --path data
    $ pylog topics delete orders --bootstrap-server 127.0.0.1:9092
    """
    with open_store(path) as store:
        if if_exists and is_absent(name, _names(store)):
            show([], _SUMMARY, output)
            return
        info = store.topic(name)
        if not yes:
            ask_first(DELETES.format(name))
        store.delete_topic(name)
        talk(f"deleted topic {name}")
        if output == "json":
            show([_summary(info)], _SUMMARY, output)


DELETES = "Delete topic {} with all its records?"
KEYS_MOVE = "keys hash over the number of partitions: new records of a key may go to another one"
_SUMMARY = ("topic", "partitions", "config")
_PARTITION = ("partition", "start", "end", "offsets", "segments", "bytes")


def _summary(info: TopicDescription) -> dict[str, object]:
    return {
        "topic": info.name,
        "topic_id": info.topic_id,
        "partitions": None if info.damage else info.partitions,
        "config": dict(info.overrides),
    }


def _selected(store: LogStore, name: str | None, with_overrides: bool) -> list[TopicDescription]:
    found = store.topics() if name is None else [store.topic(name)]
    return [info for info in found if info.overrides or info.damage or not with_overrides]


def _names(store: LogStore) -> list[str]:
    return [info.name for info in store.topics()]


def is_absent(name: str, known: Iterable[str]) -> bool:
    """Say so if the topic is not one of these."""
    if name in known:
        return False
    talk(f"there is no topic {name}")
    return True
