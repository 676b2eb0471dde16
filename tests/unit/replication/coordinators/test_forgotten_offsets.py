"""The offsets of a deleted topic go, wherever they are kept: they must not count for a later topic of its name."""

import itertools

import pytest

from replication.coordinators.groups.classic.state import Group
from replication.coordinators.groups.classic.step import resume, step
from replication.coordinators.groups.messages import Append, Appended, Now
from replication.coordinators.groups.offsets.events import (
    Commit,
    ForgetAgain,
    ForgetLater,
    ForgetTopics,
    TransactionEnded,
)
from replication.coordinators.groups.offsets.state import Committed
from replication.coordinators.groups.records import Loaded, records_of
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
PRODUCER = (7, 0)
LIMITS, NOW = GroupSettings(), Now(0, 1_000)
FORGET = ForgetTopics(frozenset("t"))


class World:
    """A group and its log. `wants` are the appends that are not in the log yet."""

    def __init__(self):
        self.group, self.log, self.wants, self.stored, self.requests = Group(id="g"), [], [], [], itertools.count(1)
        self.later = []

    def post(self, event):
        self.group, effects = step(self.group, event, NOW, LIMITS)
        self.wants += [effect for effect in effects if isinstance(effect, Append)]
        self.later += [effect.positions for effect in effects if isinstance(effect, ForgetLater)]

    def commit(self, producer, **offsets):
        tps = {TopicPartition(name, 0): Committed(offset) for name, offset in offsets.items()}
        self.post(Commit(request=next(self.requests), offsets=tps, producer=producer))

    def append(self, index=0):
        """Put an append into the log; its outcome is not told yet."""
        append = self.wants.pop(index)
        self.stored.append((append, len(self.log)))
        producer = getattr(append.write, "producer", None)
        self.log += [(producer, key, value) for key, value in records_of("g", append)]

    def tell(self, index=0):
        append, position = self.stored.pop(index)
        self.post(Appended(append.write, position=position))

    def fail(self):
        """The append that came last is not stored."""
        append = self.wants.pop()
        self.post(Appended(append.write, ErrorCode.NOT_ENOUGH_REPLICAS))

    def forget_again(self):
        later, self.later = self.later, []
        for positions in later:
            self.post(ForgetAgain(positions))

    def settle(self):
        while self.wants or self.stored:
            while self.wants:
                self.append()
            self.tell()

    def loaded(self):
        """The group as the next coordinator reads it, while the transaction is open."""
        into = Loaded()
        for position, (producer, key, value) in enumerate(self.log):
            if producer is None:
                into.apply(position, key, value)
        for position, (producer, key, value) in enumerate(self.log):
            if producer is not None:
                into.apply_open(producer[0], position, key, value)
        offsets, uncommitted = into.offsets.get("g", {}), into.uncommitted.get("g", {})
        return resume(Group(id="g"), offsets, NOW, LIMITS, uncommitted)[0]


def end(group, *, commits=True):
    found, _ = step(group, TransactionEnded(PRODUCER[0], commits), NOW, LIMITS)
    return {tp: stored.offset for tp, stored in found.offsets.committed.items()}


def test_offsets_in_a_transaction_do_not_outlive_their_topic():
    world = World()
    world.commit(PRODUCER, t=50, u=5)
    world.settle()
    world.post(FORGET)
    world.settle()
    assert world.group.offsets.unstable == {U0}
    assert end(world.group) == end(world.loaded()) == {U0: 5}


@pytest.mark.parametrize("producer", [PRODUCER, None], ids=["in a transaction", "alone"])
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "behind the deletion"])
def test_a_commit_in_flight_does_not_outlive_its_topic(producer, is_late):
    """Its append may even come behind the deletion, since a transaction is verified first."""
    world = World()
    world.commit(producer, t=50, u=5)
    if not is_late:
        world.append()
    world.post(FORGET)
    if is_late and producer is not None:
        world.append(1)
    world.settle()
    assert end(world.group) == end(world.loaded()) == {U0: 5}


@pytest.mark.parametrize("ends_first", [False, True])
def test_what_is_committed_for_the_later_topic_stays(ends_first):
    world = World()
    world.commit(PRODUCER, t=50)
    world.settle()
    world.post(FORGET)
    world.append()
    world.commit(PRODUCER, t=3)
    if ends_first:
        world.append()
        world.tell(1)
        assert world.group.offsets.unstable == {T0}
    world.settle()
    assert end(world.group) == end(world.loaded()) == {T0: 3}
    assert end(world.group, commits=False) == {}


def test_a_transaction_that_ends_before_the_deletion_is_stored_commits_nothing_for_the_topic():
    world = World()
    world.commit(PRODUCER, t=50)
    world.settle()
    world.post(FORGET)
    world.post(TransactionEnded(PRODUCER[0], True))
    world.settle()
    assert world.group.offsets.committed == {}
    assert world.group.is_blank


@pytest.mark.parametrize("producer", [PRODUCER, None], ids=["in a transaction", "alone"])
def test_a_deletion_that_is_not_stored_changes_nothing_and_is_tried_again(producer):
    world = World()
    world.commit(producer, t=50, u=5)
    world.settle()
    world.post(FORGET)
    for _ in range(3):
        world.fail()
        assert end(world.group) == {T0: 50, U0: 5}
        world.forget_again()
    world.settle()
    assert end(world.group) == end(world.loaded()) == {U0: 5}


@pytest.mark.parametrize("producer", [PRODUCER, None], ids=["in a transaction", "alone"])
def test_what_was_committed_for_the_later_topic_meanwhile_is_not_deleted_with_it(producer):
    world = World()
    world.commit(producer, t=50)
    world.settle()
    world.post(FORGET)
    world.fail()
    world.commit(producer, t=3)
    world.settle()
    world.forget_again()
    world.settle()
    assert end(world.group) == end(world.loaded()) == {T0: 3}


def test_a_commit_for_the_later_topic_that_is_in_flight_is_waited_for():
    """A deletion behind it would take it along; if it fails, the former topic's offset has to go still."""
    for is_stored in (True, False):
        world = World()
        world.commit(None, t=50)
        world.settle()
        world.post(FORGET)
        world.fail()
        world.commit(None, t=3)
        world.forget_again()
        assert len(world.wants) == 1
        world.settle() if is_stored else world.fail()
        world.forget_again()
        world.settle()
        assert end(world.group) == end(world.loaded()) == ({T0: 3} if is_stored else {})


@pytest.mark.parametrize("producer", [PRODUCER, None], ids=["in a transaction", "alone"])
def test_a_commit_that_is_stored_after_its_topics_deletion_failed_is_deleted(producer):
    world = World()
    world.commit(producer, t=50, u=5)
    world.append()
    world.post(FORGET)
    world.fail()
    world.tell()
    world.forget_again()
    world.settle()
    assert end(world.group) == end(world.loaded()) == {U0: 5}


def test_a_second_deletion_behind_a_late_commit_is_tried_again_too():
    world = World()
    world.commit(PRODUCER, t=50, u=5)
    world.post(FORGET)
    world.append(1)
    world.tell()
    world.append()
    world.tell()
    world.fail()
    world.forget_again()
    world.settle()
    assert end(world.group) == end(world.loaded()) == {U0: 5}


@pytest.mark.parametrize("producer", [PRODUCER, None], ids=["in a transaction", "alone"])
def test_only_what_was_loaded_is_forgotten_with_a_topic_that_was_gone_then(producer):
    """The topic may have been made since, and what is committed for it counts, be it still in flight."""
    world = World()
    world.commit(producer, t=50, u=5)
    world.settle()
    world.group = world.loaded()
    missing = ForgetTopics(frozenset("t"), len(world.log))
    world.commit(producer, t=3)
    world.post(missing)
    world.settle()
    world.post(missing)
    world.forget_again()
    world.settle()
    assert end(world.group) == end(world.loaded()) == {T0: 3, U0: 5}
    world = World()
    world.commit(producer, t=50, u=5)
    world.settle()
    world.post(missing)
    world.settle()
    assert end(world.group) == end(world.loaded()) == {U0: 5}
