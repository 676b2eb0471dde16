"""`pylog transactions`."""

import pyarrow as pa
import pytest

import logstore
from tests.support.inside import die


@pytest.fixture
def store(path):
    with logstore.open(path) as opened:
        opened.create_topic("orders", partitions=2)
        yield opened


@pytest.fixture
def transaction(store):
    """One that is open, and written to."""
    begun = store.transaction("loader", batch_id=3)
    store.append("orders", pa.table({"value": ["x", "y"]}), transaction=begun)
    return begun


def test_list_shows_every_writer_that_is_not_done(pylog, transaction):
    (row,) = pylog("transactions", "list", "--output", "json").ok().json
    assert (row["name"], row["batch"], row["state"], row["partitions"], row["hint"]) == (
        "loader",
        3,
        "open",
        2,
        "",
    )


def test_list_shows_the_last_batch_of_every_name(pylog, store, transaction):
    assert pylog("transactions", "list", "--committed", "--output", "json").ok().json == []
    transaction.commit()
    (row,) = pylog("transactions", "list", "--committed", "--output", "json").ok().json
    assert (row["name"], row["batch"], row["rows"]) == ("loader", 3, 2)
    assert pylog("transactions", "list", "--committed").ok().lines[0].startswith("NAME")


def test_a_store_without_transactions_has_none(pylog, store):
    assert pylog("transactions", "list", "--output", "json").ok().json == []


def test_abort_ends_a_transaction_by_its_name(pylog, store, transaction):
    store.append("orders", pa.table({"value": ["behind"], "partition": [0]}))
    assert pylog("transactions", "abort", "loader").ok().err == "aborted 1 writer\n"
    with pytest.raises(logstore.TransactionAbortedError, match="pylog transactions abort"):
        transaction.commit()
    assert store.read("orders", partition=0).read_all()["value"].to_pylist() == [b"behind"]


def test_abort_dead_leaves_the_living_alone(pylog, path, store, transaction):
    with logstore.open(path) as other:
        dead = other.transaction("dead", batch_id=1)
        other.append("orders", pa.table({"value": ["z"]}), transaction=dead)
        die(other)
        assert pylog("transactions", "abort", "--dead", "--dry-run").ok().err == "would abort 1 writer\n"
        (row,) = pylog("transactions", "abort", "--dead", "--output", "json").ok().json
        assert (row["name"], row["hint"]) == ("dead", "the process that wrote it is gone")
    transaction.commit()


def test_abort_says_what_it_cannot_do(pylog, transaction):
    assert "did you mean 'loader'" in pylog("transactions", "abort", "loaders").failed()
    for arguments in ((), ("loader", "--dead")):
        assert pylog("transactions", "abort", *arguments).code == 2
