"""`pylog configs`: settings of topics, groups and brokers, and passwords of users, on a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from logstore.cli.terminal import Commands, show, talk, usage_errors
from replication.cli.connecting import on_cluster

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient

_COLUMNS = ("entity", "name", "value", "source")


@click.group(cls=Commands)
def configs() -> None:
    """Describe and alter settings of topics, groups and brokers, and the passwords of users.

    \b
    $ pylog configs describe --entity-type topics \\
        --bootstrap-server 127.0.0.1:9092
    """


@configs.command()
@click.option(
    "--entity-type",
    type=click.Choice(["topics", "groups", "brokers", "users"]),
    required=True,
    help="Topics, groups, brokers or users.",
)
@click.option(
    "--entity-name",
    metavar="NAME",
    help="A topic, a group, a user, or the id of a broker. [default: all, or all groups that were given settings]",
)
@click.option("--entity-default", is_flag=True, help="Show the values for all brokers.")
@click.option("--all", "with_defaults", is_flag=True, help="Also show settings with their default.")
@on_cluster
def describe(
    client: KafkaClient,
    entity_type: str,
    entity_name: str | None,
    entity_default: bool,
    with_defaults: bool,
    output: str,
) -> None:
    """Show the settings of topics, groups or brokers that are not the default, and the source of each.

    Users have the mechanisms of SCRAM by which they log in, and no password is shown.

    \b
    $ pylog configs describe --entity-type topics --entity-name orders --all \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog configs describe --entity-type brokers --entity-name 1 \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog configs describe --entity-type brokers --entity-default \\
        --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools.configs import described, users_of

    name = _entity(entity_type, entity_name, is_default=entity_default)
    if entity_type == "users":
        show(users_of(client, name), _COLUMNS, output)
        return
    show(described(client, entity_type, name, with_defaults=with_defaults), _COLUMNS, output)


@configs.command()
@click.option(
    "--entity-type",
    type=click.Choice(["topics", "groups", "brokers", "users"]),
    default="topics",
    help="A topic, a group, brokers or a user.",
)
@click.option("--entity-name", metavar="NAME", help="The topic, the group, the user, or the id of a broker.")
@click.option("--entity-default", is_flag=True, help="Set values for all brokers; a broker's own value counts first.")
@click.option("--add-config", multiple=True, metavar="KEY=VALUE,…", help="Settings to set; KEY=[A,B] is a list.")
@click.option("--delete-config", multiple=True, metavar="KEY,…", help="Settings that go back to their default.")
@click.option("--dry-run", is_flag=True, help="Let the brokers check the change, and change nothing.")
@on_cluster
def alter(
    client: KafkaClient,
    entity_type: str,
    entity_name: str | None,
    entity_default: bool,
    add_config: tuple[str, ...],
    delete_config: tuple[str, ...],
    dry_run: bool,
    output: str,
) -> None:
    """Change settings of a topic, a group or of brokers, live: all of them, or none.

    docs/configuration.md has the settings, and says which of a broker are live. A group may be given settings
    before anybody is in it. The others are in server.properties, and take a
    restart. A user is given a password of SCRAM by SCRAM-SHA-512=[iterations=8192,password=TEXT]; without `password` it
    is asked for, so that no list of processes shows it.

    \b
    $ pylog configs alter --entity-name orders --add-config retention.ms=3600000 \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog configs alter --entity-name orders --delete-config segment.bytes \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog configs alter --entity-type groups --entity-name workers \\
        --add-config share.record.lock.duration.ms=60000 \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog configs alter --entity-type users --entity-name ada \\
        --add-config 'SCRAM-SHA-512=[iterations=8192]' \\
        --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools import configs as tool

    name = _entity(entity_type, entity_name, is_default=entity_default)
    if name is None:
        other = ", or --entity-default for all brokers" if entity_type == "brokers" else ""
        raise click.UsageError(f"give --entity-name{other}")
    with usage_errors():
        given = {key: value for text in add_config for key, value in tool.settings_of(text).items()}
    deleted = [key.strip() for text in delete_config for key in text.split(",") if key.strip()]
    if not given and not deleted:
        raise click.UsageError("nothing to change: give --add-config or --delete-config")
    if entity_type == "users":
        if dry_run:
            raise click.UsageError("--dry-run is not for --entity-type users")
        with usage_errors():
            tool.alter_user(client, name, given, deleted, _password)
        talk(f"altered user {name}")
        show(tool.users_of(client, name), _COLUMNS, output)
        return
    client.alter_settings((tool.KINDS[entity_type], name), given, deleted, validate_only=dry_run)
    what = f"{entity_type.removesuffix('s')} {name}" if name else "the default of all brokers"
    talk(f"{'could alter' if dry_run else 'altered'} {what}")
    show(tool.described(client, entity_type, name), _COLUMNS, output)


def _entity(kind: str, name: str | None, *, is_default: bool) -> str | None:
    """The name of a resource; "" are all brokers."""
    if is_default and (kind != "brokers" or name is not None):
        raise click.UsageError("--entity-default is for --entity-type brokers, without --entity-name")
    if kind == "brokers" and name is not None and not name.isdecimal():
        raise click.BadParameter(f"{name!r} is not the id of a broker", param_hint="--entity-name")
    return "" if is_default else name


def _password(mechanism: str) -> str:
    found: str = click.prompt(f"Password ({mechanism})", hide_input=True, err=True)
    return found
