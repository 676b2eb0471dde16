"""Share groups, whatever members, the log, the share states and the coordinator do."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from replication.coordinators.groups.classic.events import DeleteGroup, Ticked
from replication.coordinators.groups.kinds import deadline_ms, step
from replication.coordinators.groups.messages import Answer
from replication.coordinators.groups.offsets.events import ForgetTopics
from replication.coordinators.groups.parts.events import AppendParts, Heard
from replication.coordinators.groups.parts.state import contents
from replication.coordinators.groups.pieces import Piece, Topic
from replication.coordinators.groups.settings import GroupSettings
from replication.coordinators.groups.share.assignor import assign
from replication.coordinators.groups.share.events import (
    AlterShareOffsets,
    AskStates,
    DeleteShareOffsets,
    ShareHeartbeat,
    StatesAnswered,
)
from replication.coordinators.groups.share.state import ShareGroup, pieces_of
from replication.errors import NONE, ErrorCode
from replication.model.cluster import topic_id_of
from tests.unit.replication.coordinators.stored_group import StoredGroup

NUMBERS = st.integers(0, 3)
NAMES = st.sampled_from(["a", "b"])
SUBSCRIPTIONS = st.sampled_from([("a",), ("b",), ("a", "b")])


class Client:
    """A member as clients are: it does as it is told, and says again what it is about after an answer was lost."""

    def __init__(self, number):
        self.number, self.lives = number, 0
        self.begin()

    def begin(self):
        self.lives += 1
        self.id = f"c{self.number}-{self.lives}"
        self.epoch, self.reads, self.asked = 0, frozenset(), None
        self.topics, self.says_all = ("a",), True

    def lose(self):
        self.epoch, self.reads, self.says_all = 0, frozenset(), True


class Groups(StoredGroup):
    @initialize()
    def begin(self):
        super().begin()
        self.limits = GroupSettings(group_share_max_size=3)
        self.topics_made = 0
        self.known = {}
        for name, partitions in (("a", 3), ("b", 2)):
            self.make_topic(name, partitions)
        self.clients = [Client(number) for number in range(4)]
        self.questions = []
        self.states = {}  # the share states that there are: piece -> (state epoch, start)
        self.open = set()
        self.altered = 0

    def make_topic(self, name, partitions):
        self.topics_made += 1
        self.known = {**self.known, name: Topic(topic_id_of(UUID(int=self.topics_made)), partitions)}

    def post(self, event):
        self.group, effects = step(self.group, event, self.now(), self.limits)
        self.perform(effects)

    def perform(self, effects):
        for effect in effects:
            match effect:
                case Answer(request, body):
                    self.open.remove(request)  # each once
                    if isinstance(body, Heard):
                        self.answered(request, body)
                case AppendParts():
                    assert not self.writes, "one write in flight"
                    self.writes.append(effect)
                case AskStates():
                    self.judge_question(effect)
                    self.questions.append(effect)

    def judge_question(self, question):
        """States of members' partitions do not begin anew; the next coordinator knows of those that are asked for."""
        told = {piece for current in self.group.currents.values() for piece in current.assigned}
        assert not question.starts.keys() & told or not self.group.members
        stored = self.loaded()
        assert {piece.topic_id for piece in question.starts} <= stored.states.topics

    def request(self):
        self.requests += 1
        self.open.add(self.requests)
        return self.requests

    def answered(self, request, body):
        client = next((each for each in self.clients if each.asked == request), None)
        if client is None:
            return  # its connection is gone
        client.asked = None
        if body.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND):
            client.lose()
        elif body.error is NONE and body.epoch >= 0:
            client.epoch = body.epoch
            client.says_all &= client.said != client.topics  # since it asked
            if body.assigned is not None:
                client.reads = body.assigned

    def heartbeat(self, client):
        if client.asked is None:
            client.asked = self.request()
            topics = client.said = client.topics if client.says_all or client.epoch == 0 else None
            self.post(
                ShareHeartbeat(
                    request=client.asked, member_id=client.id, epoch=client.epoch, topics=topics, known=self.known
                )
            )

    @rule(number=NUMBERS)
    def hears(self, number):
        self.heartbeat(self.clients[number])

    @rule()
    def all_hear(self):
        for client in self.clients:
            self.heartbeat(client)
        self.go_on()

    def go_on(self):
        while self.writes or self.questions:
            if self.writes:
                self.is_written(NONE)
            if self.questions:
                self.is_asked(set())

    @rule(number=NUMBERS, topics=SUBSCRIPTIONS)
    def subscribes(self, number, topics):
        self.clients[number].topics, self.clients[number].says_all = topics, True

    @rule(number=NUMBERS)
    def loses_the_answer(self, number):
        self.lose_answer(self.clients[number])

    @rule(number=NUMBERS)
    def leaves(self, number):
        client = self.clients[number]
        if client.epoch > 0 and client.asked is None:
            request = self.request()
            self.post(ShareHeartbeat(request=request, member_id=client.id, epoch=-1, known=self.known))
        client.begin()

    @rule(ms=st.sampled_from([500, 2_000, 46_000]))
    def time_passes(self, ms):
        self.now_ms += ms
        due_ms = deadline_ms(self.group)
        if due_ms is not None and due_ms <= self.now_ms:
            self.post(Ticked())

    @rule(name=NAMES)
    def topic_grows(self, name):
        topic = self.known.get(name)
        if topic is not None and topic.partitions < 5:
            self.known = {**self.known, name: topic._replace(partitions=topic.partitions + 1)}

    @rule(name=NAMES, comes_back=st.booleans())
    def topic_goes(self, name, comes_back):
        gone = self.known.get(name)
        if gone is not None:
            self.known = {known: topic for known, topic in self.known.items() if known != name}
            self.states = {piece: state for piece, state in self.states.items() if piece.topic_id != gone.id}
            self.post(ForgetTopics(frozenset({name})))
        if comes_back:
            self.make_topic(name, 2)

    @rule(name=NAMES)
    def is_altered(self, name):
        if (topic := self.known.get(name)) is not None:
            offsets = {Piece(topic.id, 0): 7, Piece(topic.id, 1): 8}
            self.post(AlterShareOffsets(self.request(), offsets, {topic.id: name}))

    @rule(name=NAMES)
    def is_deleted(self, name):
        if (topic := self.known.get(name)) is not None:
            self.post(DeleteShareOffsets(self.request(), {topic.id: name}, self.known))

    @rule()
    def is_deleted_whole(self):
        self.post(DeleteGroup(self.request(), self.known))

    @precondition(lambda self: self.questions)
    @rule(failing=st.sets(st.integers(0, 4)))
    def is_asked(self, failing):
        question = self.questions.pop(0)
        errors = {}
        alive = {topic.id for topic in self.known.values()}
        for piece, start in question.starts.items():
            fails = piece.partition in failing
            errors[piece] = ErrorCode.COORDINATOR_NOT_AVAILABLE if fails else NONE
            if piece.topic_id not in alive:
                errors[piece] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not fails and question.deletes:
                self.states.pop(piece, None)
            elif not fails and piece.topic_id in alive:
                if self.states.get(piece, (0, 0))[0] > question.epoch:
                    errors[piece] = ErrorCode.FENCED_STATE_EPOCH
                else:
                    self.states[piece] = question.epoch, start
        self.post(StatesAnswered(question.number, errors))

    @rule(are_written=st.booleans())
    def coordinator_fails(self, are_written):
        """Questions get no answer."""
        self.questions, self.open = [], set()
        super().coordinator_fails(are_written)

    def loaded(self):
        found = super().loaded()
        return found if isinstance(found, ShareGroup) else ShareGroup(id="g")

    @invariant()
    def what_a_member_has_is_initialized(self):
        if not isinstance(getattr(self, "group", None), ShareGroup):
            return
        group = self.group
        assert len(group.members) <= 3
        assert group.currents.keys() == group.members.keys()
        assert set(group.deadlines_ms) <= set(group.members)
        assert not pieces_of(group.states.initializing) & pieces_of(group.states.initialized)
        alive = {topic.id for topic in self.known.values()}
        for piece in pieces_of(group.states.initialized):
            assert piece.topic_id not in alive or piece in self.states
        if group.epoch == group.target_epoch and not group.call:
            targets = {piece for pieces in group.targets.values() for piece in pieces if piece.topic_id in alive}
            assert targets <= pieces_of(group.states.initialized)

    def teardown(self):
        if not hasattr(self, "clients"):
            return
        self.go_on()
        self.time_passes(46_000)
        for _ in range(8):
            self.go_on()
            self.now_ms += 2_000
            for client in self.clients:
                client.asked = None
                self.heartbeat(client)
        self.go_on()
        assert not self.open, "every request is answered"
        group = self.group
        if not isinstance(group, ShareGroup) or not group.members:
            return
        members = [client for client in self.clients if client.id in group.members]
        for client in members:
            assert (client.epoch, client.reads) == (group.target_epoch, group.targets[client.id])
        names = {name for client in members for name in client.topics if name in self.known}
        wanted = {Piece(self.known[n].id, number) for n in names for number in range(self.known[n].partitions)}
        assert {piece for client in members for piece in client.reads} == wanted == wanted & self.states.keys()
        assert contents(self.loaded()) == contents(group)


TestGroups = Groups.TestCase
TestGroups.settings = settings(stateful_step_count=40)


TOPICS = st.sets(st.sampled_from(["a", "b", "c"]), min_size=1)


@given(st.lists(st.dictionaries(st.integers(0, 7), TOPICS), min_size=1, max_size=4), st.integers(1, 5))
def test_partitions_and_members_share_each_other_out_and_stay_where_they_can(rounds, partitions):
    """Rounds of members, each with its topics; every one begins from the targets of the one before."""
    all_pieces = frozenset(Piece(topic, number) for topic in "abc" for number in range(partitions))
    made = {}
    for members in rounds:
        topics = {f"m{number}": frozenset(names) for number, names in members.items()}
        before, made = made, assign(topics, made, all_pieces)
        assert made.keys() == topics.keys()
        wanted = {piece for piece in all_pieces if any(piece.topic_id in names for names in topics.values())}
        assert {piece for pieces in made.values() for piece in pieces} == wanted
        for member, pieces in made.items():
            assert pieces
            assert {piece.topic_id for piece in pieces} <= topics[member]
        for topic in "abc":
            sharing = [sum(Piece(topic, n) in pieces for pieces in made.values()) for n in range(partitions)]
            assert max(sharing) - min(sharing) == 0
        if len({frozenset(names) for names in topics.values()}) == 1:
            counts = [len(pieces) for pieces in made.values()]
            assert max(counts) - min(counts) <= 1
        assert assign(topics, made, all_pieces) == made
        assert before is not made


# ----------------------------------- where a random walk seldom comes


def world(*, members=1):
    """Members that read `a`, all of whose states are there."""
    made = Groups()
    made.begin()
    for client in made.clients[:members]:
        made.heartbeat(client)
    for _ in range(2):
        made.go_on()
        for client in made.clients[:members]:
            made.heartbeat(client)
    made.go_on()
    assert all(client.reads for client in made.clients[:members])
    return made


def left(made):
    """Have all members leave."""
    for client in made.clients:
        if client.epoch > 0:
            made.leaves(client.number)
    made.go_on()
    return made


def test_a_question_whose_answer_changes_nothing_lets_the_next_one_through():
    made = left(world())
    made.is_altered("a")
    made.is_written(NONE)
    made.is_deleted("a")
    assert len(made.open) == 2
    made.is_asked({0, 1, 2})
    made.go_on()
    assert not made.open
    assert made.group.states.is_empty


def test_a_topic_that_goes_while_it_is_altered_is_not_initialized():
    made = Groups()
    made.begin()
    made.is_altered("a")
    made.is_written(NONE)
    made.topic_goes("a", comes_back=True)
    made.go_on()
    assert not made.open
    assert made.group.states.is_empty


def test_nobody_gets_what_is_being_altered():
    made = left(world())
    made.is_altered("a")
    made.is_written(NONE)
    client = made.clients[1]
    made.heartbeat(client)
    made.is_written(NONE)
    assert {piece.partition for piece in client.reads} == {2}
    made.go_on()
    made.heartbeat(client)
    made.go_on()
    assert {piece.partition for piece in client.reads} == {0, 1, 2}
    assert [made.states[piece][1] for piece in sorted(client.reads)] == [7, 8, -1]


def test_the_states_of_a_topic_are_there_together_and_later_partitions_begin_at_0():
    made = Groups()
    made.begin()
    client = made.clients[0]
    made.heartbeat(client)
    made.is_written(NONE)
    made.is_asked({1})
    made.heartbeat(client)
    made.go_on()
    assert not pieces_of(made.group.states.initialized)
    assert not client.reads
    made.time_passes(2_000)
    for _ in range(2):
        made.heartbeat(client)
        made.go_on()
    assert [made.states[piece][1] for piece in sorted(client.reads)] == [-1, -1, -1]
    made.topic_grows("a")
    for _ in range(3):
        made.heartbeat(client)
        made.go_on()
    assert [made.states[piece][1] for piece in sorted(client.reads)] == [-1, -1, -1, 0]


def test_a_member_that_lost_an_answer_is_told_its_partitions_again():
    made = world(members=2)
    client, other = made.clients[:2]
    former = client.epoch
    made.leaves(other.number)
    made.go_on()
    client.asked = made.request()
    made.post(ShareHeartbeat(request=client.asked, member_id=client.id, epoch=former, known=made.known))
    client.asked = None  # the answer is lost
    made.go_on()
    assert len(client.reads) < 3
    client.asked = made.request()
    made.post(ShareHeartbeat(request=client.asked, member_id=client.id, epoch=former, known=made.known))
    made.go_on()
    assert len(client.reads) == 3
    assert client.epoch > former


def test_a_group_whose_deletion_nobody_lived_to_finish_leaves_no_states_behind():
    made = left(world())
    made.is_altered("a")
    made.go_on()
    made.is_deleted_whole()
    made.is_written(NONE)
    made.coordinator_fails(are_written=True)
    made.is_deleted_whole()
    made.go_on()
    assert made.group.is_blank
    assert not made.states


def test_a_group_whose_topic_goes_while_it_is_deleted_is_deleted():
    made = left(world())
    made.is_deleted_whole()
    made.is_written(NONE)
    made.topic_goes("a", comes_back=False)
    made.go_on()
    made.is_deleted_whole()
    made.go_on()
    assert made.group.is_blank
