"""`pylog acls`: who may do what, on a running cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.terminal import Commands, ask_first, counted, show, talk, usage_errors
from replication.cli.connecting import on_cluster

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient

_COLUMNS = ("resource", "name", "pattern", "principal", "operation", "permission", "host")
_RESOURCES = (
    click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic; '*' stands for all."),
    click.option("--group", "groups", multiple=True, metavar="ID", help="A group; '*' stands for all."),
    click.option(
        "--transactional-id", "transactional_ids", multiple=True, metavar="ID", help="A transactional id; '*': all."
    ),
    click.option("--cluster", "has_cluster", is_flag=True, help="The cluster itself."),
)
_WHOM = (
    click.option(
        "--allow-principal", "allowed", multiple=True, metavar="TYPE:NAME", help="Such as User:alice; 'User:*': all."
    ),
    click.option(
        "--deny-principal", "denied", multiple=True, metavar="TYPE:NAME", help="A denial goes before any right."
    ),
    click.option(
        "--allow-host", "allowed_hosts", multiple=True, metavar="HOST", help="An address, or 10.0.0.0/8. [default: *]"
    ),
    click.option(
        "--deny-host", "denied_hosts", multiple=True, metavar="HOST", help="The same, of denials. [default: *]"
    ),
    click.option(
        "--operation", "operations", multiple=True, default=("All",), show_default=True, metavar="NAME",
        help="Read, Write, Create, Delete, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, "
        "IdempotentWrite, TwoPhaseCommit or All.",
    ),
    click.option("--producer", is_flag=True, help="All that a producer needs of its topics and transactional ids."),
    click.option("--consumer", is_flag=True, help="All that a consumer needs of its topics and groups."),
    click.option("--idempotent", is_flag=True, help="With --producer: to write idempotently without a transaction."),
)  # fmt: skip
_OF_ADDED = click.option(
    "--resource-pattern-type",
    "pattern",
    type=click.Choice(["literal", "prefixed"]),
    default="literal",
    show_default=True,
    help="Whether names stand for themselves, or for all that begin so.",
)
_OF_FOUND = click.option(
    "--resource-pattern-type",
    "pattern",
    type=click.Choice(["any", "match", "literal", "prefixed"]),
    default="literal",
    show_default=True,
    help="Which patterns of this name: match is all that concern it.",
)


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def _on_resources(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call the function with `resources`, made of the options that name them."""

    @wraps(function)
    def call(*, pattern: str, topics: Any, groups: Any, transactional_ids: Any, has_cluster: bool, **more: Any) -> Any:
        from replication.tools.acls import Resources

        resources = Resources(
            topics=topics,
            groups=groups,
            transactional_ids=transactional_ids,
            has_cluster=has_cluster,
            pattern=pattern.capitalize(),
        )
        return function(resources=resources, **more)

    return call


@click.group(cls=Commands)
def acls() -> None:
    """List, add and remove ACLs: who may do what, on brokers with authorizer.class.name.

    docs/security.md says which rights each request takes.

    \b
    $ pylog acls list --bootstrap-server 127.0.0.1:9092
    """


@acls.command("list")
@_options(*_RESOURCES, _OF_FOUND)
@click.option("--principal", "principals", multiple=True, metavar="TYPE:NAME", help="Only those of this principal.")
@on_cluster
@_on_resources
def list_acls(client: KafkaClient, resources: Any, principals: tuple[str, ...], output: str) -> None:
    """List the ACLs of these resources, or of all.

    \b
    $ pylog acls list --topic orders --resource-pattern-type match \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog acls list --principal User:alice --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.acls import listed

    show(listed(client, resources, principals), _COLUMNS, output)


@acls.command()
@_options(*_RESOURCES, _OF_ADDED, *_WHOM)
@on_cluster
@_on_resources
def add(client: KafkaClient, resources: Any, output: str, **whom: Any) -> None:
    """Allow principals something, or deny it to them.

    \b
    $ pylog acls add --allow-principal User:alice --producer --topic orders \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog acls add --allow-principal User:bob --consumer --topic orders \\
        --group billing --bootstrap-server 127.0.0.1:9092
    $ pylog acls add --deny-principal 'User:*' --deny-host 10.1.0.0/16 \\
        --operation Delete --topic logs- --resource-pattern-type prefixed \\
        --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.acls import added

    wanted = _wanted(resources, whom)
    if not wanted:
        raise click.UsageError("give --allow-principal or --deny-principal")
    rows = added(client, wanted)
    talk(f"added {counted(len(rows), 'ACL')}")
    show(rows, _COLUMNS, output)


@acls.command()
@_options(*_RESOURCES, _OF_FOUND, *_WHOM)
@click.option("--yes", is_flag=True, help="Do not ask first.")
@on_cluster
@_on_resources
def remove(client: KafkaClient, resources: Any, output: str, yes: bool, **whom: Any) -> None:
    """Remove ACLs: those of these principals, or without any all of these resources.

    \b
    $ pylog acls remove --allow-principal User:alice --producer --topic orders \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog acls remove --topic orders --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.acls import removed

    wanted = _wanted(resources, whom) or resources.filters()
    if not yes:
        ask_first(f"Remove {'; '.join(map(str, wanted))}?")
    rows = removed(client, wanted)
    talk(f"removed {counted(len(rows), 'ACL')}")
    show(rows, _COLUMNS, output)


def _wanted(resources: Any, options: dict[str, Any]) -> list[Any]:
    from replication.tools.acls import Whom, acls_of

    roles = {name: options.pop(name) for name in ("producer", "consumer", "idempotent")}
    with usage_errors():
        return acls_of(resources, Whom(**options), **roles)
