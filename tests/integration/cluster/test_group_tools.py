"""The commands for groups on a running cluster: what they print, what they refuse, and what they change."""

import pytest

from datasource import lag_of_group
from replication.client.groups import Committed
from replication.client.kafka_client import KafkaClient
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition
from tests.support.asker import until
from tests.support.commands import rows, rows_of

pytestmark = pytest.mark.slow


@pytest.fixture
def reading(cluster):
    """A topic of two partitions with five records in each, and a group that has read them."""
    topic, group = cluster.create((1, 2), (2, 3)), f"readers-{next(cluster.names)}"
    for partition in (0, 1):
        assert cluster.produce(topic, range(5), partition=partition) == []
    with KafkaClient(cluster.running.bootstrap) as client:
        tps = [TopicPartition(topic, partition) for partition in (0, 1)]
        client.commit(group, {tp: Committed(3) for tp in tps})
        yield topic, group, client


def test_a_group_shows_its_lag_and_its_members(pylog, reading):
    topic, group, client = reading
    told = pylog("groups", "describe", group).ok()
    assert told.err == f"group {group} has no members\n"
    assert rows(told) == [[group, topic, p, "3", "5", "2", "-", "-", "-"] for p in ("0", "1")]
    assert [group, "Empty"] in [row[:2] for row in rows(pylog("groups", "list"))]

    with client.consumer(topic, group) as consumer:
        while len(consumer.assignment) < 2:
            consumer.poll(100)
        found = pylog("groups", "describe", "--group", group, "--output", "json").ok().json
        assert {(row["state"], row["client_id"] != "", row["host"]) for row in found} == {
            ("Stable", True, "/127.0.0.1")
        }
        (member,) = pylog("groups", "members", "--group", group, "--output", "json").ok().json
        assert (member["partitions"], member["assignment"]) == (2, [f"{topic}-0", f"{topic}-1"])
        assert pylog("groups", "describe", "--members", group, "--output", "json").ok().json == [member]
        (state,) = pylog("groups", "describe", "--state", group, "--output", "json").ok().json
        assert (state["group"], state["state"], state["members"]) == (group, "Stable", 1)
        assert pylog("groups", "describe", "--state", "--members", group).code == 2
        assert group in {row[0] for row in rows(pylog("groups", "list", "--state", "stable"))}
        assert group not in {row[0] for row in rows(pylog("groups", "list", "--state", "empty"))}

        reset = pylog("groups", "reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--execute")
        assert "has members" in reset.failed()
        assert "non empty group" in pylog("groups", "delete", "--group", group).failed()
        forget = pylog("groups", "delete-offsets", "--group", group, "--topic", topic)
        assert "group subscribed to topic" in forget.failed()


def test_a_group_that_committed_nothing_shows_its_members_also_those_without_partitions(pylog, cluster):
    topic, group = cluster.create((1, 2)), f"readers-{next(cluster.names)}"
    with (
        KafkaClient(cluster.running.bootstrap) as client,
        client.consumer(topic, group) as first,
        client.consumer(topic, group) as second,
    ):

        def described():
            first.poll(50)
            second.poll(50)
            ran = pylog("groups", "describe", group, "--output", "json")
            return ran.code == 0 and len(ran.json) == 2 and ran.json[0]["topic"] == topic and ran.json

        found = until(described)
        assert [(row["topic"], row["partition"], row["consumer_id"] is None) for row in found] == [
            (topic, 0, False),
            (None, None, False),
        ]
        assert len({row["consumer_id"] for row in found}) == 2
        assert rows(pylog("groups", "describe", group))[1][1:6] == ["-"] * 5


def test_offsets_are_reset_in_each_form_and_only_if_that_is_wanted(pylog, reading, tmp_path):
    topic, group, client = reading

    def news(*words):
        told = pylog("groups", "reset-offsets", "--group", group, *words, "--output", "json").ok()
        return [row["new_offset"] for row in told.json]

    assert news("--all-topics", "--to-earliest") == [0, 0]
    assert news("--topic", f"{topic}:1", "--to-latest") == [5]
    assert news("--all-topics", "--to-offset", 4) == [4, 4]
    assert news("--all-topics", "--shift-by", -2) == [1, 1]
    assert news("--all-topics", "--to-current") == [3, 3]
    assert news("--all-topics", "--to-datetime", "2000-01-01T00:00:00.000") == [0, 0]
    assert news("--all-topics", "--by-duration", "PT0S") == [5, 5]
    assert {each.offset for each in client.committed(group).values()} == {3}

    exported = pylog("groups", "reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--export").ok().out
    (tmp_path / "plan.csv").write_text(exported.replace(f"{topic},1,5", f"{topic},1,2"))
    assert news("--from-file", tmp_path / "plan.csv", "--execute") == [5, 2]
    assert [each.offset for _, each in sorted(client.committed(group).items())] == [5, 2]

    told = pylog("groups", "delete-offsets", "--group", group, "--topic", f"{topic}:0").ok()
    assert told.err == f"deleted 1 offset of group {group}\n"
    assert list(client.committed(group)) == [TopicPartition(topic, 1)]
    assert pylog("groups", "delete", "--group", group).ok().err == "deleted 1 group\n"
    assert "group id not found" in pylog("groups", "describe", "--group", group).failed()
    assert "group id not found" in pylog("groups", "delete", "--group", group).failed()


def test_what_is_wrong_with_a_reset_is_refused(pylog, reading):
    topic, group, _ = reading
    of_topic = ("groups", "reset-offsets", "--group", group, "--topic", topic)
    assert pylog(*of_topic).code == 2
    assert pylog(*of_topic, "--to-earliest", "--to-latest").code == 2
    assert pylog(*of_topic, "--all-topics", "--to-earliest").code == 2
    assert pylog(*of_topic, "--by-duration", "soon").code == 2
    assert pylog(*of_topic, "--from-file", "-", "--to-latest", input="x,0,0").code == 2
    assert pylog("groups", "reset-offsets", "--group", group, "--to-latest").code == 2
    assert pylog("groups", "describe").code == 2
    assert (
        "no topic 'nosuch'"
        in pylog("groups", "reset-offsets", "--group", group, "--topic", "nosuch", "--to-latest").failed()
    )
    assert "9" in pylog("groups", "reset-offsets", "--group", group, "--topic", f"{topic}:9", "--to-latest").failed()


def test_nothing_done_is_no_success(pylog, reading, cluster):
    topic, group, client = reading
    never = f"never-{next(cluster.names)}"
    for words in (
        ("reset-offsets", "--all-topics", "--to-latest", "--execute"),
        ("reset-offsets", "--all-topics", "--to-latest"),
        ("delete-offsets", "--topic", topic),
    ):
        assert "group id not found" in pylog("groups", *words, "--group", never).failed()
    other = cluster.create((1,))
    assert "nothing of these topics" in pylog("groups", "delete-offsets", "--group", group, "--topic", other).failed()
    with pytest.raises(KafkaError) as refused:
        lag_of_group(cluster.running.bootstrap, never)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert lag_of_group(cluster.running.bootstrap, group)["offsetsBehindLatest"] == 4

    made = pylog("groups", "reset-offsets", "--group", never, "--topic", topic, "--to-latest", "--execute").ok()
    assert made.err == f"set 2 offsets of group {never}\n"
    assert {each.offset for each in client.committed(never).values()} == {5}


def test_a_group_that_cannot_be_described_hides_no_other(pylog, reading, cluster):
    topic, group, _ = reading
    never = f"never-{next(cluster.names)}"
    told = pylog("groups", "describe", "--group", never, "--group", group)
    assert (told.code, [row[:3] for row in rows_of(told)]) == (1, [[group, topic, "0"], [group, topic, "1"]])
    assert told.err.splitlines()[-1].endswith(f"group id not found (69): group '{never}'")
