"""Topics of a store: names, settings, growth, deletion that survives a crash."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

import logstore
from logstore import (
    FailedStoreError,
    InvalidConfigError,
    InvalidTopicError,
    StoreError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.checkpoint import FSYNC_FAILED
from logstore.env import Env, OsFiles
from logstore.store.stray import Unowned, unowned
from logstore.tools.verify import verify_store
from tests.unit.logstore.store.conftest import rows


class SteppedClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now

    def sleep_ms(self, duration_ms: float) -> None:
        self.now += int(duration_ms)


@dataclasses.dataclass(frozen=True)
class Machine:
    clock: SteppedClock
    env: Env


@pytest.fixture
def machine() -> Machine:
    clock = SteppedClock()
    return Machine(clock, Env(clock=clock, files=OsFiles()))


def test_a_created_topic_is_there_after_reopening(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        made = store.create_topic("orders", partitions=3, config={"retention.ms": "5", "segment.bytes": 4096})
    with logstore.open(tmp_path) as store:
        assert store.topics() == [made]
        assert (made.partitions, made.overrides) == (3, {"retention.ms": "5", "segment.bytes": "4096"})
        assert made.config.segment_bytes == 4096


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "-leading", "9"])
def test_names_that_kafka_takes(store: logstore.LogStore, name: str) -> None:
    store.create_topic(name)
    store.append(name, rows(["v"]))
    store.delete_topic(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "x" * 250, "a\n"])
def test_names_that_kafka_refuses(store: logstore.LogStore, name: str) -> None:
    with pytest.raises(InvalidTopicError):
        store.create_topic(name)
    assert store.topics() == []


def test_names_that_differ_in_dots_and_underscores_collide(store: logstore.LogStore) -> None:
    store.create_topic("a.b")
    with pytest.raises(InvalidTopicError, match=r"collides with 'a\.b'"):
        store.create_topic("a_b")


def test_creating_twice_is_refused_unless_allowed(store: logstore.LogStore) -> None:
    first = store.create_topic("orders", partitions=2)
    with pytest.raises(TopicExistsError, match="'orders' exists already"):
        store.create_topic("orders")
    assert store.create_topic("orders", partitions=5, if_not_exists=True) == first


@pytest.mark.parametrize("partitions", [0, -1, 100_001])
def test_a_number_of_partitions_has_bounds(store: logstore.LogStore, partitions: int) -> None:
    with pytest.raises(logstore.InvalidRequestError, match="partitions: must be between 1"):
        store.create_topic("orders", partitions=partitions)


def test_an_unknown_topic_lists_the_near_ones(store: logstore.LogStore) -> None:
    store.create_topic("orders")
    with pytest.raises(UnknownTopicError, match=r"no topic 'order' in .*did you mean 'orders'"):
        store.append("order", rows(["v"]))


def test_an_unknown_partition_says_how_many_there_are(store: logstore.LogStore) -> None:
    store.create_topic("orders", partitions=2)
    for partition in (2, -1):
        with pytest.raises(UnknownPartitionError, match="it has 2, numbered 0 to 1"):
            store.read("orders", partition=partition)


def test_partitions_grow_and_never_shrink(store: logstore.LogStore) -> None:
    store.create_topic("orders", partitions=2)
    store.alter_topic("orders", partitions=4)
    assert sorted(store.offsets("orders")) == [0, 1, 2, 3]
    with pytest.raises(logstore.InvalidRequestError, match="can grow, not shrink to 3"):
        store.alter_topic("orders", partitions=3)


def test_settings_change_live_and_overrides_can_be_removed(store: logstore.LogStore) -> None:
    store.create_topic("orders", config={"segment.bytes": 1000, "retention.ms": 7})
    store.append("orders", rows(["x" * 600]))
    store.alter_topic("orders", config={"segment.bytes": 5000, "retention.ms": None})
    assert store.topic("orders").overrides == {"segment.bytes": "5000"}
    store.append("orders", rows(["x" * 600]))
    assert len(store.log("orders", 0).segments()) == 1, "the new segment.bytes acts on a log that is open"
    with pytest.raises(logstore.InvalidConfigError, match="unknown topic setting"):
        store.alter_topic("orders", config={"no.such": None})


def test_another_store_sees_changes_at_once(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as one, logstore.open(tmp_path) as two:
        one.create_topic("orders")
        assert two.topic("orders").partitions == 1
        one.alter_topic("orders", partitions=2)
        assert two.topic("orders").partitions == 2
        two.append("orders", rows(["v"]))
        one.delete_topic("orders")
        with pytest.raises(UnknownTopicError):
            two.append("orders", rows(["v"]))
        one.create_topic("orders")
        two.append("orders", rows(["w"]))
        assert one.read("orders", partition=0).read_all()["value"].to_pylist() == [b"w"]


def test_a_deleted_topic_is_gone_at_once_and_its_files_after_the_delay(tmp_path: Path, machine: Machine) -> None:
    with logstore.open(tmp_path, env=machine.env) as store:
        store.create_topic("orders", partitions=2, config={"file.delete.delay.ms": 5000})
        store.append("orders", rows(["v"], partition=[1]))
        store.delete_topic("orders")
        assert store.topics() == []
        hidden = sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("orders"))
        assert [name.split(".")[0] for name in hidden] == ["orders-0", "orders-1"]
        assert all(name.endswith(".deleted") for name in hidden)
    machine.clock.now += 4_999
    logstore.open(tmp_path, env=machine.env).close()
    assert len(list(tmp_path.glob("orders-*.deleted"))) == 2
    machine.clock.now += 1
    logstore.open(tmp_path, env=machine.env).close()
    assert list(tmp_path.glob("orders-*")) == []
    assert list((tmp_path / "topics" / ".deleted").iterdir()) == []


def test_a_deletion_that_was_cut_short_is_finished_at_the_next_open(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        info = store.create_topic("orders")
        description = (tmp_path / "topics" / "orders.json").read_bytes()
    body = json.loads(description) | {"deleted_at_ms": 1}
    del body["checksum"]  # as earlier versions wrote it
    (tmp_path / "topics" / ".deleted" / f"{info.topic_id}.json").write_text(json.dumps(body))
    with logstore.open(tmp_path) as store:
        assert store.topics() == []
    assert list(tmp_path.glob("orders-*")) == []


def test_a_topic_created_again_does_not_see_the_old_files(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        old = store.create_topic("orders")
        store.append("orders", rows(["old"]))
        store.delete_topic("orders")
        new = store.create_topic("orders")
        assert new.topic_id != old.topic_id
        assert store.offsets("orders")[0].count == 0


def test_directories_left_by_a_creation_that_failed_do_not_get_in_the_way(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")
        store.append("orders", rows(["half"]))
    (tmp_path / "topics" / "orders.json").unlink()
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")
        assert store.offsets("orders")[0].count == 0


def test_a_lost_partition_directory_is_reported(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")
    (tmp_path / "orders-0").rename(tmp_path / "elsewhere")
    with logstore.open(tmp_path) as store, pytest.raises(StoreError, match="orders-0 is missing; restore it"):
        store.offsets("orders")


def test_a_damaged_topic_description_is_named_and_the_other_topics_go_on(tmp_path: Path) -> None:
    """By all that goes over all topics, too: opening after a crash, transactions, jobs, verification, recovery."""
    with logstore.open(tmp_path) as store:
        for name in ("a", "orders", "z"):
            store.create_topic(name, config={"retention.bytes": 0, "segment.bytes": 500, "max.message.bytes": 400})
        with store.transaction("n", batch_id=1) as transaction:
            for name in ("a", "orders", "z"):
                store.append(name, rows(["1"]), transaction=transaction)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "topics" / "orders.json").write_text("{")
    named = pytest.raises(StoreError, match=r"orders\.json: not a topic description")
    for number in range(2):
        with logstore.open(tmp_path) as store:
            listed = {info.name: info.damage for info in store.topics()}
            assert list(listed) == ["a", "orders", "z"]
            assert listed["a"] is listed["z"] is None
            assert "orders.json" in str(listed["orders"])
            with store.transaction("n", batch_id=number + 2) as transaction:
                store.append("z", rows(["2"]), transaction=transaction)
            assert store.read("z", partition=0).read_all().num_rows == number + 2
            for _ in range(9):
                store.append("a", rows(["v" * 100]))
            store.logs.expire([("orders", 0), ("a", 0)])  # the damaged one is logged
            assert store.log("a", 0).log_start_offset > 0
            damage = {report.topic: report.damage for report in verify_store(store)}
            assert damage["a"] == damage["z"] == ()
            assert [place[:2] for place in damage["orders"]] == [(str(tmp_path / "topics" / "orders.json"), 0)]
            for use in (store.topic, store.offsets, store.create_topic, store.delete_topic):
                with named:
                    use("orders")
            with named:
                store.append("orders", rows(["2"]))
            os.utime(tmp_path / "orders-0", (1, 1))
            assert unowned(tmp_path) == Unowned()
        journal = bytearray((tmp_path / "transactions" / "journal").read_bytes())
        journal[40] ^= 1
        (tmp_path / "transactions" / "journal").write_bytes(journal)
        with named:
            logstore.recover(tmp_path)
        with logstore.open(tmp_path) as store:
            assert all(report.topic == "orders" for report in verify_store(store) if report.damage)
    assert not (tmp_path / ".kafka_cleanshutdown").exists(), "what may be unflushed there was not seen to"


def test_a_failed_fsync_is_not_over_before_every_topic_was_checked(tmp_path: Path) -> None:
    """The disk may have less of a topic whose description is damaged than the cache shows."""
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")
        store.create_topic("z")
    description = tmp_path / "topics" / "orders.json"
    whole = description.read_text()
    description.write_text("{")
    (tmp_path / FSYNC_FAILED).write_text("of orders-0, perhaps")
    with pytest.raises(StoreError, match=r"orders\.json: not a topic description"):
        logstore.recover(tmp_path)
    with logstore.open(tmp_path) as store, pytest.raises(FailedStoreError):
        store.append("z", rows(["1"]))
    description.write_text(whole)
    logstore.recover(tmp_path)
    with logstore.open(tmp_path) as store:
        store.append("z", rows(["1"]))


def test_lags_that_contradict_each_other_are_refused_and_do_no_harm_where_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic of a version that took them is compacted after max.compaction.lag.ms."""
    lags = {"min.compaction.lag.ms": 10**9, "max.compaction.lag.ms": 1}
    config = {"cleanup.policy": "compact", "segment.bytes": 500, "max.message.bytes": 400}
    refused = pytest.raises(InvalidConfigError, match="lower the one, or raise the other")
    with logstore.open(tmp_path) as store:
        with refused:
            store.create_topic("t", config=config | lags)
        store.create_topic("t", config=config | {"min.compaction.lag.ms": 10**9})
        with refused:
            store.alter_topic("t", config={"max.compaction.lag.ms": 1})
        assert store.topic("t").config.max_compaction_lag_ms > 10**9
        for _ in range(10):
            store.append("t", rows(["v" * 100], key=["k"]))
        assert store.compact("t", 0).skipped == "nothing is dirty"
    path = tmp_path / "topics" / "t.json"
    body = json.loads(path.read_text())
    body["config"]["max.compaction.lag.ms"] = "1"
    del body["checksum"]
    path.write_text(json.dumps(body))
    caplog.clear()
    with logstore.open(tmp_path) as store:
        assert store.compact("t", 0).rounds == 1
        assert store.read("t", partition=0).read_all().num_rows < 10
    said = [record.getMessage() for record in caplog.records if "compaction.lag" in record.getMessage()]
    assert said
    assert all("t.json min.compaction.lag.ms=" in line and "\n" not in line for line in said)
