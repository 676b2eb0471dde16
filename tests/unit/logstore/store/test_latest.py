"""The latest values of a topic are those that a dictionary of its records holds, as bytes and as columns."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from logstore import InvalidRequestError, OffsetOutOfRangeError
from logstore.schemas.misfits import MisfitError
from tests.support.commands import run_pylog

COLUMNS = ("key", "value", "offset")
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def naive(rows):
    """The last row of each key, unless it has no value."""
    last = {row["key"]: row for row in rows if row["key"] is not None}
    return sorted((row for row in last.values() if row["value"] is not None), key=str)


def latest(store, topic="t", **options):
    found = store.read(topic, view="latest", columns=COLUMNS, **options).read_all().to_pylist()
    return sorted(found, key=str)


def test_each_key_comes_once_with_its_last_record_also_as_of_an_earlier_end(store):
    dice = random.Random(5)
    store.create_topic("t", partitions=3)
    for _ in range(30):
        keys = [dice.choice([None, *(f"key-{n}" for n in range(40))]) for _ in range(20)]
        rows = [{"key": key, "value": dice.choice([None, "v" * dice.randrange(200)])} for key in keys]
        store.append("t", [{**row, "timestamp": NOON} for row in rows])
    for p in range(3):
        end = store.offsets("t")[p].end
        for upto in (0, end // 3, end):
            wanted = naive(store.read("t", partition=p, end=upto, columns=COLUMNS).read_all().to_pylist())
            assert latest(store, partition=p, end=upto) == wanted
            assert latest(store, partition=p, end=upto, batch_bytes=1) == wanted
    whole = store.read("t", view="latest")
    assert whole.schema == store.read("t").schema
    assert whole.read_all().num_rows == sum(len(latest(store, partition=p)) for p in range(3))
    assert latest(store, end=NOON) == []


def test_only_what_is_committed_counts_unless_all_is_asked_for(store):
    store.create_topic("t")
    store.append("t", [{"key": "a", "value": "1"}])
    with store.transaction() as transaction:
        store.append("t", [{"key": "a", "value": "2"}], transaction=transaction)
        assert [row["value"] for row in latest(store)] == [b"1"]
        assert [row["value"] for row in latest(store, isolation="read_uncommitted")] == [b"2"]
    assert [row["value"] for row in latest(store)] == [b"2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "last"}, "view='last': there is 'latest'"),
        ({"view": "latest", "partition": 0, "start": 0}, "start=0: view='latest' reads from the beginning"),
        ({"view": "latest", "typed": True, "start": NOON}, "reads from the beginning"),
        ({"view": "latest", "end": 1}, "offsets of one partition"),
    ],
)
def test_a_start_would_hide_values_and_is_refused(store, options, message):
    store.create_topic("t", schema="n int")
    with pytest.raises(InvalidRequestError, match=message):
        store.read("t", **options)
    with pytest.raises(OffsetOutOfRangeError):
        store.read("t", view="latest", partition=0, end=9)


@pytest.fixture
def users(store):
    store.create_topic("users", schema="city string", key_schema="name string")
    cities = [("ada", "Paris"), ("bob", "Oslo"), ("cyd", "Rome"), ("ada", "London")]
    store.append("users", [{"name": name, "city": city} for name, city in cities], typed=True)
    store.append("users", [{"name": "bob", "city": None}], typed=True)
    return store


def test_columns_are_those_of_the_last_records_and_a_misfit_among_them_is_one(users):
    ada, cyd = {"name": "ada", "city": "London"}, {"name": "cyd", "city": "Rome"}
    read = users.read
    assert read("users", typed=True, view="latest").read_all().to_pylist() == [cyd, ada]
    assert read("users", view="latest", columns=["_offset"], typed=True, metadata=True).read_all().to_pylist() == [
        {"_offset": 2},
        {"_offset": 3},
    ]
    users.append("users", {"key": ['{"name":"cyd"}'], "value": ["{"]})
    with pytest.raises(MisfitError, match="users-0 at offset 5"):
        read("users", typed=True, view="latest").read_all()
    assert read("users", typed=True, view="latest", mode="DROPMALFORMED").read_all().to_pylist() == [ada]


def test_the_command_prints_each_key_once(users):
    place = ["--view", "latest", "--path", users.path]
    assert run_pylog("consume", "users", *place).ok().out == '{"city":"Rome"}\n{"city":"London"}\n'
    assert run_pylog("consume", "users", "--typed", *place).ok().out == "name\tcity\ncyd\tRome\nada\tLondon\n"
    for more in (["--offset", 0, "--partition", 0], ["--from-beginning"], ["--follow"], ["--timeout-ms", 0]):
        done = run_pylog("consume", "users", *more, *place)
        assert (done.code, f"leave {more[0]} out" in done.err) == (2, True), done.err
