"""Compaction in rounds: what is not dirty is looked up, and a segment of which all stays is not written."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.env import Env
from logstore.maintenance import compaction
from logstore.records.batch import DELETE_HORIZON, Record, batches, build
from logstore.records.batch import records as decoded
from tests.support.disk import Disk, StillClock
from tests.support.partition import appended, make
from tests.support.repeats import times

SETTINGS = {
    "cleanup_policy": frozenset({"compact"}),
    "segment_bytes": 20_000,
    "max_message_bytes": 20_000,
    "min_cleanable_dirty_ratio": 0.0,
}
KEYS_OF_A_ROUND = 200  # fit about into the smallest map


class CountingDisk(Disk):
    """Notes how much of each file was written."""

    def __init__(self):
        super().__init__()
        self.written = {}

    def write(self, path, position, data):
        self.written[str(path)] = self.written.get(str(path), 0) + len(data)
        super().write(path, position, data)


def append(log, keys, value=b"v" * 20, timestamp=1000):
    appended(log, build([Record(n, timestamp, b"key %016d" % key, value) for n, key in enumerate(keys)]))


def new_log(**more):
    disk = CountingDisk()
    disk.mkdir("/store")
    return disk, make(Path("/store"), Env(StillClock(), disk), **SETTINGS | more)


def records(log):
    found = []
    for segment in log.segments():
        data = log.env.files.read_all(segment.path)
        found += [record for at, _ in batches(data) for record in decoded(data, at)]
    return found


def cleaned_logs(disk):
    return {path: size for path, size in disk.written.items() if path.endswith(".log.cleaned")}


@settings(max_examples=times(15, 60), deadline=None)
@given(
    st.lists(st.integers(1, 150), min_size=3, max_size=25),
    st.integers(1, 5 * KEYS_OF_A_ROUND),
    st.sampled_from([500, 5_000, 512 * 1024]),
    st.randoms(use_true_random=False),
)
def test_what_stays_after_many_rounds_is_the_last_of_every_key(sizes, keys, read_bytes, chance):
    _, log = new_log()
    for number, size in enumerate(sizes):
        if number and chance.random() < 0.2:
            compact(log, read_bytes)
        append(log, [chance.randrange(keys) for _ in range(size)], chance.choice([b"", b"v" * 20, None]))
    log.roll()
    before = records(log)
    last = {record.key: record for record in before}
    compact(log, read_bytes)
    assert records(log) == [record for record in before if last[record.key] is record]
    assert list(log.verify()) == []


def compact(log, read_bytes=512 * 1024):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "READ_BYTES", read_bytes)
        return compaction.compact(log, key_map_bytes=16 * 1024)


def test_rounds_do_not_write_segments_of_which_all_stays():
    disk, log = new_log()
    for at in range(0, 2000, 100):
        append(log, range(at, at + 100))
    log.roll()
    count = len(log.segments()) - 1
    assert count > 4
    report = compact(log)
    assert report.rounds > 4
    assert report.records_before == report.records_after == 2000
    assert cleaned_logs(disk) == {}
    assert not [name for name in disk.names if ".cleaned" in name]


@pytest.mark.parametrize("read_bytes", [500, 5_000, 512 * 1024])
def test_what_stays_before_the_first_record_that_goes_is_copied(read_bytes):
    disk, log = new_log()
    for at in range(0, 500, 50):
        append(log, range(at, at + 50))
    log.roll()
    path = log.segments()[0].path
    before, data = records(log), log.env.files.read_all(path)
    append(log, [330])
    log.roll()
    compact(log, read_bytes)
    assert [r for r in records(log) if r.offset < 500] == [r for r in before if r.offset != 330]
    after = log.env.files.read_all(path)
    assert after[:10_000] == data[:10_000]
    assert cleaned_logs(disk)[path + ".cleaned"] == len(after) < len(data)


def test_a_tombstone_gets_its_horizon_though_its_batch_stays_as_large():
    _, log = new_log(delete_retention_ms=0)
    append(log, [1], value=None, timestamp=log.env.clock.now_ms())
    log.roll()
    size_bytes = log.segments()[0].size_bytes
    compact(log)
    data = log.env.files.read_all(log.segments()[0].path)
    ((_, header),) = batches(data)
    assert len(data) == size_bytes
    assert header.attributes & DELETE_HORIZON
