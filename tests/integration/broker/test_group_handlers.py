"""The APIs of groups as clients say them: over a socket, in every version that is served."""

import asyncio
import contextlib

import pytest

from replication.broker.feature_level import FeatureLevel
from replication.errors import ErrorCode
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition
from replication.model.metadata import BrokerAddress, PartitionMetadata, PartitionUpdate
from replication.protocol.apis import SERVED, ApiKey
from tests.support.inside import write_in_threads
from tests.support.peer import Peer, serving
from tests.support.site import T0, Site, coordinators_of, on_loop, until
from tests.transcripts.coordinator import subscription

OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
OK = ErrorCode.NONE.value
every_version = pytest.mark.parametrize("newest", range(10))


class Client(Peer):
    """A client that asks in the newest version that it knows and the broker serves."""

    newest = 9

    def version(self, key):
        return min(max(self.newest, SERVED[key].first), SERVED[key].last)

    async def call(self, api, /, **body):
        return await self.ask(api, self.version(api), body)

    async def find(self, *groups, kind=0):
        if self.version(ApiKey.FIND_COORDINATOR) >= 4:
            found = await self.call(ApiKey.FIND_COORDINATOR, key_type=kind, coordinator_keys=groups)
            return list(found.coordinators)
        return [await self.call(ApiKey.FIND_COORDINATOR, key=group, key_type=kind) for group in groups]

    async def join(self, member_id="", group="g", **fields):
        return await self.call(
            ApiKey.JOIN_GROUP,
            **{
                "group_id": group,
                "session_timeout": 10_000,
                "rebalance_timeout": 10_000,
                "member_id": member_id,
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": subscription(["orders"])}],
                **fields,
            },
        )

    async def be_in(self, group="g"):
        """Join for good, and have everything assigned."""
        joined = await self.join(group=group)
        if joined.error_code.value == ErrorCode.MEMBER_ID_REQUIRED:
            joined = await self.join(joined.member_id, group)
        assert joined.error_code.value == OK
        synced = await self.sync(joined, group)
        assert (synced.error_code.value, synced.assignment) == (OK, b"everything")
        return joined

    async def sync(self, joined, group="g", **fields):
        return await self.call(
            ApiKey.SYNC_GROUP,
            **{
                "group_id": group,
                "generation_id": joined.generation_id,
                "member_id": joined.member_id,
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": [{"member_id": joined.member_id, "assignment": b"everything"}],
                **fields,
            },
        )

    async def beat(self, joined, group="g", **fields):
        body = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
        return (await self.call(ApiKey.HEARTBEAT, **body, group_instance_id=None, **fields)).error_code.value

    async def leave(self, joined, group="g"):
        if self.version(ApiKey.LEAVE_GROUP) < 3:
            left = await self.call(ApiKey.LEAVE_GROUP, group_id=group, member_id=joined.member_id)
            return [left.error_code.value]
        member = {"member_id": joined.member_id, "group_instance_id": None, "reason": "done"}
        left = await self.call(ApiKey.LEAVE_GROUP, group_id=group, members=[member])
        return [left.error_code.value, *(each.error_code.value for each in left.members)]

    async def commit(self, offset, *, joined=None, group="g", topic="orders", text="note", **fields):
        row = {
            "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": 3, "committed_metadata": text,
        }  # fmt: skip
        answer = await self.call(
            ApiKey.OFFSET_COMMIT,
            **{
                "group_id": group,
                "generation_id_or_member_epoch": joined.generation_id if joined else -1,
                "member_id": joined.member_id if joined else "",
                "group_instance_id": None,
                "retention_time": -1,
                "topics": [{"name": topic, "partitions": [row]}],
                **fields,
            },
        )
        return answer.topics[0].partitions[0].error_code.value

    async def committed(self, topics, group="g"):
        """(error of all, {(topic, partition): (offset, text, error)})."""
        if topics is not None:
            topics = [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()]
        if self.version(ApiKey.OFFSET_FETCH) >= 8:
            asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
            answer = await self.call(ApiKey.OFFSET_FETCH, groups=[asked], require_stable=False)
            answer = answer.groups[0]
        else:
            answer = await self.call(ApiKey.OFFSET_FETCH, group_id=group, topics=topics, require_stable=False)
        rows = {
            (topic.name, row.partition_index): (row.committed_offset, row.metadata, row.error_code.value)
            for topic in answer.topics
            for row in topic.partitions
        }
        error = getattr(answer, "error_code", None)
        return None if error is None else error.value, rows

    async def remove(self, *topics, group="g"):
        rows = [{"name": topic, "partitions": [{"partition_index": 0}]} for topic in topics]
        answer = await self.call(ApiKey.OFFSET_DELETE, group_id=group, topics=rows)
        return answer.error_code.value, [topic.partitions[0].error_code.value for topic in answer.topics]

    async def describe(self, *groups):
        body = {"groups": groups, "include_authorized_operations": False}
        return (await self.call(ApiKey.DESCRIBE_GROUPS, **body)).groups

    async def list(self, *states):
        return await self.call(ApiKey.LIST_GROUPS, states_filter=states)

    async def delete(self, *groups):
        answer = await self.call(ApiKey.DELETE_GROUPS, groups_names=groups)
        return {result.group_id: result.error_code.value for result in answer.results}


@contextlib.asynccontextmanager
async def client_of(tmp_path, newest=9, *, leads=True, replicas=(1,), **config):
    """A client of a broker that keeps all groups, or none. It learns nothing of other replicas."""
    # A test that stands still for a third of a session on a busy machine is no paused broker.
    config = {"group.initial.rebalance.delay.ms": 0, "zookeeper.session.timeout.ms": 60_000, **config}
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **config)
        for tp in (T0, OFFSETS):
            await site.create(tp, replicas=replicas)
        coordinators = coordinators_of(one)
        coordinators.begin()
        groups = coordinators.groups
        states = {T0: site.states[T0], OFFSETS: site.states[OFFSETS]}
        one.replicas.metadata.update(
            1,
            [BrokerAddress(1, "127.0.0.1", 1001)],
            [PartitionUpdate(tp, site.topic_ids[tp.topic], PartitionMetadata(s, (1,))) for tp, s in states.items()],
        )
        await groups.terms.learned(5)
        if not leads:
            one.replicas.disconnect()
        handlers = coordinators.handlers(FeatureLevel())
        single = {**handlers, ApiKey.OFFSET_COMMIT: coordinators.commits.commit}
        async with serving(handlers, turns=coordinators.turns()) as (_, port), serving(single) as (_, single_port):
            client = await Client.connect(port)
            client.newest = newest
            if leads:
                await until(lambda: groups.terms.term(0).loading is None)
            client.single_port = single_port  # where no commit is handled with others
            client.groups = groups
            client.replicas = one.replicas
            yield client
        coordinators.end()


@pytest.mark.parametrize("is_slow", [False, True])
@every_version
@on_loop
async def test_commits_that_are_handled_together_are_answered_and_kept_as_single_ones(tmp_path, newest, is_slow):
    """Byte for byte, whatever is committed; with a slow disk, too, for which they wait."""
    async with client_of(tmp_path, newest) as client:
        if is_slow:
            write_in_threads(client.replicas)
        single = await Client.connect(client.single_port)
        assert await client.commit(0, group="first") == OK  # later ones are stored at once
        version, kept = client.version(ApiKey.OFFSET_COMMIT), []
        for peer, group in ((client, "a"), (single, "b")):
            answers = []
            for n, (topic, partition, text, count) in enumerate(
                [("orders", 0, "note", 1), ("orders", 0, None, 1), ("orders", 0, "é", 2), ("orders", 9, "", 1),
                 ("nowhere", 0, "", 1), ("orders", 0, "x" * 5000, 1), ("orders", 0, "", 0)]
            ):  # fmt: skip
                row = {"partition_index": partition, "committed_offset": n, "committed_leader_epoch": 3,
                       "committed_metadata": text}  # fmt: skip
                for name, generation, member in ((group, -1, ""), (f"{group}{n}", 4, "nobody")):
                    body = {"group_id": name, "generation_id_or_member_epoch": generation, "member_id": member,
                            "group_instance_id": None, "retention_time": -1,
                            "topics": [{"name": topic, "partitions": [row] * count}]}  # fmt: skip
                    peer.send(ApiKey.OFFSET_COMMIT, version, body)
                    answers.append((await peer.frame())[4:])
            found = client.groups.group(group).offsets.committed[T0]
            kept.append((answers, found.offset, found.leader_epoch, found.metadata))
        assert kept[0] == kept[1]


@every_version
@on_loop
async def test_commits_that_no_other_replica_gets_are_answered_as_single_ones(tmp_path, newest):
    """With the same error, in the order of the requests of a connection, and nothing is found afterwards."""
    config = {"offsets.commit.timeout.ms": 100, "replica.lag.time.max.ms": 120_000}
    async with client_of(tmp_path, newest, replicas=(1, 2), **config) as client:
        single, version = await Client.connect(client.single_port), client.version(ApiKey.OFFSET_COMMIT)
        answers = []
        for peer, group in ((client, "a"), (single, "b")):
            for number, numbers in enumerate(([0], [0, 9], [0])):
                rows = [{"partition_index": n, "committed_offset": n, "committed_leader_epoch": 3,
                         "committed_metadata": ""} for n in numbers]  # fmt: skip
                body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
                        "group_instance_id": None, "retention_time": -1,
                        "topics": [{"name": "orders", "partitions": rows}]}  # fmt: skip
                peer.send(ApiKey.OFFSET_COMMIT, version, body)
                if number == 1:
                    peer.send(ApiKey.LIST_GROUPS, 0, {})
            answers.append([(await peer.frame())[4:] for _ in range(4)])
        assert answers[0] == answers[1]
        assert ErrorCode.COORDINATOR_NOT_AVAILABLE.to_bytes(2, "big") in answers[0][0]
        assert (client.groups.group("a"), client.groups.group("b")) == (None, None)


@every_version
@on_loop
async def test_a_member_lives_in_its_group_in_every_version(tmp_path, newest):
    async with client_of(tmp_path, newest) as client:
        (found,) = await client.find("g")
        assert (found.error_code.value, found.node_id, found.host, found.port) == (OK, 1, "127.0.0.1", 1001)
        joined = await client.be_in()
        assert joined.generation_id == 1
        assert joined.leader == joined.member_id
        assert [each.member_id for each in joined.members] == [joined.member_id]
        assert await client.beat(joined) == OK
        assert await client.commit(7, joined=joined) == OK
        assert await client.committed({"orders": [0, 5]}) == (
            OK if client.version(ApiKey.OFFSET_FETCH) >= 2 else None,
            {("orders", 0): (7, "note", OK), ("orders", 5): (-1, "", OK)},
        )
        if client.version(ApiKey.OFFSET_FETCH) >= 2:
            assert await client.committed(None) == (OK, {("orders", 0): (7, "note", OK)})
        (group,) = await client.describe("g")
        assert (group.error_code.value, group.group_state, group.protocol_data) == (OK, "Stable", "range")
        (member,) = group.members
        assert member.member_id == joined.member_id
        assert member.client_host == "/127.0.0.1"
        assert (member.member_metadata, member.member_assignment) == (subscription(["orders"]), b"everything")
        (listed,) = (await client.list()).groups
        assert (listed.group_id, listed.protocol_type) == ("g", "consumer")
        assert await client.remove("orders", "never") == (
            OK, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        )  # fmt: skip
        assert await client.delete("g", "h") == {
            "g": ErrorCode.NON_EMPTY_GROUP,
            "h": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        assert set(await client.leave(joined)) == {OK}
        assert await client.beat(joined) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await client.remove("orders") == (OK, [OK])
        assert (await client.committed({"orders": [0]}))[1] == {("orders", 0): (-1, "", OK)}
        assert await client.delete("g") == {"g": OK}
        (group,) = await client.describe("g")
        gone = OK if client.version(ApiKey.DESCRIBE_GROUPS) < 6 else ErrorCode.GROUP_ID_NOT_FOUND
        assert (group.error_code.value, group.group_state) == (gone, "Dead")


@every_version
@on_loop
async def test_who_asks_the_wrong_broker_is_told_so_in_every_version(tmp_path, newest):
    async with client_of(tmp_path, newest, leads=False) as client:
        expected = ErrorCode.NOT_COORDINATOR
        joined = await client.join("me")
        assert (joined.error_code.value, joined.member_id) == (expected, "me")
        assert (await client.sync(joined)).error_code.value == expected
        assert await client.beat(joined) == expected
        assert await client.leave(joined) == [expected]
        assert await client.commit(1) == expected
        error, rows = await client.committed({"orders": [0]})
        moving = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # it has only begun, and may be told to lead in a moment
        if client.version(ApiKey.OFFSET_FETCH) >= 2:
            assert (error, rows) == (moving, {})
        else:
            assert rows == {("orders", 0): (-1, "", moving)}
        assert await client.remove("orders") == (expected, [])
        (group,) = await client.describe("g")
        assert (group.error_code.value, group.group_state) == (expected, "Dead")
        assert list((await client.list()).groups) == []
        assert await client.delete("g") == {"g": expected}


@every_version
@on_loop
async def test_requests_without_a_group_are_refused_in_every_version(tmp_path, newest):
    async with client_of(tmp_path, newest) as client:
        expected = ErrorCode.INVALID_GROUP_ID
        joined = await client.join("me", "")
        assert joined.error_code.value == expected
        assert (await client.sync(joined, "")).error_code.value == expected
        assert await client.beat(joined, "") == expected
        assert await client.leave(joined, "") == [expected]
        assert await client.commit(3, group="") == OK, "offsets could always be kept without a name"
        assert (await client.committed({"orders": [0]}, ""))[1] == {("orders", 0): (3, "note", OK)}


@on_loop
async def test_several_groups_are_found_at_once_and_no_shares(tmp_path):
    async with client_of(tmp_path) as client:
        assert [(each.key, each.node_id) for each in await client.find("a", "b")] == [("a", 1), ("b", 1)]
        (refused,) = await client.find("t", kind=2)
        assert (refused.error_code.value, refused.node_id) == (ErrorCode.INVALID_REQUEST, -1)


@on_loop
async def test_groups_are_listed_by_state_whatever_its_case(tmp_path):
    async with client_of(tmp_path) as client:
        await client.be_in("busy")
        await client.commit(1, group="idle")
        for states, names in (((), {"busy", "idle"}), (("stable",), {"busy"}), (("EMPTY", "Dead"), {"idle"})):
            assert {each.group_id for each in (await client.list(*states)).groups} == names


@on_loop
async def test_a_text_that_is_null_comes_back_as_an_empty_one(tmp_path):
    async with client_of(tmp_path) as client:
        assert await client.commit(1, text=None) == OK
        assert (await client.committed(None))[1] == {("orders", 0): (1, "", OK)}


@on_loop
async def test_a_commit_says_what_is_wrong_with_it(tmp_path):
    async with client_of(tmp_path) as client:
        joined = await client.be_in()
        assert await client.commit(1, joined=joined, topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await client.commit(1, joined=joined, text="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await client.commit(1) == ErrorCode.UNKNOWN_MEMBER_ID
        stale = {"generation_id_or_member_epoch": joined.generation_id - 1}
        assert await client.commit(1, joined=joined, **stale) == ErrorCode.ILLEGAL_GENERATION
        assert await client.commit(1, joined=joined, group="absent") == ErrorCode.ILLEGAL_GENERATION
        assert (await client.committed(None))[1] == {}


@on_loop
async def test_an_old_client_s_commit_ends_when_it_said(tmp_path):
    async with client_of(tmp_path, 2, **{"offsets.retention.check.interval.ms": 50}) as client:
        assert await client.commit(1, retention_time=1) == OK
        async with asyncio.timeout(5):
            while (await client.committed({"orders": [0]}))[1] != {("orders", 0): (-1, "", OK)}:
                await client.list()
