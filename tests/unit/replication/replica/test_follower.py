"""A follower ends up with the leader's log, keeps what they have in common, and believes only fitting answers."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from logstore.log.leader_epochs import end_offset
from replication.replica.machine.follower import (
    Append,
    Appended,
    AskEpochEnd,
    EpochEndAnswered,
    Fetch,
    FollowerState,
    LogStartMoved,
    MoveLogStart,
    OutOfRange,
    Pause,
    PauseOver,
    Phase,
    RecordsFetched,
    ReportLostRecords,
    StartAnew,
    Truncated,
    TruncateTo,
    WriteFailed,
    follow,
    is_no_news,
    step,
)
from tests.support.repeats import times

STATES = times(5_000, 200_000)


def test_an_answer_without_records_is_no_news_where_the_machine_asks_the_same_again_and_changes_nothing():
    dice, outcomes = random.Random(1), set()

    def offset():
        return dice.randrange(4)

    for _ in range(STATES):
        state = FollowerState(
            leader=1,
            leader_epoch=dice.randrange(2),
            log_start_offset=offset(),
            log_end_offset=offset(),
            epochs=(),
            high_watermark=offset(),
            phase=dice.choice(list(Phase)),
            asked=-1,
            is_asking=dice.random() < 0.8,
            is_paused=dice.random() < 0.2,
        )
        state = state._replace(is_paused=state.is_paused and not state.is_asking)  # as the machine has it
        question, hw, start = Fetch(1, dice.randrange(2), offset()), offset(), offset()
        answer = RecordsFetched(question.leader_epoch, question.offset, b"", hw, start)
        is_same = step(state, answer) == (state, (question,))
        assert is_no_news(state, question, hw, start) == is_same, f"{state} {answer}"
        outcomes.add(is_same)
    assert outcomes == {True, False}


def starts(log):
    """((epoch, first offset), …) of a log that is a list of the epochs of its records."""
    return tuple((epoch, offset) for offset, epoch in enumerate(log) if offset == 0 or log[offset - 1] != epoch)


class Follower:
    """The machine over a log that is a list of epochs (record = the epoch it was written in)."""

    def __init__(self, log, *, epoch=9, hw=0, start=0):
        self.log, self.start = list(log), start
        self.lost = []
        self.state, self.effects = follow(
            1,
            epoch,
            log_start_offset=start,
            log_end_offset=len(log),
            epochs=starts(log),
            high_watermark=hw,
        )

    def on(self, *events):
        for event in events:
            self.state, self.effects = step(self.state, event)
        return self.effects

    def follow_through(self, leader, leader_hw=0, batch=3):
        """Do what it orders, against a leader's log, until it has everything."""
        for _ in range(200):
            for effect in self.effects:
                event = self._perform(effect, leader, leader_hw, batch)
                if event is not None:
                    self.on(event)
                    break
            else:
                raise AssertionError("it asks nothing")
            if self.state.phase is Phase.FETCHING and self.log == leader:
                return
        raise AssertionError("it does not end")

    def _perform(self, effect, leader, leader_hw, batch):
        match effect:
            case AskEpochEnd(_, epoch, asked):
                found = end_offset(starts(leader), asked, len(leader)) or (-1, 0)
                return EpochEndAnswered(epoch, asked, *found)
            case TruncateTo(offset):
                self.cut_at = offset
                del self.log[offset:]
                return Truncated(0, len(self.log), starts(self.log))
            case StartAnew():
                self.log = []
                return Truncated(0, 0, ())
            case Fetch(_, epoch, offset):
                if offset > len(leader):
                    return OutOfRange(epoch, offset, 0, len(leader))
                found = bytes(leader[offset : offset + batch])
                return RecordsFetched(epoch, offset, found, leader_hw, 0)
            case Append(records, hw):
                self.log += records
                return Appended(len(self.log), starts(self.log), hw)
            case ReportLostRecords():
                self.lost.append(effect)
        return None


def answer(offset, count, hw, *, epoch=9, start=0):
    """An answer with so many records."""
    return RecordsFetched(epoch, offset, b"x" * count, hw, start)


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_it_asks_before_it_fetches_also_under_the_same_leader():
    """(R4)"""
    assert Follower([1, 1, 2]).effects == (AskEpochEnd(1, 9, 2),)


def test_an_empty_log_has_nothing_to_ask():
    assert Follower([]).effects == (Fetch(1, 9, 0),)


def test_what_is_above_the_hw_is_kept_if_the_leader_has_it():
    """(R1): the HW is behind, the record was acknowledged."""
    follower = Follower([1, 1], hw=1)
    follower.follow_through([1, 1])
    assert (follower.log, follower.cut_at) == ([1, 1], 2)


def test_records_of_another_leader_at_the_same_offsets_go():
    """(R2): both lost power, the shorter log came back first and was written to."""
    follower = Follower([1, 1], hw=0)
    follower.follow_through([1, 2])
    assert (follower.log, follower.cut_at) == ([1, 2], 1)


def test_an_epoch_that_the_leader_does_not_know_is_cut_step_by_step():
    """(R3): two fast failovers; the newest epoch of each is unknown to the other."""
    follower = Follower([1, 1, 1, 3, 3, 5])
    leader = [1, 1, 2, 2, 4, 6]
    assert follower.effects == (AskEpochEnd(1, 9, 5),)
    follower.follow_through(leader)
    assert follower.log == leader


LOGS = st.lists(st.integers(0, 7), max_size=12).map(sorted)


@given(data=st.data())
def test_it_keeps_exactly_what_both_have_for_any_two_logs_that_elections_can_make(data):
    """(R3): one epoch has one leader, so logs differ from some offset on, and never agree on an epoch after it."""
    shared = data.draw(LOGS)
    newest = shared[-1] if shared else 0
    epochs = data.draw(st.lists(st.booleans(), min_size=8, max_size=8))
    mine = [e for e in data.draw(LOGS) if e > newest and epochs[e]]
    theirs = [e for e in data.draw(LOGS) if e > newest and not epochs[e]]
    follower, leader = Follower(shared + mine, epoch=9), shared + theirs
    # The last shared epoch may go on in one of the two: its leader had written more.
    more = data.draw(st.integers(0, 3))
    if shared and data.draw(st.booleans()):
        leader = shared + [newest] * more + theirs
    elif shared:
        follower = Follower(shared + [newest] * more + mine, epoch=9)
    expected = common(follower.log, leader)
    follower.cut_at = len(follower.log)
    follower.follow_through(leader)
    assert follower.log == leader
    assert follower.cut_at == expected


def test_a_leader_whose_epochs_are_all_newer_leaves_nothing_above_its_start():
    follower = Follower([1, 1, 1], epoch=9)
    assert follower.on(EpochEndAnswered(9, 1, -1, 2)) == (TruncateTo(2),)


def test_the_hw_is_cut_first_and_the_loss_is_said():
    """(R14, R16)"""
    follower = Follower([1, 1, 1, 1], hw=4)
    effects = follower.on(EpochEndAnswered(9, 1, 1, 2))
    assert effects == (ReportLostRecords(9, 2, 4), TruncateTo(2))
    assert follower.state.high_watermark == 2


def test_a_cut_at_the_hw_loses_nothing_and_says_nothing():
    follower = Follower([1, 1, 1], hw=2)
    assert follower.on(EpochEndAnswered(9, 1, 1, 2)) == (TruncateTo(2),)


def test_the_hw_follows_the_log_and_the_leader():
    follower = Follower([])
    follower.on(answer(0, 3, 3))
    assert follower.on(Appended(3, ((9, 0),), 50)) == (Fetch(1, 9, 3),)
    assert follower.on(answer(3, 0, 2)) == (Fetch(1, 9, 3),)  # a new leader may know less
    assert follower.state.high_watermark == 3


@pytest.mark.parametrize(
    "late",
    [
        answer(0, 10, 0, epoch=8),
        answer(5, 10, 0),
        OutOfRange(8, 0, 3, 5),
        EpochEndAnswered(9, 1, 1, 0),
    ],
)
def test_an_answer_to_another_question_is_dropped(late):
    """(R26)"""
    follower = Follower([])
    before = follower.state
    assert follower.on(late) == ()
    assert follower.state == before


def test_an_answer_counts_once():
    """(R26): the network may deliver it twice."""
    follower = Follower([])
    fetched = answer(0, 10, 0)
    assert follower.on(fetched) == (Append(fetched.records, 0),)
    assert follower.on(fetched) == ()


def test_a_cut_that_failed_is_asked_for_again_after_a_pause_and_no_other_is_made():
    follower = Follower([1, 1, 1, 1], hw=2)
    for _ in range(2):
        assert follower.on(EpochEndAnswered(9, 1, 1, 3)) == (TruncateTo(3),)
        assert follower.on(PauseOver()) == ()  # of an earlier write
        assert follower.on(WriteFailed(0, 4, ((1, 0),))) == (Pause(),)
        assert follower.on(EpochEndAnswered(9, 1, 1, 3)) == ()  # late: nothing was asked since
        assert follower.on(PauseOver()) == (AskEpochEnd(1, 9, 1),)


def test_after_a_failed_write_it_goes_on_from_the_log_as_it_is():
    follower = Follower([])
    follower.on(OutOfRange(9, 0, 7, 20))
    assert follower.on(WriteFailed(0, 0, ()), PauseOver()) == (Fetch(1, 9, 0),)
    assert follower.state.high_watermark == 0
    follower.on(answer(0, 10, 50))
    assert follower.on(WriteFailed(0, 4, ((9, 0),)), PauseOver()) == (Fetch(1, 9, 4),)


def test_behind_the_leaders_start_it_begins_anew_there():
    """(R15)"""
    follower = Follower([1, 1], hw=2)
    follower.on(EpochEndAnswered(9, 1, 1, 2), Truncated(0, 2, ((1, 0),)))
    assert follower.on(OutOfRange(9, 2, 7, 20)) == (StartAnew(7),)
    assert follower.on(Truncated(7, 7, ())) == (Fetch(1, 9, 7),)
    assert follower.state.high_watermark == 7


def test_beyond_the_leaders_end_it_reconciles_again():
    follower = Follower([1, 1, 1])
    follower.on(EpochEndAnswered(9, 1, 1, 3), Truncated(0, 3, ((1, 0),)))
    assert follower.on(OutOfRange(9, 3, 0, 2)) == (AskEpochEnd(1, 9, 1),)


def test_beyond_the_leaders_end_the_epoch_in_question_is_that_of_its_last_append():
    follower = Follower([])
    follower.on(answer(0, 3, 3), Appended(3, ((9, 0),), 3))
    assert follower.on(OutOfRange(9, 3, 0, 2)) == (AskEpochEnd(1, 9, 9),)


@pytest.mark.parametrize("leaders", [(5, 20), (0, 2)])
def test_a_log_that_touches_the_leaders_is_kept(leaders):
    follower = Follower([])
    follower.state, _ = follow(1, 9, log_start_offset=2, log_end_offset=5, epochs=((1, 2),), high_watermark=2)
    follower.on(EpochEndAnswered(9, 1, 1, 5), Truncated(2, 5, ((1, 2),)))
    assert follower.on(OutOfRange(9, 5, *leaders)) == (AskEpochEnd(1, 9, 1),)


def test_a_log_that_begins_behind_the_leaders_end_begins_anew():
    follower = Follower([], start=30)
    follower.state, _ = follow(1, 9, log_start_offset=30, log_end_offset=30, epochs=(), high_watermark=30)
    assert follower.on(OutOfRange(9, 30, 0, 4)) == (ReportLostRecords(9, 0, 30), StartAnew(0))


def test_the_leaders_log_start_is_passed_on():
    follower = Follower([])
    assert MoveLogStart(5) in follower.on(answer(0, 10, 0, start=5))
    assert MoveLogStart(5) in follower.on(Appended(10, ((9, 0),), 0), answer(10, 0, 0, start=5))  # it was not done
    assert follower.on(LogStartMoved(5), answer(10, 0, 0, start=5)) == (Fetch(1, 9, 10),)
