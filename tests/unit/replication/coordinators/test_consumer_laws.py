"""Groups of the consumer protocol, whatever members, the log and the coordinator do: no partition has two readers.

Nor does a commit of an older epoch overwrite one of a later reader.
"""

import random
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from replication.coordinators.groups.classic.events import Ticked
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat
from replication.coordinators.groups.consumer.quiet import quiet_answer
from replication.coordinators.groups.consumer.state import ConsumerGroup, Phase, subscribed_by_any
from replication.coordinators.groups.kinds import deadline_ms, step
from replication.coordinators.groups.messages import Answer
from replication.coordinators.groups.offsets.events import AppendOffsets, Commit
from replication.coordinators.groups.offsets.state import Committed
from replication.coordinators.groups.parts.events import AppendParts, Heard
from replication.coordinators.groups.parts.state import contents
from replication.coordinators.groups.pieces import Piece, Topic
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import NONE, ErrorCode
from replication.model.cluster import TopicPartition, topic_id_of
from tests.unit.replication.coordinators.stored_group import StoredGroup

SENT_MAX = 40
CLIENTS = st.integers(0, 4)
IDS = {"a": topic_id_of(UUID(int=1)), "b": topic_id_of(UUID(int=2))}
SUBSCRIPTIONS = st.sampled_from([("a",), ("b",), ("a", "b"), ()])


class Client:
    """A consumer as clients of Kafka are: it takes in an answer in its own time, then the latest, and says so then."""

    def __init__(self, number):
        self.number = number
        self.instance_id = f"i{number}" if number > 2 else None
        self.lives = 0
        self.begin()

    def begin(self):
        self.lives += 1
        self.id = f"c{self.number}-{self.lives}"
        self.epoch, self.reads, self.taking, self.told = 0, frozenset(), None, None
        self.asked = None  # the request that is not answered
        self.topics = ("a",)
        self.says_all = True
        self.sent = []

    def tell(self, assigned):
        if self.taking is None:
            self.taking = assigned
        else:
            self.told = assigned

    def settle(self):
        if self.taking is not None:
            self.reads, self.taking, self.told, self.says_all = self.taking, self.told, None, True
            self.sent = [commit for commit in self.sent if commit.piece in self.reads]

    def lose(self):
        self.epoch, self.reads, self.taking, self.told = 0, frozenset(), None, None
        self.sent = []  # those that are still its own to send: it has read the piece ever since


class Sent(NamedTuple):
    """A commit that arrives at any later time. `readers`: how many times the piece had changed its reader by then."""

    member_id: str
    epoch: int
    piece: Piece
    readers: int


class Groups(StoredGroup):
    @initialize(assignor=st.sampled_from(["uniform", "range"]))
    def begin(self, assignor):
        super().begin()
        self.limits = GroupSettings(group_consumer_assignors=assignor)
        self.known = {"a": Topic(IDS["a"], 3), "b": Topic(IDS["b"], 2)}
        self.clients = [Client(number) for number in range(5)]
        self.readers = {}  # of each piece, in the order in which they came
        self.sent = []

    def post(self, event):
        before = self.group
        self.group, effects = step(before, event, self.now(), self.limits)
        if isinstance(event, ConsumerHeartbeat) and isinstance(before, ConsumerGroup):
            self.judge_quiet(before, event, effects)
        self.perform(effects)

    def judge_quiet(self, before, event, effects):
        """An answer without a step is that of the step, which has then changed the end of a session only."""
        found = quiet_answer(before, event)
        if found is not None:
            assert effects == (Answer(event.request, found),)
            ends = {**before.deadlines_ms, event.member_id: self.now_ms + 45_000}
            assert self.group == replace(before, deadlines_ms=ends, names=self.group.names)

    def perform(self, effects):
        for effect in effects:
            match effect:
                case Answer(request, body):
                    self.answered(request, body)
                case AppendParts():
                    self.writes.append(effect)

    def answered(self, request, body):
        assert isinstance(body, Heard)
        client = next((each for each in self.clients if each.asked == request), None)
        if client is None:
            return  # its connection is gone
        client.asked = None
        if body.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND):
            client.lose()
        elif body.error is NONE and body.epoch >= 0:
            client.epoch = body.epoch
            client.says_all &= client.said != (client.topics, client.reads)  # since it asked
            if body.assigned is not None:
                client.tell(body.assigned)
        elif body.error is not NONE:
            client.says_all = True

    def heartbeat(self, client):
        if client.asked is not None or client.id is None:
            return
        self.requests += 1
        client.asked = self.requests
        # Nobody could tell one that gave up all from one that has not begun: see `reconciliation`.
        is_ambiguous = client.taking is not None and not client.told
        all_of_it = client.epoch == 0 or (client.says_all and not is_ambiguous)
        client.said = (client.topics, client.reads) if all_of_it else None
        self.post(
            ConsumerHeartbeat(
                request=self.requests,
                member_id=client.id,
                epoch=client.epoch,
                instance_id=client.instance_id,
                rebalance_timeout_ms=20_000 if all_of_it else -1,
                topics=client.topics if all_of_it else None,
                owned=client.reads if all_of_it else None,
                known=self.known,
                known_at=sum(topic.partitions for topic in self.known.values()),
            )
        )

    def commit_all(self):
        """Send a commit for each piece that a client reads; it may arrive late."""
        reading = [(client, piece) for client in self.clients if client.epoch > 0 for piece in sorted(client.reads)]
        for client, piece in reading:
            readers = self.readers.setdefault(piece, [])
            if readers[-1:] != [client.id]:
                readers.append(client.id)
            sent = Sent(client.id, client.epoch, piece, len(readers))
            if sent not in client.sent:
                client.sent.append(sent)
                self.sent = [*self.sent, sent][-SENT_MAX:]

    def is_accepted(self, sent):
        names = {topic.id: name for name, topic in self.known.items()}
        tp = TopicPartition(names[sent.piece.topic_id], sent.piece.partition)
        event = Commit(
            request=0, offsets={tp: Committed(1)}, member_id=sent.member_id, generation=sent.epoch,
            topic_ids={tp.topic: sent.piece.topic_id},
        )  # fmt: skip
        _, effects = step(self.group, event, self.now(), self.limits)
        return any(isinstance(effect, AppendOffsets) for effect in effects)

    @rule(number=CLIENTS)
    def hears(self, number):
        self.heartbeat(self.clients[number])

    @rule(repeating=st.sets(CLIENTS), settling=st.sets(CLIENTS))
    def all_hear(self, repeating, settling):
        """A round as groups have nearly always, in which some say all again; single steps alone seldom come as far."""
        for number in repeating:
            self.clients[number].says_all = True
        for client in self.clients:
            self.heartbeat(client)
        while self.writes:
            self.is_written(NONE)
        for number in settling:
            self.clients[number].settle()
        self.commit_all()

    @rule(number=CLIENTS, topics=SUBSCRIPTIONS)
    def subscribes(self, number, topics):
        self.clients[number].topics, self.clients[number].says_all = topics, True

    @rule(number=CLIENTS)
    def settles(self, number):
        self.clients[number].settle()

    @rule(number=CLIENTS)
    def loses_the_answer(self, number):
        self.lose_answer(self.clients[number])

    @rule(number=CLIENTS, for_a_while=st.booleans())
    def leaves(self, number, for_a_while):
        client = self.clients[number]
        if client.epoch > 0 and client.asked is None:
            epoch = -2 if for_a_while and client.instance_id is not None else -1
            self.requests += 1
            self.post(
                ConsumerHeartbeat(
                    request=self.requests,
                    member_id=client.id,
                    epoch=epoch,
                    instance_id=client.instance_id,
                    known=self.known,
                )
            )
        client.begin()

    @rule(number=CLIENTS)
    def dies(self, number):
        self.clients[number].begin()

    @rule(ms=st.sampled_from([1_000, 21_000, 46_000]))
    def time_passes(self, ms):
        self.now_ms += ms
        due_ms = deadline_ms(self.group)
        if due_ms is not None and due_ms <= self.now_ms:
            self.post(Ticked())
        self.forget_expelled()

    def forget_expelled(self):
        """A client that was silent for too long has noticed it itself."""
        members = self.group.members
        for client in self.clients:
            if client.epoch > 0 and client.id not in members:
                client.lose()

    @rule(name=st.sampled_from(["a", "b"]))
    def topic_grows(self, name):
        if self.known[name].partitions < 6:
            topic = self.known[name]
            self.known = {**self.known, name: topic._replace(partitions=topic.partitions + 1)}

    @invariant()
    def nobody_reads_what_another_reads(self):
        if not hasattr(self, "clients"):
            return
        seen = {}
        for client in self.clients:
            if client.id in self.group.members:
                for piece in client.reads:
                    assert seen.setdefault(piece, client.id) == client.id, (piece, seen[piece], client.id)

    @invariant()
    def commits_of_older_epochs_overwrite_nothing_of_later_readers(self):
        """In its own epoch a member commits what it likes, as with a Kafka."""
        if not isinstance(getattr(self, "group", None), ConsumerGroup):
            return
        self.commit_all()
        for sent in self.sent:
            current = self.group.currents.get(sent.member_id)
            if current is not None and current.epoch != sent.epoch and self.is_accepted(sent):
                assert set(self.readers[sent.piece][sent.readers :]) <= {sent.member_id}, sent

    @invariant()
    def commits_of_a_member_that_has_read_the_partition_ever_since_are_accepted(self):
        if not isinstance(getattr(self, "group", None), ConsumerGroup):
            return
        for client in self.clients:
            if client.id in self.group.members:
                for sent in client.sent[-SENT_MAX:]:
                    assert self.is_accepted(sent), sent

    @invariant()
    def nothing_is_held_twice(self):
        if not isinstance(getattr(self, "group", None), ConsumerGroup):
            return
        for current in self.group.currents.values():
            assert current.since.keys() == current.held
        assert self.group.names in (None, subscribed_by_any(self.group))
        held = [piece for current in self.group.currents.values() for piece in current.held]
        assert len(held) == len(set(held))
        assert self.group.currents.keys() == self.group.members.keys()
        waiting = set(self.group.deadlines_ms) | set(self.group.revoke_until_ms)
        assert waiting <= set(self.group.members)

    def teardown(self):
        if not hasattr(self, "clients"):
            return
        while self.writes:
            self.is_written(NONE)
        for _ in range(60):
            for client in self.clients:
                client.asked = None
                self.heartbeat(client)
                while self.writes:
                    self.is_written(NONE)
                client.settle()
            self.now_ms += 1_000
            self.post(Ticked())
            self.forget_expelled()
        if not isinstance(self.group, ConsumerGroup) or not self.group.members:
            return
        assert self.group.phase is Phase.STABLE, self.group
        names = {name for client in self.clients for name in client.topics}
        wanted = {Piece(self.known[n].id, number) for n in names for number in range(self.known[n].partitions)}
        found = [piece for client in self.clients for piece in client.reads]
        assert sorted(found) == sorted(wanted)
        loaded = self.loaded()
        assert contents(loaded) == contents(self.group)


TestGroups = Groups.TestCase
TestGroups.settings = settings(stateful_step_count=30)


def test_a_member_that_repeats_itself_while_it_takes_in_an_answer_has_given_up_nothing():
    """This is what librdkafka 2.16 does under load; a random walk seldom comes here."""
    group = Groups()
    group.begin("uniform")
    nobody, first, others = set(), {0}, {1, 2, 3, 4}
    for repeating, settling in [(nobody, nobody), (nobody, nobody), (first, nobody), (nobody, first)]:
        group.all_hear(repeating, settling)
    assert [len(client.reads) for client in group.clients] == [3, 0, 0, 0, 0]
    for _ in range(3):
        group.all_hear(nobody, others)
        group.nobody_reads_what_another_reads()
    group.teardown()


@pytest.mark.parametrize("seed", range(2))
def test_older_commits_of_partitions_that_went_and_came_back(seed):
    """Members change what they want, leave for a while and lose the coordinator, in rounds that all take part in."""
    group, chance = Groups(), random.Random(seed)
    group.begin("uniform")
    nobody, everybody = set(), set(range(5))
    came_back = 0
    changes = *[group.subscribes] * 6, group.leaves, group.dies, group.coordinator_fails
    for _ in range(100):
        change = chance.choice(changes)
        number = chance.randrange(5)
        match change.__name__:
            case "subscribes":
                group.subscribes(number, chance.choice([("a",), ("b",), ("a", "b"), ()]))
            case "leaves":
                group.leaves(number, chance.random() < 0.7)
            case "dies":
                group.clients[number].lose()
            case _:
                group.coordinator_fails(True)
        for _ in range(chance.randrange(1, 4)):
            group.all_hear(nobody, everybody)
            group.commits_of_older_epochs_overwrite_nothing_of_later_readers()
            group.commits_of_a_member_that_has_read_the_partition_ever_since_are_accepted()
            group.nothing_is_held_twice()
    for readers in group.readers.values():
        came_back += sum(reader in readers[:place] for place, reader in enumerate(readers))
    assert came_back > 5
    group.teardown()
