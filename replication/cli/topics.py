"""`pylog topics` on a cluster; `logstore.cli.topics` has the options, and prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from logstore.cli.terminal import ask_first, show, show_json, talk, usage_errors
from logstore.cli.topics import DELETES, KEYS_MOVE, is_absent, show_described
from replication.cli.connecting import connected

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient

_SUMMARY = ("topic", "partitions", "replication_factor", "config")
_PARTITION = ("partition", "leader", "leader_epoch", "replicas", "isr", "offline")


@connected
def create(
    client: KafkaClient,
    name: str,
    partitions: int,
    config: dict[str, str],
    if_not_exists: bool,
    replication_factor: int | None,
    replica_assignment: str | None,
    output: str,
) -> None:
    from replication.tools import topics

    if replica_assignment and replication_factor is not None:
        raise click.UsageError("--replica-assignment sets the number of replicas: leave --replication-factor out")
    with usage_errors():
        assigned = topics.assignments_of(replica_assignment) if replica_assignment else ()
    if if_not_exists and name in topics.names(client):
        talk(f"topic {name} exists already")
    else:
        topics.create(client, name, partitions, replication_factor, config, assigned)
        talk(f"created topic {name}")
    show(topics.summaries(client, [name]), _SUMMARY, output)


@connected
def list_topics(client: KafkaClient, topics_with_overrides: bool, exclude_internal: bool, output: str) -> None:
    from replication.tools import topics

    found = topics.summaries(client, with_internal=not exclude_internal)
    show([row for row in found if row["config"] or not topics_with_overrides], _SUMMARY, output)


@connected
def describe(
    client: KafkaClient, name: str | None, topics_with_overrides: bool, if_exists: bool, output: str, **filters: bool
) -> None:
    from replication.tools import topics

    if name is not None and if_exists and is_absent(name, topics.names(client)):
        found = []
    else:
        asked = [key.removesuffix("_partitions") for key, is_asked in filters.items() if is_asked]
        found = topics.described(client, None if name is None else [name], asked)
    found = [row for row in found if row["config"] or not topics_with_overrides]
    if output == "json":
        show_json(found)
    else:
        show_described(found, _PARTITION)


@connected
def alter(
    client: KafkaClient,
    name: str,
    partitions: int | None,
    replica_assignment: str | None,
    if_exists: bool,
    output: str,
    **settings: Any,
) -> None:
    from replication.tools import topics

    if replica_assignment and partitions is None:
        raise click.UsageError("--replica-assignment is for new partitions: give --partitions, too")
    with usage_errors():
        assigned = topics.assignments_of(replica_assignment) if replica_assignment else None
    if if_exists and is_absent(name, topics.names(client)):
        show([], _SUMMARY, output)
        return
    topics.alter(client, name, partitions=partitions, assignments=assigned, **settings)
    if partitions is not None:
        talk(KEYS_MOVE)
    talk(f"altered topic {name}")
    show(topics.summaries(client, [name]), _SUMMARY, output)


@connected
def delete(client: KafkaClient, name: str, if_exists: bool, yes: bool, output: str) -> None:
    from replication.tools import topics

    if if_exists and is_absent(name, topics.names(client)):
        show([], _SUMMARY, output)
        return
    rows = topics.summaries(client, [name])
    if not yes:
        ask_first(DELETES.format(name))
    client.delete_topic(name)
    talk(f"deleted topic {name}")
    if output == "json":
        show(rows, _SUMMARY, output)
