"""`pylog dump-log`, `pylog verify`, `pylog recover`: what is in the files, and whether it is sound."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import click

import logstore
from logstore.cli.terminal import Failure, counted, open_store, output_option, path_option, progress_bar, show, talk
from logstore.log.recovery import RecoveryReport
from logstore.store.stray import unowned
from logstore.tools.dump import Line, dump
from logstore.tools.verify import PartitionReport, verify_store


@click.command("dump-log")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--print-data-log", is_flag=True, help="Show the records too (and check the CRCs).")
@click.option("--verify", is_flag=True, help="Check the CRCs; an index is checked against the log beside it.")
@output_option
def dump_log(files: tuple[Path, ...], print_data_log: bool, verify: bool, output: str) -> None:
    """Show the batches of .log files, and the entries of .index and .timeindex files.

    \b
    $ pylog dump-log --print-data-log data/orders-0/00000000000000000000.log

    No store is needed, and nothing is changed. --output json prints one line of JSON per batch, record
    or entry. Exit code 1 if there is damage.
    """
    damaged = 0
    for path in files:
        lines = dump(path, with_records=print_data_log, verify=verify)
        first = list(itertools.islice(lines, 1))  # a file that cannot be read fails here, before its title
        if output == "table":
            click.echo(f"Dumping {path}")
        for line in itertools.chain(first, lines):
            damaged += line.kind == "damage"
            click.echo(json.dumps({"file": str(path)} | line.facts) if output == "json" else _text(line))
    if damaged:
        raise Failure(f"damage in {counted(damaged, 'place')}; `pylog verify` checks a whole store")


def _text(line: Line) -> str:
    words = " ".join(
        f"{name}: {str(fact).lower() if isinstance(fact, bool) else fact}" for name, fact in line.facts.items()
    )
    if line.kind == "damage":
        return click.style(f"DAMAGED {words}", fg="red")
    return f"| {words}" if line.kind == "record" else words


@click.command()
@click.option("--topic", metavar="TOPIC", help="Only this topic.")
@path_option
@output_option
def verify(topic: str | None, path: Path, output: str) -> None:
    """Read everything in a store and report damage. Nothing is changed.

    \b
    $ pylog verify --path data

    Exit code 1 if there is damage; `--output json` lists every place. Records of a topic whose description
    is gone are damage. Other directories of no topic are no damage; the command names them on stderr.
    """
    with open_store(path, mode="r") as store, progress_bar("verify", unit="bytes") as progress:
        reports = list(verify_store(store, topic, progress))
    damage = [place for report in reports for place in report.damage]
    show(map(_verified, reports), ("topic", "partition", "segments", "bytes", "damage"), output)
    for file, position, reason in damage:
        talk(reason if reason.startswith(file) else f"{file}: damaged at byte {position}: {reason}")
    if topic is None:
        _name_unowned(path)
    if damage:
        raise Failure("there is damage; restore the files from a sound copy, or read around the damaged places")


def _name_unowned(path: Path) -> None:
    """Print which directories belong to no topic, except those that were reported as damage."""
    found = unowned(path)
    if found.empty:
        first, last, count = found.empty[0].name, found.empty[-1].name, len(found.empty)
        if count == 1:
            talk(f"{path / first} belongs to no topic and holds no records; `pylog recover` removes it")
        else:
            talk(
                f"{path}: {count} directories, from {first} to {last}, belong to no topic and hold no records; "
                "`pylog recover` removes them"
            )
    for directory in found.others:
        talk(
            f"{directory} belongs to no topic (its deletion did not finish?): look into it with "
            "`pylog dump-log`, and remove it if nothing in it is missed"
        )


def _verified(report: PartitionReport) -> dict[str, object]:
    places = [{"file": file, "position": position, "reason": reason} for file, position, reason in report.damage]
    return {
        "topic": report.topic,
        "partition": report.partition,
        "segments": report.segments,
        "bytes": report.size_bytes,
        "damage": places,
    }


@click.command()
@path_option
@output_option
def recover(path: Path, output: str) -> None:
    """Check and repair a store after a crash or a failed fsync. No other process may have the store open.

    \b
    $ pylog recover --path data

    A process that opens a store does the same after a crash. After a failed fsync every process refuses to write
    until this command has run. The command prints a report of its repairs. It reports damage in flushed data, and
    never cuts it. It removes empty directories of topics whose creation was killed.
    """
    with progress_bar("recover") as progress:
        reports = logstore.recover(path, progress=progress)
    show(map(_recovered, reports), ("partition", "end", "cut_bytes", "rebuilt", "removed", "ignored"), output)


def _recovered(report: RecoveryReport) -> dict[str, object]:
    return {
        "partition": Path(report.path).name,
        "end": report.log_end_offset,
        "cut_bytes": report.cut_bytes,
        "rebuilt": list(report.rebuilt),
        "removed": list(report.removed),
        "ignored": list(report.ignored),
    }
