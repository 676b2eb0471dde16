"""`pylog top`: what moves, live. `logstore.tools.top` and `replication.tools.top` look; this shows."""

from __future__ import annotations

import json
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.places import either_place, loaded
from logstore.cli.terminal import DIRECTORY, duration, open_store, output_option, show_table, talk
from logstore.env import SYSTEM
from logstore.errors import PylogError
from logstore.tools.top import Look, Reader, View, look_at, view

if TYPE_CHECKING:
    from rich.console import RenderableType

_TOPICS = ("topic", "partitions", "records", "bytes", "in_per_s", "out_per_s")
_READERS = ("reader", "kind", "state", "topic", "lag", "out_per_s")
_QUERIES = "datasource.connector.checkpoints:queries_of"
_TITLES = 6  # lines that are no rows: two titles, two blank lines, where, how to end

Looking = Callable[[Sequence[Reader], Sequence[str]], Look]


@click.command()
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    type=DIRECTORY,
    metavar="DIR",
    help="Show the lag of a query of Spark, by its checkpoint, or of all below DIR; may be repeated.",
)
@click.option(
    "--every", callback=duration(100), default="2s", metavar="TIME", help="Time between two looks: 500ms, 2s, 1m …"
)
@click.option("--once", is_flag=True, help="Look twice, --every apart, show what came between, and end.")
@either_place("replication.cli.top:top")
@output_option
def top(checkpoints: tuple[Path, ...], every: int, once: bool, path: Path, output: str) -> None:
    """Show topics with their rates, and the lag of groups and of queries of Spark, live; q or Ctrl-C ends it.

    \b
    $ pylog top --once --path data
    $ pylog top --once --output json --bootstrap-server 127.0.0.1:9092
    $ pylog top --checkpoint checkpoints/thanks --path data

    Rates are in records per second: what was appended, and what groups and queries have committed. Topics with the
    highest rate come first, readers with the largest lag. Without a terminal tables follow each other. --output json
    prints a line for each topic, reader and problem. A line names what cannot be reached.
    """
    with open_store(path, mode="r") as store:
        watch(lambda readers, failed: look_at(store, readers, failed), str(path), checkpoints, every, once, output)


def watch(look: Looking, where: str, checkpoints: Sequence[Path], every_ms: int, once: bool, output: str) -> None:
    """Show looks until the end. A later look that fails leaves the former in place, with a line that says so."""

    def looked() -> Look:
        readers, problems = _queries(checkpoints)
        return look(readers, problems)

    before = looked()
    if once:
        SYSTEM.clock.sleep_ms(every_ms)
        _print(view(before, looked()), output)
        return
    try:
        with _screen(where, output) as show, _keys() as is_over:
            show(view(before, before))
            while not is_over(every_ms):
                try:
                    now = looked()
                except (PylogError, OSError, TimeoutError) as error:
                    if isinstance(error, BrokenPipeError):
                        raise
                    show(view(before, before)._replace(problems=[str(error)]))
                    continue
                show(view(before, now))
                before = now
    except KeyboardInterrupt:
        return  # the normal end


def _queries(checkpoints: Sequence[Path]) -> tuple[list[Reader], list[str]]:
    """The queries of these checkpoints, and why others cannot be told."""
    found, problems = list[Reader](), list[str]()
    for directory in checkpoints:
        for name, told in loaded(_QUERIES)(directory):
            if isinstance(told, str):
                problems.append(f"query {name}: {told}")
            else:
                found.append(Reader("query", name, "", told.offsets, told.ids, told.place))
    return found, problems


@contextmanager
def _screen(where: str, output: str) -> Iterator[Callable[[View], None]]:
    """Give what shows a view: the whole screen of a terminal, else one table after the other."""
    if output == "json" or not sys.stdout.isatty():
        yield lambda found: _print(found, output)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda found: live.update(_drawn(found, where, console.height), refresh=True)


@contextmanager
def _keys() -> Iterator[Callable[[int], bool]]:
    """Give what waits so many milliseconds, or until somebody presses q; it returns whether that was so."""
    if not sys.stdin.isatty():

        def sleep(wait_ms: int) -> bool:
            SYSTEM.clock.sleep_ms(wait_ms)
            return False

        yield sleep
        return
    before = termios.tcgetattr(sys.stdin)

    def pressed(wait_ms: int) -> bool:
        end_ms = SYSTEM.clock.monotonic_ms() + wait_ms
        while (left_ms := end_ms - SYSTEM.clock.monotonic_ms()) > 0:
            if select.select([sys.stdin], [], [], left_ms / 1000)[0] and sys.stdin.read(1) in ("q", "Q", ""):
                return True
        return False

    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _print(found: View, output: str) -> None:
    if output == "json":
        lines = [{"kind": "topic"} | row for row in found.topics]
        lines += found.readers
        lines += [{"kind": "problem", "text": text} for text in found.problems]
        for line in lines:
            click.echo(json.dumps(line, ensure_ascii=False))
    else:
        show_table(found.topics, _TOPICS)
        if found.readers:
            click.echo()
            show_table(found.readers, _READERS)
        for problem in found.problems:
            talk(problem)
    sys.stdout.flush()


def _drawn(found: View, where: str, height: int) -> RenderableType:
    """The view as it fits a screen of so many lines: the busiest topics, and the readers that are most behind."""
    from rich.console import Group
    from rich.text import Text

    room = max(2, height - _TITLES - len(found.problems))
    readers = found.readers[: max(1, room // 3)]
    topics = found.topics[: max(1, room - len(readers))]
    hidden = len(found.topics) - len(topics) + len(found.readers) - len(readers)
    more = f"  ({hidden} more rows)" if hidden else ""
    return Group(
        Text(f"{where}: {len(found.topics)} topics{more}   q: quit", style="bold", overflow="ellipsis", no_wrap=True),
        _table(topics, _TOPICS),
        *([Text(), _table(readers, _READERS)] if readers else []),
        *(Text(problem, style="red", overflow="ellipsis", no_wrap=True) for problem in found.problems),
    )


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        is_text = any(isinstance(row[name], str) for row in rows)
        table.add_column(name.replace("_", " ").upper(), justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(_text(row[name]) for name in columns))
    return table


def _text(value: str | float | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,}"
