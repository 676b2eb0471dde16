"""Cases about groups of the consumer protocol: epochs are counted from that of the first answer."""

import functools

from replication.protocol.apis import ApiKey
from tests.support.asker import until
from tests.support.kafka_answers.case import case, code, codes
from tests.support.kafka_answers.groups import join, sync
from tests.support.kafka_answers.topics import topic_id
from tests.support.kafka_answers.transactions import init

MINUTE_MS = 60_000
COMMITTED = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}


class Member:
    """A member of a group, which says in each heartbeat the epoch that it was told."""

    def __init__(self, asker, group, name="m1", instance_id=None):
        self.asker, self.group, self.name, self.instance_id = asker, asker.named(group), name, instance_id
        self.epoch = 0
        self.first = None  # the epoch from which others are counted

    def hear(self, epoch=None, *, version=1, **fields):
        """Send a heartbeat; return the error, the epoch and the numbers of the assigned partitions."""
        answer = self.ask(self.epoch if epoch is None else epoch, version, fields)
        if code(answer) == 0:
            self.epoch = answer.member_epoch
            self.first = answer.member_epoch if self.first is None else self.first
        assigned = answer.assignment
        numbers = None if assigned is None else [list(row.partitions) for row in assigned.topic_partitions]
        told = answer.member_epoch - self.first if answer.member_epoch > 0 else answer.member_epoch
        return code(answer), told, numbers

    def said(self, epoch=None, **fields):
        """Send a heartbeat; return the error and its words."""
        answer = self.ask(self.epoch if epoch is None else epoch, 1, fields)
        words = answer.error_message or ""
        return code(answer), words.replace(f"-{self.asker.word}", "")

    def ask(self, epoch, version, fields):
        body = {
            "group_id": self.group,
            "member_id": self.name,
            "member_epoch": epoch,
            "instance_id": self.instance_id,
            "rebalance_timeout": -1,
            "topic_partitions": None,
        }
        if epoch == 0:
            names = (self.asker.named("t"),)
            body |= {"rebalance_timeout": MINUTE_MS, "topic_partitions": (), "subscribed_topic_names": names}
        return self.asker.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, body | fields)

    def owned(self, *numbers):
        number = topic_id(self.asker, self.asker.named("t"))
        return ({"topic_id": number, "partitions": numbers},) if numbers else ()

    def described(self):
        body = {"group_ids": (self.group,), "include_authorized_operations": False}
        (row,) = self.asker.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, body).groups
        members = [
            (m.member_id, m.instance_id, m.member_type, _numbers(m.assignment), _numbers(m.target_assignment))
            for m in row.members
        ]
        return code(row), row.group_state, row.group_epoch - row.assignment_epoch, row.assignor_name, members

    def commit(self, epoch, name=None, version=9):
        row = COMMITTED
        body = {
            "group_id": self.group,
            "generation_id_or_member_epoch": epoch,
            "member_id": self.name if name is None else name,
            "group_instance_id": None,
            "topics": [{"name": self.asker.named("t"), "partitions": [row]}],
        }
        return codes(self.asker.ask(ApiKey.OFFSET_COMMIT, version, body).topics[0].partitions)[0]

    def commit_in_transaction(self, producer, epoch, version):
        number = topic_id(self.asker, self.asker.named("t"))
        topic = {"topic_id": number} if version >= 6 else {"name": self.asker.named("t")}
        body = {
            "transactional_id": self.group,
            "group_id": self.group,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "generation_id": epoch,
            "member_id": self.name,
            "group_instance_id": None,
            "topics": [topic | {"partitions": [COMMITTED]}],
        }
        return codes(self.asker.ask(ApiKey.TXN_OFFSET_COMMIT, version, body).topics[0].partitions)[0]

    def fetched(self, name, epoch):
        asked = {
            "group_id": self.group,
            "member_id": name,
            "member_epoch": epoch,
            "topics": [{"name": self.asker.named("t"), "partition_indexes": (0,)}],
        }
        (row,) = self.asker.ask(ApiKey.OFFSET_FETCH, 9, {"groups": [asked], "require_stable": False}).groups
        return code(row), [one.committed_offset for topic in row.topics for one in topic.partitions]


def _numbers(assignment):
    return [list(row.partitions) for row in assignment.topic_partitions]


def listed(asker, group, *types):
    found = asker.ask(ApiKey.LIST_GROUPS, 5, {"states_filter": (), "types_filter": types}).groups
    return [(row.group_state, row.protocol_type, row.group_type) for row in found if row.group_id == asker.named(group)]


@case(
    "ConsumerGroupHeartbeat: what is refused at once",
    [
        (42, "MemberId can't be empty."),
        (42, "GroupId can't be empty."),
        (42, "InstanceId can't be empty."),
        (42, "RackId can't be empty."),
        (42, "RebalanceTimeoutMs must be provided in first request."),
        (42, "TopicPartitions must be empty when (re-)joining."),
        (42, "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."),
        (112, "ServerAssignor x is not supported. Supported assignors: uniform, range."),
        (42, "InstanceId can't be null."),
        (42, "MemberEpoch is invalid."),
        (69, "Consumer group refused not found."),
        (69, "Group refused not found."),
    ],
)
def heartbeats_refused(asker):
    said = Member(asker, "refused").said
    return [
        said(0, member_id=""),
        said(0, group_id=""),
        said(0, instance_id=""),
        said(0, rack_id=""),
        said(0, rebalance_timeout=-1),
        said(0, topic_partitions=None),
        said(0, subscribed_topic_names=None),
        said(0, server_assignor="x"),
        said(-2),
        said(-3),
        said(1),
        said(-1),
    ]


@case(
    "ConsumerGroupHeartbeat: regular expressions that are none",
    [128, 128, 128],
)
def expressions_refused(asker):
    member = Member(asker, "expressions")
    return [
        member.said(0, subscribed_topic_names=(), subscribed_topic_regex=regex)[0]
        for regex in ("a(", "a)|(b", "(?!x)a")
    ]


@case(
    "ConsumerGroupHeartbeat: a member joins, stays, and says all",
    [(0, 0, [[0]]), (0, 0, None), (0, 0, None), (0, 0, [[0]]), (0, 0, [[0]]), (0, "Stable", 0, "uniform", [
        ("m1", None, 1, [[0]], [[0]])
    ])],
)  # fmt: skip
def member_stays(asker):
    member = Member(asker, "stays")
    names = (asker.named("t"),)
    return [
        member.hear(),
        member.hear(),
        member.hear(topic_partitions=member.owned(0)),
        member.hear(topic_partitions=member.owned(0), rebalance_timeout=MINUTE_MS, subscribed_topic_names=names),
        member.hear(0),
        member.described(),
    ]


@case(
    "ConsumerGroupHeartbeat: other epochs and other members",
    [
        (110, "The consumer group member has a greater member epoch"),
        (25, "Member m2 is not a member of group epochs."),
        (25, "Member m2 is not a member of group epochs."),
    ],
)
def other_epochs(asker):
    member, other = Member(asker, "epochs"), Member(asker, "epochs", "m2")
    member.hear()
    found, words = member.said(member.epoch + 1)
    return [(found, words.partition(" (")[0]), other.said(1), other.said(-1)]


@case(
    "ConsumerGroupHeartbeat: a second member waits until the first one has given up its partition",
    [(0, []), (0, []), (0, None), (0, [[0]]), "Stable"],
)
def second_member(asker):
    """The first one unsubscribes, so that its partition is the other's."""
    first, second = Member(asker, "two"), Member(asker, "two", "m2")
    first.hear()
    found = [second.hear()]
    fields = [{"subscribed_topic_names": ()}]  # once; a Kafka makes targets in its own time
    found.append(until(lambda: (heard := first.hear(**(fields.pop() if fields else {})))[2] == [] and heard))
    found.append(second.hear())
    first.hear(topic_partitions=())
    found.append(until(lambda: (heard := second.hear())[2] and heard))
    first.hear()
    return [*((error, numbers) for error, _, numbers in found), second.described()[1]]


@case("ConsumerGroupHeartbeat: members leave", [(0, -1, None), (0, "Empty", 0, "uniform", []), (25, 0, None)])
def members_leave(asker):
    member = Member(asker, "leaves")
    member.hear()
    epoch = member.epoch
    return [member.hear(-1), member.described(), member.hear(epoch)]


@case(
    "ConsumerGroupHeartbeat: static members",
    [
        (0, [[0]]),
        111,
        (82, "Static member m2 with instance id i was fenced by member m1."),
        (25, "Instance id q is unknown."),
        (82, "Static member m2 with instance id i was fenced by member m1."),
        (0, -2, None),
        (0, "Reconciling", 0, "uniform", [("m1", "i", 1, [[0]], [[0]])]),
        (0, [[0]]),
        (0, "Stable", 0, "uniform", [("m2", "i", 1, [[0]], [[0]])]),
        (82, "Static member m1 with instance id i was fenced by member m2."),
        (0, -1, None),
    ],
)  # fmt: skip
def static_members(asker):
    first, second = Member(asker, "statics", instance_id="i"), Member(asker, "statics", "m2", instance_id="i")
    joined, epoch = first.hear(), first.epoch
    found = [
        (joined[0], joined[2]),
        second.said(0)[0],
        second.said(epoch),
        second.said(epoch, instance_id="q"),
        second.said(-2),
        first.hear(-2),
        first.described(),
    ]
    back = second.hear(0)
    return [*found, (back[0], back[2]), second.described(), first.said(epoch), second.hear(-1)]


@case(
    "OffsetCommit and OffsetFetch: by a member of the consumer protocol in its epoch, and others",
    [0, 113, 113, 25, 25, (0, [5]), (113, []), (25, []), (0, [5])],
)
def offsets_of_members(asker):
    member = Member(asker, "member-offsets")
    member.hear()
    now = member.epoch
    commit, fetched = member.commit, member.fetched
    return [
        *(commit(now), commit(0), commit(now + 1), commit(now, "mx"), commit(-1, "")),
        *(fetched("m1", now), fetched("m1", 0), fetched("mx", now), fetched(None, -1)),
    ]


@case(
    "OffsetCommit and TxnOffsetCommit: in an older epoch, for partitions held since then and others",
    [[0, 113, 113, 113], [0, 22, 22], [0, 113, 113], [(0, [[0]]), 0], [113, 0, 0, 113]],
)
def older_epochs(asker):
    first, second = Member(asker, "older"), Member(asker, "older", "m2")
    producer = until(lambda: found if code(found := init(asker, -1, -1, transactional_id=first.group)) == 0 else None)
    first.hear()
    then = first.epoch
    second.hear()
    for member in (first, second):  # a Kafka makes targets in its own time
        until(lambda member=member: member.hear() and member.epoch > then)
    found = [[*map(first.commit, (then, then - 1, first.epoch + 1)), second.commit(then)]]
    for version in (5, 6):
        epochs = then, then - 1, first.epoch + 1
        found.append([first.commit_in_transaction(producer, epoch, version) for epoch in epochs])
    heard = first.hear(0)
    found.append([(heard[0], heard[2]), first.commit(then)])
    fields = [{"subscribed_topic_names": ()}]
    until(lambda: first.hear(**(fields.pop() if fields else {}))[2] == [])
    first.hear(topic_partitions=())
    until(lambda: second.hear()[2])
    between = second.epoch
    second.hear(-1)
    fields.append({"subscribed_topic_names": (asker.named("t"),)})
    until(lambda: first.hear(**(fields.pop() if fields else {}))[2])
    found.append([first.commit(then), first.commit(first.epoch)])
    back = first.epoch
    second.hear(0)
    until(lambda: first.hear() and first.epoch > back)
    found[-1] += [first.commit(back), first.commit(between)]
    return found


@case("OffsetCommit: version 8, by a member of the consumer protocol", 0, 35)
def old_commit(asker):
    member = Member(asker, "old-commit")
    member.hear()
    return member.commit(member.epoch, version=8)


@case(
    "Other APIs of groups: of one of the consumer protocol",
    [
        [("Stable", "consumer", "consumer")],
        [("Stable", "consumer", "consumer")],
        [],
        (0, "Dead", ""),
        25,
        [86],
        [68],
        [25, 0],
        (0, "Empty", 0, "uniform", []),
        [0],
        (69, "", 0, "", []),
    ],
)
def other_apis(asker):
    member = Member(asker, "apis")
    member.hear()
    group = asker.named("apis")
    offset = {"name": asker.named("t"), "partitions": ({"partition_index": 0},)}
    heartbeat = {"group_id": group, "generation_id": 1, "member_id": "m1", "group_instance_id": None}
    describe = {"groups": (group,), "include_authorized_operations": False}
    leaving = [{"member_id": name, "group_instance_id": None} for name in ("mx", "m1")]
    (row,) = asker.ask(ApiKey.DESCRIBE_GROUPS, 5, describe).groups
    deleted = asker.ask(ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": (offset,)}).topics
    delete = functools.partial(asker.ask, ApiKey.DELETE_GROUPS, 2, {"groups_names": (group,)})
    return [
        listed(asker, "apis"),
        listed(asker, "apis", "Consumer"),
        listed(asker, "apis", "classic"),
        (code(row), row.group_state, row.protocol_type),
        code(asker.ask(ApiKey.HEARTBEAT, 4, heartbeat)),
        codes(deleted[0].partitions),
        codes(delete().results),
        codes(asker.ask(ApiKey.LEAVE_GROUP, 4, {"group_id": group, "members": leaving}).members),
        member.described(),
        codes(delete().results),
        member.described(),
    ]


@case(
    "An empty group of either protocol becomes one of the other, with its offsets",
    [0, 0, (69, "", 0, "", []), (0, [5]), (0, [[0]]), (0, [5])],
)
def empty_groups(asker):
    member = Member(asker, "either")
    member.hear()
    found = [member.commit(member.epoch)]
    member.hear(-1)
    joined = join(asker, asker.named("either"))
    found += [code(joined), member.described(), member.fetched(None, -1)]
    leaving = [{"member_id": joined.member_id, "group_instance_id": None}]
    asker.ask(ApiKey.LEAVE_GROUP, 4, {"group_id": asker.named("either"), "members": leaving})
    back = until(lambda: (heard := member.hear(0))[0] == 0 and heard)
    return [*found, (back[0], back[2]), member.fetched(None, -1)]


@case(
    "A group with members becomes one of the other protocol, and back: joins, heartbeats, assignments, commits",
    [
        [("Stable", "consumer", "classic")],
        (0, 0, []),
        [("Reconciling", "consumer", "consumer")],
        [("c", 0, [[0]]), ("m1", 1, [])],
        [27, 0, 27, 22],
        (0, 1, "", "range"),
        [(0, "t"), 0, 0, 0, 25, 25],
        (0, 0, None),
        (0, -1, None),
        [("PreparingRebalance", "consumer", "classic")],
        [27, 0, 22],
        (0, 1),
        (0, [5]),
    ],
)
def migrations(asker):
    group, topic = asker.named("living"), asker.named("t")
    name = len(topic).to_bytes(2, "big") + topic.encode()
    subscribed = b"\0\0\0\0\0\1" + name + b"\xff\xff\xff\xff"
    given = b"\0\0\0\0\0\1" + name + b"\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
    protocols = (("range", subscribed),)
    first = joined = join(asker, group, protocols=protocols)
    assignments = [{"member_id": joined.member_id, "assignment": given}]
    assert sync(asker, group, joined, assignments=assignments) == 0
    member = Member(asker, "living")

    def heartbeat(of=None, name=None):
        body = {"group_id": group, "generation_id": (of or joined).generation_id, "group_instance_id": None}
        return code(asker.ask(ApiKey.HEARTBEAT, 4, {**body, "member_id": name or joined.member_id}))

    def commit(generation):
        return member.commit(generation, joined.member_id, version=8)

    found = [listed(asker, "living"), member.hear(), listed(asker, "living")]
    rows = member.described()[-1]
    names = {joined.member_id: "c"}
    found.append(sorted((names.get(row[0], row[0]), row[2], [each for each in row[3] if each]) for row in rows))
    generation = joined.generation_id
    found.append([heartbeat(), commit(generation), sync(asker, group, joined), commit(generation + 7)])
    joined = join(asker, group, member_id=joined.member_id, protocols=protocols)
    found.append((code(joined), joined.generation_id - first.generation_id, joined.leader, joined.protocol_name))
    body = {
        "group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id,
        "group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range", "assignments": (),
    }  # fmt: skip
    synced = asker.ask(ApiKey.SYNC_GROUP, 5, body)
    said = (code(synced), "t" if synced.assignment == given else synced.assignment)
    commits = commit(joined.generation_id), commit(first.generation_id)
    found.append([said, heartbeat(), *commits, heartbeat(name="mx"), heartbeat(name="m1")])
    found += [member.hear(), member.hear(-1), listed(asker, "living")]
    found.append([heartbeat(), commit(joined.generation_id), heartbeat(first)])
    again = join(asker, group, member_id=joined.member_id, protocols=protocols)
    return [*found, (code(again), again.generation_id - joined.generation_id), member.fetched(None, -1)]


@case(
    "ConsumerGroupHeartbeat: a member that was expelled before its group became a classic one",
    [(0, 0), (0, -1), (25, 0), (69, 0), (0, 1)],
    [(0, 0), (0, -1), (69, 0), (69, 0), (0, 1)],
)
def expelled_members(asker):
    name = asker.named("t")
    subscribed = b"\0\0\0\0\0\1" + len(name).to_bytes(2, "big") + name.encode() + b"\xff\xff\xff\xff"
    joined = join(asker, asker.named("rolled"), protocols=(("range", subscribed),))
    assert sync(asker, asker.named("rolled"), joined, assignments=()) == 0
    member = Member(asker, "rolled")
    found = [member.hear()[:2]]
    epoch = member.epoch
    return [*found, *(member.hear(each)[:2] for each in (-1, epoch, -1, 0))]


@case("ConsumerGroupHeartbeat: nobody knows what a member of a classic group reads", (69, 0, None))
def unreadable_assignments(asker):
    joined = join(asker, asker.named("unread"), protocols=(("range", b"\0\0" + bytes(8)),))
    assignments = [{"member_id": joined.member_id, "assignment": b"not an assignment"}]
    assert sync(asker, asker.named("unread"), joined, assignments=assignments) == 0
    return Member(asker, "unread").hear()


@case(
    "ConsumerGroupHeartbeat: the first to a classic group whose assignments have user data", (0, 0, []), (69, 0, None)
)
def assignments_with_user_data(asker):
    name = asker.named("t")
    topic = b"\0\0\0\1" + len(name).to_bytes(2, "big") + name.encode()
    joined = join(asker, asker.named("sticky"), protocols=(("range", b"\0\0" + topic + b"\xff\xff\xff\xff"),))
    given = b"\0\0" + topic + b"\0\0\0\1" + bytes(4) + b"\0\0\0\1x"
    assignments = [{"member_id": joined.member_id, "assignment": given}]
    assert sync(asker, asker.named("sticky"), joined, assignments=assignments) == 0
    return Member(asker, "sticky").hear()


@case("ConsumerGroupHeartbeat: the first answer to a regular expression", (0, [[0]]), (0, []))
def first_of_expression(asker):
    regex = f"t-{asker.word}"
    heard = Member(asker, "regex").hear(subscribed_topic_names=(), subscribed_topic_regex=regex)
    return heard[0], heard[2]
