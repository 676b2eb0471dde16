"""A rewritten segment takes the place of those that it was made of, and of no others (S11, S20)."""

from pathlib import Path

import pytest

from logstore.env import Env
from logstore.maintenance import compaction
from tests.support.disk import Disk, StillClock
from tests.support.partition import make, reopen
from tests.unit.logstore.maintenance.test_compaction import SMALL, append, records


class Meddling(Disk):
    """Does something, once, when the rewritten segment is complete and nothing is decided yet."""

    meddle = None

    def fsync(self, path):
        super().fsync(path)
        if self.meddle is not None and str(path).endswith(".log.cleaned"):
            meddle, self.meddle = self.meddle, None
            meddle()


@pytest.fixture
def disk():
    meddling = Meddling()
    meddling.mkdir("/store")
    return meddling


@pytest.fixture
def log(disk):
    made = make(Path("/store"), Env(StillClock(), disk), **SMALL)
    for number in range(30):
        append(made, ("k", "v" * 50), (f"once {number}", "v"))
    made.flush()
    return made


@pytest.fixture
def other(log):
    """Another process's look at the log."""
    return reopen(log.directory, log.env, recovery_point=log.log_end_offset, **SMALL)


def test_segments_that_retention_took_meanwhile_do_not_come_back(disk, log, other):
    first_of_next = other.segments()[2].base_offset
    disk.meddle = lambda: other.advance_start(first_of_next)
    compaction.compact(log)
    assert disk.meddle is None
    assert log.log_start_offset == first_of_next == log.segments()[0].base_offset
    assert records(log)[0].offset >= first_of_next
    assert list(log.verify()) == []
    assert not [name for name in disk.names if name.endswith((".cleaned", ".swap"))]


def test_records_that_were_cut_meanwhile_do_not_come_back(disk, log):
    disk.meddle = lambda: log.truncate_to(5)
    compaction.compact(log)
    assert disk.meddle is None
    assert log.log_end_offset <= 5
    append(log, ("new", "v"))
    assert [record.key for record in records(log)][-1] == b"new"
    assert all(record.offset <= 5 for record in records(log))
    assert list(log.verify()) == []
