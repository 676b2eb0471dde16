"""The rows that RESTORE takes out of a table, by the entries of its log."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from datasource.delta import log as delta_log
from datasource.delta.log import Entry, Undone, undone
from datasource.delta.storage import TableDirectory
from logstore import StoreError

OURS = "pylog:id:"


def entry(*, restored: int | None = None, app: str | None = None, files: int = 1) -> Entry:
    return Entry(restored=restored, transactions={app: 1} if app else {}, files=files, size_bytes=0, records=0)


def history(*entries: Entry | None, since: int = 0) -> Undone | None:
    """The undone commits of a table whose version 0 made it."""
    versions = [entry(files=0), *entries]
    return undone(versions.__getitem__, since=since, head=len(entries), prefix=OURS)


ADDED, OTHER = entry(app=f"{OURS}0"), entry()


def back_to(version: int) -> Entry:
    return entry(restored=version)


def test_rows_that_were_added_behind_the_version_that_came_back_are_lost():
    assert history(ADDED, ADDED, back_to(1)) == Undone(version=3, restored=1, whole=2)
    assert history(ADDED, ADDED, back_to(1), OTHER) == Undone(version=3, restored=1, whole=2)
    assert history(ADDED, OTHER, back_to(1)) is None
    assert history(ADDED, entry(app=f"{OURS}0", files=0), back_to(1)) is None
    assert history(ADDED, entry(app="another"), back_to(1)) is None


def test_a_second_restore_forward_brings_them_back_and_one_into_the_gap_loses_them_again():
    mended = (ADDED, ADDED, back_to(1), back_to(2))
    assert history(*mended) is None
    assert history(*mended, back_to(3), since=4) == Undone(version=3, restored=1, whole=4)


def test_no_version_has_all_rows_once_some_were_added_behind_a_gap():
    assert history(ADDED, ADDED, back_to(1), ADDED) == Undone(version=3, restored=1, whole=None)


def test_a_restore_to_a_time_may_have_taken_everything_since_the_table_was_made():
    assert history(ADDED, entry(restored=delta_log.UNKNOWN)) == Undone(version=2, restored=-1, whole=1)


def test_what_was_looked_at_before_is_not_looked_at_again():
    assert history(ADDED, ADDED, back_to(1), OTHER, since=3) is None


def test_entries_that_are_gone_are_taken_for_good_unless_a_restore_went_back_behind_them():
    assert history(None, ADDED, OTHER) is None
    assert history(None, ADDED, back_to(2)) is None
    assert history(ADDED, None, back_to(1)) == Undone(version=3, restored=1, whole=2)


@dataclass
class Model:
    """A table as the rows of each version; beside it, what we added and whether a version has it all."""

    entries: list[Entry] = field(default_factory=lambda: [entry(files=0)])
    rows: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])
    ours: set[int] = field(default_factory=set)

    def step(self, kind: int) -> None:
        """Add rows of ours (0), of others (1), or bring a version back."""
        version = len(self.rows)
        if kind < 2:
            self.entries.append(ADDED if kind == 0 else OTHER)
            self.rows.append(self.rows[-1] | {version})
            self.ours |= {version} if kind == 0 else set()
        else:
            self.entries.append(back_to(kind % version))
            self.rows.append(self.rows[kind % version])


@given(st.lists(st.integers(0, 30), max_size=12))
def test_what_is_told_is_what_a_table_of_rows_shows(kinds):
    model, since = Model(), 0
    for kind in kinds:
        model.step(kind)
        head = len(model.rows) - 1
        for looked_at in {0, since}:
            found = undone(model.entries.__getitem__, since=looked_at, head=head, prefix=OURS)
            assert (found is None) == (model.ours <= model.rows[head])
            if found and found.whole is not None:
                assert model.ours <= model.rows[found.whole]
        if found is None:
            since = head


def test_the_entries_of_deltalake_are_understood(tmp_path):
    path = tmp_path / "t"
    for app in (f"{OURS}0", f"{OURS}1"):
        properties = CommitProperties(app_transactions=[Transaction(app, 5)])
        write_deltalake(path, pa.table({"a": [1, 2, 3]}), mode="append", commit_properties=properties)
    DeltaTable(path).restore(0)
    added = delta_log.entry(TableDirectory(path), 1)
    assert (added.restored, added.transactions, added.files, added.records) == (None, {f"{OURS}1": 5}, 1, 3)
    assert added.size_bytes == sum(f.stat().st_size for f in path.glob("*.parquet")) / 2
    assert delta_log.entry(TableDirectory(path), 2).restored == 0
    assert delta_log.entry(TableDirectory(path), 3) is None
    found = undone(lambda v: delta_log.entry(TableDirectory(path), v), since=0, head=2, prefix=OURS)
    assert found == Undone(version=2, restored=0, whole=1)


def test_the_entries_of_delta_s_spark_are_understood(tmp_path):
    """Lines as Delta 4.4 wrote them."""
    log = tmp_path / delta_log.LOG
    log.mkdir()
    to_version = '{"version":1,"timestamp":null}'
    to_time = '{"version":null,"timestamp":"2026-11-22 14:00:00.0"}'
    for number, parameters in enumerate((to_version, to_time)):
        text = f'{{"commitInfo":{{"operation":"RESTORE","operationParameters":{parameters}}}}}\n'
        (log / f"{number:020d}.json").write_text(text)
    assert delta_log.entry(TableDirectory(tmp_path), 0).restored == 1
    assert delta_log.entry(TableDirectory(tmp_path), 1).restored == delta_log.UNKNOWN
    (log / f"{2:020d}.json").write_text("{")
    with pytest.raises(StoreError, match=r"2\.json is damaged: .*; copy the table back from a backup"):
        delta_log.entry(TableDirectory(tmp_path), 2)
