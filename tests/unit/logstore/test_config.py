"""LogConfig: Kafka's names and limits; everything else is refused with a hint."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore import InvalidConfigError, LogConfig
from logstore.config import canonical_properties

ARTICLE_SETTINGS = [
    "unclean.leader.election.enable",
    "delete.retention.ms",
    "segment.jitter.ms",
    "retention.ms",
    "flush.ms",
    "segment.bytes",
    "flush.messages",
    "segment.ms",
    "retention.bytes",
    "cleanup.policy",
    "segment.index.bytes",
    "min.cleanable.dirty.ratio",
    "max.message.bytes",
    "file.delete.delay.ms",
    "min.insync.replicas",
    "index.interval.bytes",
]


@pytest.mark.parametrize("key", [*ARTICLE_SETTINGS, "compression.type", "message.timestamp.type"])
def test_every_setting_of_kafka_is_known(key: str) -> None:
    default = LogConfig().to_properties()[key]
    assert LogConfig.from_properties({key: default}) == LogConfig()


def test_a_standalone_topic_keeps_everything_by_default() -> None:
    assert LogConfig().retention_ms == -1


def test_an_unknown_setting_names_the_near_ones() -> None:
    with pytest.raises(InvalidConfigError, match=r"'retention\.hours'.*did you mean.*'retention\.ms'"):
        LogConfig.from_properties({"retention.hours": "1"})


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("segment.bytes", "big", "whole number"),
        ("segment.bytes", "13", "between 14 and 2147483647"),
        ("segment.bytes", str(2**31), "between"),
        ("retention.ms", "-2", "between -1"),
        ("compression.type", "brotli", "one of producer, uncompressed, gzip"),
        ("cleanup.policy", "remove", "any of compact, delete"),
        ("message.timestamp.type", "createtime", "one of CreateTime, LogAppendTime"),
        ("min.cleanable.dirty.ratio", "1.5", "between 0.0 and 1.0"),
        ("min.cleanable.dirty.ratio", "nan", "between"),
        ("unclean.leader.election.enable", "yes", "true or false"),
        ("flush.messages", "0", "between 1"),
    ],
)
def test_a_value_out_of_range_says_what_is_allowed(key: str, value: str, hint: str) -> None:
    with pytest.raises(InvalidConfigError, match=hint) as caught:
        LogConfig.from_properties({key: value})
    assert caught.value.key == key  # type: ignore[attr-defined]
    assert key in str(caught.value)


def test_settings_that_contradict_each_other_are_named_both() -> None:
    LogConfig.from_properties({"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 10}).check()
    with pytest.raises(InvalidConfigError, match=r"min\.compaction\.lag\.ms=11 .* max\.compaction\.lag\.ms=10"):
        LogConfig.from_properties({"min.compaction.lag.ms": 11, "max.compaction.lag.ms": 10}).check()


def test_values_may_be_given_as_python_ones() -> None:
    config = LogConfig.from_properties(
        {"retention.ms": 5, "unclean.leader.election.enable": True, "cleanup.policy": ["delete", "compact"]}
    )
    assert (config.retention_ms, config.unclean_leader_election_enable) == (5, True)
    assert config.is_compacted


@given(st.integers(14, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_a_batch_may_fill_a_segment_but_no_more(segment_bytes: int, message_bytes: int) -> None:
    config = LogConfig.from_properties({"segment.bytes": segment_bytes, "max.message.bytes": message_bytes})
    assert config.batch_bytes_max == min(segment_bytes, message_bytes)


def test_properties_survive_a_round_trip() -> None:
    config = LogConfig.from_properties({"cleanup.policy": " compact , delete ", "segment.ms": "60000"})
    assert LogConfig.from_properties(config.to_properties()) == config
    for written, kept in ((" delete , compact ", "delete,compact"), ("compact,,compact", "compact"), ("", "")):
        assert canonical_properties({"cleanup.policy": written}) == {"cleanup.policy": kept}
        copied = pickle.loads(pickle.dumps(LogConfig.from_properties({"cleanup.policy": written})))
        assert copied.to_properties()["cleanup.policy"] == kept
    assert pickle.loads(pickle.dumps(config)) == config
