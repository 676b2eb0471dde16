"""`pylog configs`: settings of topics, groups and brokers, passwords of users, and quotas, on a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from logstore.cli.terminal import Commands, show, talk, usage_errors
from replication.cli.connecting import on_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replication.tools.connecting import KafkaClient

_COLUMNS = ("entity", "name", "value", "source")
_KINDS = ("topics", "groups", "brokers", "users", "clients", "ips")
_OF_USER = (
    click.option(
        "--client", "client_id", metavar="ID", help="With --entity-type users: the quotas of a client id of the user."
    ),
    click.option("--client-defaults", is_flag=True, help="The same, of every client id without quotas of its own."),
)


def _options(function: Any) -> Any:
    for option in reversed(_OF_USER):
        function = option(function)
    return function


@click.group(cls=Commands)
def configs() -> None:
    """Describe and alter settings of topics, groups and brokers, passwords of users, and quotas of clients.

    \b
    $ pylog configs describe --entity-type topics \\
        --bootstrap-server 127.0.0.1:9092
    """


@configs.command()
@click.option(
    "--entity-type",
    type=click.Choice(_KINDS),
    required=True,
    help="Topics, groups, brokers; users, client ids or addresses, which have quotas.",
)
@click.option(
    "--entity-name",
    metavar="NAME",
    help="A topic, a group, the id of a broker, a user, a client id, an address. [default: all of them; groups, users, "
    "clients and addresses: all that were given something]",
)
@click.option("--entity-default", is_flag=True, help="Show the values for all brokers, or the default of such quotas.")
@_options
@click.option("--all", "with_defaults", is_flag=True, help="Also show settings with their default.")
@on_cluster
def describe(
    client: KafkaClient,
    entity_type: str,
    entity_name: str | None,
    entity_default: bool,
    client_id: str | None,
    client_defaults: bool,
    with_defaults: bool,
    output: str,
) -> None:
    """Show the settings of topics, groups or brokers that are not the default, and the source of each; or quotas.

    Users have the mechanisms of SCRAM by which they log in, and no password is shown.

    \b
    $ pylog configs describe --entity-type topics --entity-name orders --all \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog configs describe --entity-type brokers --entity-name 1 \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog configs describe --entity-type brokers --entity-default \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog configs describe --entity-type users --entity-name ada \\
        --client-defaults --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools import quotas
    from replication.tools.configs import described, users_of

    named = _named(entity_type, entity_name, client_id, is_default=entity_default, of_any=client_defaults)
    if entity_type in quotas.KINDS:
        has_passwords = entity_type == "users" and (named is None or named == {"user": entity_name})
        passwords = users_of(client, entity_name) if has_passwords and not entity_default else []
        show(passwords + quotas.described(client, entity_type, named), _COLUMNS, output)
        return
    name = _entity(entity_type, entity_name, is_default=entity_default)
    show(described(client, entity_type, name, with_defaults=with_defaults), _COLUMNS, output)


@configs.command()
@click.option(
    "--entity-type",
    type=click.Choice(_KINDS),
    default="topics",
    help="A topic, a group, brokers; a user, a client id or an address.",
)
@click.option(
    "--entity-name", metavar="NAME", help="The topic, the group, the id of a broker, the user, client id or address."
)
@click.option(
    "--entity-default", is_flag=True, help="Set values for all brokers, or the quotas of all without any of their own."
)
@_options
@click.option("--add-config", multiple=True, metavar="KEY=VALUE,…", help="Settings to set; KEY=[A,B] is a list.")
@click.option("--delete-config", multiple=True, metavar="KEY,…", help="Settings that go back to their default.")
@click.option("--dry-run", is_flag=True, help="Let the brokers check the change, and change nothing.")
@on_cluster
def alter(
    client: KafkaClient,
    entity_type: str,
    entity_name: str | None,
    entity_default: bool,
    client_id: str | None,
    client_defaults: bool,
    add_config: tuple[str, ...],
    delete_config: tuple[str, ...],
    dry_run: bool,
    output: str,
) -> None:
    """Change settings of a topic, a group or of brokers, or quotas, live: all of them, or none.

    docs/configuration.md has the settings, and says which of a broker are live; the others are in server.properties,
    and take a restart. A group may be given settings before anybody is in it. A user is given a password of SCRAM by
    SCRAM-SHA-512=[iterations=8192,password=TEXT]; without `password` it is asked for, so that no list of processes
    shows it. Passwords are changed before quotas of the same call. Users and client ids have the quotas
    producer_byte_rate, consumer_byte_rate, request_percentage and controller_mutation_rate, addresses (ips)
    connection_creation_rate: docs/security.md says which counts for whom.

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
    $ pylog configs alter --entity-type clients --entity-default \\
        --add-config producer_byte_rate=1048576,consumer_byte_rate=2097152 \\
        --bootstrap-server 127.0.0.1:9092
    """
    from replication.tools import configs as tool
    from replication.tools import quotas

    named = _named(entity_type, entity_name, client_id, is_default=entity_default, of_any=client_defaults)
    if entity_type in quotas.KINDS:
        if named is None:
            raise click.UsageError("give --entity-name or --entity-default")
        with usage_errors():
            given, deleted = _changes(add_config, delete_config)
            given, deleted = _alter_passwords(client, named, given, deleted, is_dry=dry_run)
            if given or deleted:
                quotas.alter(client, named, given, deleted, validate_only=dry_run)
        talk(f"{'could alter' if dry_run else 'altered'} {quotas.text_of(named)}")
        passwords = tool.users_of(client, entity_name) if named == {"user": entity_name} and not entity_default else []
        show(passwords + quotas.described(client, entity_type, named), _COLUMNS, output)
        return
    name = _entity(entity_type, entity_name, is_default=entity_default)
    if name is None:
        other = ", or --entity-default for all brokers" if entity_type == "brokers" else ""
        raise click.UsageError(f"give --entity-name{other}")
    with usage_errors():
        given, deleted = _changes(add_config, delete_config)
    client.alter_settings((tool.KINDS[entity_type], name), given, deleted, validate_only=dry_run)
    what = f"{entity_type.removesuffix('s')} {name}" if name else "the default of all brokers"
    talk(f"{'could alter' if dry_run else 'altered'} {what}")
    show(tool.described(client, entity_type, name), _COLUMNS, output)


def _changes(add_config: tuple[str, ...], delete_config: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """Return what is set, and what is removed. Raises: InvalidRequestError."""
    from replication.tools.configs import settings_of

    given = {key: value for text in add_config for key, value in settings_of(text).items()}
    deleted = [key.strip() for text in delete_config for key in text.split(",") if key.strip()]
    if not given and not deleted:
        raise click.UsageError("nothing to change: give --add-config or --delete-config")
    return given, deleted


def _alter_passwords(
    client: KafkaClient, named: Mapping[str, str | None], given: dict[str, str], deleted: list[str], *, is_dry: bool
) -> tuple[dict[str, str], list[str]]:
    """Change the passwords of SCRAM among these, and return the others. Raises: InvalidRequestError."""
    from replication.tools.configs import alter_user

    made = {key: text for key, text in given.items() if key.startswith("SCRAM-")}
    gone = [key for key in deleted if key.startswith("SCRAM-")]
    if made or gone:
        name = named.get("user") if len(named) == 1 else None
        if name is None:
            raise click.UsageError("passwords are of a user: give --entity-type users --entity-name, and no client id")
        if is_dry:
            raise click.UsageError("--dry-run is not for passwords")
        alter_user(client, name, made, gone, _password)
    rest = {key: text for key, text in given.items() if key not in made}
    return rest, [key for key in deleted if key not in gone]


def _named(
    kind: str, name: str | None, client_id: str | None, *, is_default: bool, of_any: bool
) -> dict[str, str | None] | None:
    """Return the names of an entity with quotas; None: all of this kind."""
    from replication.tools.quotas import KINDS

    if (client_id is not None or of_any) and (kind != "users" or (client_id is not None and of_any)):
        raise click.UsageError("--client or --client-defaults, one of them, goes with --entity-type users")
    if kind not in KINDS or (name is None and not is_default):
        if client_id is not None or of_any:
            raise click.UsageError("give --entity-name or --entity-default")
        return None
    if is_default and name is not None:
        raise click.UsageError("give --entity-name or --entity-default, and not both")
    found = {KINDS[kind]: name}
    return found | {KINDS["clients"]: client_id} if client_id is not None or of_any else found


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
