"""The laws of the machine of a transactional id, whatever comes in which order; and Kafka's answers, one by one."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from replication.coordinators.transactions.machine import events
from replication.coordinators.transactions.machine.records import read_value, value_of
from replication.coordinators.transactions.machine.state import (
    COMPLETED,
    DECIDED,
    EPOCH_GIVEN_MAX,
    NO_TIMEOUT_MS,
    Phase,
    Transaction,
    TransactionSettings,
)
from replication.coordinators.transactions.machine.step import resume, step
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
LIMITS = TransactionSettings(transaction_two_phase_commit_enable=True, transactional_id_expiration_ms=10**9)
NONE = ErrorCode.NONE


class Driver:
    """A machine, its log in memory, and leaders that write markers when they are told to."""

    def __init__(self, transaction=None):
        self.transaction = transaction or Transaction(id="t")
        self.now_ms = 1_000
        self.requests = self.fresh_id = 0
        self.answers = {}
        self.log = []
        self.appends, self.markers = [], []
        self.asked = set()

    def post(self, event):
        self.transaction, effects = step(self.transaction, event, self.now_ms, LIMITS)
        self.perform(effects)

    def perform(self, effects):
        for effect in effects:
            match effect:
                case events.Answer(request, body):
                    assert request not in self.answers, "answered twice"
                    self.answers[request] = body
                case events.Append():
                    assert not self.appends, "two changes at a time"
                    self.appends.append(effect)
                case events.WriteMarkers():
                    assert self.log[-1].phase in DECIDED, "a marker before the decision is stored"
                    assert self.log[-1].producer_epoch == effect.producer_epoch
                    assert (self.log[-1].phase is Phase.PREPARE_COMMIT) == effect.commits
                    self.markers.append(effect)

    def store(self, error=NONE):
        append = self.appends.pop()
        if error is NONE:
            self.log.append(append.stored)
        self.post(events.Stored(append, error))

    def mark(self, partitions):
        self.post(events.Marked(frozenset(partitions)))

    def ask(self, kind, *, settle=True, **options):
        """The answer to this event; `settle`: what it stores is stored, and markers are written."""
        self.requests += 1
        self.fresh_id += 1
        if kind is not events.Add:
            options.setdefault("fresh_id", 100 + self.fresh_id)
        self.asked.add(self.requests)
        number = self.requests
        self.post(kind(request=number, **options))
        while settle and (self.appends or self.markers):
            if self.appends:
                self.store()
            else:
                self.mark(self.markers.pop().partitions)
        return self.answers.get(number)

    def initialize(self, timeout_ms=60_000, **options):
        return self.ask(events.Initialize, timeout_ms=timeout_ms, **options)

    def add(self, pair, *partitions, **options):
        return self.ask(
            events.Add,
            producer_id=pair[0],
            producer_epoch=pair[1],
            partitions=frozenset(partitions),
            **options,
        )

    def end(self, pair, commits=True, **options):
        return self.ask(events.End, producer_id=pair[0], producer_epoch=pair[1], commits=commits, **options)

    def begun(self, *partitions, **options):
        """The pair of a new producer, with these partitions in its transaction."""
        found = self.initialize(**options)
        pair = found.producer_id, found.producer_epoch
        if partitions:
            assert self.add(pair, *partitions).error is NONE
        return pair

    def move(self):
        """Another coordinator loads what is in the log."""
        self.post(events.Unloaded())
        for append in self.appends:
            self.post(events.Stored(append, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.appends, self.markers = [], []
        stored = read_value("t", value_of(self.log[-1])) if self.log else Transaction(id="t")
        self.transaction, effects = resume(stored, self.now_ms, LIMITS)
        self.perform(effects)


class Laws(RuleBasedStateMachine):
    """Two instances with what they were told, a coordinator that moves, appends that fail."""

    @initialize()
    def begin(self):
        self.driver = Driver()
        self.pairs = [(-1, -1)]

    @rule(keeps=st.booleans(), goes_on=st.booleans(), at=st.integers(0, 3))
    def initialize_producer(self, keeps, goes_on, at):
        pair = self.pairs[max(len(self.pairs) - 1 - at, 0)]
        named = {"producer_id": pair[0], "producer_epoch": pair[1]} if goes_on else {}
        self.driver.ask(
            events.Initialize,
            settle=False,
            timeout_ms=60_000,
            is_two_phase=keeps,
            keeps_prepared=keeps,
            **named,
        )

    @rule(at=st.integers(0, 3), partitions=st.sets(st.sampled_from((A, B)), min_size=1), asks=st.booleans())
    def add(self, at, partitions, asks):
        pair = self.pairs[max(len(self.pairs) - 1 - at, 0)]
        self.driver.add(pair, *partitions, settle=False, is_question=asks)

    @rule(at=st.integers(0, 3), commits=st.booleans(), bumps=st.booleans())
    def end(self, at, commits, bumps):
        pair = self.pairs[max(len(self.pairs) - 1 - at, 0)]
        self.driver.end(pair, commits, bumps_epoch=bumps, settle=False)

    @rule(fails=st.sampled_from((NONE, NONE, NONE, ErrorCode.REQUEST_TIMED_OUT)))
    def store(self, fails):
        if self.driver.appends:
            self.driver.store(fails)

    @rule(partition=st.sampled_from((A, B)))
    def mark(self, partition):
        if any(partition in markers.partitions for markers in self.driver.markers):
            self.driver.mark({partition})

    @rule(ms=st.sampled_from((1, 100_000)))
    def tick(self, ms):
        self.driver.now_ms += ms
        self.driver.post(events.Ticked())

    @rule()
    def move(self):
        self.driver.move()

    @rule()
    def expire(self):
        self.driver.post(events.Expire())

    @invariant()
    def remembers_what_it_was_told(self):
        driver = self.driver
        for body in driver.answers.values():
            if isinstance(body, events.Initialized | events.Ended) and body.error is NONE:
                pairs = [(body.producer_id, body.producer_epoch)]
                if isinstance(body, events.Initialized) and body.ongoing_producer_id >= 0:
                    pairs.append((body.ongoing_producer_id, body.ongoing_producer_epoch))
                self.pairs += [pair for pair in pairs if pair not in self.pairs]

    @invariant()
    def decisions_stand_and_epochs_grow(self):
        log = self.driver.log
        for before, after in pairwise(log):
            if before.phase in DECIDED:
                assert after.phase is DECIDED[before.phase], "a decision was changed"
                assert after.partitions == frozenset()
            if after.phase in COMPLETED:
                assert before.phase in DECIDED
            if before.producer_id == after.producer_id:
                assert before.producer_epoch <= after.producer_epoch

    @invariant()
    def only_what_may_have_partitions_has_some(self):
        t = self.driver.transaction
        assert not t.partitions or t.phase is Phase.ONGOING or t.phase in DECIDED
        assert t.unmarked <= t.partitions
        assert not t.unmarked or t.phase in DECIDED

    def teardown(self):
        driver = self.driver
        while driver.appends or driver.transaction.unmarked:
            if driver.appends:
                driver.store()
            else:
                driver.mark(driver.transaction.unmarked)
        driver.post(events.Ticked())
        assert driver.transaction.phase not in DECIDED or driver.appends
        assert driver.asked == set(driver.answers), "a request was not answered"


TestLaws = Laws.TestCase


def test_a_new_instance_fences_the_old_one_after_its_transaction_is_aborted():
    driver = Driver()
    old = driver.begun(A)
    assert driver.initialize().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.transaction.phase is Phase.COMPLETE_ABORT
    new = driver.begun()
    assert new == (old[0], old[1] + 2)
    assert driver.add(old, A).error is ErrorCode.PRODUCER_FENCED
    assert driver.end(old).error is ErrorCode.PRODUCER_FENCED
    assert driver.add((77, 0), A).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    stale = dict(zip(("producer_id", "producer_epoch"), old, strict=True))
    assert driver.initialize(**stale).error is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("bumps", [True, False])
def test_a_repeated_end_succeeds_and_the_other_outcome_is_refused(commits, bumps):
    driver = Driver()
    pair = driver.begun(A, B)
    first = driver.end(pair, commits, bumps_epoch=bumps)
    assert first == events.Ended(NONE, pair[0], pair[1] + bumps)
    driver.move()
    assert driver.end(pair, commits, bumps_epoch=bumps) == first
    other = driver.end(pair, not commits, bumps_epoch=bumps)
    assert other.error is ErrorCode.INVALID_TXN_STATE


def test_while_markers_are_written_everybody_comes_again():
    driver = Driver()
    pair = driver.begun(A, B)
    assert driver.end(pair, settle=False) is None, "told before it was stored"
    driver.store()
    assert driver.answers[driver.requests].error is NONE
    driver.mark({A})
    assert driver.end(pair, settle=False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.add(pair, A, settle=False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.initialize(settle=False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.end(pair, commits=False, settle=False).error is ErrorCode.INVALID_TXN_STATE
    driver.move()
    assert driver.markers[-1].partitions == {A, B}, "the next coordinator does not know which have theirs"


def test_an_empty_transaction_cannot_be_ended_but_by_an_abort_with_a_new_epoch():
    driver = Driver()
    pair = driver.begun()
    assert driver.end(pair).error is ErrorCode.INVALID_TXN_STATE
    assert driver.end(pair, commits=False).error is ErrorCode.INVALID_TXN_STATE
    assert driver.end(pair, bumps_epoch=True).error is ErrorCode.INVALID_TXN_STATE
    assert driver.end(pair, commits=False, bumps_epoch=True) == events.Ended(NONE, pair[0], pair[1] + 1)


def test_epochs_run_out_and_the_producer_gets_another_id():
    driver = Driver(Transaction(id="t", producer_id=7, producer_epoch=EPOCH_GIVEN_MAX, timeout_ms=1))
    assert driver.add((7, EPOCH_GIVEN_MAX), A).error is NONE
    ended = driver.end((7, EPOCH_GIVEN_MAX), bumps_epoch=True)
    assert (ended.error, ended.producer_epoch) == (NONE, 0)
    assert ended.producer_id != 7
    assert driver.end((7, EPOCH_GIVEN_MAX), bumps_epoch=True) == ended
    used_up = Driver(Transaction(id="t", producer_id=7, producer_epoch=EPOCH_GIVEN_MAX, timeout_ms=1))
    assert used_up.begun()[0] != 7


@pytest.mark.parametrize("commits", [True, False])
def test_the_next_producer_id_is_asked_to_come_again_while_markers_of_the_last_epoch_are_written(commits):
    driver = Driver(Transaction(id="t", producer_id=7, producer_epoch=EPOCH_GIVEN_MAX, timeout_ms=1))
    assert driver.add((7, EPOCH_GIVEN_MAX), A).error is NONE
    driver.end((7, EPOCH_GIVEN_MAX), bumps_epoch=True, settle=False)
    driver.store()
    ended = driver.answers[driver.requests]
    following = ended.producer_id, ended.producer_epoch
    assert driver.add(following, A, settle=False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    asked = driver.end(following, commits, bumps_epoch=True, settle=False)
    assert asked.error is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.mark({A})
    assert driver.add(following, A, settle=False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.store()
    assert driver.add(following, A).error is NONE
    assert driver.add((99, 0), A).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_that_goes_on_gets_the_same_answer_twice():
    driver = Driver()
    pair = driver.begun()
    named = {"producer_id": pair[0], "producer_epoch": pair[1]}
    first = driver.initialize(**named)
    assert (first.producer_id, first.producer_epoch) == (pair[0], pair[1] + 1)
    assert driver.initialize(**named) == first


def test_an_old_transaction_is_aborted_and_its_producer_fenced():
    driver = Driver()
    pair = driver.begun(A)
    driver.now_ms += 60_001
    driver.post(events.Ticked())
    assert driver.end(pair, settle=False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.store()
    assert (driver.markers[-1].commits, driver.markers[-1].producer_epoch) == (False, pair[1] + 1)
    assert driver.end(pair).error is ErrorCode.PRODUCER_FENCED


def test_a_prepared_transaction_has_no_timeout_and_is_kept_for_who_comes_next():
    driver = Driver()
    pair = driver.begun(A, is_two_phase=True)
    assert driver.transaction.timeout_ms == NO_TIMEOUT_MS
    driver.now_ms += 10**12
    driver.post(events.Ticked())
    driver.post(events.Expire())
    assert driver.transaction.phase is Phase.ONGOING
    assert not driver.appends
    driver.initialize(is_two_phase=True, keeps_prepared=True)
    driver.move()
    kept = driver.initialize(is_two_phase=True, keeps_prepared=True)
    assert (kept.ongoing_producer_id, kept.ongoing_producer_epoch) == pair
    assert driver.add(pair, B).error is ErrorCode.PRODUCER_FENCED
    assert driver.end((kept.producer_id, kept.producer_epoch)).error is ErrorCode.PRODUCER_FENCED
    ended = driver.end(pair, bumps_epoch=True)
    assert (ended.producer_id, ended.producer_epoch) == (kept.producer_id, kept.producer_epoch)
    driver.move()
    assert driver.end(pair, bumps_epoch=True) == ended
    assert driver.add((ended.producer_id, ended.producer_epoch), A).error is NONE


def test_two_phase_commit_and_timeouts_are_bounded_by_settings():
    refused = Driver()
    step_limits = replace(LIMITS, transaction_two_phase_commit_enable=False)
    event = events.Initialize(request=1, fresh_id=1, timeout_ms=1, is_two_phase=True)
    _, (answer,) = step(refused.transaction, event, 0, step_limits)
    assert answer.body.error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    for timeout_ms in (0, -1, LIMITS.transaction_max_timeout_ms + 1):
        assert Driver().initialize(timeout_ms).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_an_id_that_nobody_used_for_long_is_forgotten():
    driver = Driver()
    pair = driver.begun(A)
    driver.end(pair)
    driver.now_ms += LIMITS.transactional_id_expiration_ms
    driver.post(events.Expire())
    assert driver.appends[-1].stored.phase is Phase.DEAD
    driver.store()
    assert driver.transaction.is_blank


def test_a_question_adds_nothing():
    driver = Driver()
    pair = driver.begun(A)
    asked = driver.add(pair, A, B, is_question=True)
    assert asked.refused == {B: ErrorCode.TRANSACTION_ABORTABLE}
    assert driver.transaction.partitions == {A}


def test_an_ended_transaction_does_not_grow_old_and_a_used_id_is_not_forgotten():
    driver = Driver()
    driver.now_ms = 5 * 10**9
    pair = driver.begun(A)
    driver.end(pair)
    driver.now_ms += LIMITS.transactional_id_expiration_ms - 1
    for event in (events.Ticked(), events.Expire()):
        driver.post(event)
    assert not driver.appends
    assert driver.transaction.phase is Phase.COMPLETE_COMMIT


def test_a_question_is_answered_while_partitions_are_added_and_not_while_it_ends():
    driver = Driver()
    pair = driver.begun(A)
    driver.add(pair, B, settle=False)
    assert driver.add(pair, A, is_question=True, settle=False) == events.Added()
    assert driver.add(pair, B, is_question=True, settle=False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.store()
    driver.end(pair, settle=False)
    assert driver.add(pair, A, is_question=True, settle=False).error is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_kept_transaction_whose_epochs_run_out_goes_on_with_another_id():
    driver = Driver(Transaction(id="t", producer_id=7, producer_epoch=EPOCH_GIVEN_MAX, timeout_ms=NO_TIMEOUT_MS))
    pair = 7, EPOCH_GIVEN_MAX
    assert driver.add(pair, A).error is NONE
    first = driver.initialize(is_two_phase=True, keeps_prepared=True)
    assert (first.producer_id != 7, first.producer_epoch) == (True, 0)
    second = driver.initialize(is_two_phase=True, keeps_prepared=True)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
    ended = driver.end(pair, bumps_epoch=True)
    assert ended == events.Ended(NONE, first.producer_id, 1)
    assert driver.end(pair, bumps_epoch=True) == ended


def test_the_empty_transaction_behind_one_that_is_ending_is_aborted_once_that_has_ended():
    """A client with an epoch per transaction is one ahead: to be told INVALID_TXN_STATE would be its end."""
    driver = Driver()
    pair = driver.begun(A)
    driver.end(pair, bumps_epoch=True, settle=False)
    driver.store()
    assert driver.transaction.phase is Phase.PREPARE_COMMIT
    following = pair[0], pair[1] + 1
    for commits in (False, True):
        asked = driver.end(following, commits=commits, bumps_epoch=True, settle=False)
        assert asked.error is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.mark(driver.markers.pop().partitions)
    driver.store()
    assert driver.end(following, commits=False, bumps_epoch=True).error is NONE
