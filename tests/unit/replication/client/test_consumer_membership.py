"""The machine of a member that is assigned partitions: examples, and laws of five of them at our own coordinator."""

import random
from collections import deque
from functools import partial
from uuid import UUID

import pytest

from replication.client.consumer_membership import (
    Answered,
    ConsumerMembership,
    Heartbeat,
    Phase,
    Refused,
    Unanswered,
    heartbeat_of,
    step,
)
from replication.client.membership import Assign, Closed, Fail, Leave, Lose, Polled, PollLate, Revoke
from replication.coordinators.groups import kinds
from replication.coordinators.groups.classic.events import Ticked
from replication.coordinators.groups.classic.state import Group
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat
from replication.coordinators.groups.consumer.state import Phase as GroupPhase
from replication.coordinators.groups.messages import Answer, Appended, Now
from replication.coordinators.groups.parts.events import AppendParts
from replication.coordinators.groups.pieces import Piece, Topic
from replication.coordinators.groups.records import Loaded, records_of
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import NONE, ErrorCode
from replication.model.cluster import TopicPartition, topic_id_of
from tests.support.repeats import times

WHOLE = Heartbeat(0, frozenset(), is_whole=True)


def tps(*numbers):
    return frozenset(TopicPartition("t", number) for number in numbers)


def run(m, *events):
    """The member after these, and the effects of the last one."""
    effects = ()
    for event in events:
        m, effects = step(m, event)
    return m, effects


def answered(m, epoch, *numbers):
    return Answered(heartbeat_of(m), NONE, epoch, tps(*numbers))


def stable(*numbers, epoch=3, **fields):
    m = run(ConsumerMembership(id="me", **fields), Polled())[0]
    m = run(m, answered(m, epoch, *numbers), Polled(), Polled())[0]
    return run(m, Answered(heartbeat_of(m), NONE, epoch))[0]


def test_a_member_joins_when_its_program_polls_and_says_that_it_has_taken_what_it_got():
    m = ConsumerMembership(id="me")
    assert heartbeat_of(m) is None
    m, effects = run(m, Polled())
    assert (heartbeat_of(m), effects, m.has_news) == (WHOLE, (), True)
    m, effects = run(m, answered(m, 1, 0, 1))
    assert (effects, m.needs_poll, m.has_news) == ((), True, False)
    m, effects = run(m, Polled())
    assert effects == (Assign(tps(0, 1)),)
    assert heartbeat_of(m) == Heartbeat(1, tps(0, 1), is_whole=False)
    m, effects = run(m, Polled(), Answered(heartbeat_of(m), NONE, 1), Polled())
    assert (effects, heartbeat_of(m), m.has_news) == ((), Heartbeat(1, None, is_whole=False), False)


def test_what_goes_is_done_with_before_the_group_hears_of_it():
    m = stable(0, 1)
    m, effects = run(m, answered(m, 3, 0), Polled())
    assert effects == (Revoke(tps(1)),)
    assert (m.has_news, heartbeat_of(m).owned) == (False, None)
    m, effects = run(m, Polled())
    assert (effects, heartbeat_of(m).owned, m.has_news) == ((), tps(0), True)


def test_what_changed_while_a_heartbeat_was_on_its_way_is_told_by_the_next():
    m = stable(0, 1)
    m = run(m, answered(m, 3, 0), Polled())[0]
    asked = heartbeat_of(m)
    m = run(m, Polled(), Answered(asked, NONE, 3))[0]
    assert (m.has_news, heartbeat_of(m).owned) == (True, tps(0))


def test_an_unanswered_heartbeat_is_followed_by_one_that_says_all_that_may_be_read():
    m = stable(0, 1)
    m = run(m, answered(m, 3, 1, 2), Polled(), Unanswered())[0]
    assert heartbeat_of(m) == Heartbeat(3, tps(0, 1, 2), is_whole=True)
    m = run(m, Answered(heartbeat_of(m), NONE, 4))[0]
    assert (heartbeat_of(m).owned, run(m, Polled())[0].has_news) == (None, True)


@pytest.mark.parametrize("error", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
@pytest.mark.parametrize("event", [Answered, lambda beat, error: Refused(3, error)])
def test_an_expelled_member_loses_its_partitions_and_joins_again_by_its_id(error, event):
    m = stable(0, 1)
    m, effects = run(m, event(heartbeat_of(m), error))
    assert (effects, m) == ((Lose(tps(0, 1)),), ConsumerMembership(id="me"))
    assert heartbeat_of(run(m, Polled())[0]) == WHOLE


def test_a_member_that_moves_loses_what_it_had_and_what_it_was_about_to_have():
    m = stable(0, 1)
    m = run(m, answered(m, 3, 1, 2), Polled())[0]
    assert run(m, Refused(3, ErrorCode.UNKNOWN_MEMBER_ID))[1] == (Lose(tps(0, 1, 2)),)


def test_what_is_said_of_an_earlier_epoch_is_not_heard():
    m = stable(0)
    for late in (
        Answered(WHOLE, ErrorCode.UNKNOWN_MEMBER_ID),
        Answered(WHOLE, NONE, 9, tps(5)),
        Refused(2, ErrorCode.UNKNOWN_MEMBER_ID),
        Refused(3, ErrorCode.STALE_MEMBER_EPOCH),
        Refused(3, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ):
        assert run(m, late) == (m, ())
    out = run(ConsumerMembership(id="me"), Polled(), PollLate())[0]
    assert run(out, Answered(WHOLE, NONE, 4, tps(0))) == (out, ())
    out = run(m, PollLate())[0]
    assert run(out, Answered(heartbeat_of(m), NONE, 4, tps(0))) == (out, ())


def test_a_late_program_a_closed_one_and_one_that_may_not_be_a_member():
    assert run(stable(0), PollLate()) == (ConsumerMembership(id="me"), (Lose(tps(0)),))
    for is_static in (False, True):
        assert run(stable(0, is_static=is_static), Closed())[1] == (Revoke(tps(0)), Leave("me"))
    assert run(ConsumerMembership(id="me"), Closed())[1] == ()
    m, effects = run(stable(0), Answered(Heartbeat(3, None, False), ErrorCode.FENCED_INSTANCE_ID, message="taken"))
    assert (m.phase, effects) == (Phase.OUT, (Lose(tps(0)), Fail(ErrorCode.FENCED_INSTANCE_ID, "taken")))


# ---------------------------------------------------------------------- laws


class Client:
    """A member with its program: effects are performed one by one, and heartbeats may be lost on either way."""

    def __init__(self, name, instance_id, topics):
        self.m = ConsumerMembership(id=name, is_static=instance_id is not None)
        self.instance_id, self.topics = instance_id, topics
        self.due, self.reads = deque(), frozenset()
        self.asked = self.request = self.answer = None

    def step(self, event):
        self.m, effects = step(self.m, event)
        self.due += effects


class World:
    """A coordinator, its log, and five places for members, driven by chance."""

    COUNT = 5

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.limits = GroupSettings(group_consumer_assignors=self.chance.choice(("uniform", "range")))
        self.now_ms, self.group = 0, Group(id="g")
        self.known = {"a": Topic(topic_id_of(UUID(int=1)), 3), "b": Topic(topic_id_of(UUID(int=2)), 2)}
        self.names = {topic.id: name for name, topic in self.known.items()}
        self.log, self.writes, self.requests, self.lives = [], [], 0, 0
        self.clients = [self.another(place) for place in range(self.COUNT)]

    def another(self, place):
        self.lives += 1
        instance_id = f"i{place}" if place > 2 else None
        return Client(f"c{place}-{self.lives}", instance_id, self.chance.choice((("a",), ("b",), ("a", "b"))))

    def now(self):
        return Now(self.now_ms, 1_000_000 + self.now_ms)

    def post(self, event):
        self.group, effects = kinds.step(self.group, event, self.now(), self.limits)
        self.perform(effects)

    def perform(self, effects):
        for effect in effects:
            if isinstance(effect, Answer):
                for client in self.clients:
                    if client.request == effect.request:
                        client.answer = effect.body
            elif isinstance(effect, AppendParts):
                self.writes.append(effect)

    def is_written(self):
        append = self.writes.pop(0)
        self.log += records_of("g", append)
        self.post(Appended(append.write, NONE, len(self.log)))

    # ------------------------------------------------------------- what a member does

    def hears(self, client):
        beat = heartbeat_of(client.m)
        if beat is None or client.request is not None:
            return
        self.requests += 1
        client.asked, client.request = beat, self.requests
        self.ask(client, beat.epoch, beat)

    def ask(self, client, epoch, beat=None):
        self.post(
            ConsumerHeartbeat(
                request=self.requests,
                member_id=client.m.id,
                epoch=epoch,
                instance_id=client.instance_id,
                rebalance_timeout_ms=20_000 if beat and beat.is_whole else -1,
                topics=client.topics if beat and beat.is_whole else None,
                owned=None if beat is None or beat.owned is None else self.pieces(beat.owned),
                known=self.known,
            )
        )

    def pieces(self, held):
        return frozenset(Piece(self.known[tp.topic].id, tp.partition) for tp in held)

    def takes_in(self, client):
        if client.answer is not None:
            body, asked = client.answer, client.asked
            client.request = client.answer = None
            given = None if body.assigned is None else frozenset(map(self.named, body.assigned))
            client.step(Answered(asked, body.error, body.epoch, given))

    def named(self, piece):
        return TopicPartition(self.names[piece.topic_id], piece.partition)

    def misses(self, client):
        if client.request is not None:
            client.request = client.answer = None
            client.step(Unanswered())

    def polls(self, client):
        if not client.due:
            client.step(Polled())
            return
        match client.due.popleft():
            case Assign(new):
                client.reads |= new
            case Revoke(gone) | Lose(gone):
                client.reads -= gone
            case Fail(error):
                # Another process has the name, or had it when its session ended: this one is done.
                assert error in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID), error
                self.dies(client)

    def is_late(self, client):
        if client.m.phase is Phase.IN and client.request is None:
            self.requests += 1
            self.ask(client, -2 if client.m.is_static else -1)
            client.step(PollLate())

    def closes(self, client):
        client.step(Closed())
        while client.due:
            if isinstance(client.due[0], Leave):
                self.requests += 1
                self.ask(client, -2 if client.m.is_static else -1)
                client.due.popleft()
            else:
                self.polls(client)
        self.dies(client)

    def dies(self, client):
        if client in self.clients:
            place = self.clients.index(client)
            self.clients[place] = self.another(place)

    # -------------------------------------------------------------------------- the rest

    def time_passes(self):
        self.now_ms += self.chance.choice((1_000, 21_000, 46_000))
        due_ms = kinds.deadline_ms(self.group)
        if due_ms is not None and due_ms <= self.now_ms:
            self.post(Ticked())

    def grows(self):
        name = self.chance.choice("ab")
        if self.known[name].partitions < 6:
            self.known = {**self.known, name: self.known[name]._replace(partitions=self.known[name].partitions + 1)}

    def fails_over(self):
        if self.chance.random() < 0.5:
            for append in self.writes:
                self.log += records_of("g", append)
        self.writes = []
        for client in self.clients:
            self.misses(client)
        loaded = Loaded()
        for position, (key, value) in enumerate(self.log):
            loaded.apply(position, key, value)
        self.group, effects = kinds.resume(loaded.group("g"), {}, self.now(), self.limits)
        self.perform(effects)

    def runs(self, steps):
        often = (self.hears, self.takes_in, self.polls)
        seldom = (self.misses, self.is_late, self.closes, self.dies)
        for _ in range(steps):
            dice = self.chance.random()
            if dice < 0.75:
                self.chance.choice(often)(self.chance.choice(self.clients))
            elif dice < 0.9:
                if self.writes:
                    self.is_written()
            elif dice < 0.96:
                self.chance.choice(seldom)(self.chance.choice(self.clients))
            else:
                self.chance.choice((self.time_passes, self.grows, self.fails_over))()
            self.check()

    def check(self):
        readers = {}
        for client in self.clients:
            # One that the group no longer knows will hear of it: until then it may read what another one has.
            if client.m.id in getattr(self.group, "members", ()):
                for tp in client.reads:
                    assert readers.setdefault(tp, client.m.id) == client.m.id, (tp, readers[tp], client.m.id)

    def settles(self):
        for _ in range(80):
            for act in (self.hears, partial(self.written, self.takes_in), self.polls, self.polls, self.polls):
                for client in tuple(self.clients):
                    act(client)
            self.now_ms += 1_000
            self.post(Ticked())
            self.check()

    def written(self, then, client):
        while self.writes:
            self.is_written()
        then(client)


@pytest.mark.parametrize("seed", range(times(25, 250)))
def test_no_partition_has_two_readers_and_in_the_end_each_has_one(seed):
    world = World(seed)
    world.runs(150)
    world.settles()
    assert world.group.phase is GroupPhase.STABLE
    wanted = {name for client in world.clients for name in client.topics}
    assert sorted(tp for client in world.clients for tp in client.reads) == sorted(
        TopicPartition(name, number) for name in wanted for number in range(world.known[name].partitions)
    )
