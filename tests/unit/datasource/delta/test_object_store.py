"""Tables in an object store: a real S3 server, each record once whatever happens, and no secret anywhere."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import logstore
from datasource.delta import tiering as delta_tiering
from datasource.delta.owner import Owner, TierConfig, of_store, read_note, write_note
from datasource.delta.storage import TableBucket
from datasource.delta.storage_options import LIMITS, ObjectStoreError, storage_options
from datasource.delta.tiered_topics import TieredTopics
from datasource.delta.topic_tables import TieringTask
from datasource.errors import DataLossError
from datasource.jobs import tiering
from datasource.topics.interface import PartitionRange
from datasource.topics.locations import Location
from logstore.log.tiering import tiered_offset
from tests.support.commands import run_pylog
from tests.support.object_store import KEY, SECRET, Store, running
from tests.support.repeats import only_long, times
from tests.unit.datasource.delta.test_tiered_streams import Query

ROOT = Path(__file__).parents[4]
FAST = {"MAX_RETRIES": "1", "RETRY_TIMEOUT": "1s"}


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    with running() as found:
        yield found


class Log:
    """A topic `t` of two partitions in a directory, whose table lies in the bucket under the name of the test."""

    def __init__(self, s3: Store, path: Path, name: str) -> None:
        self.s3, self.path, self.prefix = s3, path / "log", f"{name}/t"
        self.table = f"s3://lake/{self.prefix}"
        with logstore.open(self.path) as store:
            store.create_topic("t", partitions=2, config={"segment.bytes": "2000", "remote.storage.enable": "true"})

    def append(self, *values: str, partition: int = 0) -> None:
        with logstore.open(self.path) as store:
            for start in range(0, len(values), 50):
                part = values[start : start + 50]
                places = pa.array([partition] * len(part), pa.int32())
                store.append("t", pa.table({"value": list(part), "partition": places}))

    def grow(self, count: int, partition: int = 0) -> None:
        """Append numbers, each of which is its offset."""
        with logstore.open(self.path, mode="r") as store:
            end = store.offsets("t")[partition].end
        self.append(*map(str, range(end, end + count)), partition=partition)

    def tier(self, **options: object) -> list[dict[str, object]]:
        given = {"table": self.table, "storage_options": self.s3.options} | options
        return tiering.rows(None, path=str(self.path), **given)

    def notes(self, **options: object) -> set[object]:
        return {row["note"] for row in self.tier(**options)}

    def rows(self, table: str = "") -> list[tuple[int, int]]:
        """The places of the rows in the table, as deltalake reads it."""
        found = DeltaTable(table or self.table, storage_options=self.s3.options)
        return sorted((row["partition"], row["offset"]) for row in pa.table(found.to_pyarrow_table()).to_pylist())

    def union(self, **options: str) -> TieredTopics:
        return TieredTopics(
            Location(str(self.path)), "", storage_options(self.s3.options | options), fail_on_data_loss=True
        )

    def read(self) -> list[tuple[int, int]]:
        topics = self.union()
        return sorted(
            (p, int(offset))
            for p, extent in topics.offsets("t").items()
            for batch in topics.read(PartitionRange("t", p, extent.start, extent.end), ["offset"])
            for offset in batch.column("offset").to_pylist()
        )

    def starts(self) -> list[int]:
        with logstore.open(self.path, mode="r") as store:
            return [extent.start for extent in store.offsets("t").values()]

    def tiered(self) -> list[int]:
        with logstore.open(self.path, mode="r") as store:
            return [tiered_offset(store.log("t", p)) for p in (0, 1)]

    def retain(self) -> None:
        """Apply a retention that would keep nothing but the last segments."""
        with logstore.open(self.path) as store:
            store.alter_topic("t", config={"retention.bytes": "1"})
        run_pylog("retention", "--path", self.path, env=self.s3.options).ok()


@pytest.fixture
def log(s3, tmp_path, request) -> Iterator[Log]:
    name = re.sub(r"\W", "_", request.node.name)
    yield Log(s3, tmp_path, name)
    s3.mend()


def every(*counts: int) -> list[tuple[int, int]]:
    return [(p, offset) for p, count in enumerate(counts) for offset in range(count)]


def test_table_and_log_hold_each_record_once_after_retention_in_batch_stream_and_count(log, s3):
    log.grow(300)
    log.grow(100, partition=1)
    assert log.notes() == {None}
    log.grow(100)
    log.retain()
    assert log.starts()[0] > 200  # what was not tiered is there, and the last segment
    assert log.rows() == every(300, 100)
    assert log.read() == every(400, 100)
    topics = log.union()
    assert topics.count(PartitionRange("t", 0, 0, 400)) == 400
    assert topics.size_bytes(PartitionRange("t", 0, 0, 300)) > 0
    assert topics.offset_for_time("t", 0, 0) == 0
    query = Query(log.path, maxOffsetsPerTrigger=150, **s3.spark_options)
    while query.step():
        query.restart()
    query.check(400, 100)
    assert not re.search("secret|AKID", json.dumps(query.ends))


@only_long("a second for each table")
def test_the_command_takes_options_from_a_file_the_line_and_the_environment(log, s3, tmp_path):
    log.grow(10)
    options = dict(s3.options)
    (tmp_path / "conf").write_text(
        "".join(f"{name}={value}\n" for name, value in options.items() if "HTTP" not in name)
    )
    line = ["--storage-config", tmp_path / "conf", "--storage-option", "aws_allow_http=true"]
    first = run_pylog("tier", "--path", log.path, "--table", f"{log.table}", *line, "--output", "json").ok()
    assert [row["status"] for row in first.json] == ["tiered", "nothing to do"]
    log.grow(5)
    second = run_pylog("tier", "--path", log.path, "--output", "json", env=options).ok()  # the store knows its table
    assert [row["status"] for row in second.json] == ["tiered", "nothing to do"]
    assert log.rows() == every(15)
    third = run_pylog("retention", "--path", log.path, *line).ok()  # looks at the table, too
    assert not re.search("secret|AKID", first.out + first.err + second.out + second.err + third.out + third.err)


@only_long("two tables, and a directory's tests of the same")
def test_typed_rows_and_bad_rows_have_a_table_each(log):
    log.append('{"id": 1}', "bad", '{"id": 3}')
    assert log.notes(schema="id bigint") == {None}
    assert log.rows() == [(0, 0), (0, 2)]
    assert log.rows(f"{log.table}__dlq") == [(0, 1)]
    log.append("bad")
    assert log.notes() == {None}
    assert log.rows(f"{log.table}__dlq") == [(0, 1), (0, 3)]


JOB = """
import json, os, signal, sys
from datasource.delta import storage, tiering as delta_tiering
from datasource.jobs import tiering
path, table, options, dies = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
inner, is_unlocked = delta_tiering.commit, dies == "waits"
if is_unlocked:
    storage.TableDirectory.alone = storage.TableBucket.alone  # which locks nobody out
def commit(*args):
    if dies == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    if is_unlocked:
        print("ready", flush=True)
        sys.stdin.readline()
    inner(*args)
    if dies == "after":
        os.kill(os.getpid(), signal.SIGKILL)
delta_tiering.commit = commit
for row in tiering.rows(None, path=path, table=table, storage_options=options):
    print(json.dumps(row), flush=True)
"""


def job(log: Log, path: Path, dies: str) -> subprocess.Popen[str]:
    """A job in a process of its own, over the log at `path`."""
    command = [sys.executable, "-c", JOB, str(path), log.table, json.dumps(log.s3.options), dies]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("dies", ["before", "after"][: times(1, 2)])
def test_a_job_killed_beside_its_commit_leaves_each_record_once(log, s3, dies, monkeypatch):
    log.grow(100)
    killed = job(log, log.path, dies)
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert log.tiered() == [0, 0]
    log.retain()
    assert log.starts() == [0, 0]  # nothing goes that nobody told the log of
    files = {name for name in s3.keys(log.prefix) if name.endswith(".parquet")}
    assert len(files) == 1
    assert log.notes() == {None}
    assert log.rows() == every(100)
    assert log.tiered() == [100, 0]
    monkeypatch.setattr(delta_tiering, "ORPHAN_AGE_HOURS", 0)
    log.grow(1)
    assert log.notes() == {None}
    left = {name for name in s3.keys(log.prefix) if name.endswith(".parquet")}
    assert (files & left == set()) == (dies == "before")
    assert log.read() == every(101)


@only_long("runs of tiering")
def test_two_jobs_at_once_without_a_lock_tier_each_record_once(log, s3):
    """Over a cluster nothing locks them out. The store refuses the second of two entries of the table's log."""
    log.grow(100)
    log.grow(60, partition=1)
    jobs = [job(log, log.path, "waits") for _ in range(2)]
    for each in jobs:
        assert each.stdout.readline() == "ready\n"  # both have made the table and written their files
    reports = [each.communicate("\n", timeout=120)[0] for each in jobs]
    rows = [json.loads(line) for report in reports for line in report.splitlines() if line != "ready"]
    assert {row["note"] for row in rows} == {None}
    assert sorted(row["records"] for row in rows) == [0, 0, 60, 100]
    assert log.rows() == every(100, 60)
    assert log.tiered() == [100, 60]
    assert sum(name.endswith(".parquet") for name in s3.keys(log.prefix)) == 2  # the loser's are gone


def test_an_answer_that_is_lost_on_its_way_makes_no_record_double(log, s3):
    log.grow(100)
    for version in (0, 1):
        s3.fault("lost", "PUT", f"{log.prefix}/_delta_log/{version:020d}.json")
    assert log.notes() == {None}
    assert log.rows() == every(100)
    assert DeltaTable(log.table, storage_options=s3.options).version() == 1


def test_a_commit_that_gets_no_answer_keeps_its_files(log, s3):
    """The request may still be on its way: if it arrives, the table needs them."""
    log.grow(1)
    assert log.notes() == {None}
    log.grow(100)
    s3.fault("broken", "PUT", f"{log.prefix}/_delta_log/", times=1000)
    (note,) = log.notes(storage_options=s3.options | FAST)
    assert "nobody knows whether the commit was made" in str(note)
    assert sum(name.endswith(".parquet") for name in s3.keys(log.prefix)) == 2
    assert log.tiered() == [1, 0]


@only_long("runs of tiering")
def test_a_commit_of_which_nobody_knows_keeps_its_files_and_the_log_its_records(log, s3):
    log.grow(1)
    assert log.notes() == {None}
    log.grow(100)
    # It was made, and the store is gone before it says so.
    s3.fault("gone", "PUT", f"{log.prefix}/_delta_log/{2:020d}.json")
    failed = log.tier(storage_options=s3.options | FAST)
    assert {row["status"] for row in failed} == {"failed"}
    assert all("nobody knows whether the commit was made" in str(row["note"]) for row in failed)
    assert log.tiered() == [1, 0]
    s3.mend()
    log.retain()
    assert log.starts() == [0, 0]
    assert log.notes() == {None}
    assert log.rows() == every(101)
    assert log.tiered() == [101, 0]


@pytest.mark.parametrize(
    ("wrong", "table", "hint"),
    [
        (
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
            "",
            "the object store cannot be reached (GET http://127.0.0.1:1/lake",
        ),
        ({"AWS_ACCESS_KEY_ID": "AKIDOTHER"}, "", "the credentials are wrong: check AWS_ACCESS_KEY_ID and AWS_SECRET_"),
        ({}, "s3://nowhere/t", "the bucket does not exist: create it, or name another"),
    ],
)
def test_a_store_that_refuses_or_is_not_there_is_one_line_and_the_log_keeps_its_records(log, s3, wrong, table, hint):
    log.grow(100)
    for _ in range(2):  # before the table is there, and behind it
        (note,) = log.notes(storage_options=s3.options | wrong, **({"table": table} if table else {}))
        assert note.startswith(f"{table or log.table}: {hint}")
        assert not re.search(f"\n|\x1b|{SECRET}|{KEY}|OTHER", note)
        assert log.tiered() == [0, 0] or not table
        if table:
            return
        log.notes()
        if not wrong.get("AWS_ACCESS_KEY_ID"):
            continue
        with pytest.raises(ObjectStoreError, match=re.escape(hint)):
            list(log.union(**wrong).read(PartitionRange("t", 0, 0, 100), ["offset"]))


def test_a_store_that_is_not_there_is_told_within_seconds():
    """(deltalake alone would try for three minutes.)"""
    assert LIMITS == {
        "CONNECT_TIMEOUT": "5s",
        "MAX_RETRIES": "5",
        "RETRY_TIMEOUT": "15s",
    }
    place = TableBucket("s3://lake/t", storage_options({}))
    assert place.options == {"connect_timeout": "5s", "max_retries": "5", "retry_timeout": "15s"}


def test_a_copy_of_the_store_may_neither_fill_nor_read_the_table(log, tmp_path):
    log.grow(100)
    assert log.notes() == {None}
    shutil.copytree(log.path, tmp_path / "copy")
    original, log.path = log.path, tmp_path / "copy"
    (note,) = log.notes()
    assert f"{log.table} is a table of the store {original}, not of {log.path}" in str(note)
    with pytest.raises(logstore.StoreError, match="is a table of the store"):
        log.read()


@only_long("a directory's tests of the same")
def test_a_restore_is_noticed(log, s3, monkeypatch):
    monkeypatch.setattr(TableBucket, "rest_ms", 10**9)  # a table with a loss is looked at each time
    log.grow(100)
    log.notes()
    log.grow(100)
    log.notes()
    DeltaTable(log.table, storage_options=s3.options).restore(1)
    (note,) = log.notes()
    assert f"{log.table} was taken back to version 1 by RESTORE" in str(note)
    assert log.tiered() == [0, 0]
    with pytest.raises(DataLossError, match="taken back"):
        log.read()
    DeltaTable(log.table, storage_options=s3.options).restore(2)
    assert log.notes() == {None}
    assert log.read() == every(200)


def test_jobs_that_do_not_know_of_each_other_lose_nothing_that_they_note(s3):
    place = TableBucket("s3://lake/notes/t", storage_options(s3.options))
    owner = Owner("kafka:c", "t", "id", place, "_pylog", place.storage)
    first = write_note(owner, TierConfig(place, version=1, tiered={0: (10, 1)}))
    assert read_note(owner) == first
    ahead = TierConfig(place, version=3, schema="id bigint", tiered={0: (30, 2), 1: (5, 2)}, sources=first.sources)
    behind = TierConfig(place, version=2, tiered={0: (30, -1), 2: (7, 1)}, sources=first.sources)
    write_note(owner, ahead)
    write_note(owner, behind)
    found = read_note(owner)
    assert found == TierConfig(place, version=3, schema="id bigint", tiered={0: (30, 2), 1: (5, 2), 2: (7, 1)})
    assert len(s3.keys("notes/t/_pylog")) == 2
    assert read_note(owner) == write_note(owner, found)
    assert len(s3.keys("notes/t/_pylog")) == 1
    text = s3.content(f"notes/t/_pylog/{s3.keys('notes/t/_pylog')[0]}").decode()
    assert not re.search(f"{SECRET}|{KEY}", text)
    assert json.loads(text)["table"] == "."


@only_long("two seconds of waiting")
def test_a_reader_that_waits_asks_the_store_once_a_second_and_misses_nothing(log, s3, monkeypatch):
    log.grow(100)
    log.notes()
    topics = log.union()
    topics.offsets("t")
    before = s3.asked()
    for _ in range(20):
        topics.offsets("t")
    assert s3.asked() - before <= 8  # two looks, on a machine that takes a second for them
    log.grow(200)
    log.notes()
    log.retain()
    assert log.starts()[0] > 100
    monkeypatch.setattr(TableBucket, "rest_ms", 10**9)
    assert topics.offsets("t")[0].end == 300
    found = topics.read(PartitionRange("t", 0, 0, 300), ["offset"])
    assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(300))


def test_no_secret_is_in_a_log_a_file_or_a_report(log, s3, caplog, tmp_path):
    """All that a run says and leaves, whether it does its work or fails."""
    log.grow(100)
    with caplog.at_level(logging.DEBUG):
        said = [str(log.tier()), str(log.tier(dry_run=True))]
        said += [str(log.tier(storage_options=s3.options | FAST | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}))]
        said += [str(log.tier(storage_options=s3.options | {"AWS_ACCESS_KEY_ID": f"{KEY}2"}))]
        s3.fault("broken", "PUT", "", times=1000)
        log.grow(10)
        said += [str(log.tier(storage_options=s3.options | FAST))]
        log.read()
    assert "failed" in said[-1]
    owner = of_store(log.path, "t", "id", storage_options(s3.options))
    left = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    left += b"".join(s3.content(f"{log.prefix}/{name}") for name in s3.keys(log.prefix))
    task = TieringTask(location=Location(str(log.path)), owner=owner, table=owner.table_named(log.table))
    shown = [*said, *caplog.messages, repr(task)]
    assert [text for text in shown if SECRET in text or KEY in text] == []
    assert SECRET.encode() not in left
    assert KEY.encode() not in left


@only_long("a second table; a directory's is in test_registered.py")
def test_registered_columns_stand_beside_the_bytes_also_after_a_new_version_and_two_jobs_at_once(log):
    with logstore.open(log.path) as store:
        store.alter_topic("t", schema="n int")
        store.append("t", [{"n": n, "_partition": 0} for n in range(20)], typed=True)
    log.append("nonsense")
    assert [row["bad"] for row in log.tier(topics="t", schema="registered")] == [1, 0]
    with logstore.open(log.path) as store:
        store.alter_topic("t", schema="n int, note string")
        store.append("t", [{"n": 20, "note": "new", "_partition": 1}], typed=True)
    command = [sys.executable, "-c", "from logstore.cli import main; main()", "tier", "--topic", "t"]
    place = ["--path", str(log.path), "--table", log.table, "--schema", "registered"]
    both = [subprocess.Popen([*command, *place], env={**os.environ, **log.s3.options}) for _ in range(2)]
    assert [each.wait(120) for each in both] == [0, 0]
    rows = pa.table(DeltaTable(log.table, storage_options=log.s3.options).to_pyarrow_table()).to_pylist()
    found = sorted((row["partition"], row["offset"], row["n"], row["note"]) for row in rows)
    assert found == [*((0, n, n, None) for n in range(20)), (0, 20, None, None), (1, 0, 20, "new")]
