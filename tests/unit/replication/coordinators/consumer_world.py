"""World: one group, its log and its requests, step by step."""

from uuid import UUID

from replication.coordinators.groups.classic.events import DeleteGroup, Join
from replication.coordinators.groups.classic.state import Group
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat
from replication.coordinators.groups.kinds import resume, step
from replication.coordinators.groups.messages import Answer, Append, Appended, Now
from replication.coordinators.groups.pieces import Topic
from replication.coordinators.groups.records import Loaded, records_of
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import NONE
from replication.model.cluster import topic_id_of
from tests.transcripts.coordinator import subscription

A, B = (topic_id_of(UUID(int=number)) for number in (1, 2))
KNOWN = {"a": Topic(A, 3), "b": Topic(B, 2)}


class World:
    def __init__(self, **limits):
        self.limits = GroupSettings(**limits)
        self.group = Group(id="g")
        self.ms = 0
        self.log, self.writes, self.answers = [], [], {}
        self.requests = 0
        self.writes_at_once = True

    def post(self, event):
        self.take(step(self.group, event, Now(self.ms, 1_000 + self.ms), self.limits))

    def take(self, result):
        self.group, effects = result
        self.answers.update({effect.request: effect.body for effect in effects if isinstance(effect, Answer)})
        self.writes += [effect for effect in effects if isinstance(effect, Append)]
        if self.writes_at_once:
            self.write()

    def write(self, error=NONE):
        """End all writes that are in flight, and what they bring about."""
        writes, self.writes = self.writes, []
        for append in writes:
            if error is NONE:
                self.log += records_of("g", append)
            self.post(Appended(append.write, error, len(self.log)))

    def ask(self, make):
        """Return the answer; None: there is none yet."""
        self.requests += 1
        self.post(make(self.requests))
        return self.answers.get(self.requests)

    def joins(self, member, **fields):
        fields = {"topics": ("a",), "rebalance_timeout_ms": 20_000, "owned": frozenset(), **fields}
        return self.hears(member, 0, **fields)

    def hears(self, member, epoch, **fields):
        return self.ask(
            lambda request: ConsumerHeartbeat(
                request=request, member_id=member, epoch=epoch, **{"known": KNOWN, **fields}
            )
        )

    def joins_classic(self, member="", **fields):
        fields = {
            "fresh_id": "fresh", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer", "protocols": (("range", subscription(["a"])),), **fields,
        }  # fmt: skip
        return self.ask(lambda request: Join(request=request, member_id=member, **fields))

    def deletes(self):
        return self.ask(DeleteGroup)

    def load(self):
        """Have another coordinator read the log."""
        loaded = Loaded()
        for position, (key, value) in enumerate(self.log):
            loaded.apply(position, key, value)
        offsets = loaded.offsets.get("g", {})
        self.take(resume(loaded.group("g"), offsets, Now(self.ms, 1_000 + self.ms), self.limits))

    def left(self):
        """Return what the log has, compacted."""
        return {key: value for key, value in dict(self.log).items() if value is not None}
