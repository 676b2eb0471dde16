"""`pylog`: the root command. It parses and prints; the work is done by functions that return values.

`terminal` is what all commands share, `places` where they act, `columns` on what; `schemas`, `topics`, `records`,
`dlq`, `top`, `files` and `transactions` are the commands on a directory. Those of the packages above are named as text,
and loaded when they are used, so that nothing here imports upwards. Other distributions add theirs by entry points of
the group `pylog.commands`.
"""

from __future__ import annotations

import logging
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from logstore import __version__
from logstore.cli.places import PlacedCommands
from logstore.cli.terminal import Failure, end_at_sigterm, failures

__all__ = ["cli", "main"]

# name -> where it is, and the first sentence of its help: `pylog --help` loads none of them.
_OWN = {
    "topics": ("logstore.cli.topics:topics", "Create, list, describe, alter and delete topics."),
    "schemas": ("logstore.cli.schemas:schemas", "List, show, check, register, delete and infer schemas."),
    "configs": ("replication.cli.configs:configs", "Describe and alter settings of topics, groups and brokers."),
    "acls": ("replication.cli.acls:acls", "List, add and remove ACLs: who may do what."),
    "groups": ("replication.cli.groups:groups", "List, describe, reset and delete groups of consumers."),
    "produce": ("logstore.cli.records:produce", "Append the lines of stdin as records."),
    "top": (
        "logstore.cli.top:top",
        "Show topics with their rates, and the lag of groups and of queries of Spark, live.",
    ),
    "consume": ("logstore.cli.records:consume", "Print the records of a topic."),
    "dlq": ("logstore.cli.dlq:dlq", "List, show and replay records that did not fit the columns of their topics."),
    "delete-records": ("logstore.cli.records:delete_records", "Delete the records below an offset, for good."),
    "get-offsets": ("replication.cli.offsets:get_offsets", "Show an offset of each partition of a topic."),
    "transactions": (
        "logstore.cli.transactions:transactions",
        "List, describe and abort transactions.",
    ),
    "dump-log": ("logstore.cli.files:dump_log", "Show the batches of .log files."),
    "verify": ("logstore.cli.files:verify", "Read everything in a store and report damage."),
    "recover": ("logstore.cli.files:recover", "Check and repair a store after a crash or a failed fsync."),
    "elect-leaders": (
        "replication.cli.replicas:elect_leaders",
        "Elect the preferred replica of each partition, wait, and show the changes.",
    ),
    "reassign-partitions": (
        "replication.cli.replicas:reassign_partitions",
        "Move replicas to other brokers, or change their number.",
    ),
    "verify-replicas": (
        "replication.cli.verify_replicas:verify_replicas",
        "Read all replicas of partitions, and compare them batch by batch, with their checksums.",
    ),
    "merge-state-logs": (
        "replication.cli.state_logs:merge_state_logs",
        "Merge state-change.log files of brokers by time, or draw leaders and ISRs.",
    ),
    "log-dirs": (
        "replication.cli.machines:log_dirs",
        "Show the directories of brokers, their free space, and the size of each replica.",
    ),
    "broker-api-versions": ("replication.cli.machines:broker_api_versions", "Show the APIs of brokers."),
    "perf": ("replication.cli.performance:perf", "Measure how fast records are produced and consumed."),
    "verifiable-producer": (
        "replication.cli.performance:verifiable_producer",
        "Send numbered records one by one, and print a line of JSON for each that was acknowledged or failed.",
    ),
    "verifiable-consumer": (
        "replication.cli.performance:verifiable_consumer",
        "Read as a member of a group, and print a line of JSON for partitions, records and commits as they come.",
    ),
    "features": (
        "replication.cli.features:features",
        "Show the feature level of a cluster, and raise it after an upgrade of its brokers.",
    ),
    "broker": ("replication.cli.brokers:broker", "Run one broker of a cluster."),
    "cluster": (
        "replication.cli.brokers:cluster",
        "Run a whole cluster on this machine, or show a running one.",
    ),
    "mirror": ("replication.cli.mirror:mirror", "Copy topics of an existing Kafka."),
    "retention": (
        "datasource.jobs.here:retention",
        "Delete old segments, as retention.ms and retention.bytes say, without Spark.",
    ),
    "compact": ("datasource.jobs.here:compact", "Compact topics to the last record of each key, without Spark."),
    "tier": (
        "datasource.jobs.here:tier",
        "Copy committed records into Delta tables, each once, without Spark.",
    ),
    "pipelines": ("datasource.demo.pipelines:pipelines", "Begin a declarative pipeline of Spark on topics."),
    "jobs": ("datasource.jobs.cli:jobs", "Maintain topics in parallel with Spark."),
    "demo": ("datasource.demo.cli:demo", "Send a year of flights through a topic with Spark."),
}


class Root(PlacedCommands):
    """The commands of this distribution, and those that others add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_OWN, *sorted({*_added(), *self.commands})]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _OWN and (entry := _added().get(cmd_name)):
            return _load(entry)
        return super().get_command(ctx, cmd_name)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with failures():  # `--help` prints here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with failures():
            return super().invoke(ctx)


def _added() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="pylog.commands") if entry.name not in _OWN}


def _load(entry: EntryPoint) -> click.Command:
    """The command of an entry point. One that cannot be loaded says so when used, and hides no other."""
    try:
        command = entry.load()
        assert isinstance(command, click.Command), entry.value
    except ImportError as error:
        reason = f"{entry.name} cannot be loaded ({error}); install the packages that it needs"

        @click.command(entry.name, short_help="(cannot be loaded)")
        def broken() -> None:
            raise Failure(reason)

        return broken
    return command


@click.group(
    cls=Root,
    placed=_OWN,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80, "show_default": True},
)
@click.version_option(__version__, prog_name="pylog")
def cli() -> None:
    """Work with topics: durable, partitioned logs in Kafka's file format, in a directory or a cluster of brokers.

    \b
    $ pylog topics create orders --partitions 3 --path data
    $ echo 'Ada:first order' | pylog produce orders --key-separator : --path data
    $ pylog consume orders --path data
    $ pylog topics list --bootstrap-server 127.0.0.1:9092
    """
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")


def main() -> None:
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # kio loads it where it is installed, for tests
    end_at_sigterm()
    cli(prog_name="pylog")
