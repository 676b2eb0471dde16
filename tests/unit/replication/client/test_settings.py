"""The settings of topics, asked of brokers that may not have heard of them yet."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from replication.client import settings
from replication.client.attempts import Backoff
from replication.client.settings import topic_overrides, topic_settings
from replication.errors import ErrorCode

ROWS = [
    SimpleNamespace(name="cleanup.policy", value="compact", config_source=1),
    SimpleNamespace(name="max.message.bytes", value="77", config_source=1),
]


def answer(code):
    configs = ROWS if code is ErrorCode.NONE else []
    result = SimpleNamespace(resource_name="t", error_code=code, configs=configs)
    return SimpleNamespace(results=[result])


class Brokers:
    """Each answers with the next of these codes; the last one holds."""

    def __init__(self, *codes):
        self._answers = itertools.chain(map(answer, codes), itertools.repeat(answer(codes[-1])))
        self.asked = 0

    def backoff(self, at_most_s):
        return Backoff(at_most_s)

    async def call_any(self, *request):
        self.asked += 1
        return next(self._answers)


def test_who_has_not_heard_of_a_new_topic_is_not_taken_at_its_word():
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = asyncio.run(topic_settings(Brokers(unknown, unknown, ErrorCode.NONE), "t"))
    assert (found.is_compacted, found.batch_bytes_max) == (True, 77)
    found = asyncio.run(topic_overrides(Brokers(unknown, ErrorCode.NONE), ["t"]))
    assert found == {"t": {"cleanup.policy": "compact", "max.message.bytes": "77"}}


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_a_topic_that_is_gone_or_may_not_be_seen_is_left_out(code, monkeypatch):
    monkeypatch.setattr(settings, "UNKNOWN_TOPIC_S", 0.2)
    brokers = Brokers(code)
    assert asyncio.run(topic_overrides(brokers, ["t"])) == {}
    assert (brokers.asked > 1) == (code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
