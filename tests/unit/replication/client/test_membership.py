"""The machine of a group's member, and who gets which partitions: no broker."""

import random
from collections import Counter

import pytest

from replication.client.assignors import (
    ASSIGNORS,
    Member,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from replication.client.membership import (
    Assign,
    Closed,
    Divide,
    Divided,
    Fail,
    HeartbeatAnswered,
    Join,
    Joined,
    Leave,
    Lose,
    Membership,
    Phase,
    Polled,
    PollLate,
    Revoke,
    Sync,
    Synced,
    TopicsChanged,
    Unanswered,
    step,
)
from replication.errors import ErrorCode, ProtocolError
from replication.model.cluster import TopicPartition

OK = ErrorCode.NONE


def tps(*numbers, topic="t"):
    return frozenset(TopicPartition(topic, n) for n in numbers)


def run(m, *events):
    """The member after these, and the effects of the last one."""
    effects = ()
    for event in events:
        m, effects = step(m, event)
    return m, effects


def joined(generation, leader="other"):
    return Joined(OK, "me", generation, leader)


def stable(*numbers, cooperative=True, **fields):
    m = Membership(is_cooperative=cooperative, **fields)
    return run(m, Polled(), joined(1), Synced(OK, tps(*numbers)))[0]


def test_a_member_joins_when_its_program_polls_and_not_before():
    m = Membership(is_cooperative=True)
    for event in (HeartbeatAnswered(-1, OK), TopicsChanged(), PollLate()):
        assert run(m, event) == (m, ())
    m, effects = run(m, Polled())
    assert effects == (Join(),)
    m, effects = run(m, Joined(ErrorCode.MEMBER_ID_REQUIRED, "me"))
    assert (m.id, effects) == ("me", (Join(),))
    m, effects = run(m, joined(1))
    assert effects == (Sync({}),)
    m, effects = run(m, Synced(OK, tps(0, 1)))
    assert effects == (Assign(tps(0, 1)),)
    assert run(m, Polled()) == (m, ())


def test_the_leader_divides():
    m, effects = run(Membership(is_cooperative=True), Polled(), joined(1, "me"))
    assert effects == (Divide(()),)
    assert run(m, Divided({"me": b"x"}))[1] == (Sync({"me": b"x"}),)


def test_a_cooperative_member_keeps_what_stays_and_joins_again_for_what_goes():
    m = stable(0, 1, 2)
    m, effects = run(m, HeartbeatAnswered(1, ErrorCode.REBALANCE_IN_PROGRESS))
    assert (m.owned, effects) == (tps(0, 1, 2), ())
    m, effects = run(m, Polled())
    assert (m.owned, effects) == (tps(0, 1, 2), (Join(),))
    m, effects = run(m, joined(2), Synced(OK, tps(0, 5)))
    assert effects == (Revoke(tps(1, 2)), Assign(tps(5)))
    assert run(m, Polled())[1] == (Join(),)
    m, effects = run(m, Polled(), joined(3), Synced(OK, tps(0, 5)))
    assert effects == (Assign(tps()),)
    assert run(m, Polled()) == (m, ())


def test_an_eager_member_gives_up_everything_before_it_joins():
    m = stable(0, 1, cooperative=False)
    m, effects = run(m, HeartbeatAnswered(1, ErrorCode.REBALANCE_IN_PROGRESS), Polled())
    assert effects == (Revoke(tps(0, 1)), Join())
    assert run(m, joined(2), Synced(OK, tps(1)))[1] == (Assign(tps(1)),)


@pytest.mark.parametrize("error", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_member_that_the_group_gave_up_has_lost_its_partitions(error):
    m, effects = run(stable(0, 1), HeartbeatAnswered(1, error))
    assert effects == (Lose(tps(0, 1)),)
    assert m.id == ("me" if error is ErrorCode.ILLEGAL_GENERATION else "")
    assert (m.phase, m.owned, m.generation) == (Phase.OUT, frozenset(), -1)
    assert run(m, Polled())[1] == (Join(),)


def test_what_is_said_of_an_earlier_generation_is_not_heard():
    m = stable(0)
    assert run(m, HeartbeatAnswered(0, ErrorCode.UNKNOWN_MEMBER_ID)) == (m, ())


def test_a_rebalance_while_it_syncs_makes_it_join_again_with_what_it_has():
    m = run(stable(0), TopicsChanged(), Polled(), joined(2), Synced(ErrorCode.REBALANCE_IN_PROGRESS))[0]
    assert (m.phase, m.owned, m.id) == (Phase.OUT, tps(0), "me")
    m, effects = run(m, Polled(), Unanswered(), Polled())
    assert effects == (Join(),)


def test_a_program_that_does_not_poll_loses_its_partitions():
    m, effects = run(stable(0), PollLate())
    assert effects == (Lose(tps(0)),)
    assert m.phase is Phase.OUT


def test_a_static_member_does_not_leave_and_a_fenced_one_fails():
    assert run(stable(0, is_static=True), Closed())[1] == (Revoke(tps(0)),)
    assert run(stable(0), Closed())[1] == (Revoke(tps(0)), Leave("me"))
    assert run(stable(0, is_static=True), HeartbeatAnswered(1, ErrorCode.FENCED_INSTANCE_ID))[1] == (
        Lose(tps(0)), Fail(ErrorCode.FENCED_INSTANCE_ID),
    )  # fmt: skip


# ----------------------------------------------------------------- assignors


def members(count, topics=("t",), owned=None):
    return [
        Member(f"m{i}", (True, f"m{i}"), Subscription(topics, tuple(sorted((owned or {}).get(f"m{i}", ()))), 1))
        for i in range(count)
    ]


@pytest.mark.parametrize("name", ASSIGNORS)
def test_every_partition_has_one_reader_that_wants_it(name):
    rng = random.Random(5)
    for _ in range(60):
        topics = {f"t{i}": range(rng.randrange(8)) for i in range(rng.randrange(1, 4))}
        some = [
            Member(
                f"m{i}",
                (True, f"m{i}"),
                Subscription(tuple(rng.sample(sorted(topics), rng.randrange(1, len(topics) + 1)))),
            )
            for i in range(rng.randrange(1, 6))
        ]
        wanted = {topic for member in some for topic in member.subscription.topics}
        found = ASSIGNORS[name](some, topics)
        given = Counter(tp for each in found.values() for tp in each)
        assert given == Counter(TopicPartition(t, p) for t in wanted for p in topics[t])
        for member in some:
            assert {tp.topic for tp in found[member.id]} <= set(member.subscription.topics)


def test_ranges_and_turns():
    found = ASSIGNORS["range"](members(2), {"t": range(5)})
    assert {m: [tp.partition for tp in given] for m, given in found.items()} == {
        "m0": [0, 1, 2],
        "m1": [3, 4],
    }
    found = ASSIGNORS["roundrobin"](members(2), {"t": range(5)})
    assert {m: [tp.partition for tp in given] for m, given in found.items()} == {
        "m0": [0, 2, 4],
        "m1": [1, 3],
    }


def test_sticky_members_keep_what_they_may_and_nobody_gets_what_another_has():
    rng, owned = random.Random(7), {}
    for _ in range(40):
        count = rng.randrange(1, 6)
        owned = {m: each for m, each in owned.items() if int(m[1:]) < count}
        rounds = 0
        while True:
            found = ASSIGNORS["cooperative-sticky"](members(count, owned=owned), {"t": range(12)})
            for member, given in found.items():
                others = {tp for m, each in owned.items() if m != member for tp in each}
                assert not others & set(given)
                quota = 12 // count
                assert len(set(given) & set(owned.get(member, ()))) >= min(quota, len(owned.get(member, ())))
            is_done = all(set(owned.get(m, ())) <= set(given) for m, given in found.items())
            owned = found
            rounds += 1
            if is_done:
                break
        assert rounds <= 2
        sizes = [len(given) for given in owned.values()]
        assert sum(sizes) == 12
        assert max(sizes) - min(sizes) <= 1


def test_of_two_that_claim_a_partition_the_later_generation_has_it():
    both = [
        Member("a", (True, "a"), Subscription(("t",), tuple(tps(0)), 4)),
        Member("b", (True, "b"), Subscription(("t",), tuple(tps(0)), 5)),
    ]
    assert ASSIGNORS["cooperative-sticky"](both, {"t": range(2)})["b"] == [TopicPartition("t", 0)]


def test_the_bytes_go_there_and_back_and_others_are_refused():
    subscription = Subscription(("t", "u"), tuple(sorted(tps(1, 2))), 7)
    data = encode_subscription(subscription)
    assert decode_subscription(data) == subscription
    assert decode_subscription(b"\0\0" + data[2:]) == Subscription(("t", "u"))
    given = tps(1, 2) | tps(0, topic="u")
    assert decode_assignment(encode_assignment(given)) == given
    assert decode_assignment(b"") == frozenset()
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_subscription(data[:end])
