"""RESTORE takes rows out of a table, and leaves what its transactions say of them: nobody goes by their word then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

import logstore
from datasource.delta.owner import NOTES
from datasource.delta.tiered_topics import TieredTopics
from datasource.errors import DataLossError
from datasource.jobs import retention
from datasource.topics.locations import Location
from logstore.log.tiering import tiered_offset
from tests.spark.test_tiering import places
from tests.spark.test_tiering_stores import TIERED, append, named, tier, tiering_range, union, values
from tests.support.repeats import only_long

ALL = sorted([*named("a", 20), *named("b", 20)])


@pytest.fixture
def restored(spark, tmp_path: Path) -> Path:
    """A store whose 40 records were tiered in two runs; the table was then taken back to the first."""
    path = tmp_path / "a"
    with logstore.open(path) as opened:
        opened.create_topic("t", config=TIERED | {"retention.ms": "-1"})
    for text in ("a", "b"):
        append(path, text, 20)
        tier(spark, path)
    DeltaTable(table(path)).restore(1)
    with logstore.open(path) as opened:
        opened.alter_topic("t", config={"retention.ms": "1"})
    return path


def table(store: Path) -> str:
    return str(store / "tiered" / "t")


def told(store: Path) -> int:
    with logstore.open(store, mode="r") as opened:
        return tiered_offset(opened.log("t", 0))


@only_long("runs of tiering")
def test_a_restore_is_noticed_and_undone_by_another(spark, restored):
    assert told(restored) == 40
    expected = r"was taken back to version 1 by RESTORE \(its version 3\).*RESTORE it to version 2, which has them; or"
    target = TieredTopics(Location(str(restored)), fail_on_data_loss=True)
    with pytest.raises(DataLossError, match=expected):
        target.offsets("t")
    with pytest.raises(DataLossError, match=expected):
        list(target.read(tiering_range(0, 0, 40), ["value"]))
    assert values(union(spark, restored, failOnDataLoss=False)) == sorted(named("a", 20))

    for dry_run in (True, False):
        for row in retention.run(spark, path=str(restored), dry_run=dry_run).collect():
            assert (row["status"], row["segments"]) == ("failed", None)
            assert "was taken back" in row["note"]
    for dry_run in (True, False):
        why = tier(spark, restored, dry_run=dry_run)["t", 0]
        assert why.startswith("failed: ")
        assert "RESTORE it to version 2, which has them" in why
    assert told(restored) == 0
    append(restored, "c", 20)  # appends let go of what is old, too
    with logstore.open(restored, mode="r") as opened:
        assert opened.offsets("t")[0].start == 0

    DeltaTable(table(restored)).restore(2)
    assert tier(spark, restored)["t", 0] == "tiered: "
    assert told(restored) == 60
    retention.run(spark, path=str(restored))
    with logstore.open(restored, mode="r") as opened:
        assert opened.offsets("t")[0].start > 40
    assert values(union(spark, restored)) == sorted([*ALL, *named("c", 20)])
    DeltaTable(table(restored)).optimize.compact()
    assert tier(spark, restored)["t", 0] == "nothing to do: "

    target = TieredTopics(Location(str(restored)), fail_on_data_loss=True)
    assert target.offsets("t")[0].count == 60
    DeltaTable(table(restored)).restore(1)
    with pytest.raises(DataLossError, match="was taken back to version 1"):
        target.offsets("t")


@only_long("runs of tiering")
def test_a_table_that_cannot_be_mended_is_followed_by_a_new_one(spark, restored, tmp_path):
    retention.run(spark, path=str(restored))  # the first to notice
    assert told(restored) == 0
    (note,) = (restored / NOTES).glob("*.json")
    note.unlink()
    assert tier(spark, restored, table=str(tmp_path / "new" / "{topic}"))["t", 0] == "tiered: "
    assert places(tmp_path / "new" / "t") == [(0, offset) for offset in range(40)]
    retention.run(spark, path=str(restored))
    assert values(union(spark, restored)) == ALL


@only_long("runs of tiering")
def test_a_restore_of_the_table_of_bad_rows_is_noticed(spark, tmp_path):
    path = tmp_path / "a"
    with logstore.open(path) as opened:
        opened.create_topic("t", config=TIERED | {"retention.ms": "-1"})
    for _ in range(2):
        append(path, "bad", 20)
        tier(spark, path, schema="id bigint")
    DeltaTable(f"{table(path)}__dlq").restore(1)
    assert "t__dlq was taken back to version 1" in tier(spark, path)["t", 0]
    assert told(path) == 0


@only_long("two restores")
def test_a_restore_that_took_nothing_of_the_topic_is_none_of_its_business(spark, restored):
    DeltaTable(table(restored)).restore(2)
    assert tier(spark, restored)["t", 0] == "nothing to do: "
    DeltaTable(table(restored)).optimize.compact()
    version = DeltaTable(table(restored)).version()
    DeltaTable(table(restored)).restore(version - 1)
    assert tier(spark, restored)["t", 0] == "nothing to do: "
    assert values(union(spark, restored)) == ALL


def test_a_table_that_came_back_from_an_older_copy_is_filled_again(spark, restored, tmp_path):
    """The tiered offset of the newer one is taken back, and set again when it is true."""
    DeltaTable(table(restored)).restore(2)
    tier(spark, restored)
    shutil.copytree(table(restored), tmp_path / "copy")
    with logstore.open(restored) as opened:
        opened.alter_topic("t", config={"retention.ms": "-1"})
    append(restored, "c", 20)
    tier(spark, restored)
    assert told(restored) == 60
    shutil.rmtree(table(restored))
    (tmp_path / "copy").rename(table(restored))
    with logstore.open(restored) as opened:  # all that was tiered may go, at the next opening
        opened.alter_topic("t", config={"retention.ms": "1"})
    assert tier(spark, restored)["t", 0] == "tiered: "
    assert places(Path(table(restored))) == [(0, offset) for offset in range(60)]
    assert told(restored) == 60
