"""Shared by `pylog jobs` and the commands without Spark: their options, and how a report is printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from datasource.jobs.tasks import located
from logstore.cli.terminal import FILE, Failure, counted, output_option, show, store_option, talk, usage_errors
from logstore.errors import InvalidConfigError, InvalidRequestError

# Columns that a table leaves out of a report: they are printed below, or only of use to programs. JSON has all.
_NOT_IN_TABLES = frozenset({"note", "damage", "rounds"})
_WRONG = ("failed", "damaged")

topics_option = click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Only this topic; may be repeated. [default: all; of tiering all but internal ones]",
)
table_option = click.option(
    "--table",
    metavar="DIR|URL",
    help="Directory of the Delta table, or its URL in an object store (s3://, gs://, az://); {topic} stands for the "
    "topic's name. The first run decides; over a cluster every run needs it. [default: tiered/{topic} in the store]",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Change nothing, and report what the job would do.")
schema_option = click.option(
    "--schema",
    metavar="DDL|registered",
    help="Fields of JSON values, as 'id bigint, at timestamp': they become columns. Rows that do not fit go to the "
    "table <table>__dlq. The word 'registered' takes the columns of each topic's registered schema, and keeps the "
    "bytes of values beside them. Later runs take the last schema that was given.",
)


def with_storage(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how an object store is reached; the command gets them as `storage_options`."""

    @click.option(
        "--storage-option",
        "pairs",
        multiple=True,
        metavar="NAME=VALUE",
        help="How the object store is reached, as AWS_REGION=eu-west-1; may be repeated. Others see a command's "
        "arguments: give secrets by environment variables of these names or by --storage-config.",
    )
    @click.option(
        "--storage-config",
        "storage_file",
        type=FILE,
        metavar="FILE",
        help="Storage options, a line each.",
    )
    @wraps(function)
    def call(pairs: tuple[str, ...], storage_file: Path | None, **more: object) -> object:
        with usage_errors():
            given = _storage_options(storage_file) if storage_file else {}
            for pair in pairs:
                name, mark, value = pair.partition("=")
                if not mark or name in given:
                    fault = "is given twice" if mark else "has no value: write NAME=VALUE"
                    raise InvalidRequestError(f"--storage-option {name} {fault}")
                given[name] = value
        return function(storage_options=given, **more)

    return call


def _storage_options(file: Path) -> dict[str, str]:
    try:
        return _properties(file)
    except InvalidConfigError as error:
        # Nothing of the line itself: it may be a secret.
        raise InvalidConfigError(f"{str(error).rpartition(': ')[0]}: write NAME=VALUE, each name once") from None


def _properties(file: Path) -> dict[str, str]:
    from replication.config.properties import properties_of

    return properties_of(file.read_text(encoding="utf-8"), str(file))


def placed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the topics are; the command gets them as `place`."""

    @store_option(required=False)
    @click.option(
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT,…",
        help="Brokers of a cluster, instead of --path.",
    )
    @click.option(
        "--command-config",
        "file",
        type=FILE,
        metavar="FILE",
        help="Settings of TLS and SASL for that cluster, a line each.",
    )
    @wraps(function)
    def call(path: Path | None, bootstrap: str | None, file: Path | None, **more: object) -> object:
        source = click.get_current_context().get_parameter_source("path")
        if bootstrap and source is ParameterSource.ENVIRONMENT:
            path = None
        place: dict[str, Any] = {"path": path and str(path), "bootstrap": bootstrap}
        if file is not None:
            with usage_errors():
                place["security"] = _properties(file)
        return function(place=place, **more)

    return call  # type: ignore[no-any-return]  # click's decorators


def with_job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that all jobs have."""
    for option in (output_option, placed, dry_run_option, topics_option):
        function = option(function)
    return function


def check(
    names: Sequence[str], place: Mapping[str, Any], table: str | None, storage_options: Mapping[str, str] | None
) -> None:
    """Refuse jobs that do not work there before Spark is started."""
    with usage_errors():
        for name in names:
            located(name, **place, table=table, storage_options=storage_options)


def show_report(rows: Sequence[dict[str, Any]], output: str) -> None:
    show(rows, [name for name in (rows[0] if rows else ()) if name not in _NOT_IN_TABLES], output)


def print_notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Print notes and damage to stderr; return the partitions where something is wrong."""
    for row in rows:
        where = f"{row['topic']}-{row['partition']}"
        if row.get("note"):
            talk(f"{where}: {row['note']}")
        for place in row.get("damage") or ():
            talk(f"{place['file']}: damaged at byte {place['position']}: {place['reason']}")
    return [f"{row['topic']}-{row['partition']}" for row in rows if row["status"] in _WRONG]


def end(wrong: Sequence[str]) -> None:
    if wrong:
        shown = ", ".join(dict.fromkeys(wrong))
        raise Failure(f"{counted(len(set(wrong)), 'partition')} failed or damaged: {shown}")
