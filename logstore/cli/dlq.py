"""`pylog dlq`: the records that did not fit the columns of their topics, and sending them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.places import either_place
from logstore.cli.terminal import Commands, counted, open_store, output_option, show, talk
from logstore.records import times

if TYPE_CHECKING:
    from logstore.tools.dead_letters import DeadLetter, Place, Wanted

_LISTED = ("topic", "reason", "records", "first_ms", "last_ms")
_SHOWN = ("topic", "partition", "offset", "failed_ms", "tries", "reason", "key", "value")
_TRIES_MAX = 3
_SHOWN_MAX = 100
_SENT_MAX = 10_000

topic_argument = click.argument("topic")


def _moment(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = times.of_text(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not milliseconds, or a time with a zone, as in 2026-01-31T12:00:00Z")
    return found


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose dead letters."""
    for option in (
        click.option("--key", metavar="TEXT", help="Only records with this key."),
        click.option("--reason", metavar="TEXT", help="Only those whose reason contains this."),
        click.option("--until", "until_ms", metavar="TIME", callback=_moment, help="Only those that failed before."),
        click.option(
            "--since",
            "since_ms",
            metavar="TIME",
            callback=_moment,
            help="Only those that failed at this time or later.",
        ),
    ):
        function = option(function)
    return function


@click.group(cls=Commands)
def dlq() -> None:
    """List, show and replay records that did not fit the columns of their topics.

    \b
    $ pylog dlq list orders-misfits --path data

    Readers keep them in the topic that their option dlq.topic names. Each record counts once, however often a reader
    wrote it there.
    """


@dlq.command("list")
@topic_argument
@either_place("replication.cli.dlq:list_letters")
@output_option
def list_letters(topic: str, path: Path, output: str) -> None:
    """List how many records did not fit, by topic and reason, and when the first and the last came.

    \b
    $ pylog dlq list orders-misfits --path data
    $ pylog dlq list orders-misfits --bootstrap-server 127.0.0.1:9092
    """
    from logstore.tools.dead_letters import Directory

    with open_store(path, mode="r") as store:
        show_list(Directory(store), topic=topic, output=output)


@dlq.command("show")
@topic_argument
@filters
@click.option(
    "--max-messages", type=click.IntRange(min=1), default=_SHOWN_MAX, show_default=True, help="At most so many."
)
@either_place("replication.cli.dlq:show_letters")
@output_option
def show_letters(topic: str, path: Path, **options: Any) -> None:
    """Show the records that did not fit, in the order of their offsets, and why.

    \b
    $ pylog dlq show orders-misfits --reason amount --path data
    $ pylog dlq show orders-misfits --since 2026-01-31T12:00:00Z --output json \\
        --path data
    """
    from logstore.tools.dead_letters import Directory

    with open_store(path, mode="r") as store:
        do_show(Directory(store), topic=topic, **options)


@dlq.command()
@topic_argument
@filters
@click.option("--to", metavar="TOPIC", help="Send to this topic, and not to the one that a record came from.")
@click.option(
    "--max-tries",
    type=click.IntRange(min=1),
    default=_TRIES_MAX,
    show_default=True,
    help="Leave records that did not fit so many times.",
)
@click.option(
    "--max-messages", type=click.IntRange(min=1), default=_SENT_MAX, show_default=True, help="At most so many."
)
@click.option("--dry-run", is_flag=True, help="Show the records, and change nothing.")
@either_place("replication.cli.dlq:replay")
@output_option
def replay(topic: str, dry_run: bool, path: Path, **options: Any) -> None:
    """Send records that did not fit to their topic again, or to another one, each exactly once.

    \b
    $ pylog dlq replay orders-misfits --dry-run --path data
    $ pylog dlq replay orders-misfits --to orders-mended \\
        --bootstrap-server 127.0.0.1:9092

    A record comes with its key, value, headers and time, and the header dlq.tries. All of a run is one transaction:
    after a run that was killed nothing was sent, or everything. A record that was sent is no dead letter any more.
    """
    from logstore.tools.dead_letters import Directory

    with open_store(path, mode="r" if dry_run else "auto") as store:
        do_replay(Directory(store), topic=topic, dry_run=dry_run, **options)


# --------------------------------------------------------- in either place


def show_list(place: Place, *, topic: str, output: str) -> None:
    from logstore.tools.dead_letters import summary

    found = list(summary(place, topic))
    show(found, _LISTED, output)
    if not found and output == "table":
        talk(f"{topic} has no dead letters")


def do_show(place: Place, *, topic: str, max_messages: int, output: str, **chosen: Any) -> None:
    from logstore.tools.dead_letters import first

    _show_letters(first(place, topic, _wanted(**chosen), max_messages), output)


def do_replay(
    place: Place,
    *,
    topic: str,
    to: str | None,
    max_tries: int,
    max_messages: int,
    dry_run: bool,
    output: str,
    **chosen: Any,
) -> None:
    from logstore.tools.dead_letters import replay as sent_again

    bounds: Mapping[str, Any] = {"to": to, "tries_max": max_tries, "count_max": max_messages, "dry_run": dry_run}
    found = sent_again(place, topic, _wanted(**chosen), **bounds)
    where = f" to {to}" if to else ""
    talk(f"{'would send' if dry_run else 'sent'} {counted(len(found.sent), 'record')}{where}")
    if found.tired:
        more = f"--max-tries {max_tries + 1} takes those with {max_tries}"
        talk(f"{counted(found.tired, 'record')} with {max_tries} tries or more: left there, {more}")
    if found.left:
        talk(f"{counted(found.left, 'record')} more than --max-messages: left there")
    if dry_run or output == "json":
        _show_letters(found.sent, output)


def _wanted(since_ms: int | None, until_ms: int | None, reason: str | None, key: str | None) -> Wanted:
    from logstore.tools.dead_letters import Wanted

    return Wanted(since_ms, until_ms, reason, None if key is None else key.encode())


def _show_letters(letters: list[DeadLetter], output: str) -> None:
    from logstore.tools.console import json_text

    as_value = json_text if output == "json" else _cell
    rows = []
    for letter in letters:
        row = letter._asdict() | {"key": as_value(letter.key), "value": as_value(letter.value)}
        row["headers"] = [[name, as_value(value)] for name, value in letter.headers]
        del row["id"]
        rows.append(row)
    show(rows, _SHOWN, output)


def _cell(data: bytes | None) -> str | None:
    """A cell of a table: whatever it holds, it is one line, and not too long."""
    if data is None:
        return None
    text = data[:80].decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(data) <= 80 else f"{shown}…"
