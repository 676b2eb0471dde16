"""A lost coordination store is recovered: by copies, by directories, by their contradictions."""

from hypothesis import given
from hypothesis import strategies as st

from replication.model.cluster import ClusterState, LeaderAndIsr, Reassignment, TopicPartition
from replication.tools.recovery_plan import STEP, FoundReplica, agreed_end, plan
from tests.support.topics import described

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def replica(*epochs, end=0, topic_id="id", hw=0, damage=""):
    return FoundReplica(topic_id, epochs, end, hw, damage)


def copy(state=None, *, replicas=(1, 2, 3), topic_id="id", partitions=1, **more):
    states = {} if state is None else {T0: state}
    return ClusterState(
        topics={"t": described(dict.fromkeys(range(partitions), replicas), topic_id)},
        leadership=states,
        **more,
    )


def test_the_log_written_last_leads_and_who_has_as_much_is_in_sync():
    found = {
        T0: {
            1: replica((0, 0), (4, 10), end=12),
            2: replica((0, 0), end=90),
            3: replica((0, 0), (4, 10), end=12),
        }
    }
    made = plan(found, (1, 2, 3), None)
    state = made.states[T0]
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1, 3), 4 + STEP)
    assert made.topics["t"].partitions == {0: (1, 3, 2)}
    assert made.rows[0].note == "broker 2 has offsets 10 to 90 of an older leader, which are cut"
    assert made.notes == ["topic t: its settings are lost; nothing of it is deleted until it has settings again"]


def test_every_epoch_is_above_all_that_anybody_holds():
    assert STEP >= 1000  # epochs in which nothing was written are noted nowhere
    found = {T0: {1: replica((7, 0), end=1)}}
    made = plan(found, (1, 2, 3), copy(LeaderAndIsr(1, 5, (1,), 30)), controller_epoch=31)
    assert made.states[T0].leader_epoch == 7 + STEP
    assert made.controller_epoch == made.states[T0].controller_epoch == 31 + STEP
    older = plan({T0: {1: replica((2, 0), end=1)}}, (1, 2, 3), copy(LeaderAndIsr(1, 5, (1,), 30)))
    assert older.states[T0].leader_epoch == 5 + STEP


def test_the_leader_of_the_copy_leads_on_if_nobody_has_more():
    row = {broker: replica((3, 0), end=5) for broker in (1, 2, 3)}
    made = plan({T0: row}, (1, 2, 3), copy(LeaderAndIsr(2, 3, (2, 3), 1)))
    assert (made.states[T0].leader, made.states[T0].isr) == (2, (1, 2, 3))
    assert made.rows[0].note == ""
    row[3] = replica((3, 0), end=6)  # the ISR of the copy does not count against what a log has
    made = plan({T0: row}, (1, 2, 3), copy(LeaderAndIsr(2, 3, (2, 3), 1)))
    assert (made.states[T0].leader, made.states[T0].isr) == (3, (3,))


def test_a_partition_waits_for_the_only_ones_in_sync_unless_others_have_written_since():
    row = {1: replica((3, 0), end=5), 2: replica((3, 0), end=4)}
    made = plan({T0: row}, (1, 2), copy(LeaderAndIsr(3, 4, (3,), 1)))
    assert (made.states[T0].leader, made.states[T0].isr) == (-1, (3,))
    assert "waits for brokers [3]" in made.rows[0].note
    row[1] = replica((3, 0), (5, 5), end=6)
    made = plan({T0: row}, (1, 2), copy(LeaderAndIsr(3, 4, (3,), 1)))
    assert (made.states[T0].leader, made.states[T0].isr) == (1, (1,))
    assert "brokers [3] were in sync and are not here" in made.rows[0].note


def test_who_wrote_after_the_copy_is_a_replica_and_a_leftover_is_none():
    row = {1: replica((3, 0), end=5), 4: replica((9, 0), end=7), 5: replica((1, 0), end=9)}
    made = plan({T0: row}, (1, 4, 5), copy(LeaderAndIsr(1, 3, (1,), 1), replicas=(1,)))
    assert made.topics["t"].partitions == {0: (1, 4)}
    assert made.states[T0].leader == 4


def test_committed_records_that_are_lost_are_said_first():
    found = {T0: {1: replica((4, 0), end=3), 2: replica((3, 0), end=8, hw=6)}}
    note = plan(found, (1, 2), None).rows[0].note
    assert "broker 2 has offsets 0 to 8 of an older leader, which are cut; 6 of them were committed" in note
    assert "offsets 3 to 6 were committed, and are in none of these logs" in note


def test_a_damaged_log_leads_nothing():
    found = {T0: {1: replica((4, 0), end=9, damage="bits"), 2: replica((3, 0), end=2)}}
    made = plan(found, (1, 2), None)
    assert (made.states[T0].leader, made.states[T0].leader_epoch) == (2, 4 + STEP)
    assert "broker 1: its log is damaged (bits)" in made.rows[0].note
    alone = plan({T0: {1: replica(damage="bits")}}, (1,), None)
    assert (alone.states[T0].leader, alone.states[T0].isr) == (-1, (1,))


def test_topics_of_one_name_are_told_apart_by_their_ids():
    found = {T0: {1: replica(topic_id="old", end=9), 2: replica(topic_id="new", end=1)}}
    made = plan(found, (1, 2), None)
    assert made.topics == {}
    assert "--topic-id t=ID" in made.problems[0]
    chosen = plan(found, (1, 2), None, chosen_ids={"t": "new"})
    assert (chosen.problems, chosen.topics["t"].id, chosen.topics["t"].partitions) == ([], "new", {0: (2,)})
    since = plan({T0: {1: replica(topic_id="new", end=1)}}, (1, 2, 3), copy(topic_id="old"))
    assert (since.topics["t"].id, since.topics["t"].is_known) == ("new", False)
    assert "was made again after the copy" in since.notes[0]


def test_a_topic_without_a_replica_was_deleted_if_all_directories_are_there():
    known = copy(LeaderAndIsr(1, 3, (1, 2, 3), 1))
    assert plan({}, (1, 2, 3), known).dropped == ["t"]
    waiting = plan({}, (1, 2), known)
    assert (waiting.dropped, waiting.states[T0].leader, waiting.states[T0].isr) == ([], -1, (1, 2, 3))


def test_a_partition_that_nobody_has_begins_anew_and_that_is_said():
    made = plan({T1: {1: replica((0, 0), end=4)}}, (1,), None)
    assert made.topics["t"].partitions == {0: (1,), 1: (1,)}
    assert T0 not in made.states
    assert "begins anew, empty" in made.rows[0].note


def test_what_was_asked_for_is_said_to_be_asked_for_again():
    moves = {T0: Reassignment((4, 5, 6), None)}
    row = {1: replica((3, 0), end=5)}
    made = plan({T0: row}, (1, 2, 3), copy(LeaderAndIsr(1, 3, (1,), 1), reassignments=moves))
    assert made.notes == ["t-0 was being moved to [4, 5, 6]: ask for that again"]


def logs(max_epoch=4):
    """A log as a list of the epochs of its records, which never go down."""
    return st.lists(st.integers(0, max_epoch), max_size=8).map(sorted)


def as_replica(log):
    starts = {epoch: log.index(epoch) for epoch in log}
    return replica(*sorted(starts.items()), end=len(log))


@given(logs(), st.integers(0, 8), logs())
def test_a_follower_keeps_exactly_what_both_logs_have(shared, cut, rest):
    """Logs that elections can make: where they fork, the follower's epochs are not the leader's."""
    leader = shared
    common = shared[: min(cut, len(shared))]
    own = [epoch + 10 for epoch in rest]
    follower = common + own
    assert agreed_end(as_replica(leader), as_replica(follower)) == len(common)
