"""A group that members of both protocols join and leave: no partition has two readers, and nobody is stuck."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from replication.coordinators.groups.classic.embedded import encode_assignment, read_assignment, read_subscription
from replication.coordinators.groups.classic.events import Heartbeat, Join, Joined, Leave, Sync, Synced, Ticked
from replication.coordinators.groups.classic.state import Phase as ClassicPhase
from replication.coordinators.groups.consumer.state import ConsumerGroup, Phase
from replication.coordinators.groups.kinds import deadline_ms
from replication.coordinators.groups.messages import Answer, Append
from replication.coordinators.groups.pieces import Piece
from replication.errors import NONE, ErrorCode
from replication.model.cluster import TopicPartition
from tests.transcripts.coordinator import subscription
from tests.unit.replication.coordinators.test_consumer_laws import IDS, Groups

CLASSICS = st.integers(0, 2)
NAMES = {topic_id: name for name, topic_id in IDS.items()}


def metadata(topics, owned):
    rows = b"".join(
        len(name).to_bytes(2, "big") + name.encode() + len(numbers).to_bytes(4, "big")
        + b"".join(number.to_bytes(4, "big") for number in numbers)
        for name, numbers in owned.items()
    )  # fmt: skip
    return b"\0\1" + subscription(topics)[2:] + len(owned).to_bytes(4, "big") + rows


class ClassicClient:
    """A consumer of the classic protocol: it joins, asks for its assignment, and sends heartbeats, one at a time."""

    def __init__(self, number):
        self.number, self.lives = number, 0
        self.topics = ["a"]
        self.begin()

    def begin(self):
        self.lives += 1
        self.id, self.name = "", f"k{self.number}-{self.lives}"
        self.lose()

    def lose(self):
        self.generation, self.reads, self.does, self.asked, self.assigns = -1, frozenset(), "join", None, None


class Migrations(Groups):
    @initialize(assignor=st.sampled_from(["uniform", "range"]), is_cooperative=st.booleans())
    def begin(self, assignor, is_cooperative=False):
        super().begin(assignor)
        self.is_cooperative = is_cooperative
        self.classics = [ClassicClient(number) for number in range(3)]

    def perform(self, effects):
        for effect in effects:
            match effect:
                case Answer(request, body):
                    client = next((each for each in self.classics if each.asked == request), None)
                    if client is None:
                        self.answered_others(request, body)
                    else:
                        client.asked = None
                        self.classic_answered(client, body)
                case Append():
                    self.writes.append(effect)

    def answered_others(self, request, body):
        if any(each.asked == request for each in self.clients):
            self.answered(request, body)

    # ------------------------------------------------------------------ classic

    def act(self, client):
        if client.asked is not None:
            return
        self.requests += 1
        client.asked = self.requests
        common = {"request": self.requests, "member_id": client.id}
        if client.does == "join":
            if not self.is_cooperative:
                client.reads = frozenset()
            owned = {}
            for piece in sorted(client.reads):
                owned.setdefault(NAMES[piece.topic_id], []).append(piece.partition)
            said = metadata(client.topics, owned)
            self.post(
                Join(
                    **common, fresh_id=client.name, session_timeout_ms=10_000, rebalance_timeout_ms=20_000,
                    protocol_type="consumer", protocols=(("p", said),), known=self.known,
                )
            )  # fmt: skip
        elif client.does == "sync":
            shares = self.shares(client.assigns) if client.assigns else {}
            self.post(Sync(**common, generation=client.generation, assignments=shares, known=self.known))
        else:
            self.post(Heartbeat(**common, generation=client.generation))

    def shares(self, members):
        """Assign as a leader does; nobody gets what another one says that it reads."""
        said = {name: read_subscription(data) for name, _, data in members}
        owner = {tp: name for name, each in said.items() for tp in each.owned}
        shares = {name: [] for name in said}
        for topic, known in self.known.items():
            readers = sorted(name for name, each in said.items() if topic in each.topics)
            for number in range(known.partitions if readers else 0):
                tp, taker = TopicPartition(topic, number), readers[number % len(readers)]
                if owner.get(tp, taker) == taker:
                    shares[taker].append(tp)
        return {name: encode_assignment(tps, 1) for name, tps in shares.items()}

    def classic_answered(self, client, body):
        error = body.error
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            client.lose()
            client.id = "" if error is ErrorCode.UNKNOWN_MEMBER_ID else client.id
        elif error is not NONE:
            client.does = "join"
            client.id = client.id or getattr(body, "member_id", "")
        elif isinstance(body, Joined):
            client.id, client.generation, client.does = body.member_id, body.generation, "sync"
            client.assigns = body.members
        elif isinstance(body, Synced):
            tps = read_assignment(body.assignment)
            before, client.reads = client.reads, frozenset(Piece(IDS[tp.topic], tp.partition) for tp in tps)
            client.does = "hear" if before <= client.reads else "join"

    @rule(number=CLASSICS)
    def classic_acts(self, number):
        self.act(self.classics[number])

    @rule()
    def all_classics_act(self):
        for client in self.classics:
            self.act(client)
        while self.writes:
            self.is_written(NONE)

    @rule(number=CLASSICS)
    def classic_leaves(self, number):
        client = self.classics[number]
        if client.id:
            self.requests += 1
            self.post(Leave(self.requests, ((client.id, None),)))
        client.begin()

    @rule(number=CLASSICS)
    def classic_dies(self, number):
        self.classics[number].begin()

    @rule(number=CLASSICS, topics=st.sampled_from([["a"], ["b"], ["a", "b"]]))
    def classic_subscribes(self, number, topics):
        client = self.classics[number]
        if client.asked is None:
            client.topics, client.does = topics, "join"

    @rule()
    def moderns_leave(self):
        for number in range(len(self.clients)):
            self.leaves(number, for_a_while=False)
        while self.writes:
            self.is_written(NONE)

    @rule(are_written=st.booleans())
    def coordinator_fails(self, are_written):
        for client in self.classics:
            if client.asked is not None:
                client.asked, client.does = None, "join"
        super().coordinator_fails(are_written)

    @invariant()
    def nobody_reads_what_another_reads(self):
        if not hasattr(self, "classics"):
            return
        seen = {}
        for client in (*self.clients, *self.classics):
            if client.id in self.group.members:
                for piece in client.reads:
                    assert seen.setdefault(piece, client.id) == client.id, (piece, seen[piece], client.id)

    def teardown(self):
        if not hasattr(self, "classics"):
            return
        while self.writes:
            self.is_written(NONE)
        for _ in range(90):
            for client in self.classics:
                self.act(client)
            for client in self.clients:
                client.asked = None
                self.heartbeat(client)
                client.settle()
            while self.writes:
                self.is_written(NONE)
            self.now_ms += 1_000
            if (due_ms := deadline_ms(self.group)) is not None and due_ms <= self.now_ms:
                self.post(Ticked())
                self.forget_expelled()
        everybody = (*self.clients, *self.classics)
        assert {client.id for client in everybody} == set(self.group.members)
        assert isinstance(self.group, ConsumerGroup)
        assert self.group.phase is Phase.STABLE, self.group
        self.all_is_read(everybody)
        for number in range(len(self.clients)):
            self.leaves(number, for_a_while=False)
        self.clients = []
        for _ in range(40):
            for client in self.classics:
                self.act(client)
            while self.writes:
                self.is_written(NONE)
            self.now_ms += 1_000
            self.post(Ticked())
        assert self.group.phase is ClassicPhase.STABLE, self.group
        self.all_is_read(self.classics)

    def all_is_read(self, clients):
        names = {name for client in clients for name in client.topics}
        wanted = {Piece(self.known[n].id, number) for n in names for number in range(self.known[n].partitions)}
        assert sorted(piece for client in clients for piece in client.reads) == sorted(wanted)


TestMigrations = Migrations.TestCase
TestMigrations.settings = settings(stateful_step_count=25)
