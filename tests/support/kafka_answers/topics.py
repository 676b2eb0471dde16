"""Topics: made, described and deleted."""

import uuid

from replication.protocol.apis import ApiKey
from tests.support.asker import until
from tests.support.kafka_answers.case import AN_ID, METADATA_FLAGS, case, code, codes


def create(asker, *names, version=7, **topic):
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": (), **topic}
    body = {"topics": [{**new, "name": name} for name in names], "timeout": 15_000, "validate_only": False}
    return codes(asker.ask(ApiKey.CREATE_TOPICS, version, body).topics)


def create_with(asker, **settings):
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    name = asker.named(f"with{uuid.uuid4().hex[:8]}")
    found = create(asker, name, configs=configs)
    return name, found


def described(asker, topic, key):
    body = {
        "resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": [key]}],
        "include_synonyms": False,
        "include_documentation": False,
    }
    rows = until(lambda: asker.ask(ApiKey.DESCRIBE_CONFIGS, 4, body).results[0].configs)  # the topic may be news
    return rows[0].value


def topic_id(asker, name):
    (topic,) = metadata(asker, 12, (name, None))
    return topic.topic_id


def metadata(asker, version, *topics):
    body = {
        "topics": [{"name": name, "topic_id": number} for name, number in topics],
        "allow_auto_topic_creation": False,
        **dict.fromkeys(METADATA_FLAGS, False),
    }
    return asker.ask(ApiKey.METADATA, version, body).topics


def found_by_id(asker, beside):
    number = topic_id(asker, asker.named("t"))
    return [(code(row), row.name == asker.named("t")) for row in metadata(asker, 12, (beside, number))]


@case("Metadata by id, beside an empty name", [(0, True)])
def by_id(asker):
    return found_by_id(asker, "")


@case("Metadata by id, beside the name of no topic", [(0, True)])
def by_id_and_a_name(asker):
    return found_by_id(asker, "other")


@case("Metadata by an unknown id, beside a name", [(100, None, AN_ID)])
def by_unknown_id(asker):
    return [(code(row), row.name, row.topic_id) for row in metadata(asker, 12, ("", AN_ID), ("other", AN_ID))][:1]


@case("Metadata by id before version 12", [42, 42])
def by_id_too_early(asker):
    number = topic_id(asker, asker.named("t"))
    return [code(row) for version in (10, 11) for row in metadata(asker, version, (asker.named("t"), number))]


@case("Metadata without a name or an id", [100], [-1])
def by_nothing(asker):
    return codes(metadata(asker, 12, (None, None)))


def delete(asker, *topics):
    body = {"topics": [{"name": name, "topic_id": number} for name, number in topics], "timeout": 5000}
    return codes(asker.ask(ApiKey.DELETE_TOPICS, 6, body).responses)


@case("DeleteTopics: names that nobody has", [3, 3, 3])
def delete_unknown(asker):
    return delete(asker, ("", None), ("nope", None), ("a/b", None))


@case("DeleteTopics: a name twice", ([42], 0))
def delete_twice(asker):
    create(asker, asker.named("twice"))
    found = delete(asker, (asker.named("twice"), None), (asker.named("twice"), None))
    return found, code(metadata(asker, 12, (asker.named("twice"), None))[0])


@case("DeleteTopics: a name, and its id", ([42], 0))
def delete_by_both(asker):
    create(asker, asker.named("both"))
    number = topic_id(asker, asker.named("both"))
    found = delete(asker, (asker.named("both"), None), (None, number))
    return found, code(metadata(asker, 12, (asker.named("both"), None))[0])


@case("DeleteTopics: name and id in one; neither; an unknown id, once and twice", ([42], [42], [100], [42]))
def delete_oddly(asker):
    two = (None, AN_ID), (None, AN_ID)
    return (
        delete(asker, (asker.named("t"), AN_ID)),
        delete(asker, (None, None)),
        delete(asker, two[0]),
        delete(asker, *two),
    )


@case("CreateTopics: a partition twice in the assignment", [39])
def assigned_twice(asker):
    rows = [{"partition_index": 0, "broker_ids": (1,)}] * 2
    return create(asker, asker.named("assigned"), num_partitions=-1, replication_factor=-1, assignments=rows)


@case("CreateTopics: a setting that is null", [40])
def created_with_null(asker):
    return create_with(asker, retention_ms=None)[1]


@case("CreateTopics: a setting twice, of which the last counts", ([0], "2000000"))
def created_with_two(asker):
    name = asker.named("settings")
    found = create(asker, name, configs=[{"name": "retention.ms", "value": f"{each}000000"} for each in (1, 2)])
    return found, described(asker, name, "retention.ms")


@case("CreateTopics: an empty cleanup.policy", ([0], ""))
def created_without_policy(asker):
    name, found = create_with(asker, cleanup_policy="")
    return found, described(asker, name, "cleanup.policy")


@case(
    "CreateTopics: the order of cleanup.policy",
    ["delete,compact", "compact,delete", "compact", "delete,compact"],
)
def order_of_policies(asker):
    values = "delete,compact", "compact,delete", "compact,compact", " delete , compact "
    return [described(asker, create_with(asker, cleanup_policy=value)[0], "cleanup.policy") for value in values]


@case("CreateTopics: remote.storage.enable", [0], [40])
def created_remote(asker):
    return create_with(asker, remote_storage_enable="true")[1]


@case("CreateTopics: a setting that is not here, local.retention.ms", [40], [0])
def created_local(asker):
    return create_with(asker, local_retention_ms="5")[1]


@case("CreateTopics: a setting that is not here, preallocate", [40], [0])
def created_preallocated(asker):
    return create_with(asker, preallocate="true")[1]


@case("CreatePartitions of an internal topic", [17], [0])
def grow_internal(asker):
    topic = {"name": "__consumer_offsets", "count": 99, "assignments": None}
    body = {"topics": [topic], "timeout": 5000, "validate_only": True}
    return codes(asker.ask(ApiKey.CREATE_PARTITIONS, 2, body).results)


def described_topics(asker, *names, cursor=None, limit=2000):
    """(error, topic, partitions) of each row of a page, and where the next one begins."""
    body = {
        "topics": [{"name": name} for name in names],
        "response_partition_limit": limit,
        "cursor": cursor and {"topic_name": cursor[0], "partition_index": cursor[1]},
    }
    found = asker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)
    rows = [(code(row), row.name, tuple(each.partition_index for each in row.partitions)) for row in found.topics]
    following = found.next_cursor
    return rows, following and (following.topic_name, following.partition_index)


def paged(asker):
    """Two topics of two and three partitions that a broker knows whole."""
    names = [asker.named(f"paged{count}") for count in (2, 3)]
    for count, name in zip((2, 3), names, strict=True):
        create(asker, name, num_partitions=count)
        until(lambda name=name, count=count: len(metadata(asker, 12, (name, None))[0].partitions) == count)
    return names


@case("DescribeTopicPartitions: what is told of a partition", (0, False, 3576, True, (0, 0, 1, (1,), (1,), (), (), ())))
def describe_a_topic(asker):
    body = {"topics": [{"name": asker.named("t")}]}
    (row,) = asker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body).topics
    (one,) = row.partitions
    told = (
        code(one), one.partition_index, one.leader_id, one.replica_nodes, one.isr_nodes,
        one.eligible_leader_replicas, one.last_known_elr, one.offline_replicas,
    )  # fmt: skip
    has_id = row.topic_id == topic_id(asker, asker.named("t"))
    return code(row), row.is_internal, row.topic_authorized_operations, has_id, told


@case("DescribeTopicPartitions: names that nobody has, and one twice", [(17, "a/b"), (3, "nope")])
def describe_unknown(asker):
    return [row[:2] for row in described_topics(asker, "nope", "a/b", "nope")[0]]


@case("DescribeTopicPartitions of an empty name", [(17, "")], [(-1, "")])
def describe_nameless(asker):
    return [row[:2] for row in described_topics(asker, "")[0]]


@case("DescribeTopicPartitions: pages", [[(0, (0, 1)), (0, (0,))], [(0, (1, 2))], [(3, ())]])
def describe_in_pages(asker):
    names, found, cursor = [*paged(asker), asker.named("qnone")], [], None
    while cursor is not None or not found:
        rows, cursor = described_topics(asker, *reversed(names), cursor=cursor, limit=3 if not found else 2)
        found.append([(error, partitions) for error, _, partitions in rows])
    return found


@case("DescribeTopicPartitions: no more than one partition, and fewer", [(1, 1), (1, 1), (1, 1)])
def describe_little(asker):
    names = paged(asker)
    found = [described_topics(asker, *names, limit=limit) for limit in (1, 0, -5)]
    return [(len(rows[0][2]), cursor[1]) for rows, cursor in found]


@case("DescribeTopicPartitions: cursors", [[42, 42], [42, 42], [], [(0, ())], [(0, (2,))], [(0, (0, 1, 2))]])
def describe_from_cursors(asker):
    two, three = paged(asker)

    def rows(cursor, *names):
        return [(error, partitions) for error, _, partitions in described_topics(asker, *names, cursor=cursor)[0]]

    wrong = [rows((asker.named("t"), 0), two, three), rows((two, -1), two, three)]
    return [
        *([error for error, _ in found] for found in wrong),
        rows((two, -1)),
        rows((three, 9), two, three),
        rows((three, 2), two, three),
        rows((three, 0), two, three),
    ]


@case("DescribeTopicPartitions of all topics, from a cursor of no topic", (True, True))
def describe_all(asker):
    two, three = paged(asker)
    found, _ = described_topics(asker, cursor=(two + "/", 5))
    return (0, three, (0, 1, 2)) in found, all(name > two for _, name, _ in found)
