"""The laws of a share partition, whatever is asked, fails, expires and moves in which order; and Kafka's rules."""

from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replication.broker.share.machine import events
from replication.broker.share.machine.events import (
    ACCEPT,
    DELIVERED_TOO_OFTEN,
    GAP,
    REJECT,
    REJECTED,
    RELEASE,
    RENEW,
    Acknowledgement,
    Range,
)
from replication.broker.share.machine.runs import NO_GOAL
from replication.broker.share.machine.state import SharePartitionState, ShareTerms
from replication.broker.share.machine.step import deadline_ms, letters_of, load, next_offset, step
from replication.coordinators.share_state.machine.batches import DeliveryState, StateBatch, combined
from replication.errors import ErrorCode

NONE = ErrorCode.NONE
TERMS = ShareTerms(delivery_count_limit=3, record_lock_duration_ms=100, partition_max_record_locks=12)
FAILED = ErrorCode.COORDINATOR_NOT_AVAILABLE
MEMBERS = st.sampled_from(("ann", "bob", "cec"))


class Leader:
    """A machine, the log that it gives out, and what its coordinator has stored."""

    def __init__(self, terms=TERMS, batches=(), log_end=0):
        self.terms = terms
        self.batches = [Range(*each) for each in batches]
        self.state = SharePartitionState()
        self.now_ms = 1_000
        self.answers = {}
        self.asked = 0
        self.stores = []
        self.stored = (0, ())  # start offset, batches
        self.due = []  # letters that are to be written
        self.letters = []  # those that are: offset, delivery count, cause

    def post(self, event):
        self.state, effects = step(self.state, event, self.now_ms, self.terms)
        found = None
        for effect in effects:
            match effect:
                case events.Answer(request):
                    assert request not in self.answers, "answered twice"
                    self.answers[request] = effect
                case events.Store():
                    assert not self.stores, "one write at a time"
                    self.stores.append(effect)
                case events.Acquired(ranges):
                    found = ranges
                case events.SendLetters():
                    self.send(effect)
        return found

    def send(self, letters):
        """Have them due; whoever leads next knows of them from what is stored."""
        offsets = set(range(letters.first, letters.last + 1))
        archiving = {o for b in self.stored[1] if b.state == DeliveryState.ARCHIVING for o in range(b[0], b[1] + 1)}
        assert offsets <= archiving, "a letter is not written before ARCHIVING is stored"
        self.due.append(letters)

    def write_letters(self, count=500):
        """Write the first of the letters that are due."""
        letters = self.due.pop(0)
        last = min(letters.last, letters.first + count - 1)
        if last < letters.last:
            self.due.insert(0, letters._replace(first=last + 1))
        self.letters += [(offset, *letters[2:]) for offset in range(letters.first, last + 1)]
        self.post(events.LettersSent([Range(letters.first, last)]))

    def acquire(self, member, records_max=500, batch_records=500, is_exact=False, aborted=()):
        offset = next_offset(self.state, self.terms)
        if offset is None:
            return ()
        return self.post(
            events.Acquire(
                member=member,
                offset=offset,
                batches=[each for each in self.batches if each.last >= offset],
                aborted=aborted,
                records_max=records_max,
                batch_records=batch_records,
                is_exact=is_exact,
            )
        )

    def ask(self, kind, **fields):
        self.asked += 1
        self.post(kind(request=self.asked, **fields))
        return self.asked

    def acknowledge(self, member, *parts):
        parts = [
            Acknowledgement(first, last, kinds if isinstance(kinds, tuple) else (kinds,))
            for first, last, kinds in parts
        ]
        return self.ask(events.Acknowledge, member=member, acknowledgements=parts)

    def end_store(self, error=NONE):
        store = self.stores.pop()
        if error is NONE:
            start, batches = self.stored
            start = max(start, store.start_offset)
            self.stored = start, combined(combined(batches, (), start), store.batches, start)
        self.post(events.Stored(store.write, error))

    def settle(self):
        while self.stores:
            self.end_store()

    def finish(self):
        while self.stores or self.due:
            self.settle()
            if self.due:
                self.write_letters()

    def said(self, number):
        self.settle()
        return self.answers[number].error

    def move(self):
        """Another broker leads, and loads what is stored."""
        self.stores, self.due = [], []
        self.state = load(*self.stored)
        for letters in letters_of(self.state, self.terms):
            self.send(letters)

    def expire(self):
        self.now_ms += self.terms.record_lock_duration_ms
        self.post(events.Ticked())


def of(ranges):
    return {offset: each.delivery_count for each in ranges for offset in range(each.first, each.last + 1)}


class Laws(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.leader = Leader()
        self.end = 0
        self.counts = {}  # deliveries of each record, as members were told in this term of the leader
        self.owners = {}  # who may acknowledge a record: whoever was given it last, until the lock may be over
        self.waiting = {}  # acknowledgements without an answer: the records that they accept, give up
        self.accepted = set()
        self.given_up = set()
        self.letters_due = set()  # the records of which there is a letter in the end
        self.log_start = 0

    @initialize(has_dead_letters=st.booleans())
    def begin(self, has_dead_letters):
        self.leader.terms = TERMS._replace(has_dead_letters=has_dead_letters)

    @precondition(lambda self: self.leader.due)
    @rule(count=st.integers(1, 3))
    def write_letters(self, count):
        self.leader.write_letters(count)
        self.note()

    @rule(count=st.integers(1, 5))
    def produce(self, count):
        self.leader.batches.append(Range(self.end, self.end + count - 1))
        self.end += count

    @rule(member=MEMBERS, most=st.integers(1, 6), is_exact=st.booleans(), batch=st.integers(1, 6))
    def acquire(self, member, most, is_exact, batch):
        given = of(self.leader.acquire(member, most, batch, is_exact))
        if is_exact:
            assert len(given) <= most
        for offset, count in given.items():
            assert offset < self.end
            assert offset not in self.accepted, "it was accepted, and is delivered again"
            assert offset not in self.given_up, "it was given up, and is delivered again"
            assert offset not in {letter[0] for letter in self.leader.letters}, "it has a letter, and is delivered"
            assert offset not in self.owners, "two members have it"
            assert count == self.counts.get(offset, 0) + 1 <= TERMS.delivery_count_limit
            self.counts[offset] = count
            self.owners[offset] = member

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), kind=st.sampled_from((ACCEPT, ACCEPT, RELEASE, REJECT, GAP, RENEW)), other=st.booleans())
    def acknowledge(self, data, kind, other):
        offset = data.draw(st.sampled_from(sorted(self.owners)))
        member = self.owners[offset]
        last = offset
        while self.owners.get(last + 1) == member and data.draw(st.booleans()):
            last += 1
        number = self.leader.acknowledge("nobody" if other else member, (offset, last, kind))
        if other:
            assert self.leader.answers[number].error is ErrorCode.INVALID_RECORD_STATE
            return
        self.waiting[number] = kind, range(offset, last + 1)
        self.note()

    @rule(member=MEMBERS)
    def release(self, member):
        self.leader.ask(events.Release, member=member)
        self.note()

    @precondition(lambda self: self.leader.stores)
    @rule(error=st.sampled_from((NONE, NONE, FAILED)))
    def end_store(self, error):
        self.leader.end_store(error)
        self.note()

    @rule(after_ms=st.sampled_from((1, 50, 100)))
    def tick(self, after_ms):
        self.leader.now_ms += after_ms
        self.leader.post(events.Ticked())
        self.note()

    @rule()
    def settle(self):
        self.leader.settle()
        self.note()

    @rule()
    def move(self):
        self.note()
        self.waiting = {}
        self.leader.move()
        runs = {o: run for run in self.leader.state.runs for o in range(run.first, run.last + 1)}
        self.counts = {offset: run.delivery_count for offset, run in runs.items()}
        self.owners = {}

    @rule(ahead=st.integers(1, 4))
    def log_starts_later(self, ahead):
        start = self.log_start = min(self.leader.state.start + ahead, self.end)
        self.leader.post(events.LogStarts(start))
        self.owners = {offset: member for offset, member in self.owners.items() if offset >= start}

    def note(self):
        """Take in what was answered, and whose records are free."""
        for number, (kind, offsets) in tuple(self.waiting.items()):
            answer = self.leader.answers.get(number)
            if answer is not None:
                del self.waiting[number]
                if answer.error is NONE and kind == ACCEPT:
                    self.accepted.update(offsets)
                if answer.error is NONE and kind in (REJECT, GAP):
                    self.given_up.update(offsets)
                if answer.error is NONE and kind == REJECT:
                    self.letters_due.update(offsets)
        held = {o: run.member for run in self.leader.state.runs if run.member for o in range(run.first, run.last + 1)}
        for offset in tuple(self.owners):
            if offset not in held:
                del self.owners[offset]
                is_last = self.counts[offset] == TERMS.delivery_count_limit
                if is_last and offset not in self.accepted | self.given_up:
                    self.given_up.add(offset)
                    self.letters_due.add(offset)
            else:
                assert held[offset] == self.owners[offset]

    @invariant()
    def each_record_is_in_one_state(self):
        state = self.leader.state
        bounds = [(run.first, run.last) for run in state.runs]
        assert all(first <= last for first, last in bounds)
        assert all(before[1] + 1 == after[0] for before, after in pairwise(bounds))
        assert not bounds or bounds[0][0] == state.start
        assert all((run.state == DeliveryState.ACQUIRED) == bool(run.member) for run in state.runs)
        assert all(run.goal == NO_GOAL or run.write in (state.writing, state.gathering) for run in state.runs)

    @invariant()
    def what_is_accepted_is_stored(self):
        """The next leader delivers none of it again."""
        loaded = load(*self.leader.stored)
        free = {
            o for run in loaded.runs if run.state != DeliveryState.ACKNOWLEDGED for o in range(run.first, run.last + 1)
        }
        assert not self.accepted & {offset for offset in free if offset >= loaded.start}
        assert not any(offset >= loaded.end for offset in self.accepted)

    def teardown(self):
        self.leader.settle()
        self.leader.expire()
        self.leader.settle()
        assert not any(run.member for run in self.leader.state.runs), "a lock that is over is let go"
        assert not self.leader.state.asked, "what is answered is forgotten"
        self.note()
        self.leader.finish()
        written = {offset for offset, *_ in self.leader.letters}
        if not self.leader.terms.has_dead_letters:
            assert not written
            return
        assert {offset for offset in self.letters_due if offset >= self.log_start} <= written
        assert not written & self.accepted
        assert not {run.state for run in self.leader.state.runs} & {DeliveryState.ARCHIVING}
        assert all(count == 3 for _, count, cause in self.leader.letters if cause == DELIVERED_TOO_OFTEN)


TestLaws = Laws.TestCase


def leader_of(*batches, **terms):
    return Leader(TERMS._replace(**terms), batches)


def test_a_batch_is_given_whole_unless_the_limit_is_exact():
    assert leader_of((0, 4), (5, 9)).acquire("ann", 3) == ((0, 4, 1),)
    exact = leader_of((0, 4), (5, 9))
    assert exact.acquire("ann", 3, is_exact=True) == ((0, 2, 1),)
    assert exact.acquire("bob", 3, is_exact=True) == ((3, 5, 1),)


def test_what_is_acquired_is_cut_at_batches_of_about_the_wanted_size():
    leader = leader_of((0, 1), (2, 3), (4, 5), (6, 9))
    assert leader.acquire("ann", batch_records=3) == ((0, 3, 1), (4, 9, 1))


def test_no_more_is_locked_than_the_group_may():
    leader = leader_of(*((n, n) for n in range(20)), partition_max_record_locks=5)
    assert of(leader.acquire("ann")).keys() == set(range(5))
    assert leader.acquire("bob") == ()
    assert leader.said(leader.acknowledge("ann", (1, 1, ACCEPT))) is NONE
    assert leader.acquire("bob") == (), "the window begins at the first record that is not done with"
    assert leader.said(leader.acknowledge("ann", (0, 0, ACCEPT))) is NONE
    assert of(leader.acquire("bob")).keys() == {5, 6}


def test_a_record_is_given_up_after_so_many_deliveries():
    leader = leader_of((0, 0), delivery_count_limit=3)
    for count in (1, 2, 3):
        assert leader.acquire("ann") == ((0, 0, count),)
        leader.expire()
        leader.settle()
    assert leader.acquire("ann") == ()
    assert leader.stored == (1, ())


def test_a_record_that_was_delivered_too_often_has_a_letter_whether_let_go_or_released():
    leader = leader_of((0, 0), (1, 1), delivery_count_limit=1, has_dead_letters=True)
    assert len(of(leader.acquire("ann"))) == 2
    assert leader.said(leader.acknowledge("ann", (0, 0, RELEASE))) is NONE
    leader.expire()
    leader.settle()
    assert leader.due == [events.SendLetters(n, n, 1, DELIVERED_TOO_OFTEN) for n in (0, 1)]
    leader.finish()
    assert leader.stored == (2, ())


def test_records_that_were_in_vain_are_given_in_smaller_numbers_and_alone_for_the_last_time():
    leader = leader_of((0, 7), delivery_count_limit=4)
    sizes = []
    for _ in range(3):
        sizes.append(len(of(leader.acquire("ann"))))
        leader.ask(events.Release, member="ann")
        leader.settle()
    assert sizes == [8, 8, 4], "half as many from the third time on"
    assert of(leader.acquire("ann")) == {0: 4}, "for the last time alone"


def test_gaps_of_compaction_and_aborted_records_are_given_to_nobody():
    leader = leader_of((100, 103), (108, 109))
    given = leader.acquire("ann", aborted=(Range(100, 101),))
    assert given == ((102, 109, 1),)
    assert (leader.state.start, leader.state.end) == (102, 110)
    assert leader.said(leader.acknowledge("ann", (102, 109, (1, 1, 0, 0, 0, 0, 1, 1)))) is NONE
    assert leader.stored == (110, ())


def test_acknowledgements_count_only_if_all_of_a_request_may_be():
    leader = leader_of((0, 9))
    leader.acquire("ann")
    for wrong in ((0, 12, ACCEPT), (20, 21, ACCEPT)):
        assert leader.said(leader.acknowledge("ann", (0, 3, ACCEPT), wrong)) is ErrorCode.INVALID_REQUEST
    twice = leader.acknowledge("ann", (0, 3, ACCEPT), (3, 4, ACCEPT))
    assert leader.said(twice) is ErrorCode.INVALID_RECORD_STATE
    assert leader.said(leader.acknowledge("bob", (0, 9, ACCEPT))) is ErrorCode.INVALID_RECORD_STATE
    assert leader.said(leader.acknowledge("ann", (0, 9, ACCEPT))) is NONE
    assert leader.said(leader.acknowledge("ann", (0, 9, ACCEPT))) is NONE, "the start has moved behind it"
    assert leader.stored == (10, ())


@pytest.mark.parametrize("kind", [ACCEPT, RELEASE, RENEW])
def test_a_request_acknowledges_a_record_once(kind):
    """Else each of many renewals of one record would go through all that is locked."""
    leader = leader_of((0, 4))
    leader.acquire("ann")
    assert leader.said(leader.acknowledge("ann", (0, 2, kind), (2, 3, kind))) is ErrorCode.INVALID_RECORD_STATE
    assert leader.said(leader.acknowledge("ann", (0, 2, kind), (3, 4, kind))) is NONE


def test_acknowledgements_that_come_while_a_write_is_on_its_way_are_stored_together():
    leader = leader_of((0, 9))
    leader.acquire("ann")
    numbers = [leader.acknowledge("ann", (offset, offset, ACCEPT)) for offset in (1, 2, 3, 5)]
    assert leader.stores[0].batches == ((1, 1, DeliveryState.ACKNOWLEDGED, 1),)
    leader.end_store()
    assert leader.answers.keys() == {numbers[0]}
    assert [batch[:2] for batch in leader.stores[0].batches] == [(2, 3), (5, 5)]
    assert leader.stores[0].delivery_complete_count == 4
    leader.end_store(FAILED)
    assert {leader.answers[number].error for number in numbers[1:]} == {FAILED}
    assert leader.said(leader.acknowledge("ann", (0, 0, ACCEPT), (2, 9, RELEASE))) is NONE
    assert leader.stored[0] == 2


def test_a_renewal_holds_the_lock_for_as_long_again():
    leader = leader_of((0, 1))
    leader.acquire("ann")
    leader.now_ms += 99
    assert leader.said(leader.acknowledge("ann", (0, 1, (RENEW, ACCEPT)))) is NONE
    leader.now_ms += 99
    leader.post(events.Ticked())
    leader.settle()
    assert leader.acquire("bob") == ()
    assert deadline_ms(leader.state) == leader.now_ms + 1
    refusing = leader_of((0, 1), renew_acknowledge_enable=False)
    refusing.acquire("ann")
    assert refusing.said(refusing.acknowledge("ann", (0, 1, RENEW))) is ErrorCode.INVALID_RECORD_STATE


def test_a_next_leader_writes_the_letters_that_a_former_one_or_kafka_was_about_to_write():
    leader = Leader(TERMS)
    archiving = (StateBatch(3, 3, DeliveryState.ARCHIVING, 3), StateBatch(5, 6, DeliveryState.ARCHIVING, 1))
    leader.stored = (3, archiving)
    leader.move()
    assert (leader.state.start, leader.state.end, next_offset(leader.state, TERMS)) == (3, 7, 4)
    leader.finish()
    assert leader.letters == [(3, 3, DELIVERED_TOO_OFTEN), (5, 1, REJECTED), (6, 1, REJECTED)]
    assert leader.stored[0] == 4
    leader.move()
    assert leader.due == [], "what is ARCHIVED has its letter"


def test_a_letter_is_written_after_archiving_is_stored_and_holds_up_no_other_record():
    leader = leader_of((0, 3), has_dead_letters=True)
    leader.acquire("ann")
    number = leader.acknowledge("ann", (0, 0, REJECT), (1, 1, GAP), (2, 2, RELEASE), (3, 3, ACCEPT))
    assert leader.due == []
    leader.end_store(FAILED)
    assert (leader.answers[number].error, leader.due) == (FAILED, []), "the member has its records still"
    assert leader.said(leader.acknowledge("ann", (0, 0, REJECT), (1, 1, GAP), (2, 2, RELEASE), (3, 3, ACCEPT))) is NONE
    assert leader.due == [events.SendLetters(0, 0, 1, REJECTED)], "a gap has none"
    assert leader.said(leader.acknowledge("ann", (0, 0, ACCEPT))) is ErrorCode.INVALID_RECORD_STATE
    assert of(leader.acquire("bob")) == {2: 2}
    assert leader.state.start == 0, "not behind a record whose letter is not written"
    leader.write_letters()
    leader.end_store(FAILED)
    assert leader.state.start == 2, "written is written: but a next leader may write it again"
    leader.move()
    assert leader.due == [events.SendLetters(0, 0, 1, REJECTED)]


@pytest.mark.parametrize("kind", [GAP, ACCEPT, REJECT])
def test_what_is_done_with_at_the_begin_moves_it(kind):
    leader = leader_of((0, 5))
    leader.acquire("ann")
    assert leader.said(leader.acknowledge("ann", (0, 3, kind))) is NONE
    assert leader.stored == (4, ())
