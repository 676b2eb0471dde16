"""A leader counts on the maximal ISR, changes it only by accepted writes, and lets followers in and out by rule."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from replication.errors import ErrorCode
from replication.model.cluster import LeaderAndIsr
from replication.replica.machine.isr import (
    Appended,
    Fetched,
    HighWatermarkMoved,
    IsrChanged,
    IsrRefused,
    IsrSettings,
    IsrWritten,
    LeadershipRefreshed,
    Leading,
    RefreshLeadership,
    Suspended,
    Ticked,
    WriteIsr,
    append_alone,
    are_all_asking,
    asked_on,
    has_enough_replicas,
    judge_epoch,
    judge_fetch,
    lead,
    lead_on,
    step,
)
from tests.support.repeats import times

LIMITS = IsrSettings(replica_lag_time_max_ms=100)


class Leader:
    """Drives the machine, and keeps what it ordered."""

    def __init__(self, *isr, replicas=(1, 2, 3), log_end=10, hw=0, epoch=5, limits=LIMITS):
        stored = LeaderAndIsr(1, epoch, isr or replicas, 1, 20)
        self.limits = limits
        self.state, self.effects = lead(1, stored, replicas, log_end_offset=log_end, high_watermark=hw, now_ms=0)

    def on(self, *events):
        for event in events:
            self.state, self.effects = step(self.state, event, self.limits)
        return self.effects

    def on_epoch(self, epoch, *isr, log_end=0):
        stored = LeaderAndIsr(1, epoch, isr, 1, 30)
        self.state, self.effects = lead_on(self.state, stored, (1, 2, 3), log_end_offset=log_end, now_ms=50)

    @property
    def hw(self):
        return self.state.high_watermark


def test_a_record_is_committed_when_every_member_has_it():
    leader = Leader()
    assert leader.on(Fetched(2, 10, 1)) == ()
    assert leader.on(Fetched(3, 8, 1)) == (HighWatermarkMoved(8),)
    assert leader.on(Appended(12), Fetched(2, 12, 2), Fetched(3, 12, 2)) == (HighWatermarkMoved(12),)


def test_a_leader_alone_commits_at_once():
    leader = Leader(1)
    assert leader.effects == (HighWatermarkMoved(10),)
    assert leader.on(Appended(11)) == (HighWatermarkMoved(11),)


def test_nothing_is_known_of_followers_at_the_start_of_an_epoch_and_the_hw_stays():
    leader = Leader(1, 2, hw=7)
    assert (leader.effects, leader.hw, leader.state.is_settled) == ((), 7, False)
    leader.on(Fetched(2, 9, 1))
    assert (leader.hw, leader.state.is_settled) == (9, False)
    leader.on(Fetched(2, 10, 1))
    assert leader.state.is_settled  # the end may be told now (R13)


def test_a_leader_that_leads_on_keeps_its_hw_and_hears_its_followers_anew():
    leader = Leader(1, 2, log_end=10)
    leader.on(Fetched(2, 10, 1), Fetched(3, 9, 1), Appended(20), Suspended())
    leader.on_epoch(7, 1, 2)
    state = leader.state
    assert (leader.effects, leader.hw, state.log_end_offset, state.leader_epoch) == ((), 10, 20, 7)
    assert (state.is_settled, state.is_suspended, state.proposed, state.version) == (True, True, None, 30)
    assert {follower.log_end_offset for follower in state.followers.values()} == {-1}
    assert leader.on(Fetched(2, 20, 51)) == (HighWatermarkMoved(20),)


def test_a_leader_that_leads_on_alone_commits_what_it_has():
    leader = Leader(1, 2, log_end=10)
    leader.on_epoch(6, 1, log_end=12)
    assert (leader.effects, leader.state.is_settled) == ((HighWatermarkMoved(12),), True)


def test_a_leader_that_leads_on_before_it_knew_the_true_hw_still_has_to_learn_it():
    """(R13) What was committed before it led ends where its log ended then."""
    leader = Leader(1, 2, log_end=10, hw=4)
    leader.on(Appended(20))
    leader.on_epoch(6, 1, 2)
    leader.on(Fetched(2, 9, 51))
    assert (leader.hw, leader.state.is_settled) == (9, False)
    assert leader.on(Fetched(3, 9, 52)) == (), "it may lack what is committed"
    leader.on(Fetched(2, 10, 53))
    assert leader.state.is_settled
    assert leader.on(Fetched(3, 10, 54)) == (WriteIsr((1, 2, 3), 30, ((3, -1),)),)


def test_an_isr_that_was_written_in_the_former_epoch_says_nothing_in_the_next():
    leader = Leader(1, 2, log_end=10)
    leader.on(Ticked(200))
    leader.on_epoch(6, 1, 2)
    assert leader.on(IsrWritten(5, 21), IsrRefused(5)) == ()
    assert (leader.state.isr, leader.state.version, leader.state.is_stale) == ((1, 2), 30, False)


def test_the_hw_waits_for_who_is_being_dropped_until_that_is_written():
    """(R7)"""
    leader = Leader(1, 2)
    leader.on(Fetched(2, 10, 1), Appended(20))
    assert leader.on(Ticked(200)) == (WriteIsr((1,), 20, ()),)
    assert leader.hw == 10
    assert leader.on(Appended(21)) == ()
    assert leader.on(IsrWritten(5, 21)) == (IsrChanged((1, 2), (1,)), HighWatermarkMoved(21))


def test_the_hw_waits_for_who_is_being_added():
    """(R8)"""
    leader = Leader(1, 2)
    leader.on(Fetched(2, 10, 1))
    assert leader.on(Fetched(3, 10, 1, broker_epoch=4)) == (WriteIsr((1, 2, 3), 20, ((3, 4),)),)
    leader.on(Appended(20), Fetched(2, 20, 2))
    assert leader.hw == 10
    assert leader.on(Fetched(3, 20, 3, broker_epoch=4)) == (HighWatermarkMoved(20),)


def test_a_follower_joins_when_it_has_reached_the_hw_and_this_epoch():
    """(R9): the leader's HW may be below the true one."""
    leader = Leader(1, 2, log_end=10, hw=4)
    assert leader.on(Fetched(3, 5, 1)) == ()  # above the HW, below this epoch's start
    assert leader.on(Fetched(3, 9, 1)) == ()
    assert leader.on(Fetched(3, 10, 1)) == (WriteIsr((1, 2, 3), 20, ((3, -1),)),)


def test_it_need_not_reach_the_end_of_the_log():
    leader = Leader(1, 2)
    leader.on(Fetched(2, 10, 1), Appended(50), Fetched(2, 30, 1))
    assert leader.on(Fetched(3, 30, 1)) == (WriteIsr((1, 2, 3), 20, ((3, -1),)),)


def test_one_change_is_in_flight():
    leader = Leader(1, replicas=(1, 2, 3))
    leader.on(Fetched(2, 10, 1))
    assert leader.on(Fetched(3, 10, 1)) == ()
    leader.on(IsrWritten(5, 21))
    assert leader.on(Fetched(3, 10, 2)) == (WriteIsr((1, 2, 3), 21, ((3, -1),)),)


def test_a_refusal_makes_the_leader_read_before_it_writes_again():
    leader = Leader(1)
    leader.on(Fetched(2, 10, 1))
    assert leader.on(IsrRefused(5)) == (RefreshLeadership(),)
    assert leader.on(Fetched(2, 10, 2)) == ()
    leader.on(LeadershipRefreshed(LeaderAndIsr(3, 6, (3,), 1, 22)))  # deposed: wait for the word
    assert leader.on(Fetched(2, 10, 3)) == ()
    leader.on(LeadershipRefreshed(LeaderAndIsr(1, 5, (1, 3), 1, 22)))
    assert leader.state.isr == (1, 3)
    assert leader.on(Fetched(2, 10, 4)) == (WriteIsr((1, 3, 2), 22, ((2, -1),)),)


def test_what_was_read_before_the_last_write_means_nothing():
    """A read that was asked for in a former epoch, say, and answers late."""
    leader = Leader(1)
    leader.on(Fetched(2, 10, 1), IsrWritten(5, 22))
    before = leader.state
    assert before.isr == (1, 2)
    assert leader.on(LeadershipRefreshed(LeaderAndIsr(1, 5, (1,), 1, 21))) == ()
    assert leader.state == before


def test_what_was_read_while_a_write_is_under_way_means_nothing():
    leader = Leader(1, 2)
    leader.on(Ticked(101))
    before = leader.state
    assert leader.on(LeadershipRefreshed(LeaderAndIsr(1, 5, (1, 2, 3), 1, 21))) == ()
    assert leader.state == before


def test_the_outcome_of_a_former_epoch_means_nothing():
    leader = Leader(1)
    leader.on(Fetched(2, 10, 1))
    before = leader.state
    assert leader.on(IsrWritten(4, 21)) == leader.on(IsrRefused(4)) == ()
    assert leader.state == before


def test_a_follower_leaves_when_no_fetch_reached_the_end_for_too_long():
    """(R6, R31): and until that is written, nothing more is committed."""
    leader = Leader(1, 2)
    leader.on(Fetched(2, 10, 50))
    assert leader.on(Ticked(150)) == ()
    assert leader.on(Ticked(151)) == (WriteIsr((1,), 20, ()),)


def test_it_counts_as_caught_up_when_it_has_what_there_was_at_its_last_fetch():
    """Under load it is never at the end, and still not slow."""
    leader = Leader(1, 2)
    for now_ms in range(0, 1000, 50):
        leader.on(Fetched(2, leader.state.log_end_offset, now_ms))
        leader.on(Appended(leader.state.log_end_offset + 100))
        leader.on(Fetched(2, leader.state.log_end_offset - 100, now_ms + 1))
        assert leader.on(Ticked(now_ms + 2)) == ()


def test_who_is_never_at_the_end_is_as_late_as_its_fetch_before():
    leader = Leader(1, 2)
    leader.on(Fetched(2, 10, 0))
    for now_ms in range(100, 1000, 100):
        end = leader.state.log_end_offset
        leader.on(Appended(end + 100), Fetched(2, end, now_ms))
        assert leader.on(Ticked(now_ms)) == ()
    assert leader.on(Ticked(now_ms + 1)) == (WriteIsr((1,), 20, ()),)


def test_who_fetches_all_the_time_and_never_reaches_what_there_was_leaves():
    leader = Leader(1, 2)
    leader.on(Fetched(2, 10, 0), Appended(1000))
    for now_ms in range(1, 101):
        assert leader.on(Fetched(2, 10 + now_ms, now_ms), Ticked(now_ms)) == ()
    assert leader.on(Fetched(2, 500, 101), Ticked(101)) == (WriteIsr((1,), 20, ()),)


def test_it_may_be_too_many_records_behind_if_that_is_set():
    leader = Leader(1, 2, limits=IsrSettings(100, replica_lag_max_messages=5))
    leader.on(Fetched(2, 10, 1), Appended(15))
    assert leader.on(Ticked(2)) == ()
    leader.on(Appended(16))
    assert leader.on(Ticked(3)) == (WriteIsr((1,), 20, ()),)


def test_nothing_changes_while_the_coordination_service_is_silent():
    """(R25): and the HW does not move by it."""
    leader = Leader(1, 2)
    leader.on(Suspended(), Appended(20))
    assert leader.on(Ticked(500)) == leader.on(Fetched(3, 20, 500)) == ()
    assert leader.hw == 0
    assert leader.on(Suspended(is_suspended=False), Ticked(501)) == (WriteIsr((1,), 20, ()),)


def test_a_member_that_came_back_with_less_than_is_committed_is_put_out_at_once():
    """(R10, R19)"""
    leader = Leader(1, 2)
    leader.on(Fetched(2, 10, 1, broker_epoch=7))
    assert leader.hw == 10
    assert leader.on(Fetched(2, 3, 2, broker_epoch=8)) == (WriteIsr((1,), 20, ()),)
    assert leader.hw == 10


def test_a_late_fetch_of_a_former_life_counts_for_nothing():
    """(R21)"""
    leader = Leader(1, 2)
    leader.on(Fetched(2, 3, 2, broker_epoch=8))
    assert judge_fetch(leader.state, 2, leader_epoch=5, broker_epoch=7) is ErrorCode.STALE_BROKER_EPOCH
    before = leader.state
    assert leader.on(Fetched(2, 10, 3, broker_epoch=7)) == ()
    assert leader.state == before


def test_who_asks_in_another_epoch_is_told_so():
    """(R5)"""
    assert judge_epoch(5, 4) is ErrorCode.FENCED_LEADER_EPOCH
    assert judge_epoch(5, 6) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert judge_epoch(5, 5) is judge_epoch(5, -1) is ErrorCode.NONE
    assert judge_fetch(Leader().state, 9, leader_epoch=5, broker_epoch=1) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_too_few_in_sync_is_said_before_or_after_the_append():
    """(R27): the ISR shrinks between append and acknowledgement."""
    leader = Leader(1, 2)
    assert has_enough_replicas(leader.state, 2)
    leader.on(Appended(20))
    assert leader.state.high_watermark < 20
    leader.on(Ticked(500))
    assert not has_enough_replicas(leader.state, 2)  # the smaller set may stand already
    leader.on(IsrWritten(5, 21))
    assert leader.state.high_watermark == 20
    assert not has_enough_replicas(leader.state, 2)
    assert has_enough_replicas(leader.state, 1)


def test_the_hw_is_never_above_the_log():
    """(R30)"""
    assert Leader(1, 2, log_end=10, hw=99).hw == 10


EVENTS = st.one_of(
    st.builds(Fetched, st.sampled_from([2, 3, 4]), st.integers(0, 40), st.integers(0, 500), st.integers(1, 2)),
    st.builds(Appended, st.integers(0, 40)),
    st.builds(Ticked, st.integers(0, 500)),
    st.builds(IsrWritten, st.sampled_from([4, 5]), st.just(21)),
    st.builds(IsrRefused, st.sampled_from([4, 5])),
    st.just(LeadershipRefreshed(LeaderAndIsr(1, 5, (1, 2), 1, 30))),
    st.sampled_from([Suspended(), Suspended(is_suspended=False)]),
)


@given(events=st.lists(EVENTS, max_size=60), isr=st.sampled_from([(1,), (1, 2), (1, 2, 3)]))
def test_whatever_happens_the_laws_hold(events, isr):
    leader = Leader(*isr)
    for drawn in events:
        event = drawn
        if isinstance(drawn, Appended):
            event = Appended(max(drawn.log_end_offset, leader.state.log_end_offset))
        before = leader.state
        leader.on(event)
        after = leader.state
        assert before.high_watermark <= after.high_watermark <= after.log_end_offset
        assert after.isr[0] == 1
        assert set(after.maximal_isr) <= set(after.replicas)
        if after.high_watermark > before.high_watermark:
            ends = [after.followers[broker].log_end_offset for broker in after.maximal_isr if broker != 1]
            assert after.high_watermark <= min([*ends, after.log_end_offset])
        if after.isr != before.isr:
            assert isinstance(event, IsrWritten | LeadershipRefreshed)
        for effect in leader.effects:
            if isinstance(effect, WriteIsr):
                assert before.proposed is None
                assert not before.is_suspended
                assert effect.isr == after.proposed


@pytest.mark.parametrize("members", [(1, 2), (1, 3)])
def test_the_maximal_isr_is_what_stands_and_what_is_asked_for(members):
    leader = Leader(*members)
    leader.on(Fetched(5 - members[1], 10, 1))
    assert set(leader.state.maximal_isr) == {1, 2, 3}


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 5))
def test_what_a_leader_appends_alone_is_the_step_that_the_machine_takes(log_end, hw, more):
    leader = Leader(1, log_end=log_end, hw=hw)
    assert leader.state.is_alone
    end = log_end + more
    after, effects = step(leader.state, Appended(end), LIMITS)
    assert append_alone(leader.state, end) == after
    assert effects in ((), (HighWatermarkMoved(end),))


def test_the_two_ends_are_where_the_state_of_a_leader_alone_is_copied_by_position():
    assert Leading._fields[7:9] == ("log_end_offset", "high_watermark")


class Asked:
    """The request of a follower that had the whole log at its last fetch; it is repeated at times."""

    def __init__(self, fetched):
        self.event = fetched

    @property
    def asked_ms(self):
        return self.event.now_ms


def random_turns(dice, leader, turns):
    """Let anything happen, in the order of time; yield the time, and who asks on since it had the whole log."""
    asking, now_ms, version = {}, 0, 21
    for _ in range(turns):
        now_ms += dice.choice((0, 5, 30, 60))
        match dice.randrange(7):
            case 0 | 1 | 2:
                follower = dice.choice((2, 3))
                behind = dice.choice((0, 0, 0, 3))
                fetched = Fetched(follower, max(0, leader.state.log_end_offset - behind), now_ms, 1)
                leader.on(fetched)
                if behind:
                    asking.pop(follower, None)
                else:
                    asking[follower] = Asked(fetched)
            case 3 if asking:
                asked = asking[dice.choice(sorted(asking))]
                asked.event = asked.event._replace(now_ms=now_ms)
            case 4:
                leader.on(*asked_on(leader.state, asking)[0], Appended(leader.state.log_end_offset + 1))
                asking.clear()
            case 5:
                version += 1
                leader.on(
                    dice.choice((IsrWritten(5, version), IsrRefused(5), Suspended(), Suspended(is_suspended=False)))
                )
            case _ if leader.state.is_stale:
                version += 1
                stored = LeaderAndIsr(1, 5, dice.choice(((1,), (1, 2), (1, 2, 3))), 1, version)
                leader.on(LeadershipRefreshed(stored))
        yield now_ms, asking


def test_while_all_members_ask_on_a_tick_changes_nothing_and_nobody_else_joins():
    found = set()
    for seed in range(times(300, 10_000)):
        dice = random.Random(seed)
        limits = IsrSettings(100, dice.choice((-1, 0, 2)))
        leader = Leader(*dice.choice(((1, 2), (1, 2, 3))), limits=limits)
        for now_ms, asking in random_turns(dice, leader, 30):
            events, outside = asked_on(leader.state, asking)
            assert {event.replica for event in events} == asking.keys() & set(leader.state.isr)
            assert {*outside} == asking.keys() - set(leader.state.isr)
            are_all = are_all_asking(leader.state, asking, now_ms - 50)
            found.add(are_all)
            told = Leader(1, limits=limits)
            told.state = leader.state
            for event in (*events, Ticked(now_ms)) if are_all else ():
                for effect in told.on(event):  # the HW may wait for the stored state, which is being read
                    assert leader.state.is_stale
                    assert isinstance(effect, HighWatermarkMoved)
            if are_all and not leader.state.is_stale:
                followers = {**leader.state.followers, **{b: told.state.followers[b] for b in asking}}
                assert told.state == leader.state._replace(followers=followers)
            else:
                leader.on(*events, Ticked(now_ms))  # as a driver does
    assert found == {True, False}


def test_a_leader_is_not_alone_while_another_one_joins_or_leaves():
    leader = Leader(1, 2)
    assert not leader.state.is_alone
    leader.on(Ticked(101))
    assert (leader.state.isr, leader.state.proposed) == ((1, 2), (1,))
    assert not leader.state.is_alone
    leader.on(IsrWritten(5, 21))
    assert leader.state.is_alone
    leader.on(Fetched(2, 10, 1))
    assert (leader.state.isr, leader.state.proposed) == ((1,), (1, 2))
    assert not leader.state.is_alone
