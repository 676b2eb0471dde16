"""`pylog topics` on a cluster; `logstore.cli.topics` has the options, and prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.terminal import show, show_json, talk, usage_errors
from logstore.cli.topics import (
    KEYS_MOVE,
    chosen_names,
    confirm_deletion,
    declaration_of,
    is_absent,
    show_described,
)
from logstore.store.schemas import declare
from logstore.tools.topic_patterns import deletable, matching
from replication.cli.connecting import connected

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient

COLUMNS = ("value_schema", "value_format", "key_schema", "key_format", "subject_name_strategy")
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
    **columns: str | None,
) -> None:
    from replication.tools import topics

    declared = declaration_of(name, columns)
    if replica_assignment and replication_factor is not None:
        raise click.UsageError("--replica-assignment sets the number of replicas: leave --replication-factor out")
    with usage_errors():
        assigned = topics.assignments_of(replica_assignment) if replica_assignment else ()
    if if_not_exists and name in topics.names(client):
        talk(f"topic {name} exists already")
    else:
        if declared and name not in topics.names(client):
            declare(client.schemas, name, declared)
        topics.create(client, name, partitions, replication_factor, config, assigned)
        talk(f"created topic {name}")
    show(topics.summaries(client, [name]), _SUMMARY, output)


@connected
def list_topics(
    client: KafkaClient, name: str | None, topics_with_overrides: bool, exclude_internal: bool, output: str
) -> None:
    from replication.tools import topics

    chosen = None if name is None else matching(name, topics.names(client))
    found = topics.summaries(client, chosen, with_internal=not exclude_internal)
    show([row for row in found if row["config"] or not topics_with_overrides], _SUMMARY, output)


@connected
def describe(
    client: KafkaClient, name: str | None, topics_with_overrides: bool, if_exists: bool, output: str, **filters: bool
) -> None:
    from replication.tools import topics

    asked = [key.removesuffix("_partitions") for key, is_asked in filters.items() if is_asked]
    chosen = None if name is None else _chosen(client, name, topics.names(client), if_exists=if_exists)
    found = topics.described(client, chosen, asked)
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

    columns = {key: settings.pop(key) for key in COLUMNS}
    declared = declaration_of(name, columns)
    if replica_assignment and partitions is None:
        raise click.UsageError("--replica-assignment is for new partitions: give --partitions, too")
    with usage_errors():
        assigned = topics.assignments_of(replica_assignment) if replica_assignment else None
    if if_exists and is_absent(name, topics.names(client)):
        show([], _SUMMARY, output)
        return
    if declared:
        topics.selected(client, [name])
        declare(client.schemas, name, declared)
    topics.alter(client, name, partitions=partitions, assignments=assigned, **settings)
    if partitions is not None:
        talk(KEYS_MOVE)
    talk(f"altered topic {name}")
    show(topics.summaries(client, [name]), _SUMMARY, output)


@connected
def delete(client: KafkaClient, name: str, if_exists: bool, yes: bool, output: str) -> None:
    from replication.tools import topics

    names = deletable(name, _chosen(client, name, topics.names(client), if_exists=if_exists))
    rows = topics.summaries(client, names)
    confirm_deletion(name, names, yes=yes)
    for each in names:
        client.delete_topic(each)
        talk(f"deleted topic {each}")
    if output == "json":
        show(rows, _SUMMARY, output)


def _chosen(client: KafkaClient, name: str, known: Iterable[str], *, if_exists: bool) -> list[str]:
    return chosen_names(name, known, if_exists=if_exists, where=f"the cluster at {client.where}")
