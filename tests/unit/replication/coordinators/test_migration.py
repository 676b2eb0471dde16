"""Groups with members that become groups of the other protocol, step by step."""

from dataclasses import replace

import pytest

from replication.coordinators.groups.classic.embedded import encode_assignment, read_assignment, read_subscription
from replication.coordinators.groups.classic.events import Heartbeat, Leave, Sync, Ticked
from replication.coordinators.groups.classic.state import Group, Member, Phase
from replication.coordinators.groups.consumer.records import decode, encode
from replication.coordinators.groups.consumer.state import ClassicMember, ConsumerGroup
from replication.coordinators.groups.consumer.state import Member as ConsumerMember
from replication.coordinators.groups.keys import Key, Kind, encode_key
from replication.coordinators.groups.messages import Now
from replication.coordinators.groups.migration import upgraded
from replication.coordinators.groups.offsets.events import Commit
from replication.coordinators.groups.offsets.state import Committed
from replication.coordinators.groups.pieces import Piece
from replication.errors import NONE, ErrorCode
from replication.model.cluster import TopicPartition
from tests.transcripts.coordinator import subscription
from tests.unit.replication.coordinators.consumer_world import KNOWN, A, World

T = [TopicPartition("a", number) for number in range(3)]
P = [Piece(A, number) for number in range(3)]
OLD = b"\0\0\0\0\0\0"


def cooperative(*owned):
    """The metadata of a member that keeps what it reads while it joins."""
    rows = b"\0\0\0\1\0\1a" + len(owned).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in owned)
    return b"\0\1" + subscription(["a"])[2:] + (rows if owned else b"\0\0\0\0")


class Classic:
    """Members of a classic group, in the requests that clients send."""

    def __init__(self, **limits):
        self.world = World(group_initial_rebalance_delay_ms=0, **limits)
        self.generations = {}

    @property
    def group(self):
        return self.world.group

    def join(self, member, metadata=None, **fields):
        protocols = (("range", subscription(["a"]) if metadata is None else metadata),)
        known = member if member in self.generations else ""
        fields = {"fresh_id": member, "protocols": protocols, "known": KNOWN, **fields}
        joined = self.world.joins_classic(known, **fields)
        if joined is not None and joined.error is NONE:
            self.generations[member] = joined.generation
        return joined

    def sync(self, member, assignments=()):
        said = {name: encode_assignment([T[n] for n in numbers], 1) for name, numbers in assignments}
        return self.world.ask(
            lambda request: Sync(
                request=request, member_id=member, generation=self.generations[member], assignments=said, known=KNOWN
            )
        )

    def heartbeat(self, member, instance_id=None):
        generation = self.generations[member]
        return self.world.ask(
            lambda request: Heartbeat(request=request, member_id=member, generation=generation, instance_id=instance_id)
        ).error

    def commit(self, member, offset):
        return self.world.ask(
            lambda request: Commit(
                request=request,
                offsets={T[0]: Committed(offset)},
                member_id=member,
                generation=self.generations[member],
            )
        ).error

    def reads(self, member):
        """Return the partitions that a SyncGroup tells of."""
        synced = self.sync(member)
        assert synced.error is NONE
        return sorted(tp.partition for tp in read_assignment(synced.assignment))

    def stable(self):
        """Begin a classic group with c, which reads all of topic a."""
        self.join("c")
        self.sync("c", {"c": [0, 1, 2]}.items())
        assert self.group.phase is Phase.STABLE


def test_a_classic_member_goes_on_in_a_consumer_group_and_back():
    """Its partitions move one after the other, and its offsets are committed and stay, whoever the others are."""
    classic = Classic()
    classic.stable()
    assert classic.commit("c", 7) is NONE
    joined = classic.world.joins("n")
    assert (joined.error, joined.assigned) == (NONE, frozenset())  # c reads all of it
    assert isinstance(classic.group, ConsumerGroup)
    assert classic.commit("c", 8) is NONE
    assert classic.heartbeat("c") is ErrorCode.REBALANCE_IN_PROGRESS
    again = classic.join("c")
    assert (again.error, again.leader, again.protocol) == (NONE, "", "range")
    mine = classic.reads("c")
    assert classic.heartbeat("c") is NONE
    assert classic.commit("c", 9) is NONE
    heard = classic.world.hears("n", joined.epoch, owned=frozenset())
    assert sorted([*mine, *(piece.partition for piece in heard.assigned)]) == [0, 1, 2]
    assert classic.world.hears("n", -1).error is NONE
    assert isinstance(classic.group, Group)
    assert classic.heartbeat("c") is ErrorCode.REBALANCE_IN_PROGRESS  # and not ILLEGAL_GENERATION
    assert classic.commit("c", 10) is NONE
    classic.join("c")
    assert classic.sync("c", {"c": [0, 1, 2]}.items()).error is NONE
    assert classic.group.offsets.committed[T[0]].offset == 10
    assert {key[:2] for key in classic.world.left()} == {b"\0\1", b"\0\2"}


def test_a_cooperative_member_gives_up_only_what_it_must():
    classic = Classic()
    classic.join("c", cooperative())
    classic.sync("c", {"c": [0, 1, 2]}.items())
    joined = classic.world.joins("n")
    assert classic.heartbeat("c") is ErrorCode.REBALANCE_IN_PROGRESS
    assert classic.join("c", cooperative(0, 1, 2)).error is NONE
    kept = classic.reads("c")
    assert 0 < len(kept) < 3
    assert classic.world.hears("n", joined.epoch).assigned is None  # c has not said so yet
    assert classic.heartbeat("c") is ErrorCode.REBALANCE_IN_PROGRESS
    assert classic.join("c", cooperative(*kept)).error is NONE
    assert classic.reads("c") == kept
    assert classic.heartbeat("c") is NONE
    assert sorted([*kept, *(p.partition for p in classic.world.hears("n", joined.epoch).assigned)]) == [0, 1, 2]


def test_partitions_that_become_free_send_a_classic_member_to_join_again():
    classic = Classic()
    classic.world.joins("n")
    assert classic.join("c").error is NONE
    assert classic.reads("c") == []
    assert classic.heartbeat("c") is NONE  # they are not free yet
    kept = classic.world.hears("n", 1, owned=frozenset(P)).assigned
    classic.world.hears("n", 1, owned=kept)
    assert classic.heartbeat("c") is ErrorCode.REBALANCE_IN_PROGRESS
    classic.join("c")
    assert len(classic.reads("c")) == 3 - len(kept)
    assert classic.heartbeat("c") is NONE


def test_a_member_that_was_expelled_before_the_group_became_a_classic_one_is_told_to_join_again():
    classic = Classic()
    classic.stable()
    epoch = classic.world.joins("n").epoch
    assert classic.world.hears("n", -1).error is NONE
    before = classic.group
    assert classic.world.hears("n", epoch).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert classic.world.hears("n", -1).error is ErrorCode.GROUP_ID_NOT_FOUND  # and takes it for gone
    assert classic.group == before
    assert isinstance(before, Group)
    assert classic.world.joins("n").error is NONE
    classic.world.hears("n", -1)
    classic.world.limits = replace(classic.world.limits, group_consumer_migration_policy="downgrade")
    assert classic.world.hears("n", epoch).error is ErrorCode.GROUP_ID_NOT_FOUND  # it may not come back


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [
        ("bidirectional", True, True),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_the_policy_says_which_groups_change(policy, upgrades, downgrades):
    classic = Classic(group_consumer_migration_policy=policy)
    classic.stable()
    heard = classic.world.joins("n")
    assert (heard.error is NONE) == upgrades == isinstance(classic.group, ConsumerGroup)
    if not upgrades:
        assert "online upgrade is disabled" in heard.message
    other = Classic(group_consumer_migration_policy=policy)
    other.world.joins("n")
    assert other.join("c").error is NONE
    other.world.hears("n", -1)
    assert isinstance(other.group, Group) == downgrades


@pytest.mark.parametrize(
    ("fields", "metadata", "said"),
    [
        ({"protocol_type": "connect"}, None, "does not use the consumer embedded protocol"),
        ({}, b"no subscription", "is malformed"),
    ],
)
def test_a_group_whose_members_cannot_be_read_stays_as_it_is(fields, metadata, said):
    classic = Classic()
    classic.join("c", metadata, **fields)
    before = classic.group
    heard = classic.world.joins("n")
    assert heard.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert said in heard.message
    assert classic.group == before


def test_members_that_wait_for_a_rebalance_are_sent_to_join_the_consumer_group():
    classic = Classic()
    classic.stable()
    assert classic.join("d") is None  # it waits for c
    waiting = classic.world.requests
    joined = classic.world.joins("n")
    assert joined.error is NONE
    assert classic.world.answers[waiting].error is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(classic.group.members) == {"c", "n"}
    assert classic.group.currents["c"].assigned == frozenset(P)
    assert classic.join("d").error is NONE
    assert classic.reads("d") == []


@pytest.mark.parametrize("does", ["nothing", "joins"])
def test_a_classic_member_that_does_not_join_again_or_ask_for_its_assignment_in_time_is_expelled(does):
    classic = Classic()
    classic.stable()
    classic.world.joins("n")
    assert classic.heartbeat("c") is ErrorCode.REBALANCE_IN_PROGRESS
    if does == "joins":
        classic.join("c")
    for _ in range(4):
        classic.world.ms += 5_000
        classic.world.hears("n", classic.group.currents["n"].epoch)
        if "c" in classic.group.members:
            classic.heartbeat("c")
        classic.world.post(Ticked())
    assert "c" not in classic.group.members
    owned = classic.world.hears("n", classic.group.currents["n"].epoch, owned=frozenset()).assigned
    assert owned == frozenset(P)


@pytest.mark.parametrize("has_joined", [False, True])
def test_a_silent_classic_member_is_expelled_after_its_own_session(has_joined):
    classic = Classic()
    classic.stable()
    classic.world.joins("n")
    if has_joined:
        classic.join("c")
    classic.world.ms += 10_000
    classic.world.post(Ticked())
    assert set(classic.group.members) == {"n"}


def test_a_classic_member_that_never_asks_for_its_assignment_is_expelled():
    classic = Classic()
    classic.world.joins("n")
    classic.join("c")
    for _ in range(4):
        classic.world.ms += 5_000
        classic.world.hears("n", classic.group.currents["n"].epoch)
        if "c" in classic.group.members:
            assert classic.heartbeat("c") is NONE  # there is nothing for it to learn
        classic.world.post(Ticked())
    assert "c" not in classic.group.members


def test_a_piece_that_two_members_claim_is_that_of_the_one_to_whom_it_was_assigned():
    """One said long ago that it reads it, and its assignment was lost; the other one got it since."""
    times = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 20_000, "deadline_ms": 0}
    lost = Member(id="lost", protocols=(("range", cooperative(0, 1)),), **times)
    got = Member(
        id="got", protocols=(("range", cooperative()),), assignment=encode_assignment(T[1:], 1), **times
    )  # fmt: skip
    group = Group(
        id="g", phase=Phase.PREPARING, protocol_type="consumer", protocol="range", generation=3, leader="got",
        members={"lost": lost, "got": got},
    )  # fmt: skip
    made = upgraded(group, KNOWN, Now(0, 0))
    assert {name: current.assigned for name, current in made.currents.items()} == {"lost": {P[0]}, "got": set(P[1:])}


def test_another_coordinator_goes_on_with_classic_members_in_either_kind_of_group():
    classic = Classic()
    classic.stable()
    classic.world.joins("n")
    classic.join("c")
    mine = classic.reads("c")
    before = classic.group
    classic.world.load()
    assert (classic.group.members, classic.group.currents) == (before.members, before.currents)
    assert classic.heartbeat("c") is NONE
    assert classic.reads("c") == mine
    classic.world.hears("n", -1)
    assert isinstance(classic.group, Group)
    classic.world.load()  # nothing was written since the last member left
    assert isinstance(classic.group, Group)
    assert classic.heartbeat("c") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_that_changes_back_and_forth_knows_what_its_members_read():
    """A member of the consumer protocol comes while the last one's group is still joining again."""
    classic = Classic()
    classic.world.joins("n")
    classic.join("c", cooperative())
    kept = classic.world.hears("n", 1, owned=frozenset(P)).assigned
    classic.world.hears("n", 1, owned=kept)
    classic.join("c", cooperative())
    mine = classic.reads("c")
    assert len(mine) + len(kept) == 3
    classic.world.hears("n", -1)
    assert isinstance(classic.group, Group)
    joined = classic.world.joins("o")
    assert isinstance(classic.group, ConsumerGroup)
    assert not {piece.partition for piece in joined.assigned} & set(mine)
    assert classic.group.currents["c"].assigned == {P[number] for number in mine}


def test_static_members_take_the_place_of_the_other_protocol():
    classic = Classic()
    classic.world.joins("n", instance_id="i")
    assert classic.join("c", instance_id="i").error is NONE
    assert isinstance(classic.group, Group)
    assert list(classic.group.members) == ["c"]
    joined = classic.world.joins("o", instance_id="i")
    assert (joined.error, list(classic.group.members)) == (NONE, ["o"])
    assert classic.world.hears("n", 1, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID


def test_requests_that_do_not_fit_a_classic_member_are_refused():
    classic = Classic()
    classic.world.joins("n", instance_id="i")
    classic.generations |= {"n": 1, "x": 1, "c": 0}
    assert classic.heartbeat("n") is ErrorCode.UNKNOWN_MEMBER_ID  # it is none of the classic protocol
    assert classic.sync("x").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert classic.heartbeat("x", instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert classic.join("x", instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert classic.join("x", instance_id="j").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert classic.join("c", protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert classic.join("c", b"\0").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert classic.join("c", session_timeout_ms=1).error is ErrorCode.INVALID_SESSION_TIMEOUT
    asked = classic.world.joins_classic("", fresh_id="given", needs_known_id=True, known=KNOWN)
    assert (asked.error, asked.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "given")
    assert classic.join("given").error is NONE
    other = classic.world.joins_classic("", protocols=(("other", subscription(["a"])),), known=KNOWN)
    assert other.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    classic.generations["given"] += 1
    assert classic.heartbeat("given") is ErrorCode.ILLEGAL_GENERATION
    assert classic.commit("given", 1) is ErrorCode.ILLEGAL_GENERATION
    left = classic.world.ask(lambda request: Leave(request, (("given", None),)))
    assert left.errors == (NONE,)


def test_a_group_that_is_full_takes_no_classic_member():
    classic = Classic(group_consumer_max_size=1)
    classic.world.joins("n")
    assert classic.join("c").error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_what_members_wait_for_while_something_is_stored_is_answered_then():
    classic = Classic()
    classic.world.joins("n")
    classic.world.writes_at_once = False
    assert classic.join("c") is None
    joining = classic.world.requests
    classic.world.write(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert classic.world.answers[joining].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert classic.join("c") is None
    classic.world.write()
    assert classic.world.answers[classic.world.requests].error is NONE


def test_the_conversion_is_one_write():
    classic = Classic()
    classic.stable()
    assert list(classic.world.left()) == [encode_key("g", Key(Kind.CLASSIC))]
    classic.world.joins("n")
    assert {key[:2] for key in classic.world.left()} == {bytes((0, kind)) for kind in (3, 5, 6, 7, 8)}


# ------------------------------------------------------------------- the bytes


def test_subscriptions_of_all_versions_are_read():
    owned = frozenset({TopicPartition("a", 2)})
    v0 = subscription(["b", "a"])
    v1 = b"\0\1" + v0[2:] + bytes.fromhex("00000001 0001 61 00000001 00000002")
    v2 = b"\0\2" + v1[2:] + b"\0\0\0\7"
    v3 = b"\0\3" + v2[2:] + b"\0\1r"
    assert read_subscription(v0) == (0, ("a", "b"), frozenset(), None)
    assert read_subscription(v1) == (1, ("a", "b"), owned, None)
    assert read_subscription(v2) == (2, ("a", "b"), owned, None)
    assert read_subscription(v3 + b"more") == (3, ("a", "b"), owned, "r")
    for data in (b"", OLD[:4], v1[:-1], v3[:-1], b"\xff\xff" + v0[2:], b"\0\0\x7f\xff\xff\xff"):
        assert read_subscription(data) is None


def test_assignments_are_read_as_they_were_written():
    assert encode_assignment(T[:2], 1) == bytes.fromhex("0001 00000001 0001 61 00000002 00000000 00000001 ffffffff")
    assert read_assignment(encode_assignment(T, 9)) == frozenset(T)
    assert read_assignment(b"") == frozenset()
    assert read_assignment(b"\0") is None


def test_a_classic_member_is_stored_as_a_kafka_4_4_does():
    side = ClassicMember(45_000, (("range", b"\0\1"),))
    member = ConsumerMember(
        id="m", client_id="c", client_host="/h", topics=("r",), regex="", rebalance_timeout_ms=300_000, classic=side
    )  # fmt: skip
    plain = "0000 00 00 02 63 03 2f68 02 02 72 01 000493e0 00"
    stored = bytes.fromhex(plain + "01 00 11 01 0000afc8 02 06 72616e6765 03 0001 00 00")
    key = Key(Kind.MEMBER, "m")
    assert (encode(member), decode(key, stored)) == (stored, member)
    assert decode(key, bytes.fromhex(plain + "01 00 01 00")) == replace(member, classic=None)  # Kafka's of the others
