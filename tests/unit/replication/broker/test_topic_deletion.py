"""DeleteTopics at a broker that is behind: the tree says which topic has the name now."""

import asyncio

import pytest

from logstore.env import SYSTEM
from replication.broker.topic_admin import TopicAdmin
from replication.config.broker import BrokerConfig
from replication.coordination import topics
from replication.coordination.placements import Placements
from replication.errors import ErrorCode, KafkaError
from tests.unit.replication.broker.test_reassignment_handlers import TOPIC_ID, TP, metadata_of
from tests.unit.replication.controller.test_driver import site

LATER_ID = "j" * 21 + "A"


def deleted(directory, metadata, exists, **asked):
    """Delete the topic at a broker with this metadata; the error, and what the tree has of it then."""

    async def check():
        async with site(directory) as here:
            if exists:
                await topics.create_topic(here.tree, TP.topic, LATER_ID, {0: (1,)}, {})
                await here.until(here.state)
            admin = TopicAdmin(BrokerConfig(), metadata, lambda: here.tree, None, Placements(100), SYSTEM)
            try:
                answer = await admin.delete(TP.topic, **asked, timeout_s=20)
            except KafkaError as error:
                answer = error.code
            name = await topics.read_name(here.tree, TP.topic)
            return answer, name.exists, name.is_marked

    return asyncio.run(check())


def test_the_id_of_a_former_topic_deletes_no_later_one_of_its_name(tmp_path):
    assert deleted(tmp_path, metadata_of(TP), True, topic_id=TOPIC_ID) == (ErrorCode.UNKNOWN_TOPIC_ID, True, False)


@pytest.mark.parametrize("metadata", [metadata_of(TP), metadata_of()], ids=["knows the former one", "knows none"])
def test_the_present_topic_of_a_name_is_deleted_and_gone_when_that_is_answered(tmp_path, metadata):
    assert deleted(tmp_path, metadata, True) == (LATER_ID, False, False)


def test_a_name_without_a_topic_is_said_to_be_unknown(tmp_path):
    assert deleted(tmp_path, metadata_of(TP), False) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False, False)
