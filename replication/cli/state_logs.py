"""`pylog merge-state-logs`: the state-change.log files of brokers as one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TextIO

import click

from logstore.cli.terminal import output_option, usage_errors
from replication.cli.connecting import numbers

if TYPE_CHECKING:
    from replication.tools.state_logs import Period

_COLOURS = {"ERROR": "red", "FATAL": "red", "WARN": "yellow"}


@click.command("merge-state-logs")
@click.argument(
    "files", nargs=-1, required=True, type=click.File(encoding="utf-8", errors="replace"), metavar="FILE..."
)
@click.option("--topic", metavar="TOPIC", help="Only lines of this topic.")
@click.option("--partitions", callback=numbers, metavar="0,1,…", help="With --topic: only of these partitions.")
@click.option(
    "--start-time", metavar="TIME", help="Only entries from this time on, in the form of the files or in ISO form."
)
@click.option("--end-time", metavar="TIME", help="Only entries up to this time.")
@click.option("--timeline", "is_drawn", is_flag=True, help="Draw leader and ISR of each partition over time.")
@output_option
def merge_state_logs(
    files: tuple[TextIO, ...],
    topic: str | None,
    partitions: tuple[int, ...] | None,
    start_time: str | None,
    end_time: str | None,
    is_drawn: bool,
    output: str,
) -> None:
    """Merge state-change.log files of brokers by time, or draw leaders and ISRs.

    \b
    $ pylog merge-state-logs broker-1/broker/state-change.log \\
        broker-2/broker/state-change.log --timeline

    Give all files of a broker, also the older ones (.1). --output json prints a line of JSON for each entry or period.
    """
    from replication.tools.state_logs import merged, time_of, timeline

    if partitions is not None and topic is None:
        raise click.UsageError("--partitions needs --topic")
    with usage_errors():
        start = "" if start_time is None else time_of(start_time)
        end = "~" if end_time is None else time_of(end_time)
    found = merged(files, topic=topic, partitions=partitions, start=start, end=end)
    if is_drawn:
        _draw(timeline(found), output)
        return
    for entry in found:
        if output == "json":
            click.echo(json.dumps({**entry._asdict(), "partition": entry.partition}, ensure_ascii=False))
        else:
            click.echo(click.style(entry.text, fg=_COLOURS.get(entry.level)))


def _draw(found: dict[tuple[str, int], list[Period]], output: str) -> None:
    from replication.tools.state_logs import drawn

    for (topic, partition), rows in found.items():
        if output == "json":
            for row in rows:
                click.echo(json.dumps({"topic": topic, "partition": partition, **row._asdict()}))
            continue
        brokers = {broker for row in rows for broker in (row.leader, *row.isr) if broker >= 0}
        title = "".join(f" {broker}" for broker in sorted(brokers))
        click.echo(click.style(f"{f'{topic}-{partition}':<23} {title}", bold=True))
        for line in drawn(rows, brokers):
            click.echo(line)
