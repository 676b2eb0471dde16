"""One local Spark for all tests here, a cluster of three brokers, and topics to fill, in a directory or there.

By default a test that takes `topics` has a directory. With --long each of those in PRODUCT runs over the cluster, too,
but for those that are marked `directory`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from pyspark.sql import DataFrame, SparkSession

import logstore
from datasource import spark_session
from datasource.delta.owner import Owner, of_store, owner_of, read_note
from datasource.delta.topic_tables import table_of
from datasource.session import java_home
from datasource.topics.interface import is_internal
from datasource.topics.locations import Location
from logstore.log.tiering import tiered_offset
from replication.client.cluster import Cluster, metadata_request
from replication.client.kafka_client import Isolation, KafkaClient
from replication.client.metadata import metadata_of
from replication.protocol.apis import ApiKey
from tests.integration.cluster.conftest import Tested, running
from tests.spark.connect_server import serving
from tests.support.repeats import times

ROOT = Path(__file__).parents[2]
NAMES = (
    "batch",
    "count",
    "latest",
    "sail",
    "stream",
    "tiering",
    "tiered_stream",
    "exactly_once",
    "sql",
    "typed",
    "upserts",
)
PRODUCT = {f"tests.spark.test_{name}" for name in NAMES}
BROKERS = {
    "log.retention.check.interval.ms": 300,
    "log.retention.ms": -1,  # records of tests are of any time
    "log.flush.offset.checkpoint.interval.ms": 200,
    "transaction.two.phase.commit.enable": True,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "topics" in metafunc.fixturenames and metafunc.module.__name__ in PRODUCT:
        over = not metafunc.definition.get_closest_marker("directory")
        places = ("directory", "cluster")[: times(1, 2)] if over else ("directory",)
        if len(places) > 1:
            metafunc.parametrize("topics", places, indirect=True)


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark was started: what a relative path means to its workers."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_directory: Path) -> Iterator[SparkSession]:
    """Two cores, and each task may be tried three times."""
    with pytest.MonkeyPatch.context() as patch:  # so that Java finds the daemon, wherever pytest was started
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        patch.chdir(spark_directory)
        session = start()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def start() -> SparkSession:
    return spark_session(
        master="local[2,3]",
        app_name="pylog-tests",
        **{
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.showConsoleProgress": False,
            "spark.sql.streaming.stopTimeout": "30s",
        },
    )


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server of Spark Connect, and the directory where it was started."""
    where = tmp_path_factory.mktemp("connect")
    with serving(where) as address:
        yield address, where


@pytest.fixture
def script(spark: SparkSession, spark_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let a test be a script that makes a session, in a directory, and stops it: it has this one, which goes on."""
    before = {name: spark.conf.get(name) for name in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")}
    views = {table.name for table in spark.catalog.listTables()}
    monkeypatch.chdir(spark_directory)
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    yield spark_directory
    for table in spark.catalog.listTables():
        if table.name not in views:
            spark.catalog.dropTempView(table.name)
    spark.catalog.clearCache()
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment as `activate` leaves it: the Python of this test is the first on the PATH."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("JAVA_HOME", str(java_home()))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tested]:
    with running(directory=tmp_path_factory.mktemp("cluster"), **BROKERS) as tested:
        yield tested


class Topics:
    """A store directory, seen from the side that is not Spark."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.place = {"path": self.path}  # as arguments of jobs
        self.location = Location(self.path)
        self.table: dict[str, str] = {}  # as an argument of tiering
        self.options = {"path": self.path}

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        with logstore.open(self.path) as store:
            store.create_topic(topic, partitions=partitions, config={k.replace("_", "."): v for k, v in config.items()})

    def append(self, topic: str, values: list[str], **columns: object) -> None:
        with logstore.open(self.path) as store:
            store.append(topic, pa.table({"value": values, **columns}))

    def grow(self, topic: str, partitions: int) -> None:
        with logstore.open(self.path) as store:
            store.alter_topic(topic, partitions=partitions)

    def delete(self, topic: str) -> None:
        with logstore.open(self.path) as store:
            store.delete_topic(topic)

    def cut(self, topic: str, offset: int) -> None:
        """Delete what is below the offset in partition 0."""
        with logstore.open(self.path) as store:
            store.delete_records(topic, {0: offset})

    def tiered_offsets(self, topic: str) -> list[int]:
        with logstore.open(self.path, mode="r") as store:
            return [tiered_offset(store.log(topic, p)) for p in range(store.topic(topic).partitions)]

    def owner(self, topic: str) -> Owner:
        with logstore.open(self.path, mode="r") as store:
            return of_store(self.path, topic, store.topic(topic).topic_id)

    def values(self, topic: str, isolation: str = "read_committed") -> list[str]:
        """All values, partition by partition."""
        with logstore.open(self.path, mode="r") as store:
            return [
                value.decode()
                for partition in range(store.topic(topic).partitions)
                for value in store.read(topic, partition=partition, isolation=isolation).read_all()["value"].to_pylist()
            ]

    def everything(self, topic: str) -> list[str]:
        """Like `values`, with the records of open and aborted transactions, too."""
        return self.values(topic, "read_uncommitted")

    def ends(self, topic: str) -> list[int]:
        with logstore.open(self.path, mode="r") as store:
            return [extent.end for extent in store.offsets(topic).values()]

    def open_transactions(self) -> list[object]:
        with logstore.open(self.path, mode="r") as store:
            return [
                transaction
                for info in store.topics()
                for p in range(info.partitions)
                for transaction in store.log(info.name, p).producers.open_transactions()
            ]


class TopicsOfCluster:
    """The same over a cluster. Its topics go at the end of the test, since the next one has others of these names."""

    def __init__(self, cluster: Tested, path: Path) -> None:
        self.cluster, self.client = cluster, KafkaClient(cluster.running.bootstrap)
        self._before = self._in_tree()
        self.path = str(path)  # of the tables
        self.place = {"bootstrap": cluster.running.bootstrap}
        self.location = Location(bootstrap=cluster.running.bootstrap)
        self.table = {"table": f"{path}/tiered/{{topic}}"}
        self.options = {"kafka.bootstrap.servers": cluster.running.bootstrap}

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        replicas = [tuple((p + b) % 3 + 1 for b in range(3)) for p in range(partitions)]
        self.cluster.create(*replicas, name=topic, **config)

    def append(self, topic: str, values: list[str], **columns: object) -> None:
        self.client.append(topic, pa.table({"value": values, **columns}))

    def grow(self, topic: str, partitions: int) -> None:
        self.cluster.administer("create_partitions", [NewPartitions(topic, partitions)], operation_timeout=20)
        self.cluster.until(
            lambda: sum(known.broker >= 0 for known in self.client.topic(topic).leaders.values()) == partitions
        )

    def delete(self, topic: str) -> None:
        self.cluster.administer("delete_topics", [topic], operation_timeout=20)
        self.cluster.until(lambda: topic not in self.cluster.running.describe().topics and not self._is_known(topic))

    def _is_known(self, topic: str) -> bool:
        """To any broker: a task may ask each of them, and one that lags tells of partitions that are gone."""

        async def ask(cluster: Cluster) -> bool:
            brokers = (await cluster.describe()).brokers
            answers = [await cluster.call(b, ApiKey.METADATA, metadata_request(None)) for b in brokers]
            return any(topic in metadata_of(answer).topics for answer in answers)

        return self.client.run(ask)

    def cut(self, topic: str, offset: int) -> None:
        self.cluster.administer("delete_records", [TopicPartition(topic, 0, offset)])

    def tiered_offsets(self, topic: str) -> list[int]:
        note = read_note(self.owner(topic))
        return [offset for _, (offset, _) in sorted(note.tiered.items())] if note else []

    def owner(self, topic: str) -> Owner:
        topics = self.location.read()
        return owner_of(self.location, topics.topic(topic), table_of(topic, self.table["table"]))

    def values(self, topic: str, isolation: Isolation = Isolation.READ_COMMITTED) -> list[str]:
        return [
            value.decode()
            for p, extent in self.client.extents(topic, isolation=isolation).items()
            for rows in self.client.read(topic, p, extent.start, extent.end, columns=["value"], isolation=isolation)
            for value in rows["value"].to_pylist()
        ]

    def everything(self, topic: str) -> list[str]:
        return self.values(topic, Isolation.READ_UNCOMMITTED)

    def open_transactions(self) -> list[object]:
        """The open transactions of tasks; the driver's time out."""
        ids = [each.transactional_id for each in self.client.list_transactions(states=["Ongoing"])]
        return [id for id in ids if id.startswith("pylog-sink/task/")]

    def ends(self, topic: str) -> list[int]:
        return [extent.end for extent in self.client.extents(topic).values()]

    def close(self) -> None:
        for topic in self._in_tree() - self._before:
            if not is_internal(topic):
                self.delete(topic)
        self.client.close()

    def _in_tree(self) -> set[str]:
        """A broker may lag, and not know a topic yet that was just made."""
        return set(self.cluster.running.describe().topics)


@pytest.fixture
def topics(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Topics | TopicsOfCluster]:
    if getattr(request, "param", "directory") == "directory":
        yield Topics(tmp_path / "log")
        return
    (tmp_path / "lake").mkdir()
    made = TopicsOfCluster(request.getfixturevalue("cluster"), tmp_path / "lake")
    yield made
    made.close()


@pytest.fixture
def read(spark: SparkSession, topics: Topics):
    def load(schema: str | None = None, **options: object) -> DataFrame:
        tables = {"tieredTable": topics.table["table"]} if "includeTiered" in options and topics.table else {}
        reader = spark.read.format("pylog").options(**topics.options | tables | options)
        return (reader.schema(schema) if schema else reader).load()

    return load


@pytest.fixture
def write(topics: Topics):
    def save(frame: DataFrame, mode: str | None = "append", **options: object) -> None:
        writer = frame.write.format("pylog").options(**topics.options | options)
        (writer.mode(mode) if mode else writer).save()

    return save


@pytest.fixture(scope="module")
def client(cluster):
    with KafkaClient(cluster.running.bootstrap) as opened:
        yield opened


@pytest.fixture
def topic(cluster):
    return cluster.create((1, 2, 3), (2, 3, 1), (3, 1, 2))


@pytest.fixture
def over(cluster):
    return {"kafka.bootstrap.servers": cluster.running.bootstrap}
