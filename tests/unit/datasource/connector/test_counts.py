"""The headers of batches say how many records a read gives."""

from pathlib import Path

import pytest

import logstore
from datasource.connector.counts import PylogCounts
from datasource.errors import DataLossError
from logstore.errors import CorruptLogError
from logstore.records import arrow
from logstore.records.batch import COUNT_AT
from tests.support.commands import run_pylog
from tests.support.counting import KINDS, LATEST, LOG, batch, counted, fill
from tests.support.ddl import schema
from tests.support.poison import made, put


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def place(path):
    with logstore.open(path) as store:
        store.create_topic("log", partitions=2, config=LOG)
        store.create_topic("latest", config=LATEST)
        store.create_topic("empty")

        def aborted(topic, rows):
            transaction = store.transaction()
            store.append(topic, rows, transaction=transaction)
            transaction.abort()

        fill(store.append, aborted)
        store.delete_records("log", {0: 3})
        store.log("latest", 0).roll()
        store.compact("latest", partition=0)
        begun = store.transaction()
        store.append("log", batch(4), transaction=begun)
        yield {"path": str(path)}
        begun.abort()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_as_many_as_a_read_gives_from_a_directory(place, kind):
    by_headers, rows = counted(place, kind)
    assert by_headers == rows


def test_what_the_topics_hold(place):
    assert counted(place, {}) == (127, 127)
    assert counted(place, {"isolation": "read_uncommitted"}) == (141, 141)
    assert counted(place, {"subscribe": "latest"}) == (9, 9)


def test_no_record_of_a_batch_that_is_wanted_whole_is_decoded(place, monkeypatch):
    whole = PylogCounts(place | {"subscribe": "log"})
    reader = whole.reader(schema(whole.schema()))
    planned = reader.partitions()
    monkeypatch.setattr(arrow, "decode_pieces", None)
    assert sum(row["count"] for task in planned for rows in reader.read(task) for row in rows.to_pylist()) == 127


def test_table_and_log_are_counted_together(path):
    with logstore.open(path) as store:
        store.create_topic("log", partitions=2, config={"segment.bytes": "1000"})
        for partition in (0, 1) * 3:
            store.append("log", batch(20, partition=partition))
    run_pylog("tier", "--path", path).ok()
    with logstore.open(path) as store:
        store.delete_records("log", {0: 40})
        store.append("log", batch(20))
    place = {"path": str(path), "includeTiered": "true"}
    assert counted(place, {}) == (140, 140)
    assert counted(place, {"startingOffsets": '{"log": {"0": 30, "1": 50}}'}) == (60, 60)


def test_records_that_are_gone_are_loss_as_in_a_read(place, path):
    with pytest.raises(DataLossError, match=r"log-0 \[1, 3\) is lost"):
        counted(place, {"startingOffsets": '{"log": {"0": 1, "1": 0}}'})
    assert counted(place, {"startingOffsets": '{"log": {"0": 1, "1": 0}}', "failOnDataLoss": "false"}) == (127, 127)


def test_a_cut_batch_that_cannot_be_decoded_is_loss_as_in_a_read(path):
    with logstore.open(path) as store:
        store.create_topic("log")
        store.append("log", batch(3))
        put(store.log("log", 0), made(b"garbage", 4, 2))
        store.append("log", batch(3))
    cut = {"path": str(path), "startingOffsets": '{"log": {"0": 4}}'}
    with pytest.raises(DataLossError, match="offsets 3 to 7"):
        counted(cut, {})
    assert counted(cut, {"failOnDataLoss": "false"}) == (3, 3)


def test_a_damaged_header_is_named(path):
    with logstore.open(path) as store:
        store.create_topic("log")
        store.append("log", batch(3))
        file = Path(store.log("log", 0).segments()[0].path)
    stored = bytearray(file.read_bytes())
    stored[COUNT_AT + 3] = 9
    file.write_bytes(stored)
    with pytest.raises(CorruptLogError, match="9 records in 3 offsets"):
        counted({"path": str(path)}, {})
