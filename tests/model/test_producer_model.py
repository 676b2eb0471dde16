"""Producers and transactions against Kafka's rules, written down plainly over a list of batches.

Two logs have the same directory open, as two processes would. The model keeps every batch and works out each answer
from all of them; the logs keep states, snapshots and indexes, any of which may be damaged at any time. (T1, T3, T5)
"""

import itertools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logstore.env import Env, OsFiles
from logstore.errors import (
    OutOfOrderSequenceError,
    ProducerFencedError,
    TransactionRepeatError,
    TransactionStateError,
    UnknownProducerError,
)
from logstore.log import isolation
from logstore.log.producers import tracker
from logstore.records.batch import TRANSACTIONAL, Record, build
from logstore.store.reading import read_isolated
from tests.model.test_log_model import damage
from tests.support.coarse_times import Coarse
from tests.support.disk import Disk, StillClock
from tests.support.partition import append, appended, ended, make, names, reopen
from tests.support.repeats import times

SETTINGS = {"segment_bytes": 1_200, "index_interval_bytes": 200, "max_message_bytes": 600}
REFUSALS = (
    OutOfOrderSequenceError,
    ProducerFencedError,
    TransactionRepeatError,
    TransactionStateError,
    UnknownProducerError,
)

sides = st.integers(0, 1)
ids = st.integers(1, 3)


@dataclass
class Stored:
    """One batch of the model; `ends` is COMMIT or ABORT in a control batch."""

    offset: int
    count: int
    producer: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    ends: str = ""
    values: tuple[bytes, ...] = ()

    @property
    def next_offset(self) -> int:
        return self.offset + self.count


class Model:
    def __init__(self) -> None:
        self.batches: list[Stored] = []

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def of(self, producer: int) -> list[Stored]:
        return [b for b in self.batches if b.producer == producer]

    def epoch(self, producer: int) -> int | None:
        return max((b.epoch for b in self.of(producer)), default=None)

    def data_of_epoch(self, producer: int) -> list[Stored]:
        """The data batches since the producer's epoch began."""
        return [b for b in self.of(producer) if b.epoch == self.epoch(producer) and not b.ends]

    def next_sequence(self, producer: int) -> int:
        data = self.data_of_epoch(producer)
        return (data[-1].sequence + data[-1].count) % 2**31 if data else 0

    def opened(self, producer: int) -> int | None:
        """The first offset of the open transaction."""
        since = None
        for b in self.of(producer):
            if b.ends:
                since = None
            elif b.transactional and since is None:
                since = b.offset
        return since

    def refusal(self, producer, epoch, sequence, transactional):
        current, opened = self.epoch(producer), self.opened(producer)
        if current is None:
            return UnknownProducerError if sequence and not transactional else None
        if epoch < current:
            return ProducerFencedError
        if opened is not None and (epoch > current or not transactional):
            return TransactionStateError
        expected = self.next_sequence(producer) if epoch == current else 0
        if sequence == expected:
            return None
        is_used = epoch == current and (expected - sequence) % 2**31 <= 2**30
        is_repeat = transactional and opened is None and is_used
        return TransactionRepeatError if is_repeat else OutOfOrderSequenceError

    def duplicate(self, producer, epoch, sequence, count) -> Stored | None:
        if epoch != self.epoch(producer):
            return None
        last = [b for b in self.data_of_epoch(producer)[-5:] if (b.sequence, b.count) == (sequence, count)]
        return last[0] if last else None

    def last_stable_offset(self) -> int:
        opened = [self.opened(p) for p in {b.producer for b in self.batches if b.producer >= 0}]
        return min((o for o in opened if o is not None), default=self.end)

    def aborted(self) -> list[tuple[int, int, int]]:
        """(producer, first offset, marker's offset), by the marker's."""
        found, since = [], {}
        for b in self.batches:
            if b.ends:
                first = since.pop(b.producer, None)
                if first is not None and b.ends == "ABORT":
                    found.append((b.producer, first, b.offset))
            elif b.transactional:
                since.setdefault(b.producer, b.offset)
        return found

    def committed(self, start: int, end: int) -> list[tuple[int, bytes]]:
        """(offset, value) of what a reader of committed data sees."""
        gone, rows = self.aborted(), []
        for b in self.batches:
            if b.ends or (b.transactional and any(p == b.producer and f <= b.offset < m for p, f, m in gone)):
                continue
            rows += [(b.offset + i, v) for i, v in enumerate(b.values)]
        return [row for row in rows if start <= row[0] < min(end, self.last_stable_offset())]


class ProducerMachine(RuleBasedStateMachine):
    @initialize(suffix=st.sampled_from([".txnindex", ".txncheck"]))
    def begin(self, suffix) -> None:
        self.damaged = suffix  # one of the pair: the other tells
        self.root = Path(tempfile.mkdtemp(prefix="pylog-model-"))
        self.env = Env(StillClock(), self.files())
        self.env.files.mkdir(self.root)
        first = make(self.root, self.env, **SETTINGS)
        self.logs = [first, reopen(first.directory, self.env, **SETTINGS)]
        self.model = Model()
        self.numbers = itertools.count()
        self.flushed = 0

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root, ignore_errors=True)

    def encoded(self, stored: Stored) -> bytearray:
        rows = [Record(stored.offset + i, 1000, None, v) for i, v in enumerate(stored.values)]
        flags = TRANSACTIONAL if stored.transactional else 0
        return build(rows, attributes=flags, producer=(stored.producer, stored.epoch, stored.sequence))

    def values(self, count: int) -> tuple[bytes, ...]:
        return tuple(b"value %d" % next(self.numbers) for _ in range(count))

    # ------------------------------------------------------------------- rules

    @rule(side=sides, count=st.integers(1, 3))
    def append_without_producer(self, side, count) -> None:
        stored = Stored(self.model.end, count, values=self.values(count))
        appended(self.logs[side], self.encoded(stored))
        self.model.batches.append(stored)

    @rule(
        side=sides,
        producer=ids,
        transactional=st.booleans(),
        counts=st.lists(st.integers(1, 3), min_size=1, max_size=9),
        epoch_step=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
        shift=st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
        begins=st.sampled_from([0, 2**31 - 3]),
        as_owner=st.booleans(),
    )
    def append(self, side, producer, transactional, counts, epoch_step, shift, begins, as_owner) -> None:  # noqa: PLR0917
        model, log = self.model, self.logs[side]
        current = model.epoch(producer)
        epoch = max(0, (current or 0) + epoch_step)
        expected = begins if current is None else model.next_sequence(producer) if epoch == current else 0
        sequence, offset, request = (expected + shift) % 2**31, model.end, []
        for count in counts:
            request.append(Stored(offset, count, producer, epoch, sequence, transactional, "", self.values(count)))
            sequence, offset = (sequence + count) % 2**31, offset + count
        if model.duplicate(producer, epoch, request[0].sequence, request[0].count):
            return  # by chance: has a rule of its own
        refusal = model.refusal(producer, epoch, request[0].sequence, transactional)
        data = bytearray().join(self.encoded(stored) for stored in request)
        try:
            info = append(log, data, as_owner=as_owner)
        except REFUSALS as error:
            assert type(error) is refusal, (error, refusal)  # noqa: PT017 - which one is what is tested
            return
        assert refusal is None
        assert (info.first_offset, info.next_offset, info.is_duplicate) == (model.end, offset, False)
        model.batches += request

    @rule(side=sides, producer=ids, back=st.integers(1, 8), length=st.integers(1, 9), as_owner=st.booleans())
    def append_again(self, side, producer, back, length, as_owner) -> None:
        """A retry of batches that are there, one behind the other, and none that are not.

        A batch of a transaction that has ended is repeated by nothing.
        """
        model = self.model
        data = model.data_of_epoch(producer)
        request = data[-back:][:length]
        if not request or any(a.next_offset != b.offset for a, b in itertools.pairwise(request)):
            return
        opened = model.opened(producer)
        is_known = request[-1] in data[-5:] and not any(
            each.transactional and (opened is None or each.offset < opened) for each in request if each in data[-5:]
        )
        raw = bytearray().join(self.encoded(stored) for stored in request)
        try:
            info = append(self.logs[side], raw, as_owner=as_owner)
        except REFUSALS:
            assert not is_known
            return
        assert is_known
        assert info[:2] == (request[0].offset, request[-1].next_offset)
        assert info.is_duplicate

    @rule(side=sides, producer=ids, commit=st.booleans(), epoch_step=st.sampled_from([0, 0, 0, 1, -1]))
    def append_marker(self, side, producer, commit, epoch_step) -> None:
        model = self.model
        current = model.epoch(producer)
        epoch = (current or 0) + epoch_step
        if epoch < 0:
            return
        try:
            offset = ended(self.logs[side], producer, epoch, commit=commit)
        except ProducerFencedError:
            assert epoch < current
            return
        assert current is None or epoch >= current
        if model.opened(producer) is None:
            assert offset is None
            return
        assert offset == model.end
        model.batches.append(
            Stored(offset, 1, producer, epoch, -1, transactional=True, ends="COMMIT" if commit else "ABORT")
        )

    @rule(side=sides)
    def roll(self, side) -> None:
        self.logs[side].roll()

    @rule(side=sides)
    def flush(self, side) -> None:
        self.flushed = self.logs[side].flush()

    @rule(side=sides, data=st.data())
    def truncate(self, side, data) -> None:
        offset = data.draw(st.integers(0, self.model.end))
        if offset < self.model.end:
            self.logs[side].truncate_to(offset)
            self.model.batches = [b for b in self.model.batches if b.next_offset <= offset]
            self.flushed = min(self.flushed, self.model.end)
            for log in self.logs:
                log.point.offset = min(log.point.offset, self.model.end)

    @rule(side=sides)
    def reopen(self, side) -> None:
        old = self.logs[side]
        old.close()
        self.logs[side] = reopen(old.directory, self.env, recovery_point=self.flushed, **SETTINGS)

    @precondition(lambda self: self.model.batches)
    @rule(
        side=sides,
        kind=st.sampled_from(["empty", "zeros", "short", "foreign", "torn entry", "gone"]),
        pick=st.integers(0, 99),
    )
    def damage_an_index(self, side, kind, pick) -> None:
        segments = self.logs[side].segments()
        damage(self.env.files, Path(segments[pick % len(segments)].path).with_suffix(self.damaged), kind)

    @rule(side=sides, kind=st.sampled_from(["empty", "zeros", "short", "foreign"]), pick=st.integers(0, 99))
    def damage_a_snapshot(self, side, kind, pick) -> None:
        names = [n for n in self.env.files.list(self.logs[0].directory).names if n.endswith(".snapshot")]
        if names:
            damage(self.env.files, self.logs[0].directory / sorted(names)[pick % len(names)], kind)
            self.reopen(side)

    @rule(side=sides)
    def recover(self, side) -> None:
        report = self.logs[side].recover()
        assert (report.log_end_offset, report.cut_bytes) == (self.model.end, 0)
        assert list(self.logs[side].verify()) == []
        again = self.logs[side].recover()
        assert (again.removed, again.rebuilt) == ((), ())

    # -------------------------------------------------------------------- laws

    @invariant()
    def both_know_what_is_decided(self) -> None:
        for log in self.logs:
            assert log.log_end_offset == self.model.end
            assert log.producers.last_stable_offset == self.model.last_stable_offset()
            opened = {t.producer_id: t.first_offset for t in log.producers.open_transactions()}
            wanted = {p: self.model.opened(p) for p in (1, 2, 3)}
            assert opened == {p: o for p, o in wanted.items() if o is not None}

    @rule(side=sides)
    def both_know_the_names(self, side) -> None:
        assert names(self.logs[side]) == names(reopen(self.logs[side].directory, self.env, **SETTINGS))

    @rule(side=sides)
    def both_know_the_producers(self, side) -> None:
        known = {s.producer_id: (s.epoch, s.last_sequence, s.last_offset) for s in self.logs[side].producers.states()}
        wanted = {}
        for producer in (1, 2, 3):
            if self.model.of(producer):
                data = self.model.data_of_epoch(producer)[-1:]
                last = (self.model.next_sequence(producer) - 1) % 2**31 if data else -1
                wanted[producer] = (self.model.epoch(producer), last, data[0].next_offset - 1 if data else -1)
        assert known == wanted

    @rule(side=sides, data=st.data())
    def read_what_is_committed(self, side, data) -> None:
        log, model = self.logs[side], self.model
        start = data.draw(st.integers(0, model.end))
        end = data.draw(st.integers(start, model.end))
        found = [
            (offset, value)
            for part in read_isolated(log, start, end, ["offset", "value"], "read_committed")
            for offset, value in zip(*(part[c].to_pylist() for c in ("offset", "value")), strict=True)
        ]
        assert found == model.committed(start, end)
        assert isolation.committed_end(log) == model.last_stable_offset()
        aborted = [tuple(t[:3]) for t in log.producers.aborted(start, end)]
        assert aborted == [t for t in model.aborted() if t[2] >= start and t[1] < end]


class InMemory(ProducerMachine):
    def files(self):
        return Disk()


class OnDisk(ProducerMachine):
    def files(self):
        return OsFiles(open_files_max=4)


class OnCoarseTimes(ProducerMachine):
    def files(self):
        return Coarse(open_files_max=4)


class OftenSnapshots(ProducerMachine):
    """Snapshots within segments, as a log of many small batches has them."""

    def files(self):
        self.batches = tracker.SNAPSHOT_BATCHES
        tracker.SNAPSHOT_BATCHES = 3
        return Disk()

    def teardown(self) -> None:
        tracker.SNAPSHOT_BATCHES = getattr(self, "batches", tracker.SNAPSHOT_BATCHES)
        super().teardown()


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )


TestInMemory = InMemory.TestCase
TestInMemory.settings = _settings(times(40, 240))
TestOnDisk = OnDisk.TestCase
TestOnDisk.settings = _settings(times(8, 40))
TestOftenSnapshots = OftenSnapshots.TestCase
TestOftenSnapshots.settings = _settings(times(20, 80))
TestOnCoarseTimes = OnCoarseTimes.TestCase
TestOnCoarseTimes.settings = _settings(times(8, 40))
