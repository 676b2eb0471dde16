"""The state of a share partition: Kafka's bytes, its fences, and that nothing which is answered is forgotten."""

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replication.coordinators.binary import UnknownRecordError
from replication.coordinators.share_state.machine import events
from replication.coordinators.share_state.machine.batches import DeliveryState, StateBatch, combined
from replication.coordinators.share_state.machine.records import Loaded, key_of, read_key, read_value, value_of
from replication.coordinators.share_state.machine.state import (
    SharePartitionKey,
    ShareStateSettings,
    Snapshot,
    Update,
)
from replication.coordinators.share_state.machine.step import ShareState, step
from replication.errors import ErrorCode

NAME = SharePartitionKey("workers", "AAAAAAAAAAAAAAAAAAAAAQ", 3)
NONE = ErrorCode.NONE
AVAILABLE, DONE, GIVEN_UP = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED
STATES = st.sampled_from((AVAILABLE, DONE, GIVEN_UP))
BATCHES = st.builds(
    lambda first, count, state, deliveries: StateBatch(first, first + count, state, deliveries),
    st.integers(0, 30),
    st.integers(0, 8),
    STATES,
    st.integers(1, 5),
)


def spread(batches):
    """Each offset's state and count; where several batches have it, the strongest."""
    found = {}
    for first, last, state, count in batches:
        for offset in range(first, last + 1):
            found[offset] = max(found.get(offset, (0, -1)), (count, int(state)))
    return found


@given(st.lists(BATCHES, max_size=8), st.lists(BATCHES, max_size=8), st.integers(0, 20))
def test_the_strongest_state_of_an_offset_counts(stored, newer, start):
    before = combined((), stored, 0)
    found = combined(before, newer, start)
    wanted = {offset: one for offset, one in spread([*stored, *newer]).items() if offset >= start}
    assert spread(found) == wanted
    assert all(one.last < other.first for one, other in pairwise(found))
    alike = [one for one, other in pairwise(found) if one.last + 1 == other.first and one[2:] == other[2:]]
    assert not alike, "neighbours that are alike are one"
    assert combined(found, newer, start) == found, "a repeated write changes nothing"


def test_the_bytes_of_keys_and_values():
    topic_id = "0000000000000000 0000000000000001"
    assert key_of(NAME, Snapshot()) == bytes.fromhex(f"0000 0007 776f726b657273 {topic_id} 00000003")
    assert key_of(NAME, Update())[:2] == bytes.fromhex("0001")
    assert key_of(NAME, None) == key_of(NAME, Snapshot())
    assert str(NAME) == "workers:AAAAAAAAAAAAAAAAAAAAAQ:3"
    batches = (StateBatch(5, 9, AVAILABLE, 2),)
    snapshot = Snapshot(
        snapshot_epoch=1, state_epoch=2, leader_epoch=3, start_offset=4, created_ms=5, written_ms=6, batches=batches
    )
    row = "0000000000000005 0000000000000009 00 0002 00"
    assert value_of(snapshot) == bytes.fromhex(
        f"0000 00000001 00000002 00000003 0000000000000004 0000000000000005 0000000000000006 02 {row} 00"
    )
    update = Update(snapshot_epoch=1, leader_epoch=3, start_offset=4, delivery_complete_count=7, batches=batches)
    assert value_of(update) == bytes.fromhex(f"0000 00000001 00000003 0000000000000004 02 {row} 01 00 04 00000007")


@given(st.lists(BATCHES, max_size=6), st.integers(0, 20), st.integers(-1, 9), st.booleans())
def test_what_is_written_is_read_again(batches, start, count, is_update):
    found = combined((), batches, start)
    kind = Update if is_update else Snapshot
    record = kind(snapshot_epoch=2, leader_epoch=3, start_offset=start, delivery_complete_count=count, batches=found)
    assert read_key(key_of(NAME, record)) == (int(is_update), NAME)
    assert read_value(int(is_update), value_of(record)) == record
    for cut in range(len(value_of(record))):
        with pytest.raises(UnknownRecordError):
            read_value(int(is_update), value_of(record)[:cut])


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_other_bytes_are_refused_or_skipped(key, value):
    with suppress(UnknownRecordError):
        Loaded().apply(0, key, value)


class Coordinator:
    """A machine and its log in memory; records on their way end as the test says."""

    settings = ShareStateSettings(share_coordinator_snapshot_update_records_per_snapshot=3)

    def __init__(self):
        self.state = ShareState()
        self.log = []
        self.now_ms = 1_000
        self.answers = {}
        self.appends = []
        self.asked = 0

    def post(self, event):
        self.state, effects = step(self.state, event, self.now_ms, self.settings)
        for effect in effects:
            if isinstance(effect, events.Answer):
                assert effect.request not in self.answers, "answered twice"
                self.answers[effect.request] = effect
            else:
                self.appends.append(effect)
                assert len(self.appends) == 1, "one record at a time"

    def ask(self, kind, **fields):
        self.asked += 1
        self.post(kind(request=self.asked, **fields))
        return self.asked

    def end_append(self, error=NONE, *, is_written=True):
        append = self.appends.pop()
        if is_written:
            self.log.append(append.record)
        self.post(events.Stored(append, error))

    def settle(self):
        while self.appends:
            self.end_append()

    def answer(self, kind, **fields):
        number = self.ask(kind, **fields)
        self.settle()
        return self.answers[number]

    def loaded(self):
        into = Loaded()
        for position, record in enumerate(self.log):
            into.apply(position, key_of(NAME, record), None if record is None else value_of(record))
        return into.states.get(NAME)

    def move(self):
        """Another broker becomes the coordinator."""
        self.post(events.Unloaded())
        for append in self.appends:
            self.log.append(append.record)  # it may be there
            self.post(events.Stored(append, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.appends = []
        found = self.loaded()
        self.state = ShareState(stored=found.stored, updates=found.updates) if found is not None else ShareState()


def written(coordinator, *batches, start=0, leader=1, epoch=1, count=0):
    return coordinator.answer(
        events.Write,
        state_epoch=epoch,
        leader_epoch=leader,
        start_offset=start,
        delivery_complete_count=count,
        batches=tuple(batches),
    )


@pytest.fixture
def coordinator():
    made = Coordinator()
    assert made.answer(events.Initialize, state_epoch=1, start_offset=0).error is NONE
    assert made.answer(events.Read, leader_epoch=1).found.start_offset == 0
    return made


def test_nothing_is_read_or_written_before_the_group_begins():
    fresh = Coordinator()
    assert fresh.answer(events.Read, leader_epoch=1).error is ErrorCode.INVALID_REQUEST
    assert written(fresh).error is ErrorCode.INVALID_REQUEST
    assert fresh.answer(events.Delete).error is NONE
    assert fresh.log == []


def test_an_earlier_leader_is_fenced_once_a_later_one_has_read(coordinator):
    assert coordinator.answer(events.Read, leader_epoch=2).error is NONE
    assert written(coordinator, leader=1).error is ErrorCode.FENCED_LEADER_EPOCH
    assert coordinator.answer(events.Read, leader_epoch=1).error is ErrorCode.FENCED_LEADER_EPOCH
    coordinator.move()
    assert written(coordinator, leader=1).error is ErrorCode.FENCED_LEADER_EPOCH
    assert written(coordinator, leader=2).error is NONE


def test_an_earlier_state_epoch_is_fenced(coordinator):
    assert coordinator.answer(events.Initialize, state_epoch=2, start_offset=50).error is NONE
    assert written(coordinator, epoch=1).error is ErrorCode.FENCED_STATE_EPOCH
    assert coordinator.answer(events.Initialize, state_epoch=1, start_offset=0).error is ErrorCode.FENCED_STATE_EPOCH
    coordinator.move()
    found = coordinator.answer(events.Read, leader_epoch=1).found
    assert (found.state_epoch, found.start_offset, found.batches) == (2, 50, ())


def test_a_snapshot_comes_after_so_many_updates(coordinator):
    for offset in range(9):
        assert written(coordinator, StateBatch(offset, offset, DONE, 1)).error is NONE
    kinds = "".join("u" if isinstance(record, Update) else "S" for record in coordinator.log)
    assert kinds == "SuuuSuuuSuu"
    assert coordinator.loaded().stored.batches == (StateBatch(0, 8, DONE, 1),)
    assert coordinator.loaded().position == 8


def test_records_that_are_read_twice_count_once(coordinator):
    for offset in range(2):
        written(coordinator, StateBatch(offset, offset, DONE, 1))
    into = Loaded()
    for begin in (0, 1):  # a read that failed is repeated from behind the snapshot
        for position, record in enumerate(coordinator.log[begin:], begin):
            into.apply(position, key_of(NAME, record), value_of(record))
    assert into.states[NAME] == coordinator.loaded()


def test_an_old_snapshot_is_repeated_and_a_fresh_one_is_not(coordinator):
    coordinator.now_ms += 299_999
    coordinator.post(events.Refresh())
    assert not coordinator.appends
    coordinator.now_ms += 1
    coordinator.post(events.Refresh())
    coordinator.settle()
    stored = coordinator.loaded().stored
    assert (stored.created_ms, stored.written_ms) == (1_000, 301_000)


def test_a_record_of_which_nobody_knows_is_followed_by_a_snapshot(coordinator):
    """Else an update would follow a deletion that is committed after all, and be all that there is."""
    number = coordinator.ask(events.Delete)
    coordinator.end_append(ErrorCode.REQUEST_TIMED_OUT)
    assert coordinator.answers[number].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert written(coordinator, StateBatch(0, 0, DONE, 1)).error is NONE
    assert coordinator.loaded().stored == coordinator.state.stored
    assert coordinator.loaded().stored.state_epoch == 1


@pytest.mark.parametrize(
    "wrong", [StateBatch(5, 4, DONE, 1), StateBatch(-1, 4, DONE, 1), StateBatch(0, 1, 1, 1), StateBatch(0, 1, 9, 1)]
)
def test_a_batch_that_is_never_stored_is_refused(coordinator, wrong):
    assert written(coordinator, wrong).error is ErrorCode.INVALID_REQUEST


class Laws(RuleBasedStateMachine):
    """Whatever is asked, fails and moves: what was answered without an error is there, whoever loads it."""

    def __init__(self):
        super().__init__()
        self.coordinator = Coordinator()
        self.writes = {}  # by requests
        self.epoch = self.leader = self.start = 0

    @rule()
    def begin(self):
        self.epoch += 1
        answer = self.coordinator.answer(events.Initialize, state_epoch=self.epoch, start_offset=0)
        assert answer.error is NONE
        self.writes, self.start = {}, 0

    @precondition(lambda self: self.epoch)
    @rule(batches=st.lists(BATCHES, max_size=3), moves=st.integers(0, 2))
    def write(self, batches, moves):
        self.start += moves
        number = self.coordinator.ask(
            events.Write,
            state_epoch=self.epoch,
            leader_epoch=self.leader,
            start_offset=self.start,
            delivery_complete_count=0,
            batches=tuple(batches),
        )
        self.writes[number] = batches

    @precondition(lambda self: self.coordinator.appends)
    @rule(error=st.sampled_from((NONE, NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS)))
    def end_append(self, error):
        self.coordinator.end_append(error, is_written=error is not ErrorCode.NOT_ENOUGH_REPLICAS)

    @rule()
    def settle(self):
        self.coordinator.settle()

    @precondition(lambda self: self.epoch)
    @rule()
    def lead(self):
        self.coordinator.settle()
        self.leader += 1
        assert self.coordinator.answer(events.Read, leader_epoch=self.leader).error is NONE

    @rule()
    def move(self):
        self.coordinator.move()

    @invariant()
    def what_was_answered_is_there(self):
        loaded = self.coordinator.loaded()
        have = spread(loaded.stored.batches) if loaded is not None else {}
        start = loaded.stored.start_offset if loaded is not None else 0
        for number, batches in self.writes.items():
            answer = self.coordinator.answers.get(number)
            if answer is not None and answer.error is NONE:
                for offset, state in spread(batches).items():
                    assert offset < start or have[offset] >= state, (number, offset)

    @invariant()
    def memory_is_what_is_loaded(self):
        state, loaded = self.coordinator.state, self.coordinator.loaded()
        if not state.is_doubtful and state.storing is None:
            assert (loaded.stored if loaded is not None else None) == state.stored

    def teardown(self):
        self.coordinator.settle()
        assert self.coordinator.asked == len(self.coordinator.answers), "each request is answered once"


TestLaws = Laws.TestCase


def test_another_start_is_no_step_back(coordinator):
    written(coordinator, start=7, count=2)
    assert written(coordinator, start=3, count=9).error is NONE
    stored = coordinator.loaded().stored
    assert (stored.start_offset, stored.delivery_complete_count) == (7, 2)
    assert replace(stored) == coordinator.state.stored
