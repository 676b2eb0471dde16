"""Dead letters of a share group, on our brokers and on a Kafka 4.4: the same scenes with the same letters."""

import pyarrow as pa
import pytest

from logstore.records.schema import HEADERS_TYPE
from replication.errors import KafkaError
from tests.conformance.clients.members import until
from tests.support.share_life import GROUP_RESOURCE, WITHIN_MS

ENABLED = {"errors_deadletterqueue_group_enable": "true"}
REJECTED, TOO_OFTEN = b"Offset rejected by client.", b"Offset delivery count exceeded the threshold."


def ask_for_letters(client, group, topic, *, copies=True, **settings):
    given = {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": "2",
        "errors.deadletterqueue.topic.name": topic,
        "errors.deadletterqueue.copy.record.enable": str(copies).lower(),
        **settings,
    }
    client.alter_settings((GROUP_RESOURCE, group), given)


def append(client, topic, partition, *rows):
    for key, value in rows:
        columns = {
            "key": pa.array([key], pa.binary()),
            "value": pa.array([value], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"its own headers are not copied"}]], HEADERS_TYPE),
            "partition": pa.array([partition], pa.int32()),
        }
        client.append(topic, pa.table(columns))


def give_up(client, topic, group, *, rejected, released, count):
    """Have the group read `count` records; those at these (partition, offset) are rejected, or released twice."""
    left, seen = set(released), set()
    with client.share_consumer(topic, group, share_acknowledgement_mode="explicit") as member:
        while len(seen) < count or left:
            rows = member.poll(WITHIN_MS)
            for row in rows.to_pylist():
                at = row["partition"], row["offset"]
                seen.add(at)
                assert row["delivery_count"] <= 2
                kind = "reject" if at in rejected else "release" if at in released else "accept"
                if kind == "release" and row["delivery_count"] == 2:
                    left.discard(at)
                member.acknowledge(row, kind)
            member.commit()
        assert member.poll(500) is None, "nothing that was given up is given again"


def letters(client, topic):
    """Return the letters by the record that they are about: (partition, key, value, headers)."""
    if topic not in client.topics():
        return {}
    found = {}
    extents = client.extents(topic).items()
    read = ((n, rows) for n, extent in extents for rows in client.read(topic, n, extent.start, extent.end))
    for partition, row in ((n, row) for n, rows in read for row in rows.to_pylist()):
        headers = [(each["key"], each["value"]) for each in row["headers"] or ()]
        said = dict(headers)
        at = int(said["__dlq.errors.partition"]), int(said["__dlq.errors.offset"])
        assert at not in found, "one letter about each"
        found[at] = partition, row["key"], row["value"], headers
    return found


def headers_of(topic, group, partition, offset, count, why):
    return [
        ("__dlq.errors.topic", topic.encode()),
        ("__dlq.errors.partition", b"%d" % partition),
        ("__dlq.errors.offset", b"%d" % offset),
        ("__dlq.errors.group", group.encode()),
        ("__dlq.errors.delivery.count", b"%d" % count),
        ("__dlq.errors.message", why),
    ]


def each_record_that_is_given_up_has_its_letter(client, topic, group, *, copies):
    """The letters about a partition are in that of its number, modulo theirs; `copies`: with key and value."""
    target = f"dlq.{topic}"
    client.create_topic(topic, partitions=3, replicas=3)
    client.create_topic(target, partitions=2, replicas=3, **ENABLED)
    ask_for_letters(client, group, target, copies=copies)
    for partition in range(3):
        rows = (b"k", b"v%d" % partition), (None, b"no key"), (b"no value", None), (b"good", b"good")
        append(client, topic, partition, *rows)
    rejected = {(0, 0), (0, 1), (0, 2), (1, 0), (2, 2)}
    give_up(client, topic, group, rejected=rejected, released={(1, 2), (2, 0)}, count=12)
    until(lambda: len(letters(client, target)) == 7, "letters", within_s=60)
    parts = {0: (b"k", None), 1: (None, b"no key"), 2: (b"no value", None)}
    expected = {}
    for partition, offset in rejected | {(1, 2), (2, 0)}:
        is_released = (partition, offset) in {(1, 2), (2, 0)}
        key, value = parts[offset]
        value = b"v%d" % partition if offset == 0 else value
        said = headers_of(
            topic, group, partition, offset, 1 + is_released, TOO_OFTEN if is_released else REJECTED
        )  # fmt: skip
        expected[partition, offset] = partition % 2, *((key, value) if copies else (None, None)), said
    assert letters(client, target) == expected


def what_may_not_be_written_is_given_up_without_a_letter(client, topic, group):
    """A topic that is not enabled, or has another prefix, and a letter that is too large: the group goes on."""
    for word, target, enabled in (("off", "dlq.{}", {}), ("other", "other.{}", ENABLED)):
        name = f"{topic}-{word}"
        client.create_topic(name, replicas=3)
        client.create_topic(target.format(name), replicas=3, **enabled)
        ask_for_letters(client, f"{group}-{word}", target.format(name))
        append(client, name, 0, (b"k", b"a"), (b"k", b"b"))
        give_up(client, name, f"{group}-{word}", rejected={(0, 0)}, released=(), count=2)
        assert letters(client, target.format(name)) == {}
    with pytest.raises(KafkaError, match=r"must not (begin|start) with"):
        ask_for_letters(client, group, "__letters")
    name = f"{topic}-large"
    client.create_topic(name, replicas=3)
    client.create_topic(f"dlq.{name}", replicas=3, max_message_bytes="1000", **ENABLED)
    ask_for_letters(client, f"{group}-large", f"dlq.{name}")
    append(client, name, 0, (b"k", bytes(2000)), (b"k", b"small"))
    give_up(client, name, f"{group}-large", rejected={(0, 0), (0, 1)}, released=(), count=2)


def a_topic_is_created_for_letters(client, topic, group):
    target = f"dlq.{topic}"
    client.create_topic(topic, replicas=3)
    ask_for_letters(client, group, target)
    append(client, topic, 0, (b"k", b"v"))
    give_up(client, topic, group, rejected={(0, 0)}, released=(), count=1)
    until(lambda: letters(client, target), "a letter", within_s=60)
    assert letters(client, target) == {
        (0, 0): (0, b"k", b"v", headers_of(topic, group, 0, 0, 1, REJECTED)),
    }
    settings = client.overrides([target])[target]
    assert settings["errors.deadletterqueue.group.enable"] == "true", settings
    assert settings["message.timestamp.type"] == "CreateTime"
