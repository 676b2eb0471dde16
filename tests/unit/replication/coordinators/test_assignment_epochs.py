"""Commits of an older member epoch: accepted for partitions that the member has held ever since, and no others."""

import pytest

from replication.coordinators.groups.consumer.records import decode, encode
from replication.coordinators.groups.consumer.state import Current, Progress
from replication.coordinators.groups.keys import Key, Kind
from replication.coordinators.groups.offsets.events import Commit
from replication.coordinators.groups.offsets.state import Committed
from replication.coordinators.groups.pieces import Piece
from replication.errors import NONE, ErrorCode
from replication.model.cluster import TopicPartition
from tests.unit.replication.coordinators.consumer_world import A, B, World
from tests.unit.replication.coordinators.test_migration import Classic, cooperative

STALE = ErrorCode.STALE_MEMBER_EPOCH
CURRENT = Key(Kind.CURRENT, "m")
PLAIN = "0000 00000007 00000006 01 02 00000000000000000000000000000001 03 00000001 00000002"
TAGGED = (
    f"{PLAIN} 01 00 09 03 00000004 00000007 02 00000000000000000000000000000002 02 00000000 01 00 05 02 00000003 00"
)
STORED = Current(
    epoch=7,
    previous_epoch=6,
    progress=Progress.REVOKING,
    assigned=frozenset({Piece(A, 1), Piece(A, 2)}),
    revoking=frozenset({Piece(B, 0)}),
    since={Piece(A, 1): 4, Piece(A, 2): 7, Piece(B, 0): 3},
)


def commit(world, member, epoch, *partitions, topic_id=A, **fields):
    offsets = {TopicPartition("a", number): Committed(5) for number in partitions}
    return world.ask(
        lambda request: Commit(
            request=request, offsets=offsets, member_id=member, generation=epoch, topic_ids={"a": topic_id}, **fields
        )
    ).error


def numbers(pieces):
    return sorted(piece.partition for piece in pieces)


def handed_over():
    """Return a world in which `m` kept two partitions and gave up one, which `n` has now; and what these are."""
    world = World()
    first = world.joins("m").epoch
    world.joins("n")
    kept = world.hears("m", first, owned=frozenset(Piece(A, number) for number in range(3))).assigned
    assert commit(world, "m", first, 0, 1, 2) is NONE  # it reads all of them until it says otherwise
    second = world.hears("m", first, owned=kept).epoch
    (given,) = numbers(world.hears("n", second).assigned)
    assert (numbers(kept), second) == ([number for number in range(3) if number != given], first + 1)
    return world, first, numbers(kept), given


def test_an_older_commit_counts_for_what_the_member_has_held_since_then_and_only_if_that_is_all():
    world, first, kept, given = handed_over()
    assert commit(world, "m", first, *kept) is NONE
    before = world.group.offsets.committed
    for epoch, *partitions in [(first, given), (first, *kept, given), (first - 1, *kept), (first + 2, *kept)]:
        assert commit(world, "m", epoch, *partitions) is STALE, (epoch, partitions)
    assert commit(world, "n", first, given) is STALE
    assert commit(world, "m", first, *kept, topic_id=B) is STALE  # of a topic that had this name before
    assert commit(world, "nobody", first, *kept) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.group.offsets.committed == before
    assert commit(world, "m", first, *kept, producer=(7, 0)) is NONE
    assert commit(world, "m", first, given, producer=(7, 0)) is STALE


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_partition_that_came_back_counts_from_then_on(is_loaded):
    """In between it was another member's, whose commit the older one must not overwrite."""
    world, first, kept, given = handed_over()
    world.hears("n", -1)
    second = first + 1
    third = world.hears("m", second, owned=frozenset(Piece(A, number) for number in kept)).epoch
    assert third > second
    if is_loaded:
        world.load()
    for epoch in (first, second):
        assert commit(world, "m", epoch, given) is STALE
        assert commit(world, "m", epoch, *kept) is NONE
    assert commit(world, "m", third, *kept, given) is NONE


def test_a_member_that_begins_anew_has_held_what_it_gets_back_at_once():
    world, first, kept, given = handed_over()
    again = world.joins("m")
    assert (again.error, numbers(again.assigned)) == (NONE, kept)
    assert commit(world, "m", first, *kept) is NONE
    assert commit(world, "m", first, given) is STALE


def test_a_static_member_that_is_away_commits_nothing():
    world = World()
    epoch = world.joins("m", instance_id="i").epoch
    assert world.hears("m", -2, instance_id="i").error is NONE
    assert commit(world, "m", epoch, 0) is STALE
    back = world.joins("another", instance_id="i")
    assert [commit(world, name, back.epoch, 0) for name in ("m", "another")] == [ErrorCode.UNKNOWN_MEMBER_ID, NONE]


def test_a_static_member_that_leaves_for_a_while_has_given_up_what_it_was_asked_for():
    """It is another's until the member comes back, and gets it again as that one has gone."""
    world, instance = World(), {"instance_id": "i"}
    first = world.joins("m", **instance).epoch
    world.joins("n")
    kept = numbers(world.hears("m", first).assigned)
    world.hears("m", -2, **instance)
    (given,) = numbers(world.hears("n", first + 1).assigned)
    world.hears("n", -1)
    back = world.joins("m", **instance)
    assert (given in kept, numbers(back.assigned)) == (False, [0, 1, 2])
    assert [commit(world, "m", first, *pieces) for pieces in (kept, [given])] == [NONE, STALE]


@pytest.mark.parametrize("metadata", [None, cooperative(0, 1, 2)], ids=["eager", "cooperative"])
def test_a_classic_member_goes_on_with_commits_of_its_generation_while_its_group_changes_the_protocol(metadata):
    classic = Classic()
    classic.stable()
    first = classic.generations["c"]
    classic.world.joins("n")
    assert commit(classic.world, "c", first, 0, 1, 2) is NONE
    classic.join("c", metadata)
    kept = classic.reads("c")
    if metadata is not None:
        assert classic.join("c", cooperative(*kept)).error is NONE
    assert classic.generations["c"] > first
    gone = next(number for number in range(3) if number not in kept)
    assert commit(classic.world, "c", first, *kept) is NONE
    for epoch, partition in ((first, gone), (first - 1, kept[0]), (first + 9, kept[0])):
        assert commit(classic.world, "c", epoch, partition) is ErrorCode.ILLEGAL_GENERATION


def test_the_record_of_an_assignment_has_the_epoch_of_each_partition_as_a_kafka_4_4_writes_it():
    data = bytes.fromhex(TAGGED)
    assert (encode(STORED), decode(CURRENT, data)) == (data, STORED)


@pytest.mark.parametrize("tags", ["00", "01 00 01 00", "01 00 05 02 00000001"], ids=["none", "null", "too few"])
def test_a_record_that_does_not_say_the_epochs_counts_from_that_of_its_member(tags):
    """Brokers of former releases wrote such ones."""
    found = decode(CURRENT, bytes.fromhex(f"{PLAIN} {tags} 01 00"))
    assert found.since == {Piece(A, 1): 7, Piece(A, 2): 7}
    away = bytes.fromhex(f"{PLAIN} {tags} 01 00".replace("00000007", "fffffffe"))
    assert decode(CURRENT, away).since == {Piece(A, 1): 0, Piece(A, 2): 0}
