"""Groups, their members and their offsets."""

from replication.protocol.apis import ApiKey
from tests.support.asker import CLOSED, SILENT, until
from tests.support.kafka_answers.case import AN_ID, METADATA_FLAGS, NOT_ASKED, case, code, codes
from tests.support.kafka_answers.topics import topic_id
from tests.support.kafka_answers.transactions import init


@case("FindCoordinator of share groups", [31, 31], [42, 42])
def find_share(asker):
    body = {"key_type": 2, "coordinator_keys": ["g"]}
    return [code(asker.ask(ApiKey.FIND_COORDINATOR, version, body).coordinators[0]) for version in (5, 6)]


def join(asker, group, *, member_id="", protocols=(("range", b"\0"),), instead=(b"", b"")):
    body = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
    }
    found = asker.ask(ApiKey.JOIN_GROUP, 5, body, instead=instead)
    if found not in (CLOSED, SILENT) and code(found) == 79 and not member_id and not instead[0]:
        return join(asker, group, member_id=found.member_id, protocols=protocols)
    return found


def sync(asker, group, joined, *, version=3, **fields):
    body = {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
        "protocol_type": None,
        "protocol_name": None,
        "assignments": [{"member_id": joined.member_id, "assignment": b"abc"}],
        **fields,
    }
    return code(asker.ask(ApiKey.SYNC_GROUP, version, body))


def member(asker, group):
    joined = join(asker, group)
    assert sync(asker, group, joined) == 0
    return joined


@case("JoinGroup: a static leader is back, by version", [(False, 0, None), (False, 0, None), (True, 1, True)])
def join_statically(asker):
    """Does it lead, of how many members is it told, and is it to skip the assignment?"""
    group = asker.named("static")

    def joined(version):
        body = {
            "group_id": group, "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "",
            "group_instance_id": "i", "protocol_type": "consumer", "reason": "it is back",
            "protocols": [{"name": "range", "metadata": b"\0"}],
        }  # fmt: skip
        return asker.ask(ApiKey.JOIN_GROUP, version, body)

    first = joined(9)
    assert (code(first), first.skip_assignment, sync(asker, group, first)) == (0, False, 0)
    found = [joined(version) for version in (7, 8, 9)]
    assert codes(found) == [0, 0, 0]
    return [(row.leader == row.member_id, len(row.members), getattr(row, "skip_assignment", None)) for row in found]


@case("JoinGroup: a group id that is not UTF-8", 79)
def join_not_utf8(asker):
    found = join(asker, "no-utf-8-here", instead=(b"no-utf-8-here", b"\xff\xfe" + b"no-utf-8-he"))
    return found if found is CLOSED else code(found)


@case("SyncGroup of another protocol, of none, and of this one", [23, 23, 23, 0])
def sync_other(asker):
    group = asker.named("sync")
    joined = member(asker, group)
    named = [("connect", "range"), ("consumer", "other"), (None, None), ("consumer", "range")]
    return [sync(asker, group, joined, version=5, protocol_type=a, protocol_name=b) for a, b in named]


@case("LeaveGroup: a member twice", [25, 0, 25])
def leave_twice(asker):
    group = asker.named("leave")
    joined = member(asker, group)
    names = "stranger", joined.member_id, joined.member_id
    rows = [{"member_id": name, "group_instance_id": None} for name in names]
    return codes(asker.ask(ApiKey.LEAVE_GROUP, 3, {"group_id": group, "members": rows}).members)


@case("LeaveGroup: no members", 0)
def leave_nobody(asker):
    return code(asker.ask(ApiKey.LEAVE_GROUP, 3, {"group_id": asker.named("leave"), "members": ()}))


def commit(asker, group, topic):
    row = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [row]}],
    }
    return codes(asker.ask(ApiKey.OFFSET_COMMIT, 7, body).topics[0].partitions)


def offsets_by_id(asker, topic_id):
    """Commit, and fetch, for the partitions 0 and 9 of a topic; return the codes, and of the second also offsets."""
    row = {"committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    body = {
        "group_id": asker.named("by-id"),
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"topic_id": topic_id, "partitions": [row | {"partition_index": number} for number in (0, 9)]}],
    }
    stored = asker.ask(ApiKey.OFFSET_COMMIT, 10, body)
    asked = [{"topic_id": topic_id, "partition_indexes": (0, 9)}]
    group = {"group_id": asker.named("by-id"), "member_id": None, "member_epoch": -1, "topics": asked}
    found = asker.ask(ApiKey.OFFSET_FETCH, 10, {"groups": [group], "require_stable": False}).groups[0]
    assert all(topic.topic_id == topic_id for topic in (*stored.topics, *found.topics))
    rows = [(code(row), row.committed_offset) for topic in found.topics for row in topic.partitions]
    answered = sorted((row.partition_index, code(row)) for topic in stored.topics for row in topic.partitions)
    return [each for _, each in answered], code(found), rows


@case(
    "OffsetCommit, OffsetFetch: topics by ids, by one that is unknown, and by none",
    [([0, 3], 0, [(0, 5), (0, -1)]), ([100, 100], 0, [(100, -1), (100, -1)]), ([100, 100], 0, [(100, -1), (100, -1)])],
)
def commit_by_id(asker):
    ids = topic_id(asker, asker.named("t")), AN_ID, None
    return [offsets_by_id(asker, each) for each in ids]


@case("TxnOffsetCommit: topics by ids, by one that is unknown, and by none", [[0, 3], [100, 100], [100, 100]])
def commit_in_transaction_by_id(asker):
    producer = until(lambda: found if code(found := init(asker, -1, -1)) == 0 else None)
    row = {"committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    rows = [row | {"partition_index": number} for number in (0, 9)]

    def commit(topic_id):
        body = {
            "transactional_id": asker.named("init"),
            "group_id": asker.named("by-id"),
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"topic_id": topic_id, "partitions": rows}],
        }
        (found,) = asker.ask(ApiKey.TXN_OFFSET_COMMIT, 6, body).topics
        assert found.topic_id == topic_id
        return [each for _, each in sorted((row.partition_index, code(row)) for row in found.partitions)]

    return [commit(each) for each in (topic_id(asker, asker.named("t")), AN_ID, None)]


@case("OffsetFetch: all topics of a group, by ids", [(True, [(0, 0, 5)])])
def fetch_all_by_id(asker):
    known = topic_id(asker, asker.named("t"))
    offsets_by_id(asker, known)
    group = {"group_id": asker.named("by-id"), "member_id": None, "member_epoch": -1, "topics": None}
    found = asker.ask(ApiKey.OFFSET_FETCH, 10, {"groups": [group], "require_stable": False}).groups[0]
    return [
        (topic.topic_id == known, [(row.partition_index, code(row), row.committed_offset) for row in topic.partitions])
        for topic in found.topics
    ]


@case("DeleteGroups: an empty name, with offsets and without; a name twice", [[0], [0], [69], [69]])
def delete_groups(asker):
    def delete(*names):
        return codes(asker.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": names}).results)

    return [commit(asker, "", asker.named("t")), delete(""), delete(""), delete("nope", "nope")]


@case("DeleteGroups: the words for errors", [("classic", 68, None), ("gone", 0, None), ("nope", 69, None)])
def delete_groups_in_words(asker):
    member(asker, asker.named("classic"))
    commit(asker, asker.named("gone"), asker.named("t"))
    names = (asker.named("gone"), "nope", asker.named("classic"))
    found = asker.ask(ApiKey.DELETE_GROUPS, 3, {"groups_names": names}).results
    return sorted((row.group_id.removesuffix(f"-{asker.word}"), code(row), row.error_message) for row in found)


def delete_offset(asker, group, topic):
    body = {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}
    found = asker.ask(ApiKey.OFFSET_DELETE, 0, body)
    return code(found), codes(row for each in found.topics for row in each.partitions)


@case("OffsetDelete: an empty name; a topic that is none; an offset", [(24, []), (0, [3]), (0, [0])])
def delete_offsets(asker):
    group, topic = asker.named("offsets"), asker.named("t")
    commit(asker, group, topic)
    return [delete_offset(asker, *each) for each in (("", topic), (group, "nope"), (group, topic))]


@case("OffsetDelete: the last offset of a group without members, again", [(0, [0]), (69, [])], [(0, [0]), (0, [0])])
def delete_last_offset(asker):
    group, topic = asker.named("last"), asker.named("t")
    commit(asker, group, topic)
    return [delete_offset(asker, group, topic) for _ in range(2)]


@case("FindCoordinator: a key twice", ["a", "a", "b"])
def find_twice(asker):
    body = {"key_type": 0, "coordinator_keys": ("a", "a", "b")}
    return [row.key for row in asker.ask(ApiKey.FIND_COORDINATOR, 4, body).coordinators]


@case("OffsetFetch: a group twice", 1, 2)
def fetch_offsets_twice(asker):
    groups = [{"group_id": "never", "member_id": None, "member_epoch": -1, "topics": None}] * 2
    return len(asker.ask(ApiKey.OFFSET_FETCH, 8, {"groups": groups, "require_stable": False}).groups)


@case("DescribeGroups: a group twice", 1, 2)
def describe_group_twice(asker):
    body = {"groups": ("never", "never"), "include_authorized_operations": False}
    return len(asker.ask(ApiKey.DESCRIBE_GROUPS, 5, body).groups)


@case(
    "DescribeGroups: a group that does not exist, by version",
    [(0, "Dead", None), (69, "Dead", "Group never not found.")],
)
def describe_no_group(asker):
    body = {"groups": ("never",), "include_authorized_operations": False}
    rows = [asker.ask(ApiKey.DESCRIBE_GROUPS, version, body).groups[0] for version in (5, 6)]
    return [(code(row), row.group_state, getattr(row, "error_message", None)) for row in rows]


@case("ListGroups by type", [["classic"], ["classic"], []])
def list_groups_by_type(asker):
    assert code(join(asker, asker.named("typed"))) == 0

    def types(*wanted):
        body = {"states_filter": (), "types_filter": wanted}
        rows = asker.ask(ApiKey.LIST_GROUPS, 5, body).groups
        return [row.group_type for row in rows if row.group_id == asker.named("typed")]

    return [types(), types("Classic", "share"), types("consumer")]


@case("operations that are allowed, where they are asked for", [(3576, 3400, 8096, 8096), (NOT_ASKED,) * 4])
def operations(asker):
    def told(are_asked):
        flags = dict.fromkeys(METADATA_FLAGS, are_asked)
        body = {"topics": [{"name": asker.named("t"), "topic_id": None}], "allow_auto_topic_creation": False, **flags}
        groups = {"groups": (asker.named("first"),), "include_authorized_operations": are_asked}
        cluster = {"include_cluster_authorized_operations": are_asked, "endpoint_type": 1}
        of_both = asker.ask(ApiKey.METADATA, 10, body)
        (of_topic,) = asker.ask(ApiKey.METADATA, 12, body).topics
        assert of_topic.topic_authorized_operations == of_both.topics[0].topic_authorized_operations
        return (
            of_topic.topic_authorized_operations,
            asker.ask(ApiKey.DESCRIBE_GROUPS, 5, groups).groups[0].authorized_operations,
            asker.ask(ApiKey.DESCRIBE_CLUSTER, 1, cluster).cluster_authorized_operations,
            of_both.cluster_authorized_operations,
        )

    return [told(True), told(False)]


@case("JoinGroup: a protocol twice", 0, SILENT)
def join_twice(asker):
    found = join(asker, asker.named("twice"), protocols=(("range", b"1"), ("range", b"2")))
    return found if found is SILENT else code(found)
