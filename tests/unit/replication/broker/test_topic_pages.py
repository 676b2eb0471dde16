"""Pages of topics: whatever their size, together they have every partition once, in order."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from replication.broker.handlers.topic_pages import Cursor, TopicPageHandlers, page_of
from replication.config.broker import BrokerConfig
from replication.model.cluster import LeaderAndIsr, TopicPartition
from replication.model.metadata import Metadata, PartitionMetadata, TopicMetadata
from replication.network.steps import all_at_once
from replication.network.work import Work
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from tests.support.peer import Answers
from tests.unit.replication.model.test_metadata import ONE, news

FOUND = PartitionMetadata(LeaderAndIsr(1, 0, (1,), 1, 0), (1,))
TOPICS = st.dictionaries(st.sampled_from(["a", "b", "b2", "c", "d"]), st.integers(0, 7), max_size=5)


def known(counts):
    return {name: TopicMetadata(name, None, dict.fromkeys(range(count), FOUND)) for name, count in counts.items()}


def pages(topics, names, limit, begin=None):
    """All pages, as a client asks for them: with the cursor of the one before."""
    found = []
    while True:
        rest = [name for name in sorted(names) if begin is None or name >= begin.topic]
        found.append(all_at_once(page_of(rest, topics.get, begin, limit)))
        begin = found[-1].next
        if begin is None:
            return found


@given(TOPICS, st.sets(st.sampled_from(["a", "c", "no"])), st.integers(1, 9))
def test_pages_have_every_partition_once_and_are_full(counts, more, limit):
    topics, names = known(counts), {*counts, *more}
    found = pages(topics, names, limit)
    shown = [(name, number) for page in found for name, _, rows in page.topics for number, _ in rows]
    assert shown == [(name, number) for name in sorted(counts) for number in range(counts[name])]
    sizes = [sum(len(rows) for _, _, rows in page.topics) for page in found]
    assert all(size == limit for size in sizes[:-1])
    assert sizes[-1] <= limit
    assert {name for page in found for name, topic, _ in page.topics if topic is None} == names - counts.keys()


def test_a_page_begins_within_the_topic_of_its_cursor_only():
    topics = known({"a": 3, "b": 3})
    (page,) = pages(topics, topics, 9, Cursor("a", 2))
    assert [(name, [number for number, _ in rows]) for name, _, rows in page.topics] == [("a", [2]), ("b", [0, 1, 2])]


def test_a_full_page_ends_before_a_topic_that_may_be_none():
    topics = known({"a": 1})
    first, second = pages(topics, ["a", "no"], 1)
    assert first.next == Cursor("no", 0)
    assert [(name, topic) for name, topic, _ in second.topics] == [("no", None)]


def test_a_page_has_no_more_partitions_than_the_broker_gives():
    metadata = Metadata()
    metadata.update(1, [ONE], [news(TopicPartition("t", number), 1) for number in range(5)])
    handlers = TopicPageHandlers(BrokerConfig(max_request_partition_size_limit=2), metadata)

    async def page_size(limit):
        body = {"topics": (), "response_partition_limit": limit}
        frame = b"".join(apis.encode_request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 1, "me", body))
        request = apis.decode_request(memoryview(frame[4:]))
        answer = await handlers.describe(Work(Answers(), request, 0, 0.0), request.body)
        (topic,) = answer["topics"]
        return len(topic["partitions"]), answer["next_cursor"]["partition_index"]

    assert [asyncio.run(page_size(limit)) for limit in (2000, 1)] == [(2, 2), (1, 1)]
