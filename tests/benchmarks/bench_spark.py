"""Spark reads and writes against the ceiling of Spark's own API, against Parquet, and a cluster against a directory.

    python tests/benchmarks/bench_spark.py [--path DIR] [--rounds 7] [--gigabytes 10] [--only ROW] [--share 0.1]

Two tasks on two cores, in one session; every candidate once a round. `ceiling` is a Python data source that hands over
one prebuilt Arrow batch of the same shape again and again (from the CPU's cache), `memory` the same with 128 MiB of
different batches, `read` the same as `ceiling` that also reads as many bytes from a segment file, and drops them.
`bytes` is a Python Arrow writer that writes the same column bytes to one file
per task and fsyncs: what remains is what the log costs. `CPU` is the ratio of the CPU time of all processes, those of
Spark and of brokers: it says more than time where others use the machine, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from confluent_kafka.admin import AdminClient
from harness import AGAIN, interleave, ratio, show
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

HERE = Path(__file__).parent
# Spark's workers import this directory's peers, and pylog itself where it is not installed.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])

import peers  # noqa: E402

import datasource  # noqa: E402
import logstore  # noqa: E402
from datasource.topics.interface import BATCH_BYTES  # noqa: E402
from replication.client.kafka_client import KafkaClient  # noqa: E402
from replication.local_cluster import LocalCluster  # noqa: E402

TASKS = 2
# More than the caches hold, so that the batches come from memory, as data does.
DISTINCT_BYTES = 128 * 1024 * 1024
COLUMNS = ["what", "values", "measured", "against", "ratio", "noise", "CPU"]
SHAPES = [(100, 2_000_000), (1000, 600_000)]
MICRO_BATCHES, MICRO_ROWS = 20, 1000
WARMUPS = 2
TWO_PHASE = {"transaction.two.phase.commit.enable": True}


def values(rows: int, value_bytes: int) -> pa.Table:
    value = (b"0123456789abcdef" * (value_bytes // 16 + 1))[:value_bytes]
    keys = pa.array([b"key-%012d" % i for i in range(rows)], pa.binary())
    return pa.table({"key": keys, "value": pa.array([value] * rows, pa.binary())})


def fill(path: Path, topic: str, rows: int, value_bytes: int) -> None:
    with logstore.open(path) as store:
        store.create_topic(topic, partitions=TASKS)
        data = values(rows // TASKS, value_bytes)
        for partition in range(TASKS):
            column = pa.repeat(pa.scalar(partition, pa.int32()), data.num_rows)
            store.append(topic, data.append_column("partition", column))


def consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def bench_read(spark: SparkSession, root: Path, rounds: int) -> Iterator[list[object]]:
    """All 7 columns to `noop`."""
    for value_bytes, rows in SHAPES:
        topic = f"read-{value_bytes}"
        fill(root / "store", topic, rows, value_bytes)
        ours = spark.read.format("pylog").option("path", str(root / "store")).option("subscribe", topic)
        parquet = str(root / f"{topic}.parquet")
        ours.load().write.option("compression", "none").parquet(parquet)
        per_batch = batch_rows(root / "store", topic)
        shape = {"rows": rows, "valueBytes": value_bytes, "batchRows": per_batch, "tasks": TASKS}
        segment = max((root / "store" / f"{topic}-0").glob("*.log"), key=lambda file: file.stat().st_size)
        distinct = max(1, DISTINCT_BYTES // (per_batch * value_bytes))
        ceiling, memory, read = (
            spark.read.format("ceiling").options(**shape, **more)
            for more in ({"distinct": 1}, {"distinct": distinct}, {"distinct": 1, "file": str(segment)})
        )
        seconds = interleave(
            {
                "ours": lambda ours=ours: consume(ours.load()),
                "ceiling": lambda ceiling=ceiling: consume(ceiling.load()),
                AGAIN: lambda ceiling=ceiling: consume(ceiling.load()),
                "memory": lambda memory=memory: consume(memory.load()),
                "read": lambda read=read: consume(read.load()),
                "parquet": lambda parquet=parquet: consume(spark.read.parquet(parquet)),
            },
            rounds=rounds,
            warmups=2,
        )
        noise = ratio(seconds[AGAIN], seconds["ceiling"])
        speed = f"{rows / statistics.median(seconds['ours']) / 1e6:.2f} M rows/s"
        for peer in ("ceiling", "memory", "read", "parquet"):
            yield [
                "batch read",
                f"{value_bytes} B",
                speed,
                peer,
                ratio(seconds["ours"], seconds[peer]),
                noise,
            ]


def batch_rows(path: Path, topic: str) -> int:
    """How many rows our reader hands over at a time, once it is under way."""
    with logstore.open(path) as store:
        return max(b.num_rows for b in store.read(topic, partition=0, batch_bytes=BATCH_BYTES))


def bench_write(spark: SparkSession, root: Path, rounds: int) -> Iterator[list[object]]:
    """A cached DataFrame of key and value."""
    for value_bytes, rows in SHAPES:
        fill(root / "source", f"w{value_bytes}", rows, value_bytes)
        source = spark.read.format("pylog").option("path", str(root / "source")).option("subscribe", f"w{value_bytes}")
        frame = source.option("columns", "key,value").load().cache()
        frame.count()
        numbers = iter(range(1_000_000))

        def ours(frame: DataFrame = frame, numbers: Iterator[int] = numbers) -> None:
            path = root / f"sink-{next(numbers)}"
            with logstore.open(path) as store:
                store.create_topic("t", partitions=6)
            frame.write.format("pylog").mode("append").option("path", str(path)).option("topic", "t").save()
            shutil.rmtree(path)

        def plain(frame: DataFrame = frame, numbers: Iterator[int] = numbers) -> None:
            path = root / f"sink-{next(numbers)}"
            path.mkdir()
            frame.write.format("bytesink").mode("append").option("path", str(path)).save()
            shutil.rmtree(path)

        seconds = interleave({"ours": ours, "plain": plain, AGAIN: plain}, rounds=rounds, warmups=2)
        noise = ratio(seconds[AGAIN], seconds["plain"])
        speed = f"{rows / statistics.median(seconds['ours']) / 1e6:.2f} M rows/s"
        yield [
            "batch write",
            f"{value_bytes} B",
            speed,
            "bytes",
            ratio(seconds["ours"], seconds["plain"]),
            noise,
        ]
        frame.unpersist()


def bench_exactly_once(spark: SparkSession, root: Path, rounds: int) -> Iterator[list[object]]:
    """Writes that are transactions against plain ones: a cached DataFrame, and a stream of micro-batches."""
    numbers = iter(range(1_000_000))

    def sink(partitions: int = 6) -> Path:
        path = root / f"once-{next(numbers)}"
        with logstore.open(path) as store:
            store.create_topic("t", partitions=partitions)
        return path

    for value_bytes, rows in SHAPES:
        fill(root / "source", f"x{value_bytes}", rows, value_bytes)
        source = spark.read.format("pylog").option("path", str(root / "source")).option("subscribe", f"x{value_bytes}")
        frame = source.option("columns", "key,value").load().cache()
        frame.count()

        def batch(once: str, frame: DataFrame = frame) -> None:
            path = sink()
            writer = frame.write.format("pylog").mode("append").option("path", str(path))
            writer.option("topic", "t").option("exactlyOnce", once).save()
            shutil.rmtree(path)

        yield compared("batch write, exactly once", value_bytes, rows, batch, rounds)
        frame.unpersist()

        def stream(once: str, value_bytes: int = value_bytes, rows: int = rows) -> None:
            path = sink()
            source = spark.readStream.format("pylog").option("path", str(root / "source"))
            source = source.option("subscribe", f"x{value_bytes}").option("columns", "key,value")
            frame = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows // 8)
            writer = frame.load().writeStream.format("pylog").option("path", str(path)).option("topic", "t")
            writer = writer.option("checkpointLocation", str(path / "..") + f"/{path.name}-c")
            writer.option("exactlyOnce", once).trigger(availableNow=True).start().awaitTermination()
            shutil.rmtree(path)

        yield compared("stream of 8 batches, exactly once", value_bytes, rows, stream, rounds)


def bench_count(spark: SparkSession, root: Path, rounds: int) -> Iterator[list[object]]:
    """`datasource.count` against `count()` over all columns and over `columns=offset`, from a directory."""
    for value_bytes, rows in SHAPES:
        topic, place = f"count-{value_bytes}", {"path": str(root / "counts")}
        fill(root / "counts", topic, rows, value_bytes)
        whole = spark.read.format("pylog").options(**place, subscribe=topic)
        offsets = spark.read.format("pylog").options(**place, subscribe=topic, columns="offset")
        seconds = interleave(
            {
                "ours": lambda topic=topic, place=place: datasource.count(spark, **place, subscribe=topic),
                "count()": lambda whole=whole: whole.load().count(),
                AGAIN: lambda whole=whole: whole.load().count(),
                "count(), columns=offset": lambda offsets=offsets: offsets.load().count(),
            },
            rounds=rounds,
            warmups=2,
        )
        noise = ratio(seconds[AGAIN], seconds["count()"])
        speed = f"{statistics.median(seconds['ours']):.2f} s"
        for peer in ("count()", "count(), columns=offset"):
            yield ["count", f"{value_bytes} B", speed, peer, ratio(seconds["ours"], seconds[peer]), noise]


def compared(what: str, value_bytes: int, rows: int, work: Callable[[str], None], rounds: int) -> list[object]:
    """A row: work with exactlyOnce=true against false."""
    works = {"ours": lambda: work("true"), "plain": lambda: work("false"), AGAIN: lambda: work("false")}
    seconds = interleave(works, rounds=rounds, warmups=2)
    speed = f"{rows / statistics.median(seconds['ours']) / 1e6:.2f} M rows/s"
    noise = ratio(seconds[AGAIN], seconds["plain"])
    return [what, f"{value_bytes} B", speed, "plain", ratio(seconds["ours"], seconds["plain"]), noise]


def bench_cluster_read(spark: SparkSession, root: Path, rounds: int) -> Iterator[list[object]]:
    """A cluster of one broker against a directory: a read of the same records."""
    with LocalCluster(1, root / "one") as brokers, KafkaClient(brokers.bootstrap) as client:
        for value_bytes, rows in SHAPES:
            topic = f"cluster-{value_bytes}"
            client.create_topic(topic, partitions=TASKS)
            data = values(rows // TASKS, value_bytes)
            for partition in range(TASKS):
                column = pa.repeat(pa.scalar(partition, pa.int32()), data.num_rows)
                client.append(topic, data.append_column("partition", column))
            fill(root / "beside", topic, rows, value_bytes)
            over = {"kafka.bootstrap.servers": brokers.bootstrap}
            local, remote = (
                spark.read.format("pylog").options(**place, subscribe=topic)
                for place in ({"path": str(root / "beside")}, over)
            )
            works = {
                "ours": lambda remote=remote: consume(remote.load()),
                "directory": lambda local=local: consume(local.load()),
            }
            yield against_directory("batch read, 1 broker", value_bytes, rows, works, rounds)


def bench_cluster_write(spark: SparkSession, root: Path, rounds: int) -> Iterator[list[object]]:
    """A cluster of one broker against a directory: plain appends of a cached DataFrame to six partitions."""
    numbers = iter(range(1_000_000))
    with LocalCluster(1, root / "one-to-write") as brokers, KafkaClient(brokers.bootstrap) as client:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        for value_bytes, rows in SHAPES:
            fill(root / "source", f"c{value_bytes}", rows, value_bytes)
            source = spark.read.format("pylog").options(path=str(root / "source"), subscribe=f"c{value_bytes}")
            frame = source.option("columns", "key,value").load().cache()
            frame.count()

            def write(frame: DataFrame = frame) -> None:
                topic = f"sink-{next(numbers)}"
                client.create_topic(topic, partitions=6)
                save(frame, topic, **{"kafka.bootstrap.servers": brokers.bootstrap})
                admin.delete_topics([topic])[topic].result()

            def write_directory(frame: DataFrame = frame) -> None:
                path = root / f"plain-{next(numbers)}"
                with logstore.open(path) as store:
                    store.create_topic("t", partitions=6)
                save(frame, "t", path=str(path))
                shutil.rmtree(path)

            works = {"ours": write, "directory": write_directory}
            yield against_directory("batch write, plain, 1 broker", value_bytes, rows, works, rounds)
            frame.unpersist()


def bench_cluster_once(spark: SparkSession, root: Path, rounds: int) -> Iterator[list[object]]:
    """A cluster of one broker: a cached DataFrame written to six partitions, exactly once against plainly."""
    numbers = iter(range(1_000_000))
    with LocalCluster(1, root / "one-once", TWO_PHASE) as brokers, KafkaClient(brokers.bootstrap) as client:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        for value_bytes, rows in SHAPES:
            fill(root / "source", f"o{value_bytes}", rows, value_bytes)
            source = spark.read.format("pylog").options(path=str(root / "source"), subscribe=f"o{value_bytes}")
            frame = source.option("columns", "key,value").load().cache()
            frame.count()

            def write(once: str, frame: DataFrame = frame) -> None:
                topic = f"once-{next(numbers)}"
                client.create_topic(topic, partitions=6)
                save(frame, topic, once, **{"kafka.bootstrap.servers": brokers.bootstrap})
                admin.delete_topics([topic])[topic].result()

            yield compared("batch write, exactly once, 1 broker", value_bytes, rows, write, rounds)
            frame.unpersist()


def save(frame: DataFrame, topic: str, once: str = "false", **place: str) -> None:
    frame.write.format("pylog").mode("append").options(**place, topic=topic, exactlyOnce=once).save()


def against_directory(
    what: str, value_bytes: int, rows: int, works: dict[str, Callable[[], None]], rounds: int
) -> list[object]:
    cpu: dict[str, list[float]] = {}

    def counted(name: str, work: Callable[[], None]) -> None:
        before = cpu_s()
        work()
        cpu.setdefault(name, []).append(cpu_s() - before)

    works[AGAIN] = works["directory"]
    measured = {name: partial(counted, name, work) for name, work in works.items()}
    seconds = interleave(measured, rounds=rounds, warmups=WARMUPS)
    speed = f"{rows / statistics.median(seconds['ours']) / 1e6:.2f} M rows/s"
    noise = ratio(seconds[AGAIN], seconds["directory"])
    took = ratio(seconds["ours"], seconds["directory"])
    cost = ratio(cpu["ours"][WARMUPS:], cpu["directory"][WARMUPS:])
    return [what, f"{value_bytes} B", speed, "directory", took, noise, cost]


def bench_micro_copies(spark: SparkSession, root: Path, rounds: int) -> Iterator[list[object]]:
    """Like `bench_micro_batches`, from topic to topic, exactly once."""
    return bench_micro_batches(spark, root, rounds, is_copied=True)


def bench_micro_batches(
    spark: SparkSession, root: Path, rounds: int, *, is_copied: bool = False
) -> Iterator[list[object]]:
    """The time of a micro-batch of 1,000 rows from begin to end, from three brokers and from a directory."""
    rows = values(MICRO_ROWS, 100)
    numbers = iter(range(1_000_000))
    directory = root / f"micro-{is_copied}"
    with LocalCluster(3, root / f"three-{is_copied}", TWO_PHASE) as brokers, KafkaClient(brokers.bootstrap) as client:
        with logstore.open(directory) as store:
            for topic in ("t", "out"):
                client.create_topic(topic, partitions=6, replicas=3)
                store.create_topic(topic, partitions=6)
            for _ in range(MICRO_BATCHES):
                store.append("t", rows)
                client.append("t", rows)
        places = {"ours": {"kafka.bootstrap.servers": brokers.bootstrap}}
        places |= {name: {"path": str(directory)} for name in ("directory", AGAIN)}
        took_ms: dict[str, list[float]] = {name: [] for name in places}
        cpu: dict[str, list[float]] = {name: [] for name in places}
        for turn in range(rounds + 1):  # the first one warms up
            for name, place in places.items():
                stream = spark.readStream.format("pylog").options(**place, subscribe="t")
                stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger=MICRO_ROWS)
                sink = stream.load().select("key", "value").writeStream.trigger(availableNow=True)
                sink = sink.format("pylog").options(**place, topic="out") if is_copied else sink.format("noop")
                before = cpu_s()
                query = sink.option("checkpointLocation", str(root / f"micro-{is_copied}-{next(numbers)}")).start()
                query.awaitTermination()
                done = [p for p in query.recentProgress if p["numInputRows"]]
                assert sum(p["numInputRows"] for p in done) == MICRO_BATCHES * MICRO_ROWS
                if turn:
                    cpu[name].append(cpu_s() - before)
                    took_ms[name] += [p["durationMs"]["triggerExecution"] for p in done[1:]]
    middle = {name: statistics.median(each) for name, each in took_ms.items()}
    what = f"micro-batch of {MICRO_ROWS:,} rows{', topic to topic' if is_copied else ''}, 3 brokers, p50"
    found = f"{middle['ours']:.0f} ms", f"directory, {middle['directory']:.0f} ms"
    times = [middle["directory"] / middle[name] for name in ("ours", AGAIN)]
    yield [what, "100 B", *found, *times, ratio(cpu["ours"], cpu["directory"])]


def bench_micro_parquet(spark: SparkSession, root: Path, rounds: int) -> Iterator[list[object]]:
    """The time of a micro-batch of 1,000 rows from topic to topic in a directory, and between Parquet directories."""
    rows, parquet, numbers = values(MICRO_ROWS, 100), root / "micro-parquet", iter(range(1_000_000))
    parquet.mkdir()
    with logstore.open(root / "micro-topics") as store:
        for topic in ("t", "out"):
            store.create_topic(topic, partitions=6)
        for batch in range(MICRO_BATCHES):
            store.append("t", rows)
            pa.parquet.write_table(rows, parquet / f"{batch:03d}.parquet")
    place = {"path": str(root / "micro-topics")}

    def ours(checkpoint: str) -> StreamingQuery:
        stream = spark.readStream.format("pylog").options(**place, subscribe="t", startingOffsets="earliest")
        rows = stream.option("maxOffsetsPerTrigger", MICRO_ROWS).load().select("key", "value")
        sink = rows.writeStream.format("pylog").options(**place, topic="out")
        return sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    def files(checkpoint: str) -> StreamingQuery:
        stream = spark.readStream.schema("key binary, value binary").option("maxFilesPerTrigger", 1)
        sink = stream.parquet(str(parquet)).writeStream.format("parquet").option("path", f"{checkpoint}-out")
        return sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    works = {"ours": ours, "parquet": files, AGAIN: files}
    took_ms: dict[str, list[float]] = {name: [] for name in works}
    parts_ms: dict[str, dict[str, list[float]]] = {name: {} for name in works}
    cpu: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):  # the first one warms up
        for name, start in works.items():
            before = cpu_s()
            query = start(str(root / f"micro-files-{next(numbers)}"))
            query.awaitTermination()
            done = [p for p in query.recentProgress if p["numInputRows"]]
            assert sum(p["numInputRows"] for p in done) == MICRO_BATCHES * MICRO_ROWS
            if turn:
                cpu[name].append(cpu_s() - before)
                for p in done[1:]:
                    took_ms[name].append(p["durationMs"]["triggerExecution"])
                    for part, ms in p["durationMs"].items():
                        parts_ms[name].setdefault(part, []).append(ms)
    middle = {name: statistics.median(each) for name, each in took_ms.items()}
    for name in ("ours", "parquet"):
        parts = {part: statistics.median(each) for part, each in parts_ms[name].items()}
        print(name, ", ".join(f"{part} {ms:.0f} ms" for part, ms in sorted(parts.items())))
    found = f"{middle['ours']:.0f} ms", f"Parquet, {middle['parquet']:.0f} ms"
    times = [middle["parquet"] / middle[name] for name in ("ours", AGAIN)]
    what = f"micro-batch of {MICRO_ROWS:,} rows, topic to topic, p50"
    yield [what, "100 B", *found, *times, ratio(cpu["ours"], cpu["parquet"])]


def bench_markers(root: Path, rounds: int) -> Iterator[list[object]]:
    """The end of a batch, in a process that knows nothing yet: a decision, and a marker per task and partition."""
    for tasks, partitions in ((1, 1), (2, 6), (8, 32), (32, 32)):
        path, durations, cpu, sizes = root / f"markers-{tasks}", [], [], []
        rows = pa.table({"value": ["x"] * partitions, "partition": pa.array(range(partitions), pa.int32())})
        with logstore.open(path) as store:
            store.create_topic("t", partitions=partitions)
            for batch in range(rounds + 1):
                parts = []
                for task in range(tasks):
                    part = store.transactions.begin("q", batch, run="r", task=str(task))
                    store.append("t", rows, transaction=part)
                    parts.append(part.prepare())
                before, start, cpu_start = log_bytes(path), time.perf_counter(), time.process_time()
                with logstore.open(path) as driver:
                    driver.transactions.commit(parts)
                durations.append(time.perf_counter() - start)
                cpu.append(time.process_time() - cpu_start)
                sizes.append(log_bytes(path) - before)
        ms, cpu_ms = (statistics.median(each[1:]) * 1000 for each in (durations, cpu))
        markers = tasks * partitions
        what = f"commit, {tasks} tasks x {partitions} partitions"
        each = f"{statistics.median(sizes) / markers:.0f} B, {cpu_ms / markers * 1000:.0f} µs CPU each"
        yield [what, "", f"{ms:.0f} ms, {cpu_ms:.0f} ms CPU", f"{markers} markers", each, ""]


def log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("t-*/*.log"))


def bench_memory(spark: SparkSession, root: Path, gigabytes: float) -> Iterator[list[object]]:
    """How much a Python worker grows while it reads a large partition: after a tenth of it, and at the end."""
    path = root / "large"
    data = values(100_000, 1000)
    with logstore.open(path) as store:
        store.create_topic("t")
        while sum(s.size_bytes for s in store.log("t", 0).segments()) < gigabytes * 1e9:
            store.append("t", data)
    reader = spark.read.format("pylog").option("path", str(path)).option("subscribe", "t").option("columns", "value")
    end = logstore_end(path)
    peaks = []
    for offsets in (end // 10, end):
        frame = reader.option("endingOffsets", f'{{"t":{{"0":{offsets}}}}}').load()
        consume(frame)
        peaks.append(max(peak_mib(pid) for pid in python_workers()))
    growth = f"+{peaks[1] - peaks[0]:.0f} MiB"
    yield [
        f"worker's peak memory, {gigabytes:.0f} GB read",
        "1000 B",
        f"{peaks[1]:.0f} MiB",
        "a tenth",
        growth,
        "",
    ]


def logstore_end(path: Path) -> int:
    with logstore.open(path) as store:
        return store.offsets("t")[0].end


def python_workers() -> Iterable[int]:
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"pyspark.daemon" in (entry / "cmdline").read_bytes():
                yield int(entry.name)
        except OSError:
            continue


def cpu_s() -> float:
    """The CPU time so far of this process and all below it, those that ended included."""
    spent, below = dict[int, int](), dict[int, list[int]]()
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(") ")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields:  # from the state on: the parent is the second, four times begin with the twelfth
            below.setdefault(int(fields[1]), []).append(int(entry.name))
            spent[int(entry.name)] = sum(map(int, fields[11:15]))
    total, left = 0, [os.getpid()]
    while left:
        process = left.pop()
        total += spent.get(process, 0)
        left += below.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", help="directory on the disk to measure; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--share", type=float, default=1.0, help="of the rows, for a quick look")
    parser.add_argument("--gigabytes", type=float, default=10.0, help="size of the partition for the memory row")
    parser.add_argument("--only", choices=[*BENCHES, "markers", "memory"])
    asked = parser.parse_args()
    SHAPES[:] = [(value_bytes, int(rows * asked.share)) for value_bytes, rows in SHAPES]
    if asked.only == "markers":  # needs no Spark
        with tempfile.TemporaryDirectory(dir=asked.path, prefix="pylog-bench-") as name:
            show("Markers", COLUMNS, bench_markers(Path(name), asked.rounds))
        return
    spark = datasource.spark_session(
        **{
            "spark.master": f"local[{TASKS}]",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "4g",  # so that what is written is cached whole
        }
    )
    for peer in (peers.CeilingSource, peers.BytesSink):
        spark.dataSource.register(peer)
    with tempfile.TemporaryDirectory(dir=asked.path, prefix="pylog-bench-") as name:
        root, rows = Path(name), list[list[object]]()
        for each, bench in BENCHES.items():
            if asked.only in (None, each):
                rows += bench(spark, root, asked.rounds)
        if asked.only is None:
            rows += bench_markers(root, asked.rounds)
        if asked.only in (None, "memory"):
            rows += bench_memory(spark, root, asked.gigabytes)
    spark.stop()
    show("Spark", COLUMNS, rows)


BENCHES = {
    "read": bench_read,
    "count": bench_count,
    "write": bench_write,
    "once": bench_exactly_once,
    "cluster-read": bench_cluster_read,
    "cluster-write": bench_cluster_write,
    "cluster-once": bench_cluster_once,
    "micro": bench_micro_batches,
    "micro-once": bench_micro_copies,
    "micro-parquet": bench_micro_parquet,
}


if __name__ == "__main__":
    sys.exit(main())
