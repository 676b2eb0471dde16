"""`pylog transactions`: who is writing, what was committed last, and how to end what nobody ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from logstore.cli.places import ClusterOption, PlacedCommands, either_place
from logstore.cli.terminal import Failure, counted, open_store, output_option, show, talk
from logstore.errors import did_you_mean
from logstore.store.store import LogStore

_ATTEMPTS = ("name", "batch", "state", "task", "producer", "partitions", "since", "hint")
_NAMES = ("name", "batch", "rows", "committed")


@click.group(
    cls=PlacedCommands,
    placed={
        "describe": ("replication.cli.transactions:describe", "Show the last transaction of transactional ids."),
        "find-hanging": (
            "replication.cli.transactions:find_hanging",
            "Show transactions that no coordinator will end.",
        ),
        "release": ("datasource.jobs.release:release", "End the transactions that a Spark driver left open."),
    },
)
def transactions() -> None:
    """List, describe and abort transactions.

    \b
    $ pylog transactions list --path data
    """


@transactions.command("list")
@click.option("--committed", is_flag=True, help="Show the last committed batch of every name instead; for a directory.")
@click.option(
    "--state",
    "states",
    multiple=True,
    cls=ClusterOption,
    metavar="STATE",
    help="Only transactions in this state: Ongoing, CompleteAbort, …",
)
@either_place("replication.cli.transactions:list_transactions")
@output_option
def list_transactions(committed: bool, path: Path, output: str) -> None:
    """List the transactions that have not ended, and whether their writers can still commit them.

    read_committed readers wait for open and prepared transactions; a hint says which ones can no longer be committed.

    \b
    $ pylog transactions list --path data
    $ pylog transactions list --committed --path data
    $ pylog transactions list --state Ongoing --bootstrap-server 127.0.0.1:9092

    For a directory, the list has the transactions that have not ended; for a cluster, the last one of each
    transactional id.
    """
    with open_store(path, mode="r") as store:
        if committed:
            show(_committed(store), _NAMES, output)
        else:
            show(_attempts(store), _ATTEMPTS, output)


@transactions.command()
@click.argument("name", required=False)
@click.option("--dead", is_flag=True, help="Abort all that can no longer be committed; for a directory.")
@click.option("--dry-run", is_flag=True, help="Show the transactions to abort, and change nothing.")
@click.option(
    "--topic", cls=ClusterOption, metavar="TOPIC", help="The topic of a hanging transaction, from find-hanging."
)
@click.option(
    "--partition", cls=ClusterOption, type=click.IntRange(min=0), help="The partition of a hanging transaction."
)
@click.option(
    "--start-offset", cls=ClusterOption, type=click.IntRange(min=0), help="The first offset of a hanging transaction."
)
@either_place("replication.cli.transactions:abort")
@output_option
def abort(name: str | None, dead: bool, dry_run: bool, path: Path, output: str) -> None:
    """Abort the open transactions of a NAME, or all that can no longer be committed; finish those that are decided.

    A program that still writes gets an error; Spark repeats its task.

    \b
    $ pylog transactions abort --dead --path data
    $ pylog transactions abort payments-1 --bootstrap-server 127.0.0.1:9092

    On a cluster the NAME is a transactional id, and its producer is fenced.
    """
    if bool(name) == dead:
        raise click.UsageError("give a NAME, or --dead")
    with open_store(path, mode="r" if dry_run else "auto") as store:
        rows = [row for row in _attempts(store) if row["state"] in ("open", "prepared")]
        wanted = [row for row in rows if (row["hint"] if dead else row["name"] == name)]
        if name and not wanted:
            raise Failure(f"no open transaction {name!r}{did_you_mean(name, {str(r['name']) for r in rows})}")
        if not dry_run:
            if name:
                store.transactions.abort_name(name, reason="aborted by `pylog transactions abort`")
            store.transactions.complete_or_abort()
        talk(f"{'would abort' if dry_run else 'aborted'} {counted(len(wanted), 'writer')}")
        show(wanted, _ATTEMPTS, output)


def _attempts(store: LogStore) -> Iterator[dict[str, object]]:
    state = store.transactions.state()
    hints = {attempt.producer: why for attempt, why in store.transactions.dead(state)}
    outcomes = state.outcomes()
    for attempt in state.attempts.values():
        yield {
            "name": attempt.name,
            "batch": attempt.batch_id,
            "state": outcomes.get(attempt.producer) or ("prepared" if attempt.prepared else "open"),
            "task": attempt.task,
            "producer": f"{attempt.producer_id}/{attempt.epoch}",
            "partitions": len(attempt.partitions),
            "since": attempt.seen_ms,
            "hint": attempt.aborted or hints.get(attempt.producer, ""),
        }


def _committed(store: LogStore) -> Iterator[dict[str, object]]:
    for name, known in sorted(store.transactions.state().names.items()):
        if known.last is not None:
            yield {
                "name": name,
                "batch": known.last.batch_id,
                "rows": known.last.content.rows,
                "committed": known.last.decided_ms,
            }
