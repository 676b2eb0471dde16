"""A journal of transactions that is not what it was: damage is told, and no batch comes twice."""

from __future__ import annotations

import os
import shutil

import pyarrow as pa
import pytest

import logstore
from tests.support.transactions import is_settled, values


def cut_last_decision(journal):
    os.truncate(journal, journal.read_bytes().rfind(b'["decide"') - 12)


def cut_in_half(journal):
    os.truncate(journal, journal.stat().st_size // 2)


def empty(journal):
    os.truncate(journal, 0)


def fill_with_zeros(journal):
    journal.write_bytes(bytes(journal.stat().st_size))


def remove(journal):
    journal.unlink()


def remove_directory(journal):
    shutil.rmtree(journal.parent)


DAMAGES = [cut_last_decision, cut_in_half, empty, fill_with_zeros, remove, remove_directory]


def write_batches(store, numbers=range(6)):
    for n in numbers:
        with store.transaction("q", batch_id=n) as transaction:
            store.append("a", pa.table({"value": [f"{n}"]}), transaction=transaction)


def check_damage_is_told(path, *, last):
    journal = str(path / "transactions" / "journal")
    with logstore.open(path) as store:
        with pytest.raises(logstore.CorruptLogError, match=r"missing from here on; .*`pylog recover`") as caught:
            store.transaction("q", batch_id=last)
        assert caught.value.path == journal
        store.append("b", pa.table({"value": ["plain"]}))
        assert values(store, "b")
    logstore.recover(path)
    with logstore.open(path) as store:
        found = values(store)
        for n in range(3):  # no id is given again that the logs know
            with store.transaction("q", batch_id=last + n + 1) as transaction:
                rows = pa.table({"value": ["new", "new"], "partition": [0, 1]})
                store.append("a", rows, transaction=transaction)
        assert values(store) == sorted([*found, *["new"] * 6])
        assert is_settled(store)
        return found


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_journal_that_lost_lines_is_damage_and_no_batch_comes_twice(path, damage):
    with logstore.open(path) as store:
        write_batches(store)
    damage(path / "transactions" / "journal")
    assert check_damage_is_told(path, last=5) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("damage", DAMAGES[1:])
def test_what_was_synced_before_a_kill_does_not_vanish_either(path, damage):
    killed = path.with_name("killed")
    with logstore.open(path) as store:
        write_batches(store)
        shutil.copytree(path, killed)
    damage(killed / "transactions" / "journal")
    check_damage_is_told(killed, last=5)


def test_a_store_of_a_version_that_noted_no_length_opens(path):
    with logstore.open(path) as store:
        write_batches(store)
    (path / "recovery-point-offset-checkpoint").unlink()
    with logstore.open(path) as store:
        assert store.transaction("q", batch_id=5).is_replay
        write_batches(store, range(5, 8))
        assert values(store) == [f"{n}" for n in range(8)]
    assert "#journal" in (path / "recovery-point-offset-checkpoint").read_text()
