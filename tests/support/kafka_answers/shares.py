"""Cases about share groups: epochs are counted from that of the first answer."""

from replication.protocol.apis import ApiKey
from tests.support.asker import until
from tests.support.kafka_answers.case import case, code, codes
from tests.support.kafka_answers.consumers import Member, listed
from tests.support.kafka_answers.groups import join
from tests.support.kafka_answers.topics import create, topic_id


class Sharer:
    """A member of a share group, which says in each heartbeat the epoch that it was told."""

    def __init__(self, asker, group, name="m1", topic="t"):
        self.asker, self.group, self.name, self.topic = asker, asker.named(group), name, asker.named(topic)
        self.epoch = 0
        self.first = None

    def ask(self, epoch, fields):
        body = {"group_id": self.group, "member_id": self.name, "member_epoch": epoch, "rack_id": None}
        body["subscribed_topic_names"] = (self.topic,) if epoch == 0 else None
        return self.asker.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, body | fields)

    def hear(self, epoch=None, **fields):
        """Send a heartbeat; return the error, and the numbers of the assigned partitions."""
        answer = self.ask(self.epoch if epoch is None else epoch, fields)
        if code(answer) == 0:
            self.epoch = answer.member_epoch
        assigned = answer.assignment
        numbers = None if assigned is None else [sorted(row.partitions) for row in assigned.topic_partitions]
        return code(answer), numbers

    def said(self, epoch=None, **fields):
        answer = self.ask(self.epoch if epoch is None else epoch, fields)
        return code(answer), (answer.error_message or "").replace(f"-{self.asker.word}", "")

    def reads(self):
        """Send a whole heartbeat; return the numbers of the assigned partitions."""
        return self.hear(subscribed_topic_names=(self.topic,))[1]

    def described(self):
        body = {"group_ids": (self.group,), "include_authorized_operations": False}
        (row,) = self.asker.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, body).groups
        members = [
            (m.member_id, m.rack_id, [sorted(each.partitions) for each in m.assignment.topic_partitions])
            for m in row.members
        ]
        return code(row), row.group_state, row.group_epoch - row.assignment_epoch, row.assignor_name, sorted(members)

    def offsets(self, *partitions, version=1):
        """Describe the offsets of these partitions; none: of all that there are."""
        topics = [{"topic_name": self.topic, "partitions": partitions}] if partitions else None
        body = {"groups": [{"group_id": self.group, "topics": topics}]}
        (row,) = self.asker.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version, body).groups
        return code(row), [
            (each.partition_index, code(each), each.start_offset, each.lag if version else None)
            for topic in row.topics
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        ]

    def altered(self, offsets, topic=None):
        rows = [{"partition_index": number, "start_offset": offset} for number, offset in offsets.items()]
        body = {"group_id": self.group, "topics": [{"topic_name": topic or self.topic, "partitions": rows}]}
        answer = self.asker.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, body)
        return code(answer), [codes(each.partitions) for each in answer.responses]

    def deleted(self, *topics):
        body = {"group_id": self.group, "topics": [{"topic_name": name} for name in topics or (self.topic,)]}
        answer = self.asker.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, body)
        return code(answer), codes(answer.responses)

    def gone(self):
        return codes(self.asker.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": (self.group,)}).results)

    def leave(self):
        left = self.hear(-1)
        self.epoch = 0
        return left


def _joined(asker, group, name="m1", topic="t"):
    """Join, and wait until there is an assignment."""
    member = Sharer(asker, group, name, topic)
    until(lambda: member.hear()[0] == 0)
    until(member.reads)
    return member


@case(
    "ShareGroupHeartbeat: what is refused at once",
    [
        42,
        (42, "GroupId can't be empty."),
        (42, "RackId can't be empty."),
        (42, "SubscribedTopicNames must be set in first request."),
        (42, "SubscribedTopicNames must be set in first request."),
        (42, "MemberEpoch is invalid."),
        (69, "Share group refused not found."),
        (69, "Group refused not found."),
    ],
)
def heartbeats_refused(asker):
    said = Sharer(asker, "refused").said
    return [
        said(0, member_id="")[0],  # a Kafka has no words for it
        said(0, group_id=""),
        said(0, rack_id=""),
        said(0, subscribed_topic_names=None),
        said(0, subscribed_topic_names=()),
        said(-2),
        said(1),
        said(-1),
    ]


@case(
    "a share group: its life",
    [
        (0, []),
        [[0]],
        (0, None),
        (0, "Stable", 0, "simple", [("m1", None, [[0]])]),
        [("Stable", "share", "share")],
        [],
        68,
        (110, 110, 25, 25),
        (0, None),
        (0, "Empty", 0, "simple", []),
        69,
        0,
        69,
    ],
)
def life_of_a_share_group(asker):
    member = Sharer(asker, "sharelife")
    found = [member.hear()]
    until(member.reads)
    found += [member.reads(), member.hear(), member.described()]
    found += [listed(asker, "sharelife", "share"), listed(asker, "sharelife", "classic", "consumer"), member.gone()[0]]
    stranger = Sharer(asker, "sharelife", "m9")
    epochs = member.hear(member.epoch + 1)[0], member.hear(member.epoch + 9)[0]
    found.append((*epochs, stranger.hear(1)[0], stranger.hear(-1)[0]))
    found += [member.leave(), member.described(), Sharer(asker, "never").gone()[0], member.gone()[0]]
    return [*found, member.described()[0]]


@case("a share group: members share a partition; three of two partitions", ([0, 0], [1, 1, 2], [0, 1]))
def shared_partitions(asker):
    first, second = _joined(asker, "shared"), _joined(asker, "shared", "m2")
    of_one = [number for member in (first, second) for numbers in member.reads() for number in numbers]
    create(asker, asker.named("two"), num_partitions=2)
    until(lambda: topic_id(asker, asker.named("two")))
    members = [_joined(asker, "three", f"m{number}", "two") for number in range(3)]

    def shared():
        found = [number for member in members for numbers in member.reads() for number in numbers]
        return sorted(found.count(number) for number in (0, 1)) == [2, 2]

    until(shared)
    counts = sorted(len(member.reads()[0]) for member in members)
    return of_one, counts, sorted({number for member in members for number in member.reads()[0]})


@case(
    "names of share groups in the other protocols, and of their groups in that of share groups",
    [
        (69, "Group sharekinds is not a consumer group."),
        23,
        [69],
        (0, [-1]),
        69,
        69,
        (69, "Group ofclassic is not a share group."),
        (69, "Group ofmodern is not a share group."),
        69,
        69,
    ],
)
def kinds(asker):
    _joined(asker, "sharekinds")
    modern = Member(asker, "sharekinds", "c1")
    found = [
        modern.said(0),
        code(join(asker, asker.named("sharekinds"))),
        [modern.commit(-1, "")],
        modern.fetched(None, -1),
    ]
    row = {"name": asker.named("t"), "partitions": [{"partition_index": 0}]}
    body = {"group_id": asker.named("sharekinds"), "topics": [row]}
    found.append(code(asker.ask(ApiKey.OFFSET_DELETE, 0, body)))
    found.append(
        code(
            asker.ask(
                ApiKey.DESCRIBE_GROUPS,
                6,
                {"groups": (asker.named("sharekinds"),), "include_authorized_operations": False},
            ).groups[0]
        )
    )
    until(lambda: code(join(asker, asker.named("ofclassic"))) == 0)
    until(lambda: Member(asker, "ofmodern").hear()[0] == 0)
    found += [Sharer(asker, "ofclassic").said(0), Sharer(asker, "ofmodern").said(0)]
    return [*found, Sharer(asker, "ofmodern").described()[0], Sharer(asker, "ofmodern").altered({0: 1})[0]]


@case(
    "offsets of a share group: described, altered and deleted, while somebody is in it and then",
    [
        (0, [(0, 0, -1, -1)]),
        (0, [(0, 0, -1, -1)]),
        (68, []),
        (68, []),
        (0, [[0, 3]]),
        (0, [(0, 0, 1, 2)]),
        (0, [(0, 0, 1, None)]),
        (0, [[3]]),
        (0, [0, 3]),
        (0, []),
        (0, [3]),
        (0, []),
        (69, []),
    ],
)
def offsets_of_a_share_group(asker):
    member = _joined(asker, "progress")
    found = [member.offsets(), member.offsets(0), member.altered({0: 1}), member.deleted()]
    member.leave()
    found += [member.altered({0: 1, 9: 1}), member.offsets(), member.offsets(version=0)]
    found += [member.altered({0: 1}, asker.named("nope")), member.deleted(member.topic, asker.named("nope"))]
    found += [
        member.offsets(),
        member.deleted(),
        Sharer(asker, "sharedbynone").offsets(),
        Sharer(asker, "sharedbynone").deleted(),
    ]
    return found
