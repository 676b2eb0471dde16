"""Groups of the consumer protocol in single steps: what is stored, deleted, seen and waited for."""

from dataclasses import replace

import pytest

from replication.coordinators.groups.classic.events import Sync, Ticked
from replication.coordinators.groups.classic.state import Group
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat
from replication.coordinators.groups.consumer.quiet import quiet_answer
from replication.coordinators.groups.consumer.records import encode
from replication.coordinators.groups.consumer.state import ConsumerGroup, Matched, Member, Progress
from replication.coordinators.groups.keys import Key, Kind, encode_key
from replication.coordinators.groups.messages import Appended
from replication.coordinators.groups.offsets.events import Commit, ExpireOffsets
from replication.coordinators.groups.offsets.state import Committed
from replication.coordinators.groups.parts.state import Header
from replication.coordinators.groups.pieces import Piece
from replication.errors import NONE, ErrorCode
from replication.model.cluster import TopicPartition
from tests.unit.replication.coordinators.consumer_world import KNOWN, A, World

TP = TopicPartition("a", 0)
ALL = frozenset(Piece(A, n) for n in range(3))
LEFTOVERS = {
    Key(Kind.MEMBER, "zombie"): Member(id="zombie", topics=("a",), rebalance_timeout_ms=1),
    Key(Kind.TARGET, "nobody"): frozenset({Piece(A, 0)}),
    Key(Kind.REGEX, "a.*"): Matched(("a",), 5),
}
LEFT = [(encode_key("g", key), encode(value)) for key, value in LEFTOVERS.items()]


def committed(world, offset):
    return world.ask(lambda request: Commit(request=request, offsets={TP: Committed(offset)}))


# ------------------------------------------------------------------ deletion


@pytest.mark.parametrize("expires", [False, True])
def test_nothing_is_left_of_a_group_that_is_deleted_or_expires(expires):
    """Another coordinator had written what this one never knew; a leave whose outcome nobody knows is in the log."""
    world = World(offsets_retention_ms=50_000)
    world.log += [*LEFT[1:], (encode_key("g", Key(Kind.HEADER)), encode(Header(7, 0)))]
    world.load()
    assert committed(world, 3).error is NONE
    world.writes_at_once = False
    world.joins("m")
    world.log += [(encode_key("g", key), encode(value)) for key, value in world.writes[0].values.items() if value]
    world.write(ErrorCode.REQUEST_TIMED_OUT)  # it is stored, after all
    world.hears("m", -1)
    world.write(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.writes_at_once = True
    if expires:
        world.ms += 60_000
        world.post(ExpireOffsets())
    else:
        assert world.deletes().error is NONE
    assert world.left() == {}
    assert world.group.is_blank


@pytest.mark.parametrize("comes_back", ["consumer", "classic"])
def test_what_a_load_finds_left_of_a_group_goes_with_the_next_write(comes_back):
    """A later record of the group would bring the dead member back."""
    world = World(group_initial_rebalance_delay_ms=0)
    world.log += LEFT
    world.load()
    assert isinstance(world.group, Group)
    assert not world.group.is_blank  # it is not forgotten before
    if comes_back == "consumer":
        assert world.joins("m").error is NONE
    else:
        assert world.joins_classic().error is NONE
        world.post(Ticked())
        world.ms += 30_000
        world.post(Ticked())  # it never asked for its assignment: the group is empty, and stored
    assert not world.left().keys() & dict(LEFT).keys()
    world.load()
    assert "zombie" not in world.group.members
    assert isinstance(world.group, ConsumerGroup) == (comes_back == "consumer")


def test_what_a_load_finds_left_goes_even_if_nobody_comes_back():
    world = World()
    world.log += LEFT
    world.load()
    world.post(ExpireOffsets())
    assert (world.left(), world.group.is_blank) == ({}, True)


def test_an_older_part_of_a_group_that_was_a_classic_one_since_does_not_count_again():
    world = World(group_initial_rebalance_delay_ms=0)
    world.log += LEFT[:1]
    world.log += [
        (encode_key("g", Key(Kind.CLASSIC)), bytes.fromhex("0003 0000 00000002 ffff ffff 0000000000000008 00000000"))
    ]
    world.load()
    assert world.group.generation == 2
    assert world.joins("m").error is NONE
    assert len(world.left()) == 5  # two of the group, three of the member
    world.load()
    assert list(world.group.members) == ["m"]


# ------------------------------------------------------------- writes in flight


def test_only_its_own_write_answers_a_heartbeat():
    world = World()
    epoch = world.joins("m").epoch
    world.writes_at_once = False
    assert world.joins("n") is None
    assert world.ask(lambda n: Commit(request=n, offsets={TP: Committed(3)}, member_id="m", generation=epoch)) is None
    change, commit = world.writes
    world.post(Appended(replace(change.write, number=change.write.number - 1)))
    world.post(Appended(commit.write))
    assert list(world.answers) == [1, 3]
    world.post(Appended(change.write))
    assert list(world.answers) == [1, 3, 2]


# --------------------------------------------------------------- who comes back


@pytest.mark.parametrize("member", ["m", "another"])
def test_a_static_member_that_left_for_a_while_comes_back_under_whichever_id(member):
    world = World()
    world.joins("m", instance_id="i")
    epoch = world.group.epoch
    assert world.hears("m", -2, instance_id="i").error is NONE
    back = world.joins(member, instance_id="i")
    assert (back.error, back.epoch, len(back.assigned)) == (NONE, epoch, 3)
    assert list(world.group.members) == [member]


def test_a_classic_join_that_is_refused_leaves_an_empty_consumer_group_as_it_is():
    world = World()
    world.joins("m")
    world.hears("m", -1)
    before, log = world.group, list(world.log)
    assert world.joins_classic(session_timeout_ms=1).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.joins_classic("unknown").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert (world.group, world.log) == (before, log)
    assert world.deletes().error is NONE
    assert world.left() == {}


def test_an_empty_consumer_group_becomes_a_classic_one_with_its_first_generation():
    world = World(group_initial_rebalance_delay_ms=0)
    world.joins("m")
    world.hears("m", -1)
    assert world.joins_classic().error is NONE
    assert world.ask(lambda request: Sync(request=request, member_id="fresh", generation=1)).error is NONE
    assert list(world.left()) == [encode_key("g", Key(Kind.CLASSIC))]
    assert world.group.unstored == frozenset()
    world.load()
    assert list(world.group.members) == ["fresh"]


# ------------------------------------------------------------------- expressions


def test_each_member_gets_the_topics_of_an_expression_that_it_may_see_itself():
    world = World()
    sees = {"all": ("a", "b"), "few": ("a",)}
    for member, matched in sees.items():
        world.joins(member, topics=(), regex="[ab]", matched=matched)
    epochs, owned = dict.fromkeys(sees, 0), dict.fromkeys(sees, frozenset())
    for _ in range(5):
        for member, matched in sees.items():
            current = world.group.currents[member]
            heard = world.hears(member, current.epoch, owned=owned[member], matched=matched)
            epochs[member], owned[member] = heard.epoch, owned[member] if heard.assigned is None else heard.assigned
    assert epochs == dict.fromkeys(sees, 2)  # the group has settled: it is not made anew by each one's turn
    assert {piece.topic_id for piece in owned["few"]} == {A}
    assert {topic.id for topic in KNOWN.values()} == {piece.topic_id for piece in owned["all"]}
    assert world.group.regexes["[ab]"].topics == ("a", "b")
    world.hears("all", -1)
    world.hears("few", epochs["few"], owned=owned["few"], matched=sees["few"])
    assert world.group.regexes["[ab]"].topics == ("a",)
    world.hears("few", -1)
    assert world.group.regexes == {}


# ----------------------------------------------------------------------- quiet


@pytest.mark.parametrize(
    ("change", "is_quiet"),
    [
        ({}, True),
        ({"rebalance_timeout_ms": 20_000, "topics": ("a",), "owned": ALL}, True),
        ({"client_host": "/elsewhere"}, False),
        ({"topics": ("b",)}, False),
        ({"known_at": 2}, False),
        ({"known_at": None}, False),
        ({"matched": ("b",)}, True),  # it has no expression
        ({"epoch": 0}, False),
        ({"epoch": -1}, False),
        ({"member_id": "n"}, False),
    ],
)
def test_a_heartbeat_is_quiet_if_nothing_of_its_group_changes(change, is_quiet):
    world = World()
    world.joins("m", known_at=1)
    event = replace(ConsumerHeartbeat(request=0, member_id="m", epoch=1, known=KNOWN, known_at=1), **change)
    found = quiet_answer(world.group, event)
    assert (found is not None) == is_quiet
    if found is not None:
        assert found.assigned == (ALL if event.owned else None)


def test_a_heartbeat_is_not_quiet_while_its_member_may_have_something_to_learn():
    world = World()

    def is_quiet(member):
        epoch = world.group.currents[member].epoch
        event = ConsumerHeartbeat(request=0, member_id=member, epoch=epoch, known=KNOWN, known_at=1)
        return quiet_answer(world.group, event) is not None

    world.writes_at_once = False
    world.joins("m", known_at=1)
    assert not is_quiet("m")  # its answer would tell of what is not stored yet
    world.write()
    world.writes_at_once = True
    assert is_quiet("m")
    world.joins("n", known_at=1)
    assert not is_quiet("m")
    assert not is_quiet("n")  # it waits for what m gives up
    kept = world.hears("m", 1, owned=ALL, known_at=1).assigned
    world.hears("m", 1, owned=kept, known_at=1)
    world.hears("n", 2, known_at=1)
    assert is_quiet("m")
    assert is_quiet("n")
    world.hears("n", -1, known_at=1)
    assert not is_quiet("m")  # there are no targets without n yet


def test_a_heartbeat_is_not_quiet_while_a_lost_write_is_to_be_repeated():
    world = World()
    world.joins("m", instance_id="i", known_at=1)
    world.joins("n", topics=("b",), known_at=1)
    world.hears("m", 1, known_at=1)
    heartbeat = ConsumerHeartbeat(request=0, member_id="n", epoch=2, known=KNOWN, known_at=1)
    assert quiet_answer(world.group, heartbeat) is not None
    world.writes_at_once = False
    world.hears("m", -2, instance_id="i")
    world.write(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert quiet_answer(world.group, heartbeat) is None
    world.writes_at_once = True
    world.hears("n", 2, known_at=1)
    assert quiet_answer(world.group, heartbeat) is not None
    world.load()
    assert world.group.currents["m"].epoch == -2


# --------------------------------------------------------------------- deadlines


def test_each_revocation_has_the_rebalance_timeout_for_itself():
    world = World()
    world.joins("m", rebalance_timeout_ms=20_000)
    world.joins("n")
    one = world.hears("m", 1, owned=ALL)
    assert world.group.currents["m"].progress is Progress.REVOKING
    world.joins("o")
    world.ms += 15_000
    two = world.hears("m", 1, owned=one.assigned)  # it has given up for one, and must for the other
    assert world.group.currents["m"].progress is Progress.REVOKING
    assert two.assigned < one.assigned
    world.ms += 15_000
    world.post(Ticked())
    assert "m" in world.group.members
    world.ms += 5_000
    world.post(Ticked())
    assert "m" not in world.group.members
