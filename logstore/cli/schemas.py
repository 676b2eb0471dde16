"""`pylog schemas`: what is registered, and how it is registered, deleted and inferred."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.places import either_place
from logstore.cli.terminal import (
    FILE,
    Commands,
    Failure,
    ask_first,
    counted,
    open_store,
    output_option,
    show,
    show_json,
    talk,
)
from logstore.schemas.registry import FORMATS
from logstore.schemas.subjects import LEVELS

if TYPE_CHECKING:
    from logstore.schemas.registry import Schemas
    from logstore.store.store import LogStore

_SUMMARY = ("subject", "version", "id", "type", "deleted")

format_option = click.option(
    "--format", "kind", type=click.Choice(FORMATS), help="How values are written.  [default: that of the file, or json]"
)
version_option = click.option("--version", "number", type=click.IntRange(min=1), help="This version.")


def _of_get(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None or text == "latest":
        return None
    if not text.isdecimal() or int(text) == 0:
        raise click.BadParameter(f"{text!r} is no version: a number from 1, or latest")
    return int(text)


def columns_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a topic's columns."""
    for part in ("key", "value"):
        function = click.option(
            f"--{part}-format",
            type=click.Choice(FORMATS),
            help=f"How {part}s are written.  [default: that of the file, or json]",
        )(function)
        function = click.option(
            f"--{part}-schema", metavar="FILE|DDL", help=f"The columns of the {part}, or a file with their schema."
        )(function)
    return click.option(
        "--subject-name-strategy", metavar="NAME", help="TopicName (the default), RecordName or TopicRecordName."
    )(function)


@click.group(cls=Commands)
def schemas() -> None:
    """List, show, check, register, delete and infer schemas, in the topic _schemas.

    \b
    $ pylog schemas list --path data
    """


@schemas.command("list")
@click.argument("subject", required=False)
@click.option("--deleted", is_flag=True, help="Also deleted versions that can be read.")
@either_place("replication.cli.schemas:list_schemas")
@output_option
def list_schemas(subject: str | None, deleted: bool, path: Path, output: str) -> None:
    """List the last version of each subject, or all versions of one.

    \b
    $ pylog schemas list --path data
    $ pylog schemas list orders-value --bootstrap-server 127.0.0.1:9092
    """
    with open_store(path, mode="r") as store:
        show_list(store.schemas, subject=subject, deleted=deleted, output=output)


@schemas.command()
@click.argument("subject", required=False)
@click.option("--version", "number", metavar="N|latest", callback=_of_get, help="This version.  [default: latest]")
@click.option("--id", "schema_id", type=click.IntRange(min=0), help="The schema of this id.")
@either_place("replication.cli.schemas:get")
@output_option
def get(subject: str | None, number: int | None, schema_id: int | None, path: Path, output: str) -> None:
    """Show the text of a schema: the last of a subject, one of its versions, or that of an id.

    \b
    $ pylog schemas get orders-value --path data
    $ pylog schemas get --id 1 --bootstrap-server 127.0.0.1:9092
    """
    with open_store(path, mode="r") as store:
        show_one(store.schemas, subject=subject, number=number, schema_id=schema_id, output=output)


@schemas.command()
@click.argument("subject")
@click.argument("schema", metavar="FILE|DDL")
@format_option
@either_place("replication.cli.schemas:register")
@output_option
def register(subject: str, schema: str, kind: str | None, path: Path, output: str) -> None:
    """Register a schema: the text of a file, or columns as 'id bigint, who string'.

    \b
    $ pylog schemas register orders-value 'user string, amount decimal(10,2)' \\
        --path data

    A schema that the subject has already keeps its version and id.
    """
    with open_store(path) as store:
        do_register(store.schemas, subject=subject, schema=schema, kind=kind, output=output)


@schemas.command()
@click.argument("subject")
@click.argument("schema", metavar="FILE|DDL")
@format_option
@either_place("replication.cli.schemas:check")
@output_option
def check(subject: str, schema: str, kind: str | None, path: Path, output: str) -> None:
    """Say whether a schema may be registered, and why not.

    \b
    $ pylog schemas check orders-value 'user string, amount decimal(10,2)' \\
        --path data

    Exit code 1 if it does not go with those before it, by the level of the subject.
    """
    with open_store(path, mode="r") as store:
        do_check(store.schemas, subject=subject, schema=schema, kind=kind, output=output)


@schemas.command()
@click.argument("subject")
@version_option
@click.option("--permanent", is_flag=True, help="For good: data with its id can be read no more.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@either_place("replication.cli.schemas:delete")
@output_option
def delete(subject: str, number: int | None, permanent: bool, yes: bool, path: Path, output: str) -> None:
    """Delete a version of a subject, or all of them; data can still be read by their ids.

    \b
    $ pylog schemas delete orders-value --version 1 --path data

    With --permanent they are gone for good, once they have been deleted without it.
    """
    with open_store(path) as store:
        do_delete(store.schemas, subject=subject, number=number, permanent=permanent, yes=yes, output=output)


@schemas.command()
@click.argument("subject", required=False)
@click.option("--set", "level_set", metavar="LEVEL", help=f"The new level: {', '.join(LEVELS)}.")
@click.option("--unset", is_flag=True, help="Take the level of all subjects again.")
@either_place("replication.cli.schemas:level")
@output_option
def level(subject: str | None, level_set: str | None, unset: bool, path: Path, output: str) -> None:
    """Show or set the compatibility level of a subject, or of all that have none.

    \b
    $ pylog schemas level --path data
    $ pylog schemas level orders-value --set NONE --path data
    """
    with open_store(path, mode="auto" if level_set or unset else "r") as store:
        do_level(store.schemas, subject=subject, level_set=level_set, unset=unset, output=output)


def of_file_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """Look at the lines of `--file`, wherever that is; without it, call the function, which needs a place."""

    @wraps(function)
    def call(topic: str | None, file: Path | None, max_messages: int, output: str, **place: Any) -> Any:
        if (topic is None) == (file is None):
            raise click.UsageError("name a topic, or give --file")
        if file is None:
            return function(topic=topic, max_messages=max_messages, output=output, **place)
        with file.open("rb") as lines:
            show_inferred(islice((line for line in lines if line.strip()), max_messages), output)

    return call


@schemas.command()
@click.argument("topic", required=False)
@click.option("--file", type=FILE, metavar="FILE", help="A file of JSON values, a line each, instead of a topic.")
@click.option(
    "--max-messages", type=click.IntRange(min=1), default=1000, help="The first values of each partition, or of a file."
)
@of_file_first
@either_place("replication.cli.schemas:infer")
@output_option
def infer(topic: str, max_messages: int, path: Path, output: str) -> None:
    """Show the columns that JSON values have, to register them.

    \b
    $ pylog schemas infer payments --path data
    $ pylog schemas infer --file payments.jsonl
    """
    with open_store(path, mode="r") as store:
        show_inferred(_values(store, topic, max_messages), output)


# --------------------------------------------------------- in either place


def show_list(schemas: Schemas, *, subject: str | None, deleted: bool, output: str) -> None:
    from logstore.tools.schemas import summaries

    show(summaries(schemas, subject, with_deleted=deleted), _SUMMARY, output)


def show_one(schemas: Schemas, *, subject: str | None, number: int | None, schema_id: int | None, output: str) -> None:
    from logstore.tools.schemas import described, pretty, version_of, whole

    if (subject is None) == (schema_id is None):
        raise click.UsageError("name a subject, or give --id")
    if schema_id is not None:
        if number is not None:
            raise click.UsageError("an id has no versions: leave --version out")
        found: dict[str, Any] = {"id": schema_id, **described(schemas, schemas.by_id(schema_id))}
    else:
        found = whole(schemas, version_of(schemas, str(subject), number))
    if output == "json":
        show_json(found)
    else:
        click.echo(pretty(found["schema"]))


def do_register(schemas: Schemas, *, subject: str, schema: str, kind: str | None, output: str) -> None:
    from logstore.tools.schemas import schema_in, summaries

    entry = schemas.register(subject, schema_in(schema, kind))
    talk(f"subject {subject} has the schema as version {entry.version}, with id {entry.id}")
    show([row for row in summaries(schemas, subject) if row["version"] == entry.version], _SUMMARY, output)


def do_check(schemas: Schemas, *, subject: str, schema: str, kind: str | None, output: str) -> None:
    from logstore.tools.schemas import schema_in

    reasons = schemas.check(subject, schema_in(schema, kind))
    show([{"reason": reason} for reason in reasons], ("reason",), output)
    if reasons:
        raise Failure(f"subject {subject}, level {schemas.level(subject)}: the schema cannot be registered")
    talk(f"subject {subject} can get the schema")


def do_delete(schemas: Schemas, *, subject: str, number: int | None, permanent: bool, yes: bool, output: str) -> None:
    from logstore.tools.schemas import summaries

    rows = [r for r in summaries(schemas, subject, with_deleted=permanent) if number in (None, r["version"])]
    if permanent and not yes and rows:
        ask_first(f"Delete {counted(len(rows), 'version')} of {subject} for good? Data with their ids cannot be read.")
    gone = schemas.delete(subject, number, permanently=permanent)
    talk(f"deleted {counted(len(gone), 'version')} of {subject}")
    if output == "json":
        show([row for row in rows if row["version"] in gone], _SUMMARY, output)


def do_level(schemas: Schemas, *, subject: str | None, level_set: str | None, unset: bool, output: str) -> None:
    if unset and (level_set is not None or subject is None):
        raise click.UsageError("--unset is of a subject, and goes without --set")
    if subject is not None and level_set is None and subject.upper() in LEVELS:
        raise click.UsageError(f"{subject} is a level, which --set takes, and no subject")
    if level_set is not None or unset:
        schemas.set_level(level_set, subject)
        talk(f"the level of {subject or 'all subjects'} is changed")
    show([{"subject": subject, "level": schemas.level(subject)}], ("subject", "level"), output)


def show_inferred(values: Iterable[bytes | None], output: str) -> None:
    from logstore.tools.schemas import inferred_row

    found = inferred_row(values)
    if output == "json":
        show_json(found)
    else:
        click.echo(found["columns"])


def _values(store: LogStore, topic: str, max_values: int) -> Iterator[bytes | None]:
    for partition in range(store.topic(topic).partitions):
        batches = store.read(topic, partition=partition, columns=["value"])
        yield from islice((value for batch in batches for value in batch.column(0).to_pylist()), max_values)
