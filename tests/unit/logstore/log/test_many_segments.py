"""The file calls of an append, a roll and a lookup do not grow with the number of segments."""

from collections import Counter

import pytest

from logstore.env import Env, OsFiles
from logstore.maintenance.retention import expire
from tests.support.disk import StillClock
from tests.support.partition import appended, batch, contents, make, reopen

FEW, MANY = 4, 70  # more than there are paths kept for


class Counting(OsFiles):
    """Counts the calls, and the files that are opened: none stays open for long."""

    def __init__(self):
        super().__init__(open_files_max=4)
        self.calls = Counter()

    def asked(self, act):
        self.calls.clear()
        act()
        return dict(self.calls)


def counted(name):
    def call(self, *args, **options):
        self.calls[name] += 1
        return getattr(super(Counting, self), name)(*args, **options)

    return call


for _name in ("list", "stat", "read", "read_into", "read_all", "write", "create", "truncate", "unlink", "settle"):
    setattr(Counting, _name, counted(_name))


@pytest.fixture
def files():
    return Counting()


def rolled(log, count):
    """A log of so many segments of one record, and an active one."""
    for number in range(count):
        appended(log, batch(b"value %d" % number, timestamp=1000 * number))
        log.roll()
    appended(log, batch(b"last", timestamp=1000 * count))
    return log


def append_and_roll(log):
    appended(log, batch(b"x", timestamp=999_999))
    log.roll()


@pytest.mark.parametrize(
    "act",
    [
        append_and_roll,
        lambda log: appended(log, batch(b"x")),
        lambda log: log.read(2, max_bytes=100),
        lambda log: log.reader.offset_for_time(2000),
        lambda log: (append_and_roll(log), log.reader.offset_for_time(2000)),
        lambda log: (append_and_roll(log), expire(log, is_append=True)),
    ],
    ids=["roll", "append", "read", "time", "roll and time", "roll and expire"],
)
def test_a_log_of_many_segments_asks_no_more_of_its_files(tmp_path, files, act):
    log = rolled(make(tmp_path, Env(StillClock(), files), retention_bytes=10**9), FEW)
    log.reader.offset_for_time(0)
    files.asked(lambda: act(log))
    few = files.asked(lambda: act(log))
    rolled(log, MANY)
    log.reader.offset_for_time(0)
    files.asked(lambda: act(log))
    many = files.asked(lambda: act(log))
    assert many == few
    assert "list" not in many


def test_a_lookup_by_time_in_small_segments_reads_one_file(tmp_path, files):
    log = rolled(make(tmp_path, Env(StillClock(), files)), FEW)
    assert log.reader.offset_for_time(2000) == (2, 2000)
    read, really = [], files.read
    files.read = lambda path, *args: read.append(path) or really(path, *args)
    assert log.reader.offset_for_time(2000) == (2, 2000)
    assert set(read) == {log.files.segment(2).path}


def test_what_is_known_of_a_closed_segment_lives_through_a_roll_of_another_process(tmp_path, files):
    log = rolled(make(tmp_path, Env(StillClock(), files)), 10)
    log.reader.offset_for_time(0)
    other = reopen(log.directory, Env(StillClock(), OsFiles()))
    append_and_roll(other)
    asked = files.asked(lambda: log.reader.offset_for_time(2000))
    assert asked["list"] >= 1  # it sees that
    assert asked["stat"] >= 10
    assert asked["read"] <= 12  # the two new ones, and where the record is
    assert log.segments() == other.segments()


def test_a_log_keeps_few_paths_of_many_segments(tmp_path, files):
    log = rolled(make(tmp_path, Env(StillClock(), files)), MANY)
    assert [offset for offset, _ in contents(log)] == list(range(MANY + 1))
    assert len(log.files._segments) <= 64 < MANY
