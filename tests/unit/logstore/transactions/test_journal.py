"""The journal: lines that are there whole or not at all, for every process, after every crash."""

import pytest

from logstore.env import SYSTEM, Env
from logstore.errors import CorruptLogError, DiskFullError
from logstore.store.transactions import journal as txn_journal
from logstore.store.transactions.journal import Journal
from logstore.store.transactions.state import TransactionAttempt, TransactionOwner
from tests.support.disk import Crash, Disk, PowerCut, StillClock


def opened(producer_id, epoch=0):
    attempt = TransactionAttempt(
        name="q",
        batch_id=0,
        run="r",
        task="",
        producer_id=producer_id,
        epoch=epoch,
        partitions=(),
        owner=TransactionOwner(),
        seen_ms=0,
    )
    return ["open", attempt.to_json()]


def append(journal, *events):
    with journal.changing():
        return journal.append(list(events))


def ids(journal):
    return sorted(producer_id for producer_id, _ in journal.state().attempts)


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path, SYSTEM)


def test_a_store_without_transactions_has_no_journal(journal, tmp_path):
    assert ids(journal) == []
    assert list(tmp_path.iterdir()) == []


def test_every_process_sees_what_was_appended(journal, tmp_path):
    other = Journal(tmp_path, SYSTEM)
    assert ids(other) == []
    for n in range(3):
        append(journal if n % 2 else other, opened(n))
        assert ids(other) == ids(journal) == list(range(n + 1))


def test_what_a_killed_writer_left_of_a_line_is_cut(journal, tmp_path):
    append(journal, opened(0))
    with journal.path.open("ab") as file:
        file.write(b'0badc0de 2 [["open"')
    other = Journal(tmp_path, SYSTEM)
    assert ids(other) == ids(journal) == [0]
    append(other, opened(1))
    assert ids(journal) == ids(Journal(tmp_path, SYSTEM)) == [0, 1]


def test_a_journal_with_fewer_lines_than_are_noted_is_damaged_until_it_is_renewed(journal, tmp_path):
    for n in range(4):
        append(journal, opened(n))
        journal.sync() if n < 3 else None
    noted = journal.durable_lines
    assert noted == 4  # a snapshot, and three that were synced
    lines = journal.path.read_bytes().splitlines(keepends=True)
    for kept in range(6):
        journal.path.write_bytes(b"".join(lines[:kept]))
        other = Journal(tmp_path, SYSTEM, lambda: noted)
        if kept >= noted:
            assert ids(other) == list(range(kept - 1))
            continue
        with pytest.raises(CorruptLogError, match=f"{noted - kept} of its lines are missing"):
            other.state()
        with pytest.raises(CorruptLogError, match="are missing"), other.changing():
            pass
        assert not other.renew()
        append(other, opened(9))
        assert 9 in ids(Journal(tmp_path, SYSTEM, lambda: noted))


def test_a_process_notices_that_the_journal_that_it_knows_was_cut(journal):
    append(journal, opened(0))
    append(journal, opened(1))
    journal.sync()
    noting = Journal(journal.path.parents[1], SYSTEM, lambda: journal.durable_lines)
    assert ids(noting) == [0, 1]
    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(CorruptLogError, match="1 of its lines are missing"):
        noting.state()


def test_a_journal_that_has_grown_is_replaced_and_others_notice(journal, tmp_path, monkeypatch):
    monkeypatch.setattr(txn_journal, "JOURNAL_BYTES", 2_000)
    other, sizes = Journal(tmp_path, SYSTEM), []
    for epoch in range(60):
        append(journal, opened(0, epoch), ["gone", 0, epoch])
        sizes.append(journal.path.stat().st_size)
        assert other.state() == journal.state()
    assert max(sizes) < 6_000
    assert Journal(tmp_path, SYSTEM).state().epochs == {0: 59}


def test_a_full_disk_leaves_the_journal_as_it_was():
    disk = Disk()
    disk.mkdir("/store")
    from pathlib import Path

    journal = Journal(Path("/store"), Env(StillClock(), disk))
    append(journal, opened(0))
    disk.free_bytes = 40
    with pytest.raises(DiskFullError):
        append(journal, opened(1))
    assert ids(journal) == [0]
    disk.free_bytes = None
    append(journal, opened(2))
    assert ids(journal) == [0, 2]


def workload(disk):
    """Append, sync every second line; return the ids that were synced."""
    from pathlib import Path

    journal, synced = Journal(Path("/store"), Env(StillClock(), disk)), []
    written = []
    try:
        for n in range(4):
            append(journal, opened(n))
            written.append(n)
            if n % 2:
                journal.sync()
                synced = list(written)
                append(journal, ["durable", "q", n])
    except PowerCut:
        return synced, False
    return synced, True


@pytest.mark.parametrize("kind", list(Crash))
def test_whatever_crashes_synced_lines_stay_and_the_journal_can_be_written_on(kind):
    from pathlib import Path

    for crash_at in range(1, 1000):
        disk = Disk(crash_at=crash_at, seed=crash_at)
        disk.mkdir("/store")
        synced, is_over = workload(disk)
        disk = disk.after_crash(kind)
        journal = Journal(Path("/store"), Env(StillClock(), disk))
        journal.renew()
        found = ids(journal)
        assert found[: len(synced)] == synced, crash_at
        assert found == list(range(len(found))), crash_at
        append(journal, opened(9))
        assert ids(journal) == [*found, 9]
        if is_over:
            return
    pytest.fail("the workload does not end")


@pytest.mark.parametrize("position", range(0, 900, 37))
def test_a_flipped_bit_below_what_was_synced_is_reported_with_its_place(journal, tmp_path, position):
    for n in range(4):
        append(journal, opened(n))
    journal.sync()
    append(journal, ["durable", "q", 0])
    text = bytearray(journal.path.read_bytes())
    text[position] ^= 4
    journal.path.write_bytes(text)
    other = Journal(tmp_path, SYSTEM)
    with pytest.raises(CorruptLogError, match="journal: damaged at byte"):
        other.state()
    other.renew()  # what `pylog recover` does
    assert len(ids(other)) >= 3
