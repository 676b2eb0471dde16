"""`pylog groups`: consumer groups of a running cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TextIO

import click

from logstore.cli.terminal import Commands, Failure, counted, show, talk, usage_errors
from logstore.env import SYSTEM
from replication.cli.connecting import on_cluster

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient
    from replication.tools.offset_resets import Reset

_OFFSETS = (
    "group", "topic", "partition", "current_offset", "log_end_offset", "lag", "consumer_id", "host", "client_id"
)  # fmt: skip
_MEMBERS = ("group", "consumer_id", "host", "client_id", "partitions", "assignment")
_STATE = ("group", "state", "type", "assignment_strategy", "members")
_PLAN = ("group", "topic", "partition", "current_offset", "new_offset")

_group_option = click.option("--group", required=True, metavar="GROUP", help="The group.")
_all_option = click.option("--all-groups", is_flag=True, help="Every group.")
_topics_option = click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1]",
    help="A topic, or some partitions of it; may be repeated.",
)


def _groups_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the names of groups, as arguments or options; the command gets all of them as `groups`."""

    @click.argument("names", nargs=-1, metavar="[GROUP]...")
    @click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group; also by position, several too.")
    @wraps(command)
    def call(names: tuple[str, ...], groups: tuple[str, ...], **options: Any) -> Any:
        return command(groups=(*names, *groups), **options)

    return call


@click.group(cls=Commands)
def groups() -> None:
    """List, describe, reset and delete groups of consumers, share groups too.

    \b
    $ pylog groups list --bootstrap-server 127.0.0.1:9092
    """


@groups.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only in this state: Stable, Empty, …")
@on_cluster
def list_groups(client: KafkaClient, states: tuple[str, ...], output: str) -> None:
    """List the groups of all brokers.

    \b
    $ pylog groups list --state Empty --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.groups import listed

    show(listed(client, states), ("group", "state", "protocol_type", "type"), output)


@groups.command()
@_groups_option
@_all_option
@click.option("--members", "with_members", is_flag=True, help="Show the members instead, as `pylog groups members`.")
@click.option("--state", "with_state", is_flag=True, help="Show the state of each group instead, in one row.")
@on_cluster
def describe(
    client: KafkaClient, groups: tuple[str, ...], all_groups: bool, with_members: bool, with_state: bool, output: str
) -> None:
    """Show offsets, lag and member of each partition that a group reads.

    \b
    $ pylog groups describe billing --bootstrap-server 127.0.0.1:9092
    $ pylog groups describe --state --all-groups --bootstrap-server 127.0.0.1:9092

    Members without partitions come last, in rows without a topic. All members of a share group read all of its
    partitions, and none is named: CURRENT-OFFSET is where the group begins, and LAG counts records that are not done.
    """
    from replication.tools.groups import described, members, state

    if with_members and with_state:
        raise click.UsageError("give --members or --state, not both")
    if with_members or with_state:
        names, columns = _chosen(client, groups, all_groups), _MEMBERS if with_members else _STATE
        _show_each(client, names, members if with_members else state, columns, output)
        return

    def rows_of(group: Any) -> list[dict[str, Any]]:
        rows = described(client, group)
        if group.members == ():
            talk(f"group {group.id} has no members")
        return rows

    _show_each(client, _chosen(client, groups, all_groups), rows_of, _OFFSETS, output)


def _show_each(
    client: KafkaClient,
    names: list[str],
    rows_of: Callable[[Any], list[dict[str, Any]]],
    columns: tuple[str, ...],
    output: str,
) -> None:
    """Show the rows of all these groups that can be described, and then fail if one cannot."""
    from replication.tools.groups import of_each

    found, rows, failed = of_each(client, names, rows_of)
    for group in found:
        if group.members is None:
            talk(f"group {group.id} is a {group.type} group in state {group.state}: its members are not shown here")
    if rows or not failed:
        show(rows, columns, output)
    if failed:
        raise Failure("\n".join(failed))


@groups.command()
@_groups_option
@_all_option
@on_cluster
def members(client: KafkaClient, groups: tuple[str, ...], all_groups: bool, output: str) -> None:
    """Show the members of a group, and their partitions.

    \b
    $ pylog groups members billing --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.groups import members

    _show_each(client, _chosen(client, groups, all_groups), members, _MEMBERS, output)


@groups.command()
@_groups_option
@on_cluster
def delete(client: KafkaClient, groups: tuple[str, ...], output: str) -> None:
    """Delete groups that have no members, with their offsets.

    \b
    $ pylog groups delete billing --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.groups import delete

    delete(client, _chosen(client, groups, False))
    talk(f"deleted {counted(len(groups), 'group')}")
    show([{"group": name} for name in groups] if output == "json" else [], ("group",), output)


@groups.command("delete-offsets")
@_group_option
@_topics_option
@on_cluster
def delete_offsets(client: KafkaClient, group: str, topics: tuple[str, ...], output: str) -> None:
    """Delete the committed offsets of topics that no member of the group subscribes to; of a share group whole topics.

    \b
    $ pylog groups delete-offsets --group billing --topic orders:0 \\
        --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.groups import forget

    if not topics:
        raise click.UsageError("give topics or partitions: --topic TOPIC, or TOPIC:0,1")
    tps = forget(client, group, topics)
    talk(f"deleted {counted(len(tps), 'offset')} of group {group}")
    show(({"group": group, "topic": tp.topic, "partition": tp.partition} for tp in tps), _PLAN[:3], output)


def _reset_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--from-file", type=click.File("r"), metavar="FILE", help="TOPIC,PARTITION,OFFSET a line; - is stdin."
        ),
        click.option("--to-current", is_flag=True, help="The committed offset; the end if there is none."),
        click.option("--shift-by", type=int, metavar="N", help="Move by N offsets; backwards below 0."),
        click.option("--by-duration", metavar="PT1H", help="The first record of the last PT1H, say."),
        click.option(
            "--to-datetime", metavar="TIME", help="The first record at or after this ISO time (UTC without a zone)."
        ),
        click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="This offset."),
        click.option("--to-latest", is_flag=True, help="The end."),
        click.option("--to-earliest", is_flag=True, help="The first record."),
    ):
        function = option(function)
    return function


@groups.command("reset-offsets")
@_group_option
@_topics_option
@click.option("--all-topics", is_flag=True, help="All topics with committed offsets of the group.")
@_reset_options
@click.option("--execute", is_flag=True, help="Set the offsets; without it they are only shown.")
@click.option("--export", is_flag=True, help="Print CSV that --from-file reads.")
@on_cluster
def reset_offsets(
    client: KafkaClient,
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    export: bool,
    output: str,
    **forms: Any,
) -> None:
    """Set the offsets of a group that has no members; without --execute only show them.

    \b
    $ pylog groups reset-offsets --group billing --topic orders --to-earliest \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog groups reset-offsets --group billing --all-topics --by-duration PT1H \\
        --bootstrap-server 127.0.0.1:9092

    An offset outside of the log becomes the nearest offset in it.
    """
    from replication.tools import groups as tool
    from replication.tools.offset_resets import csv_of, offsets_of

    file: TextIO | None = forms.pop("from_file")
    with usage_errors():
        reset = _reset(forms, has_file=file is not None)
        given = None if file is None else offsets_of(file)
        tool.parse_topics(topics)
    if (bool(topics) + all_topics + (file is not None)) != 1:
        raise click.UsageError("give one of --topic, --all-topics and --from-file")
    plan = tool.planned(client, group, reset, topics or None, given=given)
    if execute:
        tool.commit(client, group, plan)
    talk(f"{'set' if execute else 'would set'} {counted(len(plan), 'offset')} of group {group}")
    if export:
        click.echo(csv_of(plan), nl=False)
    else:
        show(plan, _PLAN, output)


def _reset(forms: dict[str, Any], *, has_file: bool) -> Reset:
    from replication.tools.offset_resets import Place, Reset, duration_of, time_of

    given = {name: value for name, value in forms.items() if value is not None and value is not False}
    if len(given) + has_file != 1:
        raise click.UsageError("give one of --to-earliest, --to-latest, --to-offset, --to-datetime, "
                               "--by-duration, --shift-by, --to-current and --from-file")  # fmt: skip
    for name, value in given.items():
        match name:
            case "to_datetime":
                return Reset(Place.TIME, time_of(value))
            case "by_duration":
                return Reset(Place.TIME, SYSTEM.clock.now_ms() - duration_of(value))
            case "to_offset":
                return Reset(Place.OFFSET, value)
            case "shift_by":
                return Reset(Place.SHIFT, value)
            case _:
                return Reset(Place[name.removeprefix("to_").upper()])
    return Reset(Place.CURRENT)  # the file says where


def _chosen(client: KafkaClient, groups: tuple[str, ...], all_groups: bool) -> list[str]:
    from replication.tools.groups import listed

    if bool(groups) == all_groups:
        raise click.UsageError("give the names of groups, or --all-groups where the command has it")
    return [row["group"] for row in listed(client)] if all_groups else list(groups)
