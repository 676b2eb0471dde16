"""`pylog topics`: create, list, describe, alter, delete, with the flags of kafka-topics."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.places import ClusterOption, either_place
from logstore.cli.schemas import columns_options
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
    usage_errors,
)
from logstore.errors import InvalidRequestError, UnknownTopicError
from logstore.store.description import TopicDescription
from logstore.store.store import LogStore
from logstore.store.topics import new_topic
from logstore.tools.describe import describe_topic
from logstore.tools.topic_patterns import deletable, is_pattern, matching

if TYPE_CHECKING:
    from logstore.schemas.declared import Declaration


def topic_argument(
    *, required: bool = True, takes_pattern: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Take the topic's name by position or by `--topic`, and pass it on as `name`.

    With `takes_pattern` it may be a regular expression, by the rule of `topic_patterns`; else one is wrong usage.
    """

    def chosen(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        given = ctx.params.pop("topic_option", None)
        if value and given and value != given:
            raise click.UsageError(f"two topics are named: {value} and {given}", ctx)
        if required and not (value or given) and not ctx.resilient_parsing:
            raise click.UsageError("name a topic", ctx)
        name = value or given
        if name and takes_pattern and is_pattern(name):
            with usage_errors():
                matching(name, ())
        return name

    metavar = "TOPIC|REGEX" if takes_pattern else "TOPIC"
    what = "The topic, or a regular expression for whole names" if takes_pattern else "The topic"

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        named = click.option(
            "--topic", "topic_option", metavar=metavar, is_eager=True, help=f"{what}; also by position."
        )
        shown = metavar if required else f"[{metavar}]"
        placed = click.argument("name", metavar=shown, required=False, callback=chosen)
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
@columns_options
@click.option("--if-not-exists", is_flag=True, help="Do nothing, successfully, if the topic exists.")
@either_place("replication.cli.topics:create")
@output_option
def create(
    name: str,
    partitions: int,
    config: dict[str, str],
    if_not_exists: bool,
    path: Path,
    output: str,
    **columns: str | None,
) -> None:
    """Create a topic, and the directory if it is missing.

    \b
    $ pylog topics create orders --partitions 6 --config retention.ms=86400000 \\
        --path data
    $ pylog topics create orders --partitions 6 --replication-factor 3 \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog topics create orders --value-schema 'user string, amount double' \\
        --path data
    """
    new_topic(name, partitions, config)  # refused before the directory is made
    declared = declaration_of(name, columns)
    with open_store(path, create=True) as store:
        if if_not_exists and name in _names(store):
            talk(f"topic {name} exists already")
        else:
            store.create_topic(name, partitions=partitions, config=config, if_not_exists=if_not_exists, **declared)
            talk(f"created topic {name}")
        show([_summary(store.topic(name))], _SUMMARY, output)


def declaration_of(name: str, columns: Mapping[str, str | None]) -> Declaration:
    """Return the columns that options give a topic, looked at before anything is made. Raises: InvalidRequestError."""
    if not any(value is not None for value in columns.values()):
        return {}
    from logstore.schemas.declared import declared
    from logstore.tools.schemas import declaration

    found = declaration(**columns)
    declared(name, **found)
    return found


def filter_option(name: str, which: str) -> Callable[[Any], Any]:
    """An option that leaves only such partitions."""
    return click.option(f"--{name}-partitions", is_flag=True, cls=ClusterOption, help=f"Only partitions {which}.")


@topics.command("list")
@topic_argument(required=False, takes_pattern=True)
@click.option("--topics-with-overrides", is_flag=True, help="Only topics with settings of their own.")
@click.option("--exclude-internal", is_flag=True, cls=ClusterOption, help="Leave out internal topics.")
@either_place("replication.cli.topics:list_topics")
@output_option
def list_topics(name: str | None, topics_with_overrides: bool, path: Path, output: str) -> None:
    """List the topics, or those whose names match.

    \b
    $ pylog topics list --path data
    $ pylog topics list --topic 'orders.*|payments' --path data
    $ pylog topics list --exclude-internal --bootstrap-server 127.0.0.1:9092

    Exit code 1 if the description of a topic is damaged; the others are shown.
    """
    with open_store(path, mode="r") as store:
        found = _selected(store, name, topics_with_overrides)
    show(map(_summary, found), _SUMMARY, output)
    damage = [info.damage for info in found if info.damage]
    for error in damage:
        talk(str(error))
    if damage:
        raise Failure(f"{counted(len(damage), 'topic description')} cannot be read")


@topics.command()
@topic_argument(required=False, takes_pattern=True)
@click.option("--topics-with-overrides", is_flag=True, help="Only topics with settings of their own.")
@filter_option("under-replicated", "with fewer replicas in sync than there are")
@filter_option("under-min-isr", "with fewer replicas in sync than min.insync.replicas")
@filter_option("at-min-isr", "with exactly min.insync.replicas in sync")
@filter_option("unavailable", "without a leader")
@if_exists_option
@either_place("replication.cli.topics:describe")
@output_option
def describe(name: str | None, topics_with_overrides: bool, if_exists: bool, path: Path, output: str) -> None:
    """Show the partitions and settings of one topic, of those whose names match, or of all.

    \b
    $ pylog topics describe orders --path data
    $ pylog topics describe --topic 'orders.*' --path data
    $ pylog topics describe --under-replicated-partitions \\
        --bootstrap-server 127.0.0.1:9092

    For a directory, partitions have offsets, segments and bytes; for a cluster, the leader, the replicas, the ISR and
    the offline replicas.

    A partition may have fewer records than offsets: each end of a transaction takes an offset, and
    compaction leaves gaps.

    Exit code 1 if a partition cannot be read; the others are shown.
    """
    with open_store(path, mode="r") as store:
        if name is not None:
            chosen_names(name, _names(store), if_exists=if_exists, where=str(path))
        found = [describe_topic(store, info) for info in _selected(store, name, topics_with_overrides)]
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
@columns_options
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
    **columns: str | None,
) -> None:
    """Change settings or columns, or add partitions.

    \b
    $ pylog topics alter orders --config segment.bytes=104857600 \\
        --delete-config retention.ms --path data
    """
    if partitions is None and not config and not delete_config and not any(columns.values()):
        raise click.UsageError("nothing to change: give --partitions, --config, --delete-config or --value-schema")
    declared = declaration_of(name, columns)
    with open_store(path) as store:
        if if_exists and is_absent(name, _names(store)):
            show([], _SUMMARY, output)
            return
        before = store.topic(name)
        changed = config | dict.fromkeys(delete_config)
        info = store.alter_topic(name, partitions=partitions, config=changed, **declared)
        if info.partitions > before.partitions:
            talk(KEYS_MOVE)
        talk(f"altered topic {name}")
        show([_summary(info)], _SUMMARY, output)


@topics.command()
@topic_argument(takes_pattern=True)
@if_exists_option
@click.option("--yes", is_flag=True, help="Do not ask. Without a terminal only a pattern needs it.")
@either_place("replication.cli.topics:delete")
@output_option
def delete(name: str, if_exists: bool, yes: bool, path: Path, output: str) -> None:
    """Delete a topic and its records at once; the files go after file.delete.delay.ms.

    \b
    $ pylog topics delete orders --path data
    $ pylog topics delete 'test-.*' --yes --path data
    $ pylog topics delete orders --bootstrap-server 127.0.0.1:9092

    A regular expression deletes the topics that the question lists, and needs --yes where nobody can be asked. It
    leaves out internal topics, whose names begin with "__".
    """
    with open_store(path) as store:
        names = deletable(name, chosen_names(name, _names(store), if_exists=if_exists, where=str(path)))
        rows = [_summary(store.topic(each)) for each in names]
        confirm_deletion(name, names, yes=yes)
        for each in names:
            store.delete_topic(each)
            talk(f"deleted topic {each}")
        if output == "json":
            show(rows, _SUMMARY, output)


def chosen_names(text: str, names: Iterable[str], *, if_exists: bool, where: str) -> list[str]:
    """Return which of these topics a name or pattern chooses; none, and a line about it, with `if_exists`.

    Raises: UnknownTopicError; InvalidRequestError: a pattern matches nothing.
    """
    known = list(names)
    if found := matching(text, known):
        return found
    nothing = f"no topic's name matches {text!r}" if is_pattern(text) else f"there is no topic {text}"
    if if_exists:
        talk(nothing)
        return []
    raise InvalidRequestError(nothing) if is_pattern(text) else UnknownTopicError(text, known, where)


def confirm_deletion(text: str, names: list[str], *, yes: bool) -> None:
    """Have a person confirm that these topics go; a pattern without a terminal needs `yes`.

    Raises: Failure: nobody said so.
    """
    if yes or not names:
        return
    if not is_pattern(text):
        ask_first(f"Delete topic {text} with all its records?")
        return
    listed = f"{counted(len(names), 'topic')} with all records: {', '.join(names)}"
    if not sys.stdin.isatty():
        raise Failure(f"{text!r} would delete {listed}; add --yes if they may go")
    ask_first(f"Delete {listed}?")


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
    found = store.topics()
    if name is not None:
        chosen = set(matching(name, (info.name for info in found)))
        found = [info for info in found if info.name in chosen]
    return [info for info in found if info.overrides or info.damage or not with_overrides]


def _names(store: LogStore) -> list[str]:
    return [info.name for info in store.topics()]


def is_absent(name: str, known: Iterable[str]) -> bool:
    """Say so if the topic is not one of these."""
    if name in known:
        return False
    talk(f"there is no topic {name}")
    return True
