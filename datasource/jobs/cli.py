"""`pylog jobs`: parses and prints; the work is that of the functions in `datasource.jobs`."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from datasource.connector.connect import is_connect
from datasource.errors import reason
from datasource.jobs import schedule
from datasource.jobs.options import (
    check,
    dry_run_option,
    end,
    placed,
    print_notes,
    schema_option,
    show_report,
    table_option,
    topics_option,
    with_job_options,
    with_storage,
)
from datasource.session import spark_session, stderr_to
from logstore.cli import cli
from logstore.cli.terminal import duration, end_at_sigterm, output_option, progress_bar, talk
from logstore.env import SYSTEM
from logstore.errors import PylogError

CANCEL_S = 10.0  # how long after Ctrl-C jobs may take to end, before their session ends

Done = TypeVar("Done")


@click.group()
def jobs() -> None:
    """Maintain topics in parallel with Spark: retention, compaction, tiering to Delta Lake, checks.

    \b
    $ pylog jobs retention --path data --dry-run

    A job may be killed and run again, and may run beside another. On a Spark cluster:
    spark-submit datasource/jobs/__main__.py NAME --path DIR.
    """


@jobs.command("retention")
@with_storage
@with_job_options
def retention(**options: Any) -> None:
    """Delete old segments, as retention.ms and retention.bytes say.

    \b
    $ pylog jobs retention --path data

    Appends and the opening of a store apply retention to the topics that they touch. Brokers apply retention
    themselves.
    """
    _run("retention", **options)


@jobs.command("compaction")
@with_job_options
def compaction(**options: Any) -> None:
    """Compact topics with cleanup.policy=compact to the last record of each key.

    \b
    $ pylog jobs compaction --path data

    A partition is compacted when its dirty part has reached min.cleanable.dirty.ratio. Brokers compact their logs
    themselves.
    """
    _run("compaction", **options)


@jobs.command("tiering")
@table_option
@with_storage
@schema_option
@with_job_options
def tiering(**options: Any) -> None:
    """Copy committed records into Delta tables, each exactly once.

    \b
    $ pylog jobs tiering --path data

    \b
    pylog jobs tiering --bootstrap-server localhost:9092 --table s3://lake/{topic}

    With remote.storage.enable=true on a topic of a directory, retention waits for this job; the brokers of
    a cluster do not. Spark reads table and log as one with the option includeTiered.
    """
    _run("tiering", **options)


@jobs.command("verify")
@with_job_options
def verify(**options: Any) -> None:
    """Read everything and report damage, partitions in parallel.

    \b
    $ pylog jobs verify --path data

    The job checks all that `pylog verify` checks, and ends with exit code 1 if there is damage. In a cluster the job
    checks the batches that the leaders send; each broker checks its own replicas (log.scrub.interval.ms).
    """
    _run("verify", **options)


@jobs.command("run")
@click.option("--every", callback=duration(), metavar="TIME", help="Repeat after 60s, 5m, 1h … [default: once]")
@click.option(
    "--job",
    "names",
    multiple=True,
    type=click.Choice(["tiering", "retention", "compaction", "verify"]),
    help="A job; may be repeated. Jobs run in this order. [default: the first three; over a cluster: tiering]",
)
@table_option
@with_storage
@topics_option
@dry_run_option
@placed
@output_option
def run(every: int | None, names: tuple[str, ...], output: str, place: dict[str, Any], **options: Any) -> None:
    """Run jobs in turn, once or repeatedly, in one process. SIGTERM or Ctrl-C ends it.

    \b
    $ pylog jobs run --path data

    \b
    pylog jobs run --every 60s --job retention --job compaction --path data

    --output json prints a line per job and turn. With --every the command reports a turn that fails, and continues.
    """
    names = names or (("tiering",) if place["bootstrap"] else ("tiering", "retention", "compaction"))
    check(names, place, options["table"], options["storage_options"])
    options["topics"] = options["topics"] or None
    with _session() as spark, progress_bar("jobs") as progress:

        def turn() -> list[str]:
            wrong = []
            for job, rows in schedule.turn(spark, names, **place, **options, progress=progress):
                if output == "json":
                    click.echo(json.dumps({"time_ms": SYSTEM.clock.now_ms(), "job": job, "rows": rows}))
                else:
                    click.echo(f"{job}:")
                    show_report(rows, output)
                wrong += print_notes(rows)
            return wrong

        if every is not None:
            schedule.every(
                every,
                lambda: _interruptibly(spark, turn),
                lambda error: talk(f"this turn failed: {reason(error)}"),
            )
        wrong = _interruptibly(spark, turn)
    end(wrong)


def _run(name: str, place: dict[str, Any], topics: Sequence[str], output: str, **more: Any) -> None:
    check([name], place, more.get("table"), more.get("storage_options"))
    with _session() as spark, progress_bar(name) as progress:

        def work() -> list[dict[str, Any]]:
            frame: DataFrame = schedule.JOBS[name](spark, topics=topics or None, progress=progress, **place, **more)
            return [row.asDict(recursive=True) for row in frame.collect()]

        rows = _interruptibly(spark, work)
    show_report(rows, output)
    end(print_notes(rows))


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Yield the active session (spark-submit makes one), or a local one, whose stderr is kept if Spark fails."""
    if SparkSession.getActiveSession() or "PYSPARK_GATEWAY_PORT" in os.environ:
        yield SparkSession.builder.getOrCreate()
        return
    warnings.filterwarnings("ignore", message=".*does not yet fully support pandas.*")
    handle, log = tempfile.mkstemp(prefix="pylog-spark-", suffix=".log")
    os.close(handle)
    made: list[SparkSession] = []

    def make() -> None:
        conf: dict[str, Any] = {"spark.ui.showConsoleProgress": False}
        made.append(spark_session(app_name="pylog jobs", **conf))

    try:
        with stderr_to(Path(log)):
            _apart(make, threading.Thread.join)  # nothing can end a Java that is starting
        yield made[0]
    except PySparkException as error:
        raise PylogError(f"Spark: {str(error).strip().splitlines()[0]} (more in {log})") from error
    except KeyboardInterrupt:
        SYSTEM.files.unlink(log)
        raise
    else:
        SYSTEM.files.unlink(log)
    finally:
        _hush()
        for spark in made:
            spark.stop()


def _interruptibly(spark: SparkSession, work: Callable[[], Done]) -> Done:
    """Do `work`; Ctrl-C cancels the Spark jobs that it waits for."""
    stop = spark.interruptAll if is_connect(spark) else spark.sparkContext.cancelAllJobs

    def cancel(worker: threading.Thread) -> None:
        _hush()
        for _ in range(int(CANCEL_S / 0.1)):
            stop()  # again and again: `work` may begin more
            worker.join(0.1)
            if not worker.is_alive():
                break

    return _apart(work, cancel)


def _apart(work: Callable[[], Done], interrupted: Callable[[threading.Thread], None]) -> Done:
    """Do `work` in another thread. Ctrl-C comes to this thread, which then calls `interrupted` with the other one.

    An interrupt in the middle of a call to Java would print a traceback, and could be lost.
    """
    done: Future[Done] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised below
            done.set_exception(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        interrupted(worker)
        raise


def _hush() -> None:
    """Silence the messages about connections to Java that end: py4j's by the root logger, a thread's traceback."""
    logging.getLogger().addFilter(lambda record: False)
    threading.excepthook = lambda args: None


def main() -> None:
    cli.add_command(jobs)
    end_at_sigterm()
    cli(["jobs", *sys.argv[1:]], prog_name="pylog")
