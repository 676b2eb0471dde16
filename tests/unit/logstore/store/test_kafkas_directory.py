"""The directory of a Kafka opens for reading only, and stays as it is; whoever would write is told of the mirror."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

import logstore
from datasource.connector.source import PylogDataSource
from logstore.env import SYSTEM
from logstore.errors import NotAStoreError, PylogError, ReadOnlyStoreError, StoreError
from logstore.records.batch import Record, build, stamp
from logstore.records.marker import end_marker
from logstore.store.log_dir import LogDir
from logstore.store.reading import count_isolated
from logstore.tools.dump import dump
from logstore.tools.verify import verify_store
from tests.support.commands import run_pylog
from tests.support.inside import close_stores

KRAFT = "#\n#Thu\nnode.id=1\ndirectory.id=GynIwQpamDxsu0dd-P6sxw\nversion=1\ncluster.id=XqoLUbv\n"
ZOOKEEPERS = "#\nversion=0\nbroker.id=3\ncluster.id=XqoLUbv\n"
BEFORE_CLUSTERS_HAD_IDS = "#\nversion=0\nbroker.id=3\n"  # Kafka 0.9 and 0.10.0
ID = "GynIwQpamDxsu0dd-P6sxx"


def batch(first, *values, producer=(-1, -1, -1), attributes=0):
    rows = [Record(first + n, 1000 + first + n, b"k", value) for n, value in enumerate(values)]
    return bytes(build(rows, producer=producer, attributes=attributes, leader_epoch=0))


def marker(first, *, commit):
    data = bytearray(end_marker((7, 0), commit=commit, coordinator_epoch=0, now_ms=5000))
    stamp(data, 0, first, 0)
    return bytes(data)


@pytest.fixture(params=[KRAFT, ZOOKEEPERS, BEFORE_CLUSTERS_HAD_IDS])
def kafkas(request, tmp_path) -> Path:
    """Two partitions: with gaps in and between segments, and with an aborted and an open transaction."""
    root = tmp_path / "kafka"
    files = {
        "meta.properties": request.param.encode(),
        ".lock": b"",
        "recovery-point-offset-checkpoint": b"0\n1\nt 0 12\n",
        "log-start-offset-checkpoint": b"0\n1\nt 0 1\n",
        "__cluster_metadata-0/00000000000000000000.log": b"",
        "t-0/00000000000000000000.log": batch(0, b"gone") + batch(1, b"a") + batch(4, b"b"),
        "t-0/00000000000000000010.log": batch(12, b"c"),
        "t-1/00000000000000000000.log": (
            batch(0, b"aborted", producer=(7, 0, 0), attributes=0x10)
            + marker(1, commit=False)
            + batch(2, b"d", producer=(7, 0, 1), attributes=0x10)
            + marker(3, commit=True)
            + batch(4, b"open", producer=(7, 0, 2), attributes=0x10)
        ),
    }
    if "node.id" in request.param:
        files |= {f"t-{n}/partition.metadata": f"version: 0\ntopic_id: {ID}".encode() for n in range(2)}
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_it_is_read_and_stays_as_it_is(kafkas):
    before = contents(kafkas)
    with logstore.open(kafkas, read_only=True) as store:
        assert [(info.name, info.partitions) for info in store.topics()] == [("t", 2)]
        ends = {p: (extent.start, extent.end) for p, extent in store.offsets("t").items()}
        assert ends == {0: (1, 13), 1: (0, 4)}
        rows = [store.read("t", partition=p).read_all() for p in range(2)]
        assert [row["value"].to_pylist() for row in rows] == [[b"a", b"b", b"c"], [b"d"]]
        assert rows[0]["offset"].to_pylist() == [1, 4, 12]
        logs = [store.log("t", p) for p in range(2)]
        assert [count_isolated(log, *ends[p], "read_committed") for p, log in enumerate(logs)] == [3, 1]
        with pytest.raises(ReadOnlyStoreError, match="`pylog mirror`"):
            store.create_topic("more")
    lines = list(dump(kafkas / "t-0" / f"{0:020}.log", verify=True))
    assert [line.facts["isvalid"] for line in lines] == [True] * 3
    assert contents(kafkas) == before


def test_a_partition_of_other_brokers_is_named_as_one(kafkas):
    (kafkas / "t-1").rename(kafkas / "t-2")
    with logstore.open(kafkas, read_only=True) as store:
        assert store.log("t", 2).log_end_offset == 5
        with pytest.raises(StoreError, match="other brokers of that Kafka have it") as error:
            store.log("t", 1)
    assert "delete" not in str(error.value)


def test_verify_finds_nothing_wrong_in_it_but_damaged_batches(kafkas):
    """Kafka's own files beside the batches, and partitions that other brokers have, are no damage."""
    for name, data in {
        "t-0/00000000000000000000.index": bytes(800),  # as it allocates them ahead
        "t-0/00000000000000000010.timeindex": bytes(1200),
        "t-0/leader-epoch-checkpoint": b"0\n1\n7 0\n",
        "t-1/00000000000000000004.snapshot": b"\0\1of a Kafka",
        "u-1/00000000000000000000.log": b"",
    }.items():
        (kafkas / name).parent.mkdir(exist_ok=True)
        (kafkas / name).write_bytes(data)
    before = contents(kafkas)
    run_pylog("verify", "--path", kafkas).ok()
    assert contents(kafkas) == before
    path = kafkas / "t-0" / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with logstore.open(kafkas, read_only=True) as store:
        damage = [place for report in verify_store(store) for place in report.damage]
    ((file, _, reason),) = damage
    assert file == str(path)
    assert "CRC-32C" in reason


def test_spark_reads_it(kafkas):
    before = contents(kafkas)
    options = {"path": str(kafkas), "subscribe": "t"}
    reader = PylogDataSource(options).reader(StructType().add("value", BinaryType()))
    found = [row["value"] for task in reader.partitions() for b in reader.read(task) for row in b.to_pylist()]
    assert sorted(found) == [b"a", b"b", b"c", b"d"]
    close_stores()
    assert contents(kafkas) == before


def test_whoever_would_write_there_is_told_of_the_mirror_in_one_line(kafkas):
    before = contents(kafkas)

    def append():
        with logstore.open(kafkas) as store:
            store.append("t", pa.table({"value": [b"x"]}))

    refused = (
        (append, ReadOnlyStoreError),
        (lambda: logstore.recover(kafkas), NotAStoreError),
        (lambda: LogDir.check_free(kafkas, env=SYSTEM, alone_for="broker"), NotAStoreError),
    )
    for act, kind in refused:
        with pytest.raises(PylogError, match=r"is the directory of a Kafka.*`pylog mirror`") as error:
            act()
        assert isinstance(error.value, kind)
        assert "pylog.format" not in str(error.value)
        assert "\n" not in str(error.value)
    assert contents(kafkas) == before


def test_a_directory_of_an_unknown_format_stays_as_it_is(tmp_path):
    for meta in ("version=0\n", "version=0\npylog.format=2\n"):
        (tmp_path / "meta.properties").write_text(meta)
        for act in (
            lambda: logstore.open(tmp_path),
            lambda: logstore.recover(tmp_path),
            lambda: LogDir.check_free(tmp_path, env=SYSTEM, alone_for="broker"),
        ):
            with pytest.raises(NotAStoreError):
                act()
            assert [path.name for path in tmp_path.iterdir()] == ["meta.properties"]
