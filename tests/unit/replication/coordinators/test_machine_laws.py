"""Laws of a group's machine, whatever its members, its log and the time do."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replication.coordinators.groups.classic import events
from replication.coordinators.groups.classic.state import Group, Phase, deadline_ms
from replication.coordinators.groups.classic.step import resume, step
from replication.coordinators.groups.messages import Append, Appended, Body, Now
from replication.coordinators.groups.offsets.events import Commit, DeleteOffsets, ExpireOffsets, NewOffsets
from replication.coordinators.groups.offsets.state import Committed, Offsets
from replication.coordinators.groups.records import Loaded, records_of
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from tests.support.repeats import times
from tests.transcripts.coordinator import subscription

WALL_MS = 1_000_000
NAMES = st.sampled_from("abcd")
STATIC = {"c": "x", "d": "y"}
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
ERRORS = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT]


class GroupMachine(RuleBasedStateMachine):
    """Clients, a log and a clock around one group."""

    def __init__(self):
        super().__init__()
        self.limits = GroupSettings(
            group_initial_rebalance_delay_ms=3000, group_max_size=3, offsets_retention_ms=50_000
        )
        self.group = Group(id="g")
        self.now_ms = 0
        self.requests = 0
        self.open: dict[int, events.Event] = {}
        self.answers: dict[int, Body] = {}
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.told: dict[int, tuple[str | None, str | None]] = {}  # generation -> protocol, protocol type
        self.assigned: dict[int, dict[str, bytes]] = {}  # generation -> what the leader said, once stored
        self.log: list[tuple[bytes, bytes | None]] = []
        self.writes: list[Append] = []
        self.highest = 0

    # ---------------------------------------------------------------- the world

    def post(self, event):
        if hasattr(event, "request"):
            self.open[event.request] = event
        self.take(step(self.group, event, Now(self.now_ms, WALL_MS + self.now_ms), self.limits))

    def take(self, result):
        self.group, effects = result
        if self.group.generation == 0:
            self.forget_after(0)  # the group was wiped
        for effect in effects:
            if isinstance(effect, Append):
                self.writes.append(effect)
                continue
            assert effect.request in self.open, "answered twice, or nobody asked"
            event = self.open.pop(effect.request)
            self.answers[effect.request] = effect.body
            self.judge(event, effect.body)

    def forget_after(self, generation):
        self.told = {number: told for number, told in self.told.items() if number <= generation}
        self.assigned = {number: told for number, told in self.assigned.items() if number <= generation}

    def judge(self, event, body):
        if isinstance(body, events.Joined):
            self.judge_join(event, body)
        elif isinstance(body, events.Synced) and not body.error:
            assert event.generation in self.assigned, "told before it was stored"
            assert self.group.phase is Phase.STABLE

    def judge_join(self, event, body):
        name = event.client_id
        if body.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.ids[name] = body.member_id
        elif body.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.ids.pop(name, None)
        if body.error is ErrorCode.NONE:
            told = self.told.setdefault(body.generation, (body.protocol, body.protocol_type))
            assert told == (body.protocol, body.protocol_type)
            assert body.protocol in dict(event.protocols)
            assert body.member_id in self.group.members
            assert (body.leader == body.member_id) == bool(body.members)
            self.generations[name] = body.generation

    def request(self):
        self.requests += 1
        return self.requests

    # -------------------------------------------------------------------- rules

    @rule(name=NAMES, forgets=st.booleans(), old=st.booleans(), protocols=st.sampled_from(["r", "rs", "sr"]),
          topics=st.sampled_from(["t", "tu"]))  # fmt: skip
    def join(self, name, forgets, old, protocols, topics):
        if forgets:
            self.ids.pop(name, None)
        request = self.request()
        self.post(
            events.Join(
                request=request,
                member_id=self.ids.get(name, ""),
                fresh_id=f"{name}{request}",
                instance_id=STATIC.get(name),
                client_id=name,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=15_000 if name in "ac" else 20_000,
                protocol_type="consumer",
                protocols=tuple((p, subscription(list(topics))) for p in protocols),
                needs_known_id=not old,
            )
        )

    @rule(name=NAMES, stale=st.booleans())
    def sync(self, name, stale):
        generation = self.generations.get(name, 0) - stale
        text = f"{name}{generation}".encode()
        self.post(
            events.Sync(
                request=self.request(),
                member_id=self.ids.get(name, ""),
                generation=generation,
                instance_id=STATIC.get(name),
                assignments=dict.fromkeys(self.group.members, text),
            )
        )

    @rule(name=NAMES)
    def beat(self, name):
        request = self.request()
        generation = self.generations.get(name, 0)
        before = self.group
        self.post(
            events.Heartbeat(
                request=request,
                member_id=self.ids.get(name, ""),
                generation=generation,
                instance_id=STATIC.get(name),
            )
        )
        if not self.answers[request].error:
            assert generation == before.generation
            assert self.ids[name] in before.members

    @rule(names=st.sets(NAMES, min_size=1))
    def leave(self, names):
        leaving = tuple((self.ids.get(name, ""), STATIC.get(name)) for name in sorted(names))
        request = self.request()
        self.post(events.Leave(request, leaving))
        for (member_id, _), error in zip(leaving, self.answers[request].errors, strict=True):
            assert error or member_id not in self.group.members

    @rule(name=st.sampled_from(["a", "c", "-"]), tps=st.sets(st.sampled_from(PARTITIONS), min_size=1),
          offset=st.integers(0, 99))  # fmt: skip
    def commit(self, name, tps, offset):
        generation = self.generations.get(name, -1)
        before, request = self.group, self.request()
        offsets = {tp: Committed(offset, -1, "x" * (offset % 2), WALL_MS + self.now_ms) for tp in sorted(tps)}
        self.post(
            Commit(
                request=request,
                offsets=offsets,
                member_id=self.ids.get(name, ""),
                generation=generation,
                instance_id=STATIC.get(name),
            )
        )
        if request in self.open:  # it was taken
            is_member = generation == before.generation and self.ids.get(name) in before.members
            assert is_member or (generation < 0 and before.phase is Phase.EMPTY)
            assert before.phase is not Phase.COMPLETING

    @rule(tps=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def delete_offsets(self, tps):
        self.post(DeleteOffsets(self.request(), tuple(sorted(tps))))

    @rule()
    def delete_group(self):
        before, request = self.group, self.request()
        self.post(events.DeleteGroup(request))
        assert request in self.answers or before.phase is Phase.EMPTY

    @rule()
    def expire(self):
        self.post(ExpireOffsets())

    @rule(ms=st.integers(0, 12_000))
    def tick(self, ms):
        self.now_ms += ms
        self.post(events.Ticked())

    @precondition(lambda self: self.writes)
    @rule(error=st.sampled_from([ErrorCode.NONE] * 6 + ERRORS))
    def settle(self, error):
        self.store(error)

    def store(self, error=ErrorCode.NONE):
        """The oldest write comes out. Here what fails is not in the log, so that the log can be compared."""
        append = self.writes.pop(0)
        position = -1
        if not error:
            position = len(self.log)
            self.log += records_of("g", append)
            if isinstance(append.write, events.NewAssignment):
                self.assigned[append.write.generation] = append.write.assignments
        self.post(Appended(append.write, error, position))

    def loaded(self):
        loaded = Loaded()
        for position, (key, value) in enumerate(self.log):
            loaded.apply(position, key, value)
        assert not loaded.unknown
        return loaded.groups.get("g", Group(id="g")), loaded.offsets.get("g", {})

    @rule()
    def move(self):
        """Another coordinator: what the old one parked is answered, what it was writing is lost or came through."""
        self.post(events.Unloaded())
        parked = [event for event in self.open.values() if isinstance(event, events.Join | events.Sync)]
        assert not parked
        while self.writes:
            self.store()
        assert not self.open
        self.take(resume(*self.loaded(), Now(self.now_ms, WALL_MS + self.now_ms), self.limits))
        # A generation whose assignment was never stored is not known any more; its number is used again.
        self.forget_after(self.group.generation)

    # --------------------------------------------------------------- invariants

    @invariant()
    def state_is_sound(self):
        group = self.group
        has_members = bool(group.members)
        assert group.phase in ((Phase.EMPTY, Phase.PREPARING) if not has_members else set(Phase) - {Phase.EMPTY})
        assert (group.leader in group.members) if has_members else group.leader is None or not has_members
        assert (group.join_until_ms is not None) == (group.phase is Phase.PREPARING)
        assert group.unsynced <= set(group.members)
        assert len({m.instance_id for m in group.members.values() if m.instance_id}) == sum(
            m.instance_id is not None for m in group.members.values()
        )
        for member in group.members.values():
            assert member.syncing is None or group.phase is Phase.COMPLETING
            assert member.joining is None or group.phase in (Phase.PREPARING, Phase.STABLE)
        is_waiting = group.phase is Phase.PREPARING
        counted = [m for m in group.members.values() if m.joining or m.instance_id or not is_waiting]
        assert len(counted) <= self.limits.group_max_size

    @invariant()
    def nothing_waits_for_nothing(self):
        """Whatever is parked has a time at which the group looks at it, or a write that will come out."""
        waits = [e for e in self.open.values() if isinstance(e, events.Join | events.Sync)]
        assert not waits or self.writes or deadline_ms(self.group) is not None
        if self.group.members:
            assert deadline_ms(self.group) is not None or self.writes

    @invariant()
    def the_log_says_the_same(self):
        """With nothing in flight, a coordinator that loads the log knows the same offsets and generation."""
        if self.writes:
            return
        stored, offsets = self.loaded()
        assert {tp: replace(c, position=0) for tp, c in offsets.items()} == {
            tp: replace(c, position=0) for tp, c in self.group.offsets.committed.items()
        }
        if self.group.phase is Phase.STABLE:
            assert stored.generation == self.group.generation
            assert {m.id: m.assignment for m in stored.members.values()} == {
                m.id: m.assignment for m in self.group.members.values()
            }

    def teardown(self):
        """Everybody is silent from now on: what is open is answered, and the group ends up with nobody."""
        for _ in range(200):
            while self.writes:
                self.store()
            due_ms = deadline_ms(self.group)
            if due_ms is None:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.post(events.Ticked())
        assert not self.open
        assert self.group.phase is Phase.EMPTY
        self.now_ms += self.limits.offsets_retention_ms
        self.post(ExpireOffsets())
        while self.writes:
            self.store()
        assert self.group.is_blank
        stored, offsets = self.loaded()
        assert (stored, offsets) == (Group(id="g"), {})


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(
    max_examples=times(15, 100, "GROUP_EXAMPLES"), stateful_step_count=60, deadline=None
)


def test_a_commit_that_stands_earlier_in_the_log_does_not_undo_a_later_one():
    now, limits = Now(0, 0), GroupSettings()
    tp = PARTITIONS[0]
    group = Group(id="g")
    writes = []
    for request, offset in ((1, 10), (2, 20)):
        group, (append,) = step(group, Commit(request=request, offsets={tp: Committed(offset)}), now, limits)
        writes.append(append.write)
    assert [type(write) for write in writes] == [NewOffsets, NewOffsets]
    for write, position in reversed(list(zip(writes, (100, 101), strict=True))):
        group, _ = step(group, Appended(write, position=position), now, limits)
    assert group.offsets.committed[tp].offset == 20
    assert not group.offsets.in_flight


def test_a_deletion_that_comes_out_late_leaves_what_was_committed_behind_it():
    now, limits = Now(0, 0), GroupSettings()
    tp = PARTITIONS[0]
    group = Group(id="g", offsets=Offsets(committed={tp: Committed(1, position=5)}))
    group, (deletion,) = step(group, DeleteOffsets(1, (tp,)), now, limits)
    group, (commit,) = step(group, Commit(request=2, offsets={tp: Committed(2)}), now, limits)
    group, _ = step(group, Appended(commit.write, position=11), now, limits)
    group, _ = step(group, Appended(deletion.write, position=10), now, limits)
    assert group.offsets.committed[tp].offset == 2
