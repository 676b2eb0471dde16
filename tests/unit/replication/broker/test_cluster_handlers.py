"""Metadata: an answer is given again until the cluster changes, and never after."""

import asyncio

from replication.broker.handlers.cluster import ClusterHandlers, partition_row
from replication.config.broker import BrokerConfig
from replication.model.cluster import TopicPartition
from replication.model.listeners import Endpoint, Listener, SecurityProtocol
from replication.model.metadata import Metadata
from replication.network.work import Work
from replication.protocol import apis
from replication.protocol.apis import ApiKey, EncodedBody
from replication.security.access import ALLOW_ALL
from tests.support.peer import Answers
from tests.unit.replication.model.test_metadata import ONE, T0, TWO, news


class NoAdmin:
    """Topics cannot be made here: whoever asks for one that is missing waits until somebody else has made it."""

    def __init__(self, metadata):
        self.metadata = metadata
        self.asked, self.made = asyncio.Event(), asyncio.Event()

    async def ensure(self, topic, *, timeout_s):
        self.asked.set()
        await self.made.wait()
        return self.metadata.topic(topic.name)


def ask(handlers, topics, version=9, authorizer=ALLOW_ALL):
    """A future of the answer."""
    names = None if topics is None else [{"name": name} for name in topics]
    body = {"topics": names, "allow_auto_topic_creation": True}
    body |= {f"include_{what}_authorized_operations": False for what in ("cluster", "topic")}
    frame = b"".join(apis.encode_request(ApiKey.METADATA, version, 1, "me", body))
    request = apis.decode_request(memoryview(frame[4:]))
    context = Work(Answers(), request, 0, 0.0)
    context.origin.authorizer = authorizer
    found = handlers.metadata(context, request.body)
    if hasattr(found, "__await__"):
        return asyncio.ensure_future(found)
    known = asyncio.get_running_loop().create_future()
    known.set_result(found)
    return known


def test_a_leader_without_the_listener_is_told_to_those_who_know_that_error():
    metadata = Metadata()
    metadata.update(1, [ONE, TWO], [news(T0, 1)])
    known = metadata.topic("t").partitions[0]
    both, other = {1, 2}, {2}
    assert partition_row(both, both, 0, known)["error_code"] == 0
    lacking = partition_row(both, other, 0, known)
    assert (lacking["error_code"], lacking["leader_id"]) == (72, -1)
    assert 1 in lacking["offline_replicas"]
    assert partition_row(other, other, 0, known)["error_code"] == 5


def test_clients_that_do_not_know_that_error_are_told_that_there_is_no_leader_now():
    async def main():
        metadata = Metadata()
        handlers = ClusterHandlers(BrokerConfig(), "cluster", metadata, NoAdmin(metadata))
        elsewhere = Listener("INSIDE", SecurityProtocol.SSL, Endpoint("h", 1))
        metadata.update(1, [ONE._replace(listeners=(elsewhere,)), TWO], [news(T0, 1)])
        for version, code in ((5, 5), (6, 72)):
            found = await ask(handlers, ["t"], version)
            frame = b"".join(apis.encode_response(ApiKey.METADATA, version, 1, found))
            (topic,) = apis.decode_response(ApiKey.METADATA, version, memoryview(frame[4:]))[1].topics
            assert [row.error_code for row in topic.partitions] == [code]

    asyncio.run(main())


def leaders(answer: EncodedBody, version=9):
    frame = b"".join(apis.encode_response(ApiKey.METADATA, version, 1, answer))
    _, body = apis.decode_response(ApiKey.METADATA, version, memoryview(frame[4:]))
    return {(topic.name, p.partition_index): p.leader_id for topic in body.topics for p in topic.partitions}


def test_an_answer_is_made_once_and_anew_after_a_change():
    async def main():
        metadata = Metadata()
        handlers = ClusterHandlers(BrokerConfig(), "cluster", metadata, NoAdmin(metadata))
        metadata.update(1, [ONE, TWO], [news(T0, 1)])
        for topics in (None, ["t"]):
            first = await ask(handlers, topics)
            assert await ask(handlers, topics) is first
            assert leaders(first) == {("t", 0): metadata.leader("t", 0)}
            assert leaders(await ask(handlers, topics, 1), 1) == leaders(first)
        metadata.update(1, [ONE, TWO], [news(T0, 2, epoch=1)])
        for topics in (None, ["t"]):
            assert leaders(await ask(handlers, topics)) == {("t", 0): 2}

    asyncio.run(main())


def test_what_changed_while_an_answer_was_made_is_told_to_the_next():
    async def main():
        metadata = Metadata()
        admin = NoAdmin(metadata)
        handlers = ClusterHandlers(BrokerConfig(), "cluster", metadata, admin)
        metadata.update(1, [ONE, TWO], [news(T0, 1)])
        waiting = ask(handlers, ["t", "new"])
        await admin.asked.wait()
        made = news(TopicPartition("new", 0), 1, topic_id="n" * 22)
        metadata.update(1, [ONE, TWO], [made, news(T0, 2, epoch=1)])
        admin.made.set()
        await waiting
        assert leaders(await ask(handlers, ["t", "new"])) == {("t", 0): 2, ("new", 0): 1}

    asyncio.run(main())


class WithoutSecret:
    has_rights = True

    def refused(self, context, needs, request):
        return {need for need in needs(request) if need.name == "secret"}


def test_a_topic_that_is_made_while_a_client_waits_is_left_out_for_one_that_may_not_see_it():
    async def main():
        metadata = Metadata()
        handlers = ClusterHandlers(BrokerConfig(), "cluster", metadata, NoAdmin(metadata))
        known = [news(TopicPartition(f"t{n}", 0), 1, topic_id=f"{n:022}") for n in range(300)]
        metadata.update(1, [ONE], known)
        first = ask(handlers, None)  # made in steps
        second = ask(handlers, None, authorizer=WithoutSecret())
        await asyncio.sleep(0)
        assert not first.done()
        metadata.update(1, [ONE], [*known, news(TopicPartition("secret", 0), 1, topic_id="s" * 22)])
        assert set(leaders(await second)) == {(f"t{n}", 0) for n in range(300)}

    asyncio.run(main())


def test_failures_are_not_kept():
    async def main():
        metadata = Metadata()
        handlers = ClusterHandlers(BrokerConfig(auto_create_topics_enable=False), "c", metadata, NoAdmin(metadata))
        metadata.update(1, [ONE], [])
        assert leaders(await ask(handlers, ["t"])) == {}
        assert not handlers._answers

    asyncio.run(main())
