"""The Delta table of a topic: why a commit is refused, what Delta's Spark asks of it, and its paths."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from datasource.delta import table as delta_table
from datasource.delta.columns import RAW, typed_schema
from datasource.delta.owner import Owner, TierConfig, of_store, read_note
from datasource.delta.storage import TableDirectory
from datasource.delta.table import TableConflictError, TopicTable
from datasource.delta.tiering import ReportRow, prepare, tell_log
from datasource.delta.topic_tables import TieringTask
from datasource.topics.interface import NO_EPOCH
from datasource.topics.locations import Location
from logstore import InvalidRequestError, StoreError

ID = "topic"


def made(table: Path, schema: pa.Schema = RAW) -> TopicTable:
    """A table of a store beside it."""
    owner = of_store(table.parent / "store", "t", ID)
    delta_table.create(TableDirectory(table), owner, schema)
    return TopicTable(TableDirectory(table), owner)


def added(name: str, rows: int = 1) -> AddAction:
    return AddAction(f"date=1970-01-01/{name}", 10, {"date": "1970-01-01"}, 0, True, f'{{"numRecords": {rows}}}')


def rewrite(table: Path, change: Callable[[dict], None]) -> None:
    """Change the actions of the table's first version."""
    path = table / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        change(action)
    path.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("feature", ["inCommitTimestamp", "rowTracking", "checkpointProtection"])
def test_a_table_that_deltalake_cannot_write_is_no_conflict(tmp_path, feature):
    made(tmp_path / "t")
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    rewrite(tmp_path / "t", lambda action: action.update(protocol=protocol) if "protocol" in action else None)
    table = TopicTable(TableDirectory(tmp_path / "t"), of_store(tmp_path / "store", "t", ID))
    with pytest.raises(StoreError, match=r"(?i)cannot be written: .*feature.*; run the job in a session with Delta"):
        table.commit([added("a")], {0: 1})
    assert TopicTable(TableDirectory(tmp_path / "t"), of_store(tmp_path / "store", "t", ID)).version == 0


def test_a_plan_that_begins_before_the_boundary_is_a_conflict(tmp_path):
    table = made(tmp_path / "t")
    table.check_boundary(0, 0)
    after = table.commit([added("a")], {0: 5})
    after.check_boundary(0, 5)
    after.check_boundary(1, 0)
    with pytest.raises(TableConflictError, match="moved on since the job was planned"):
        after.check_boundary(0, 4)


def test_a_commit_after_another_one_of_the_partition_is_a_conflict(tmp_path):
    first = made(tmp_path / "t")
    second = TopicTable(TableDirectory(tmp_path / "t"), of_store(tmp_path / "store", "t", ID))
    first.commit([added("a")], {0: 1})
    with pytest.raises(TableConflictError, match="the next run of the job goes on"):
        second.commit([added("b")], {0: 2})


def test_what_a_commit_did_is_told_though_others_followed(tmp_path):
    """(Delta's autoCompact rewrites its files right away.)"""
    table = made(tmp_path / "t")
    after = table.commit([added("a", 3), added("b", 4)], {0: 7}).commit([added("c", 50)], {1: 50})
    done = after.committed(0, 0, 7)
    assert (done.records, done.files, done.size_bytes) == (7, 2, 20)
    assert after.committed(0, 0, 8) is None
    assert after.committed(1, 0, 7) is None


def test_a_table_that_another_job_made_a_moment_before_with_other_columns_is_refused(tmp_path):
    made(tmp_path / "t", typed_schema([pa.field("id", pa.int64())]))
    owner = of_store(tmp_path / "store", "t", ID)
    task = TieringTask(location=Location(owner.name), owner=owner, table=TableDirectory(tmp_path / "t"))
    with pytest.raises(StoreError, match="has other columns than declared"):
        prepare(task)
    assert read_note(owner) is None


@pytest.mark.parametrize(("led_end", "noted"), [(200, (200, 4)), (199, (200, NO_EPOCH))])
def test_the_epoch_of_what_another_job_tiered_further_is_not_known(tmp_path, led_end, noted):
    """A wrong one would let a cut of the log pass, or tell of one that was none."""
    place = TableDirectory(tmp_path / "t")
    owner = Owner("kafka:c", "t", ID, place, "_pylog")
    delta_table.create(place, owner, RAW)
    (tmp_path / "t" / "date=1970-01-01").mkdir()
    (tmp_path / "t" / "date=1970-01-01" / "a").touch()
    TopicTable(place, owner).commit([added("a")], {0: 200})
    note = TierConfig(place, tiered={0: (50, 3)})
    task = TieringTask(location=Location(bootstrap="a:1"), owner=owner, table=place, note=note)
    found = tell_log(task, {0: ReportRow(topic="t", partition=0, leader_epoch=4, led_end=led_end)})
    assert found.note == read_note(owner) == TierConfig(place, version=1, tiered={0: noted})


def protocol(table: Path) -> tuple[int, set[str]]:
    found = DeltaTable(str(table)).protocol()
    return found.min_writer_version, set(found.writer_features or ())


def test_a_table_names_all_features_that_its_schema_uses(tmp_path):
    """Else Delta's Spark refuses it: DELTA_FEATURES_PROTOCOL_METADATA_MISMATCH."""
    naive, required = pa.field("at", pa.timestamp("us")), pa.field("id", pa.int64(), nullable=False)
    made(tmp_path / "both", typed_schema([naive, required]))
    assert protocol(tmp_path / "both") == (7, {"timestampNtz", "invariants"})
    made(tmp_path / "inner", typed_schema([naive, pa.field("s", pa.struct([required]))]))
    assert protocol(tmp_path / "inner") == (7, {"timestampNtz", "invariants"})
    made(tmp_path / "naive", typed_schema([naive]))
    assert protocol(tmp_path / "naive") == (7, {"timestampNtz"})
    made(tmp_path / "required", typed_schema([required]))
    assert protocol(tmp_path / "required") == (2, set())


@pytest.mark.parametrize("name", ["a%41b", "a%20b"])
def test_a_path_that_deltalake_would_take_for_another_is_refused(tmp_path, name):
    made(tmp_path / "a b")
    with pytest.raises(InvalidRequestError, match=f"cannot use a directory with {name[1:4]} in its path; give another"):
        made(tmp_path / name)
    assert not (tmp_path / name).exists()
    with pytest.raises(InvalidRequestError, match="cannot use a directory with"):
        TopicTable(TableDirectory(tmp_path / name), of_store(tmp_path / "store", "t", ID))


@pytest.mark.parametrize("name", ["a b", "50%", "a#b?c", "ü+&"])
def test_other_paths_are_taken_as_they_are(tmp_path, name):
    table = made(tmp_path / name)
    after = table.commit([added("a")], {0: 1})
    assert [file.name for file in after.files()] == ["date=1970-01-01/a"]
