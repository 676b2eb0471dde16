"""`pylog consume` on a cluster: what is read is that of a store that stands for it."""

from contextlib import contextmanager

import pyarrow as pa
import pytest

import logstore
from logstore.errors import UnreadableBatchError
from replication.tools.console import Isolation, members_records, records
from tests.support.poison import POISON, put


class StoreClient:
    """A client whose cluster is a store."""

    def __init__(self, store):
        self._store = store

    def topic(self, name):
        return self._store.topic(name)

    def extents(self, topic, *, isolation, partitions):
        return self._store.offsets(topic)

    def read(self, topic, partition, start, end, *, isolation):
        return self._store.read(topic, partition=partition, start=start, end=end)

    @contextmanager
    def consumer(self, topic, group, **options):
        self._tail = self._store.tail(topic, start="earliest", timeout_ms=0)
        yield self

    def poll(self, timeout_ms):
        return next(self._tail, None)


@pytest.fixture
def client(tmp_path):
    with logstore.open(tmp_path) as store:
        store.create_topic("t", partitions=2)
        for value in (b"a", b"b"):
            store.append("t", pa.table({"value": [value], "partition": pa.array([0], pa.int32())}))
            put(store.log("t", 0), POISON["garbage"])
        store.append("t", pa.table({"value": [b"c"], "partition": pa.array([1], pa.int32())}))
        yield StoreClient(store)


@pytest.mark.parametrize("is_member", [False, True])
def test_batches_that_cannot_be_decoded_are_told_once_each_and_gone_round(client, is_member):
    skipped: list[UnreadableBatchError] = []
    bounds = {"isolation": Isolation.READ_COMMITTED, "timeout_ms": 0, "skipped": skipped.append}
    if is_member:
        found = members_records(client, "t", "g", from_beginning=True, printed={}, is_over=lambda: False, **bounds)
    else:
        found = records(client, "t", None, "earliest", **bounds)
    assert [(row.partition, row.value) for row in found] == [(0, b"a"), (0, b"b"), (1, b"c")]
    assert [error.base_offset for error in skipped] == [1, 3]
