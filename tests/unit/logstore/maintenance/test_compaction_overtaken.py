"""Compaction and readers of a partition that another process changes between two of their file calls."""

import pytest

from logstore.env import Env
from logstore.log.segments.directory import LOCK
from logstore.maintenance import compaction, retention
from logstore.records.batch import Record, batches, build, records
from tests.support.disk import Disk, StillClock
from tests.support.partition import appended, make, reopen
from tests.support.repeats import times

SETTINGS = {
    "cleanup_policy": frozenset({"compact"}),
    "segment_bytes": 400,
    "max_message_bytes": 400,
    "index_interval_bytes": 100,
    "min_cleanable_dirty_ratio": 0.0,
    "file_delete_delay_ms": 0,
}
COUNT = 10
TIMES_MAX = 60  # what waits for it to end has given up long before


class MeddledFiles:
    """The disk as one process sees it: before each of its calls in `directory`, another may do something."""

    def __init__(self, disk, directory, meddle):
        self._disk, self._directory, self._meddle = disk, str(directory), meddle
        self.calls = 0

    def __getattr__(self, name):
        value = getattr(self._disk, name)
        if not callable(value):
            return value

        def call(path, *arguments, **keywords):
            if str(path).startswith(self._directory):
                self.calls += 1
                self._meddle(self.calls)
            return value(path, *arguments, **keywords)

        return call


def append(log, number):
    appended(log, build([Record(0, 1000, b"key %d" % (number % 3), b"value %d" % number)]))


def filled(root, once=0):
    """A disk with a partition of many segments, and its log as another process has it open.

    `once`: so many keys that come once are before all others.
    """
    disk = Disk()
    disk.mkdir(root)
    log = make(root, Env(files=disk, clock=StillClock()), **SETTINGS)
    for number in range(once):
        appended(log, build([Record(0, 1000, b"once %d" % number, b"value 0")]))
    for number in range(COUNT):
        append(log, number)
    log.flush()
    return disk, log


class Compactor:
    """Another process: it appends until a segment is full, compacts, and removes what is old; `times` times."""

    def __init__(self, times, log):
        self._log, self._times = log, times
        self.number = COUNT

    def __call__(self):
        for _ in range(5):
            append(self._log, self.number)
            self.number += 1
        compaction.compact(self._log)
        retention.remove_deleted(self._log)
        self._times -= 1
        return self._times > 0

    @property
    def latest(self):
        """The records that readers must find."""
        return {b"key %d" % (n % 3): n for n in range(self.number - 3, self.number)}


class Overtaken:
    """A log as one process has it open, and files that know whether another may meddle."""

    def __init__(self, root, when, other_of, once=0):
        self._disk, theirs = filled(root, once)
        self._when, self._is_on = when, False
        self.files = MeddledFiles(self._disk, theirs.directory, self._meddle)
        self.log = reopen(theirs.directory, Env(files=self.files, clock=StillClock()), **SETTINGS)
        self.other = other_of(theirs, self.log)
        self._lock = str(theirs.directory / LOCK)

    def do(self, work):
        """Do the work while the other meddles; return how many calls it took."""
        self._is_on, self.files.calls = True, 0
        work(self.log)
        self._is_on = False
        return self.files.calls

    def _meddle(self, call):
        if self._is_on and self._when(call) and not self._disk.locks.get(self._lock):
            self._is_on = False
            self._is_on = self.other()


def overtaken_once(root, work, other_of):
    """For every few file calls of the work: the log and the other, who came before that call or soon after it."""
    call = total = 1
    while call <= total:
        case = Overtaken(root, lambda now, call=call: now >= call, other_of)
        total, call = max(total, case.do(work)), call + times(7, 3)
        yield case.log, case.other


def latest(log):
    """The last value of every key that a reader finds."""
    found, offset = {}, log.log_start_offset
    while (result := log.read(offset, max_bytes=1 << 20)).data:
        for position, _ in batches(result.data):
            for record in records(result.data, position):
                found[record.key] = int(record.value.split()[1])
        offset = result.next_offset
    return found


def looks(log):
    """Whatever looks at the whole of a log without changing it."""
    log.segments()
    log.producers.undecided()
    log.producers.states()
    log.reader.bytes_between(0, log.log_end_offset)
    return latest(log)


WORK = {
    "compact": compaction.compact,
    "dry run": lambda log: compaction.compact(log, dry_run=True),
    "looks": looks,
    "flush": lambda log: log.flush(),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_whoever_is_overtaken_once_at_any_of_its_file_calls_does_its_work(root, work):
    for log, other in overtaken_once(root, work, lambda theirs, mine: Compactor(1, theirs)):
        assert latest(log) == other.latest
        assert list(log.verify()) == []


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("every", [1, 2, 3, 5][:: times(3, 1)])
def test_whoever_is_overtaken_without_end_does_its_work(root, work, every):
    case = Overtaken(root, lambda call: call % every == 0, lambda theirs, mine: Compactor(TIMES_MAX, theirs))
    case.do(work)
    assert latest(case.log) == case.other.latest


CHANGES = {
    "retention": lambda theirs, mine: theirs.advance_start(8),
    "truncation": lambda theirs, mine: mine.truncate_to(3),
    "truncation of almost all": lambda theirs, mine: mine.truncate_to(1),
    "a new start": lambda theirs, mine: mine.start_anew(30),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_log_that_is_cut_while_it_is_compacted_is_not_damaged(root, change):
    for log, _ in overtaken_once(root, compaction.compact, lambda *logs: lambda: change(*logs)):
        assert list(log.verify()) == []
        append(log, COUNT)
        assert latest(log)[b"key %d" % (COUNT % 3)] == COUNT


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_log_that_is_cut_while_the_beginning_of_a_segment_is_copied_is_not_damaged(root, monkeypatch, change):
    monkeypatch.setattr(compaction, "READ_BYTES", 90)  # one batch: of the first segment, the last one goes
    call = total = 1
    while call <= total:
        case = Overtaken(root, lambda now, call=call: now >= call, lambda *logs: lambda: change(*logs), once=3)
        total, call = max(total, case.do(compaction.compact)), call + times(4, 1)
        assert list(case.log.verify()) == []
