"""A partition against a list: whatever is done to it, by whichever of two logs, it reads as the list does.

Two logs have the same directory open, as two processes would; every operation goes through one of them.
"""

import itertools
import shutil
import tempfile
from bisect import bisect_left
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logstore.env import Env, OsFiles
from logstore.errors import OffsetOutOfRangeError
from logstore.records.batch import header_at
from tests.support.coarse_times import Coarse
from tests.support.disk import Disk, StillClock
from tests.support.partition import append, batch, contents, make, names, reopen
from tests.support.repeats import times

SETTINGS = {
    "segment_bytes": 600,
    "index_interval_bytes": 120,
    "max_message_bytes": 600,
    "segment_ms": 5_000,
    "cleanup_policy": frozenset({"compact"}),  # or the gaps that the follower's side leaves would be damage
}

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=6)
sides = st.integers(0, 1)
damages = st.sampled_from(["gone", "empty", "zeros", "short", "foreign", "torn entry"])


class LogMachine(RuleBasedStateMachine):
    """`rows` is the model: (offset, value, timestamp, base offset of its batch)."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="pylog-model-"))
        self.env = Env(StillClock(), self.files())
        self.env.files.mkdir(self.root)
        first = make(self.root, self.env, **SETTINGS)
        self.logs = [first, reopen(first.directory, self.env, **SETTINGS)]
        self.rows: list[tuple[int, bytes, int, int]] = []
        self.start = self.end = self.flushed = 0
        self.numbers = itertools.count()

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root, ignore_errors=True)

    def new_batch(self, count: int, base: int, timestamp: int) -> bytearray:
        values = [b"value %d" % next(self.numbers) for _ in range(count)]
        self.rows += [(base + i, v, timestamp + i, base) for i, v in enumerate(values)]
        self.end = base + count
        return batch(*values, first=base, timestamp=timestamp, epoch=0)

    @rule(side=sides, counts=sizes, timestamp=st.integers(0, 20_000), as_owner=st.booleans())
    def append(self, side, counts, timestamp, as_owner) -> None:
        first = self.end
        data = bytearray().join(self.new_batch(n, self.end, timestamp) for n in counts)
        info = append(self.logs[side], data, as_owner=as_owner)
        assert (info.first_offset, info.next_offset) == (first, self.end)

    @rule(side=sides, gaps=st.lists(st.integers(0, 5), min_size=1, max_size=4), timestamp=st.integers(0, 20_000))
    def append_as_follower(self, side, gaps, timestamp) -> None:
        if not self.logs[side].segments():
            self.start = self.end + gaps[0]
        data = bytearray().join(self.new_batch(2, self.end + gap, timestamp) for gap in gaps)
        assert self.logs[side].append_as_follower(bytes(data)).next_offset == self.end

    @rule(side=sides)
    def roll(self, side) -> None:
        self.logs[side].roll()

    @rule(side=sides)
    def flush(self, side) -> None:
        self.flushed = self.logs[side].flush()
        assert self.flushed == self.end

    @rule(side=sides, data=st.data())
    def truncate(self, side, data) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        if offset < self.end:
            held = next((row for row in self.rows if row[0] >= offset), None)
            keep = min(held[3] if held else self.end, self.end)
            self.rows = [row for row in self.rows if row[0] < keep]
            self.logs[side].truncate_to(offset)
            self.end = self.logs[side].log_end_offset
            assert self.end <= offset
            self.flushed = min(self.flushed, self.end)
            for log in self.logs:
                log.point.offset = min(log.point.offset, self.end)
            assert self.end == max([self.start, *(row[0] + 1 for row in self.rows)]) or self.gap_before_end()

    def gap_before_end(self) -> bool:
        """A segment's name remembers a gap, so the end may lie behind the last record."""
        return self.end == self.logs[0].segments()[-1].base_offset

    @rule(side=sides)
    def reopen(self, side) -> None:
        old = self.logs[side]
        old.close()
        self.logs[side] = reopen(old.directory, self.env, recovery_point=self.flushed, **SETTINGS)

    @precondition(lambda self: self.rows)
    @rule(side=sides, kind=damages, suffix=st.sampled_from([".index", ".timeindex"]), pick=st.integers(0, 99))
    def damage_an_index_and_reopen(self, side, kind, suffix, pick) -> None:
        segments = self.logs[side].segments()
        path = Path(segments[pick % len(segments)].path).with_suffix(suffix)
        damage(self.env.files, path, kind)
        self.reopen(side)
        self.reopen(1 - side)

    @rule(side=sides)
    def recover(self, side) -> None:
        gaps = any(b[0] > a[0] + 1 for a, b in itertools.pairwise(self.rows))
        if not gaps and self.rows:
            report = self.logs[side].recover()
            assert (report.log_end_offset, report.cut_bytes) == (self.end, 0)
            assert not [found for found in self.logs[side].verify() if found.path.endswith(".log")]

    # -------------------------------------------------------------------- laws

    @rule(side=sides)
    def look_at_the_segments(self, side) -> None:
        new = reopen(self.logs[side].directory, self.env, recovery_point=self.flushed, **SETTINGS)
        assert self.logs[side].segments() == new.segments()
        assert names(self.logs[side]) == names(new)

    @invariant()
    def both_know_the_offsets(self) -> None:
        for log in self.logs:
            assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)

    @rule(side=sides, data=st.data())
    def read_anywhere(self, side, data) -> None:
        log = self.logs[side]
        offset = data.draw(st.integers(self.start, self.end))
        upper = data.draw(st.none() | st.integers(offset, self.end + 2))
        max_bytes = data.draw(st.integers(1, 900))
        limit = self.end if upper is None else upper
        expected = [row[:2] for row in self.rows if limit > offset <= row[0] and row[3] < limit]
        assert contents(log, offset, max_bytes=max_bytes, upper=upper) == expected
        result = log.read(offset, max_bytes=max_bytes, upper=upper)
        if result.data:
            first = header_at(result.data)
            assert len(result.data) <= max_bytes or len(result.data) == first.size_bytes
            assert first.last_offset >= offset

    @rule(side=sides)
    def read_outside(self, side) -> None:
        for offset in (self.start - 1, self.end + 1):
            with pytest.raises(OffsetOutOfRangeError):
                self.logs[side].read(offset, max_bytes=100)

    @rule(side=sides, timestamp=st.integers(0, 21_000))
    def look_up_a_time(self, side, timestamp) -> None:
        found = self.logs[side].reader.offset_for_time(timestamp)
        expected = next(((o, t) for o, _, t, _ in self.rows if t >= timestamp), None)
        assert found == expected

    @rule(side=sides, data=st.data(), max_bytes=st.integers(1, 2_000))
    def look_up_bytes(self, side, data, max_bytes) -> None:
        log, offset = self.logs[side], data.draw(st.integers(self.start, self.end))
        bases = sorted({row[3] for row in self.rows})
        held = next((row[3] for row in self.rows if row[0] >= offset), self.end)
        assert log.reader.floor_batch(offset) == held
        start = log.reader.offset_before_bytes(offset, max_bytes)
        if start > self.start:  # no later batch, from which to the offset there are as many bytes
            assert log.reader.bytes_between(start, offset) >= max_bytes
            following = bases[bisect_left(bases, log.reader.floor_batch(start)) + 1 :][:1] or [self.end]
            assert log.reader.bytes_between(following[0], offset) < max_bytes
        end = log.reader.offset_after_bytes(offset, max_bytes)
        if held == self.end:
            assert end == self.end
            return
        size = log.reader.bytes_between(offset, end)
        one = bases[bisect_left(bases, held) + 1 :][:1] or [self.end]
        assert offset < end
        assert size <= max_bytes or log.reader.floor_batch(end) == one[0]
        if end < self.end:  # the next batch does not fit
            following = bases[bisect_left(bases, log.reader.floor_batch(end)) + 1 :][:1] or [self.end]
            assert log.reader.bytes_between(offset, following[0]) > max_bytes


def damage(files, path: Path, kind: str) -> None:
    if files.stat(path) is None:
        return
    content = files.read_all(path)
    if kind == "gone":
        files.unlink(path)
        return
    files.truncate(path, 0)
    if kind == "zeros":
        files.write(path, 0, bytes(len(content)))
    elif kind == "short":
        files.write(path, 0, content[: len(content) // 2])
    elif kind == "foreign":
        files.write(path, 0, b"\x00\x00\x00\x07" * (len(content) // 4))
    elif kind == "torn entry":
        files.write(path, 0, content + b"\x00\x00\x01")


class InMemory(LogMachine):
    def files(self):
        return Disk()


class OnDisk(LogMachine):
    def files(self):
        return OsFiles(open_files_max=4)


class OnCoarseTimes(LogMachine):
    def files(self):
        return Coarse(open_files_max=4)


TestInMemory = InMemory.TestCase
TestInMemory.settings = settings(
    max_examples=times(40, 240),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestOnDisk = OnDisk.TestCase
TestOnDisk.settings = settings(
    max_examples=times(12, 60), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestOnCoarseTimes = OnCoarseTimes.TestCase
TestOnCoarseTimes.settings = TestOnDisk.settings
