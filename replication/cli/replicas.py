"""`pylog elect-leaders`, `pylog reassign-partitions`: who leads, and where replicas are, on a running cluster."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

import click

from logstore.cli.terminal import Failure, ask_first, counted, progress_bar, show, talk, usage_errors
from replication.cli.connecting import numbers, on_cluster

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient
    from replication.tools.plans import Plan

WAIT_S = 0.5  # between two looks at a plan
_ELECTED = ("topic", "partition", "leader_before", "leader", "error")
_NOT_LED = {
    "preferred": "not led by the preferred replica",
    "unclean": "without a leader: no replica is alive, or there is no such partition",
}
_VERIFIED = ("topic", "partition", "replicas", "wanted", "state")
_MOVING = ("topic", "partition", "replicas", "adding", "removing")


@click.command("elect-leaders")
@click.option(
    "--election-type",
    type=click.Choice(["preferred", "unclean"]),
    default="preferred",
    help="Elect the first replica if it is in sync; or, without a leader, any that is alive.",
)
@click.option("--all-topic-partitions", "all_of_them", is_flag=True, help="All partitions.")
@click.option("--topic", metavar="TOPIC", help="With --partition: this partition.")
@click.option("--partition", type=click.IntRange(min=0), help="With --topic: this partition.")
@click.option(
    "--path-to-json-file", "file", type=click.File("r"), metavar="FILE", help="A file with partitions; - is stdin."
)
@click.option("--yes", is_flag=True, help="Do not ask before an unclean election.")
@on_cluster
def elect_leaders(
    client: KafkaClient,
    election_type: str,
    all_of_them: bool,
    topic: str | None,
    partition: int | None,
    file: TextIO | None,
    yes: bool,
    output: str,
) -> None:
    """Elect the preferred replica of each partition, wait, and show the changes.

    \b
    $ pylog elect-leaders --all-topic-partitions --bootstrap-server 127.0.0.1:9092
    $ pylog elect-leaders --topic orders --partition 0 \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog elect-leaders --election-type unclean --all-topic-partitions --yes \\
        --bootstrap-server 127.0.0.1:9092

    The preferred replica is the first of a partition. A preferred replica that is not in sync is not elected, and the
    exit code is 1.

    An unclean election is for a partition whose in-sync replicas do not come back: a live replica that was not in sync
    leads, once. Records that this replica lacks are lost. Partitions that have a leader keep it.
    """
    from replication.tools.elections import elect
    from replication.tools.plans import partitions_of

    if (topic is None) != (partition is None) or all_of_them + (topic is not None) + (file is not None) != 1:
        raise click.UsageError("give one: --all-topic-partitions, --topic and --partition, or --path-to-json-file")
    with usage_errors():
        named = partitions_of(file.read()) if file is not None else None
    is_unclean = election_type == "unclean"
    if is_unclean and not yes:
        _ask_first()
    rows = elect(client, named if topic is None or partition is None else [(topic, partition)], is_unclean=is_unclean)
    changed = [row for row in rows if row["error"] or row["leader"] != row["leader_before"]]
    show(changed, _ELECTED, output)
    failed = sum(row["error"] is not None for row in rows)
    elected = len(changed) - failed
    talk(f"elected {counted(elected, 'leader')}; {len(rows) - len(changed)} led before")
    if is_unclean and elected:
        talk("records that the new leaders lack are lost")
    if failed:
        raise Failure(f"{counted(failed, 'partition')} {_NOT_LED[election_type]}")


def _ask_first() -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("an unclean election may lose records: say --yes")
    ask_first("An unclean election may lose records. Hold it?")


@click.command("reassign-partitions")
@click.option("--generate", is_flag=True, help="Print a plan that spreads topics over brokers.")
@click.option("--execute", is_flag=True, help="Begin a plan; print the present replicas, as the plan for the way back.")
@click.option("--verify", is_flag=True, help="Show the progress of a plan; exit code 1 while it is not complete.")
@click.option("--cancel", is_flag=True, help="Cancel the running reassignments of a plan: the old replicas stay.")
@click.option("--list", "lists", is_flag=True, help="Show the running reassignments.")
@click.option(
    "--topics-to-move-json-file", "topics", type=click.File("r"), metavar="FILE", help="Topics for --generate."
)
@click.option("--broker-list", "brokers", callback=numbers, metavar="1,2,…", help="For --generate.")
@click.option("--reassignment-json-file", "plan", type=click.File("r"), metavar="FILE", help="The plan; - is stdin.")
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="With --execute: copy at most so many bytes per second, to and from each broker; of a running plan, too.",
)
@click.option("--wait", is_flag=True, help="With --verify: wait until the plan is complete.")
@click.option("--preserve-throttles", is_flag=True, help="With --verify: keep the throttle when the plan is complete.")
@on_cluster
def reassign_partitions(
    client: KafkaClient, output: str, throttle: int | None, wait: bool, preserve_throttles: bool, **given: Any
) -> None:
    """Move replicas to other brokers, or change their number, while clients continue.

    \b
    $ pylog reassign-partitions --list --bootstrap-server 127.0.0.1:9092

    A plan is JSON: {"partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}], "version": 1}. The first
    replica is the preferred leader. The file for --generate is {"topics": [{"topic": "orders"}], "version": 1}.
    A reassignment continues without this command, and when the controller dies. A throttle applies to no replica that
    is in sync. The throttle stays until --verify finds that the reassignment is complete, and removes it; --execute
    again with another --throttle changes the rate. With --wait a terminal shows the bytes copied, and the rate.
    """
    actions: dict[str, Callable[..., None]] = {
        "generate": _generate,
        "execute": _execute,
        "verify": _verify,
        "cancel": _cancel,
        "lists": _list,
    }
    chosen = [name for name in actions if given.pop(name)]
    if len(chosen) != 1:
        raise click.UsageError("give one of --generate, --execute, --verify, --cancel and --list")
    needs = {"generate": {"topics", "brokers"}, "lists": set[str]()}.get(chosen[0], {"plan"})
    if needs != {name for name, value in given.items() if value is not None}:
        raise click.UsageError(
            "--generate needs --topics-to-move-json-file and --broker-list; --execute, --verify and --cancel need "
            "--reassignment-json-file; --list needs none of them"
        )
    said = {"throttle": throttle, "wait": wait, "preserve_throttles": preserve_throttles}
    extra = {name: value for name, value in said.items() if value}
    if extra.keys() - {"execute": {"throttle"}, "verify": {"wait", "preserve_throttles"}}.get(chosen[0], set()):
        raise click.UsageError("--throttle goes with --execute; --wait and --preserve-throttles with --verify")
    actions[chosen[0]](client, output=output, **{name: given[name] for name in needs}, **extra)


def _generate(client: KafkaClient, topics: TextIO, brokers: tuple[int, ...], output: str) -> None:
    from replication.tools.plans import plan_text, topics_of
    from replication.tools.reassignments import generated

    with usage_errors():
        names = topics_of(topics.read())
    current, wanted = generated(client, names, brokers)
    talk(f"the present replicas: {plan_text(current)}")
    click.echo(plan_text(wanted))


def _execute(client: KafkaClient, plan: TextIO, output: str, throttle: int | None = None) -> None:
    from replication.tools.plans import plan_of, plan_text
    from replication.tools.reassignments import present, request
    from replication.tools.reassignments import throttle as throttle_plan

    with usage_errors():
        wanted = plan_of(plan.read())
    click.echo(plan_text(present(client, wanted)))
    talk("this plan has the present replicas: store it for the way back")
    if throttle is not None:
        brokers = throttle_plan(client, wanted, throttle).brokers
        talk(f"throttled to {throttle} bytes per second on brokers {', '.join(map(str, brokers))}; --verify ends that")
    _print(request(client, wanted), "begun", output)


def _cancel(client: KafkaClient, plan: TextIO, output: str) -> None:
    from replication.tools.plans import partitions_of
    from replication.tools.reassignments import request

    with usage_errors():
        wanted = partitions_of(plan.read())
    _print(request(client, dict.fromkeys(wanted)), "cancelled", output)


def _print(rows: list[dict[str, Any]], what: str, output: str) -> None:
    refused = [row for row in rows if row["error"]]
    talk(f"{what}: {counted(len(rows) - len(refused), 'partition')}")
    if refused:
        raise Failure("\n".join(f"{row['topic']}-{row['partition']}: {row['error']}" for row in refused))


def _verify(
    client: KafkaClient, plan: TextIO, output: str, wait: bool = False, preserve_throttles: bool = False
) -> None:
    from replication.tools.plans import plan_of
    from replication.tools.reassignments import DONE, listed, unthrottle, verified

    with usage_errors():
        wanted = plan_of(plan.read())
    if wait:
        _wait(client, wanted)
    rows = verified(client, wanted)
    show(rows, _VERIFIED, output)
    if not preserve_throttles and not listed(client):  # others may be throttled by the same settings
        topics, brokers = unthrottle(client, wanted)
        if topics or brokers:
            talk(f"throttle removed from {counted(len(topics), 'topic')} and {counted(len(brokers), 'broker')}")
    if left := sum(row["state"] != DONE for row in rows):
        raise Failure(f"{counted(left, 'partition')} of {len(rows)} not complete")


def _wait(client: KafkaClient, plan: Plan) -> None:
    from replication.tools.reassignments import copied, under_way

    moving, pause = under_way(client, plan), threading.Event()
    with progress_bar("copying", unit="bytes") as progress:
        while under_way(client, plan):
            progress(*copied(client, moving))
            pause.wait(WAIT_S)


def _list(client: KafkaClient, output: str) -> None:
    from replication.tools.reassignments import listed

    show(listed(client), _MOVING, output)
