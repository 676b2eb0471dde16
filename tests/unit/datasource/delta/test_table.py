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
from datasource.delta.owner import of_store
from datasource.delta.parquet import RAW, typed_schema
from datasource.delta.table import TableConflictError, TopicTable
from logstore import InvalidRequestError, StoreError

ID = "topic"


def made(table: Path, schema: pa.Schema = RAW) -> TopicTable:
    """A table of a store beside it."""
    owner = of_store(table.parent / "store", "t", ID)
    delta_table.create(table, owner, schema)
    return TopicTable(table, owner)


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
    table = TopicTable(tmp_path / "t", of_store(tmp_path / "store", "t", ID))
    with pytest.raises(StoreError, match=r"(?i)cannot be written: .*feature.*; run the job in a session with Delta"):
        table.commit([added("a")], {0: 1})
    assert TopicTable(tmp_path / "t", of_store(tmp_path / "store", "t", ID)).version == 0


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
    second = TopicTable(tmp_path / "t", of_store(tmp_path / "store", "t", ID))
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
        TopicTable(tmp_path / name, of_store(tmp_path / "store", "t", ID))


@pytest.mark.parametrize("name", ["a b", "50%", "a#b?c", "ü+&"])
def test_other_paths_are_taken_as_they_are(tmp_path, name):
    table = made(tmp_path / name)
    after = table.commit([added("a")], {0: 1})
    assert [file.path for file in after.files()] == [tmp_path / name / "date=1970-01-01" / "a"]
