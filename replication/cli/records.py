"""`pylog produce` and `pylog consume` on a cluster; `logstore.cli.records` has the options, and prints."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from logstore.cli.columns import typed_formatter, typed_target
from logstore.cli.records import check_view, formatter, line_writer, print_records, start_of, write_lines
from logstore.cli.terminal import usage_errors
from replication.cli.connecting import connected, end_of_signals

if TYPE_CHECKING:
    from logstore.schemas.choice import Typing
    from replication.tools.connecting import KafkaClient


@connected
def produce(client: KafkaClient, name: str, output: str, typing: Typing, **options: Any) -> None:
    from replication.tools.console import ClusterTarget

    target = typed_target(ClusterTarget(client), name, typing, lambda: client.schemas)
    write_lines(name, line_writer(name, **options), target, output)


@connected
def consume(
    client: KafkaClient,
    name: str,
    from_beginning: bool,
    offset: str | None,
    partition: int | None,
    max_messages: int | None,
    follow: bool,
    timeout_ms: int | None,
    view: str | None,
    given: tuple[str, ...],
    template: str | None,
    group: str | None,
    group_protocol: str | None,
    share_group: str | None,
    isolation_level: str,
    output: str,
    typing: Typing,
) -> None:
    from replication.tools.console import Isolation, latest_records, members_records, records, share_records

    with usage_errors():
        format_record = formatter(output, template, given, typing)
    if typing:
        format_record = typed_formatter(name, output, typing, lambda: client.schemas, client.topic)
    check_view(view, offset=offset, from_beginning=from_beginning, follow=follow, timeout_ms=timeout_ms, group=group)
    if group_protocol is not None and group is None:
        raise click.UsageError("--group-protocol is of a group: give --group too")
    if share_group is not None:
        _check_share_group(group=group, offset=offset, partition=partition, view=view, from_beginning=from_beginning)
    printed: dict[int, int] | None = None
    first, isolation = start_of(from_beginning, offset, partition), Isolation[isolation_level.upper()]
    follow = follow or timeout_ms is not None
    if view:
        found = partial(latest_records, client, name, partition, isolation=isolation)
    elif group is not None:
        if offset is not None or partition is not None:
            raise click.UsageError("the group decides offsets and partitions: leave these options out")
        if name.startswith("^"):
            raise click.UsageError(
                f"{name!r} is a regular expression, and this reads one topic: KafkaClient.consumer takes expressions"
            )
        printed, follow = {}, True
        found = partial(
            members_records, client, name, group,
            from_beginning=from_beginning, isolation=isolation, timeout_ms=timeout_ms, printed=printed,
            is_over=end_of_signals().is_set, group_protocol=group_protocol or "classic",
        )  # fmt: skip
    elif share_group is not None:
        printed, follow = {}, True
        found = partial(
            share_records, client, name, share_group,
            timeout_ms=timeout_ms, printed=printed, is_over=end_of_signals().is_set,
        )  # fmt: skip
    else:
        start = first or ("latest" if follow else "earliest")
        timeout_ms = timeout_ms if follow else 0
        found = partial(records, client, name, partition, start, isolation=isolation, timeout_ms=timeout_ms)
    print_records(found, format_record, max_messages=max_messages, follow=follow, printed=printed)


def _check_share_group(**others: Any) -> None:
    """Raise UsageError for options that a share group has no use for."""
    given = [name for name, value in others.items() if value is not None and value is not False]
    source = click.get_current_context().get_parameter_source("isolation_level")
    given += ["isolation_level"] if source is ParameterSource.COMMANDLINE else []
    if "group" in given:
        raise click.UsageError("give --group or --share-group, not both")
    settings = {"from_beginning": "share.auto.offset.reset=earliest", "isolation_level": "share.isolation.level"}
    for name in given:
        hint = "leave it out"
        if name in settings:
            hint = f"{settings[name]} is a setting of the group: pylog configs alter --entity-type groups"
        raise click.UsageError(f"--{name.replace('_', '-')} is not for a share group: {hint}")
