"""A client may ask either of two brokers; and every API answers a request with nothing in its lists, too."""

import datetime
import uuid
from dataclasses import fields, is_dataclass
from typing import get_args, get_origin

import pytest

from replication.protocol import apis
from replication.protocol.apis import ApiKey
from replication.protocol.messages import FetchRequest, FetchTopic, ProduceRequest, ProduceTopic
from tests.support.asker import CLOSED, SILENT, Asker, until
from tests.support.in_process import brokers_in_process
from tests.support.kafka_answers.case import code

WORDS = {"string": "empty", "bytes": b"", "uuid": uuid.UUID(int=7), "bool": False}
NULL = -1  # no list at all, where there may be none
# Requests that would wait for others, or stop a broker.
OTHERS = {ApiKey.CONTROLLED_SHUTDOWN}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    """Two. Each partition of the internal topics has one replica, so that one broker keeps a group."""
    settings = {
        "offsets_topic_num_partitions": 2,
        "offsets_topic_replication_factor": 1,
        "transaction_state_log_num_partitions": 2,
        "transaction_state_log_replication_factor": 1,
    }
    with brokers_in_process(tmp_path_factory.mktemp("brokers"), (1, 2), **settings) as running:
        with Asker(running.bootstrap) as asker:
            for kind in (0, 1):
                body = {"key_type": kind, "coordinator_keys": ["empty"]}
                until(lambda body=body: not code(asker.ask(ApiKey.FIND_COORDINATOR, 4, body).coordinators[0]))
        yield running


def requests(key, version):
    """The requests of this version: with every list empty, with an item in each whose own lists are empty, without a
    list.
    """
    if key is ApiKey.PRODUCE:
        return [ProduceRequest(1, 100, topics) for topics in ((), (ProduceTopic("empty", ()),))]
    if key is ApiKey.FETCH:
        topic = FetchTopic("empty", None, ()) if version < 13 else FetchTopic(None, WORDS["uuid"], ())
        return [FetchRequest(0, 1, topics) for topics in ((), (topic,))]
    made = [filled(apis.request_class(key, version), depth) for depth in (0, 1, NULL)]
    return [each for number, each in enumerate(made) if each not in made[:number]]


def filled(cls, depth):
    return cls(
        **{field.name: value_of(field, field.type, depth) for field in fields(cls) if "tag" not in field.metadata}
    )


def value_of(field, kind, depth):
    if get_origin(kind) is not tuple and get_args(kind):  # or null
        kind = next(each for each in get_args(kind) if each is not type(None))
        if depth is NULL and get_origin(kind) is tuple:
            return None
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        is_nested = is_dataclass(item) and any(get_origin(each.type) is tuple for each in fields(item))
        return (filled(item, 0),) if depth == 1 and is_nested else ()
    if is_dataclass(kind):
        return filled(kind, depth)
    name = field.metadata["kafka_type"]
    if name.startswith("timedelta"):
        return datetime.timedelta(milliseconds=100)
    return WORDS.get(name, 0)


@pytest.mark.parametrize("key", [key for key in apis.SERVED if key not in OTHERS], ids=lambda key: key.name)
@pytest.mark.parametrize("number", [1, 2])
def test_a_request_with_empty_lists_is_answered(brokers, caplog, key, number):
    first, last = key.versions
    with Asker(str(brokers.brokers[number].endpoint)) as asker:
        for version in range(first, last + 1):
            for request in requests(key, version):
                frame = b"".join(map(bytes, apis.encode_request(key, version, 1, "empty", request)))[4:]
                assert asker.send(frame) not in (CLOSED, SILENT), (version, request)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_nobody_leaves_a_group_that_another_broker_keeps(brokers):
    codes = set()
    for broker in brokers.brokers.values():
        with Asker(str(broker.endpoint)) as asker:
            codes.add(asker.ask(ApiKey.LEAVE_GROUP, 3, {"group_id": "empty", "members": ()}).error_code.value)
    assert codes == {0, 16}


def test_a_follower_tells_of_producers(brokers):
    """It has the same log. Tools that look for hanging transactions ask one broker."""
    topic = {"name": "followed", "num_partitions": 1, "replication_factor": 2, "assignments": (), "configs": ()}
    with Asker(brokers.bootstrap) as asker:
        made = asker.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 20_000, "validate_only": False})
    assert made.topics[0].error_code.value == 0
    for broker in brokers.brokers.values():
        with Asker(str(broker.endpoint)) as asker:
            until(lambda: described(asker, "followed", [0, 7]) == [0, 3])  # its replica may be yet to come


def described(asker, topic, partitions):
    body = {"topics": [{"name": topic, "partition_indexes": partitions}]}
    (found,) = asker.ask(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics
    return [row.error_code.value for row in found.partitions]
