"""`pylog retention`, `compact` and `tier`: the jobs of these names in this process, without Spark or Java."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from datasource.jobs.options import (
    check,
    end,
    print_notes,
    schema_option,
    show_report,
    table_option,
    with_job_options,
    with_storage,
)
from datasource.jobs.tasks import names_in
from logstore.cli.terminal import progress_bar


@click.command("retention")
@with_storage
@with_job_options
def retention(**options: Any) -> None:
    """Delete old segments, as retention.ms and retention.bytes say, without Spark.

    \b
    $ pylog retention --path data

    This process goes over the partitions one by one; `pylog jobs retention` does the same on the hosts of Spark.
    Brokers apply retention themselves.
    """
    _run("retention", **options)


@click.command("compact")
@with_job_options
def compact(**options: Any) -> None:
    """Compact topics to the last record of each key, without Spark.

    \b
    $ pylog compact --path data

    A partition is compacted when its dirty part has reached min.cleanable.dirty.ratio. This process goes over the
    partitions one by one; `pylog jobs compaction` does the same on the hosts of Spark. Brokers compact their logs
    themselves.
    """
    _run("compaction", **options)


@click.command("tier")
@table_option
@with_storage
@schema_option
@with_job_options
def tier(**options: Any) -> None:
    """Copy committed records into Delta tables, each once, without Spark.

    \b
    $ pylog tier --path data

    \b
    pylog tier --bootstrap-server localhost:9092 --table s3://lake/{topic}

    Needs the package deltalake: pip install "pyspark-pylog[delta]". This process goes over the partitions one by
    one; `pylog jobs tiering` does the same on the hosts of Spark, and the two may take turns.
    """
    _run("tiering", **options)


def _run(name: str, *, place: dict[str, Any], topics: Sequence[str], output: str, **more: Any) -> None:
    check([name], place, more.get("table"), more.get("storage_options"))
    job = import_module(f"datasource.jobs.{name}")  # retention and compaction need nothing of Delta
    with progress_bar(name) as progress:
        found = job.rows(None, topics=topics or None, progress=progress, **place, **more)
    rows = [{column: row.get(column) for column in names_in(job.SCHEMA)} for row in found]
    show_report(rows, output)
    end(print_notes(rows))
