"""A batch of a right CRC with records that nobody can decode: named, gone round, and never in the way of others."""

import logging

import pyarrow as pa
import pytest

import logstore
from logstore.errors import UnreadableBatchError
from logstore.maintenance import compaction
from logstore.records.batch import HEADER_BYTES, Record, build
from logstore.tools.dump import dump
from logstore.tools.verify import verify_store
from tests.support.poison import POISON, made, put

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "compression.type": "producer"}


def rows(*numbers: int) -> pa.Table:
    return pa.table({"key": [b"k%d" % (n % 4) for n in numbers], "value": [b"value %d" % n for n in numbers]})


@pytest.fixture(params=POISON)
def poisoned(request, tmp_path):
    """(store, the batch's offsets): sixteen records before it, eight behind."""
    with logstore.open(tmp_path) as store:
        store.create_topic("t", config=COMPACTED)
        store.append("t", rows(*range(8)))
        store.append("t", rows(*range(8, 16)))
        place = put(store.log("t", 0), POISON[request.param])
        store.append("t", rows(*range(100, 108)))
        yield store, place


def read_round(store, start=0):
    """The values, and the errors, of a reader that goes on behind each."""
    found, errors = [], []
    while True:
        try:
            for batch in store.read("t", partition=0, start=start):
                found += [value.decode() for value in batch.column("value").to_pylist()]
            return found, errors
        except UnreadableBatchError as error:
            errors.append((error.base_offset, error.next_offset))
            start = error.next_offset


def values(*numbers):
    return [f"value {n}" for n in numbers]


def test_readers_get_all_before_it_are_told_once_and_go_on_behind_it(poisoned):
    store, place = poisoned
    assert read_round(store) == (values(*range(16), *range(100, 108)), [place])
    assert read_round(store, place[1]) == (values(*range(100, 108)), [])
    seen, tail = [], store.tail("t", start="earliest", timeout_ms=0)

    def follow():
        for batch in tail:
            seen.extend(value.decode() for value in batch.column("value").to_pylist())

    with pytest.raises(UnreadableBatchError, match=f"read on from offset {place[1]}"):
        follow()
    assert seen == values(*range(16))
    follow()
    assert seen == values(*range(16), *range(100, 108))


def test_compaction_keeps_it_as_it_is_names_it_once_and_removes_nothing_for_it(poisoned, caplog):
    store, place = poisoned
    log = store.log("t", 0)
    before = bytes(log.read(place[0], max_bytes=1, upper=place[1]).data)
    log.roll()
    with caplog.at_level(logging.WARNING):
        assert store.compact("t", 0).rounds == 1
        store.append("t", rows(200))
        log.roll()
        assert store.compact("t", 0).rounds == 1
    assert bytes(log.read(place[0], max_bytes=1, upper=place[1]).data) == before
    assert [line.message for line in caplog.records if "cannot be decoded" in line.message][1:] == []
    assert read_round(store) == (values(*range(105, 108), 200), [place])
    assert log.recover().cut_bytes == 0


def test_its_keys_supersede_no_record_that_can_be_read(tmp_path):
    with logstore.open(tmp_path) as store:
        store.create_topic("t", config=COMPACTED)
        store.append("t", rows(0, 1, 2, 3))
        place = put(store.log("t", 0), POISON["a late wrong delta"])
        store.log("t", 0).roll()
        assert store.compact("t", 0).rounds == 1
        assert read_round(store) == (values(0, 1, 2, 3), [place])


def test_compaction_reads_no_more_often_where_there_are_many_and_names_them_in_one_line(tmp_path, monkeypatch, caplog):
    reads, one_pass = [], compaction._Pass
    read = one_pass._read
    monkeypatch.setattr(one_pass, read.__name__, lambda self, segment: reads.append(segment) or read(self, segment))
    with logstore.open(tmp_path) as store:
        store.create_topic("t", config=COMPACTED)
        places = []
        for number in range(9):
            store.append("t", rows(number))
            places.append(put(store.log("t", 0), POISON["a late wrong delta" if number % 2 else "no gzip"]))
        store.append("t", rows(9))
        store.log("t", 0).roll()
        with caplog.at_level(logging.WARNING):
            assert store.compact("t", 0).rounds == 1
        assert len(reads) == 4  # the keys up to the first, all that cannot be decoded, the keys, what stays
        (line,) = [line.message for line in caplog.records if "cannot be decoded" in line.message]
        assert f"offsets {places[0][0]} to {places[0][1] - 1}, " in line
        assert "such batches (9) stay" in line
        assert read_round(store) == (values(6, 7, 8, 9), places)


def test_its_keys_supersede_nothing_where_the_map_is_full_within_it(tmp_path):
    numbers = range(20, 2020)  # more keys than fit
    data = build([Record(at, 1000, b"k%d" % n, b"x") for at, n in enumerate(numbers)])
    poison = made(bytes(data[HEADER_BYTES:]) + b"more", len(numbers) - 1, len(numbers))
    with logstore.open(tmp_path) as store:
        store.create_topic("t", config=COMPACTED)
        store.append("t", pa.table({"key": [b"k%d" % n for n in range(30)], "value": values(*range(30))}))
        place = put(store.log("t", 0), poison)
        store.log("t", 0).roll()
        store.compact("t", 0, key_map_bytes=compaction.KEY_MAP_BYTES_MIN)
        assert read_round(store) == (values(*range(30)), [place])


def test_verify_and_dump_log_name_it_and_go_on(poisoned):
    store, place = poisoned
    (report,) = verify_store(store)
    assert [reason for *_, reason in report.damage if f"offsets {place[0]} to {place[1] - 1} cannot" in reason]
    assert len(report.damage) == 1
    store.flush()
    path = store.path / "t-0" / f"{0:020}.log"
    lines = list(dump(path, with_records=True))
    assert [line.facts["position"] for line in lines if line.kind == "damage"] == [report.damage[0][1]]
    assert len([line for line in lines if line.kind == "record"]) == 24
