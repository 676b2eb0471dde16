"""Shared by all commands: the options `--path` and `--output`, tables, JSON, progress bars, errors.

Data goes to stdout, messages to stderr. Exit codes: 0 it worked, 1 it failed, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import click

import logstore
from logstore.errors import InvalidRequestError, PylogError, did_you_mean
from logstore.progress import Progress
from logstore.records import times

Mode = Literal["auto", "r"]
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def store_option(*, required: bool) -> Callable[[Any], Any]:
    return click.option(
        "--path",
        required=required,
        envvar="PYLOG_PATH",
        show_envvar=True,
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="The store's directory.",
    )


path_option = store_option(required=True)
output_option = click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="A table for people, JSON for programs.",
)


def pairs(_ctx: click.Context, _parameter: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """The callback of an option that is KEY=VALUE, and may be repeated."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def duration(minimum_ms: int = 0) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """Return the callback of an option that is a length of time with its unit, as milliseconds."""

    def parsed(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
        if text is None:
            return None
        text = text.strip()
        if text.isdecimal():
            raise click.BadParameter(f"{text} of what? Give a unit: {text}s, {text}m, {text}h")
        found_ms = times.length_ms(text)
        if found_ms is None:
            raise click.BadParameter(f"{text!r} is not {times.LENGTH}")
        if found_ms < minimum_ms:
            raise click.BadParameter(f"{text}: at least {minimum_ms}ms")
        return found_ms

    return parsed


class Commands(click.Group):
    """Answers a mistyped command by those that look alike."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name[:1].isalpha() and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            raise click.UsageError(f"no command {name!r}{did_you_mean(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)


class Terminated(KeyboardInterrupt):
    """SIGTERM came: a command ends as it does with Ctrl-C, and leaves nothing half done."""


def end_at_sigterm() -> None:
    """Have SIGTERM raise Terminated in the main thread, from now on."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, end)


class Failure(click.ClickException):
    """Ends a command with exit code 1 and one line."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        click.echo(f"pylog: {self.message}", err=True)


@contextmanager
def failures() -> Iterator[None]:
    """Turn the package's errors into one line and exit code 1, and a closed pipe into a quiet end.

    So too an output that cannot be written; Ctrl-C and SIGTERM are one line, and exit code 130 and 143.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # None: started without one
                sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has enough
        _drop_stdout()
        raise click.exceptions.Exit(0) from None
    except KeyboardInterrupt as end:
        is_terminated = isinstance(end, Terminated)
        talk("pylog: terminated" if is_terminated else "pylog: interrupted")
        raise click.exceptions.Exit(143 if is_terminated else 130) from None
    except PylogError as error:
        raise Failure(str(error)) from error
    except OSError as error:  # not of the store, whose errors are the package's
        if error.filename is not None or error.errno not in _WRITE_ERRORS:
            raise
        _drop_stdout()
        raise Failure(f"cannot write to stdout: {error.strerror}") from error


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn what is wrong with a command's own options into wrong usage."""
    try:
        yield
    except InvalidRequestError as error:
        raise click.UsageError(str(error)) from error


def _drop_stdout() -> None:
    """Let nothing more be written to stdout, not even at interpreter exit."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def open_store(path: Path, *, mode: Mode = "auto", create: bool = False) -> logstore.LogStore:
    """Return the store. Only `topics create` passes `create`: other commands make no directory."""
    return logstore.open(path, mode=mode, create=create)


def talk(text: str) -> None:
    """Print a message to stderr, beside the data on stdout."""
    click.echo(text, err=True)


def ask_first(question: str) -> None:
    """Have a person at a terminal confirm; a command without one goes on. Raises: Failure: the answer is no."""
    if sys.stdin.isatty() and not click.confirm(question, err=True):
        raise Failure("nothing was changed")


def counted(count: int, noun: str) -> str:
    """Return "1 record", "2 records"."""
    return f"{count} {noun}" + "s" * (count != 1)


def show_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Print the lines of a table, the titles bold."""
    for number, line in enumerate(table_lines(rows, columns)):
        click.echo(line if number else click.style(line, bold=True))


def table_lines(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> list[str]:
    """Return aligned columns under upper-case titles, numbers to the right; nothing when there are no rows."""
    if not rows:
        return []
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    titles = [column.replace("_", " ").upper() for column in columns]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    numeric = [all(isinstance(row[column], int | float | None) for row in rows) for column in columns]
    return [_aligned(line, widths, numeric) for line in (titles, *cells)]


def show(rows: Iterable[Mapping[str, object]], columns: Sequence[str], output: str) -> None:
    """Print the rows as a table of these columns, or all they have as JSON."""
    found = list(rows)
    if output == "json":
        show_json(found)
    else:
        show_table(found, columns)


@contextmanager
def progress_bar(what: str, *, unit: Literal["bytes", "items"] = "items") -> Iterator[Progress]:
    """Give a function (done, total) that moves a bar on stderr; without a terminal there it shows nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.progress import TransferSpeedColumn as Rate

    console = Console(stderr=True)
    counts = (DownloadColumn(), Rate()) if unit == "bytes" else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ",".join(f"{key}={setting}" for key, setting in value.items()) or "-"
        case list():
            return str(len(value)) if value else "-"
        case tuple():
            return ",".join(map(str, value)) or "-"
        case _:
            return str(value)


def _aligned(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = (
        text.rjust(width) if right else text.ljust(width)
        for text, width, right in zip(cells, widths, numeric, strict=True)
    )
    return "  ".join(padded).rstrip()
