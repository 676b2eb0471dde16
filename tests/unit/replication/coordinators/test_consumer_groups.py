"""Groups of the consumer protocol in single steps: what random steps meet seldom."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.coordinators.groups.classic.state import Group
from replication.coordinators.groups.consumer.assignors import ASSIGNORS
from replication.coordinators.groups.consumer.assignors.wishes import Wish
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat
from replication.coordinators.groups.consumer.reconciliation import reconciled
from replication.coordinators.groups.consumer.state import Current, Progress
from replication.coordinators.groups.kinds import step
from replication.coordinators.groups.messages import Answer, Appended, Now
from replication.coordinators.groups.parts.events import AppendParts
from replication.coordinators.groups.pieces import Piece, Topic
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import NONE, ErrorCode
from replication.model.cluster import topic_id_of

A, B = (topic_id_of(UUID(int=number)) for number in (1, 2))
ZERO, ONE, TWO = (Piece(A, number) for number in range(3))
SINCE = dict.fromkeys((ZERO, ONE, TWO), 1)
LIMITS = GroupSettings()


@pytest.mark.parametrize("owned", [None, frozenset(), frozenset({TWO}), frozenset({ZERO, ONE, TWO})])
@pytest.mark.parametrize("progress", [Progress.STABLE, Progress.REVOKING])
def test_a_member_has_given_up_nothing_before_it_says_so_and_reads_the_rest(progress, owned):
    """One that names less than it keeps has not taken in its last answer, and may be about to take all of it."""
    kept, revoking = frozenset({ZERO}), frozenset({ONE, TWO})
    was = {
        Progress.STABLE: Current(epoch=1, assigned=kept | revoking, since=SINCE),
        Progress.REVOKING: Current(epoch=1, progress=Progress.REVOKING, assigned=kept, revoking=revoking, since=SINCE),
    }[progress]
    after = reconciled(was, kept, 2, owned, lambda piece: True)
    assert (after.epoch, after.held, after.progress) == (1, kept | revoking, Progress.REVOKING)
    assert reconciled(after, kept, 2, kept, lambda piece: True).held == kept


def test_a_member_that_comes_back_by_its_name_has_given_up_what_it_lost_meanwhile():
    """Its process is another one, and reads nothing. An answer of epoch 0 would have it join again without end."""
    was = Current(epoch=0, assigned=frozenset({ZERO, ONE}), since={ZERO: 1, ONE: 1})
    after = reconciled(was, frozenset({ZERO}), 2, frozenset(), lambda piece: True)
    assert (after.epoch, after.held, after.progress, after.since) == (2, {ZERO}, Progress.STABLE, {ZERO: 1})


def test_a_write_has_all_that_the_lost_one_before_it_had_and_what_waited_goes_with_it():
    known = {"a": Topic(A, 3)}
    group, appends, answers = Group(id="g"), [], []

    def post(event):
        nonlocal group
        group, effects = step(group, event, Now(0, 0), LIMITS)
        appends.extend(effect for effect in effects if isinstance(effect, AppendParts))
        answers.extend((effect.request, effect.body.error) for effect in effects if isinstance(effect, Answer))

    for request, member in enumerate("mno"):
        timeout = {"rebalance_timeout_ms": 1000, "topics": ("a",), "owned": frozenset(), "known": known}
        post(ConsumerHeartbeat(request=request, member_id=member, epoch=0, **timeout))
    assert answers == []
    (first,) = appends  # the others wait
    post(Appended(first.write, ErrorCode.NOT_ENOUGH_REPLICAS))
    assert answers == [(0, ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    _, second = appends
    assert first.values.keys() < second.values.keys()
    assert {key.of for key in second.values} == {"", "m", "n", "o"}
    assert group.epoch == 2  # targets are made once for both
    post(Appended(second.write, NONE))
    assert answers[1:] == [(1, NONE), (2, NONE)]


def test_an_answer_waits_for_the_write_that_it_tells_of():
    fields = {"rebalance_timeout_ms": 1000, "topics": ("a",), "owned": frozenset(), "known": {"a": Topic(A, 3)}}
    joined = ConsumerHeartbeat(request=1, member_id="m", epoch=0, **fields)
    group, (write,) = step(Group(id="g"), joined, Now(0, 0), LIMITS)
    again = ConsumerHeartbeat(request=2, member_id="m", epoch=1, known=fields["known"])
    group, effects = step(group, again, Now(0, 0), LIMITS)
    assert effects == ()
    _, answers = step(group, Appended(write.write, NONE), Now(0, 0), LIMITS)
    assert [answer.request for answer in answers] == [1, 2]


@given(
    name=st.sampled_from(sorted(ASSIGNORS)),
    partitions=st.fixed_dictionaries({A: st.integers(1, 8), B: st.integers(1, 8)}),
    topics=st.lists(st.frozensets(st.sampled_from([A, B])), min_size=1, max_size=6),
    data=st.data(),
)
def test_every_partition_that_somebody_wants_goes_to_one_who_wants_it(name, partitions, topics, data):
    wishes = {f"m{at}": Wish(wanted, frozenset()) for at, wanted in enumerate(topics)}
    for _ in range(2):  # and again, when one has left
        found = ASSIGNORS[name](wishes, partitions)
        given_out = [piece for pieces in found.values() for piece in pieces]
        wanted = frozenset().union(*(wish.topics for wish in wishes.values()))
        assert sorted(given_out) == sorted(Piece(topic, n) for topic in wanted for n in range(partitions[topic]))
        assert all(piece.topic_id in wishes[member].topics for member, pieces in found.items() for piece in pieces)
        if name == "uniform" and len({wish.topics for wish in wishes.values()}) == 1:
            counts = [len(pieces) for pieces in found.values()]
            assert max(counts) - min(counts) <= 1
        left = data.draw(st.sampled_from(sorted(wishes)))
        wishes = {m: wish._replace(former=found[m]) for m, wish in wishes.items() if m != left or len(wishes) == 1}


def test_the_uniform_assignor_moves_only_what_a_new_member_gets():
    wishes = {"m": Wish(frozenset({A}), frozenset(Piece(A, n) for n in range(6)))}
    found = ASSIGNORS["uniform"]({**wishes, "n": Wish(frozenset({A}), frozenset())}, {A: 6})
    assert (len(found["m"] & wishes["m"].former), len(found["n"])) == (3, 3)
