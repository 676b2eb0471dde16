"""Settings of groups: their own, within the bounds of the broker, and else the broker's."""

import pytest

from logstore.errors import InvalidConfigError
from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfigs


def configs(**given):
    return GroupConfigs(BrokerConfig.from_properties({key.replace("_", "."): value for key, value in given.items()}))


def test_a_group_has_its_own_settings_and_all_others_have_the_brokers():
    known = configs(group_share_record_lock_duration_ms=20_000)
    known.change("g", {"share.session.timeout.ms": "50000", "share.isolation.level": "read_committed"})
    own, other = known.of("g"), known.of("h")
    assert (own.share_session_timeout_ms, own.share_isolation_level) == (50_000, "read_committed")
    assert (other.share_session_timeout_ms, other.share_isolation_level) == (45_000, "read_uncommitted")
    assert own.share_record_lock_duration_ms == other.share_record_lock_duration_ms == 20_000
    assert (known.given("h"), known.names()) == ({}, ["g"])
    known.change("g", {})
    assert (known.of("g"), known.names()) == (known.default, [])


def test_the_bounds_are_those_of_the_broker_and_are_named():
    known = configs(group_share_max_session_timeout_ms=70_000)
    known.check({"share.session.timeout.ms": "70000"})
    with pytest.raises(InvalidConfigError, match=r"between 45000 \(group.share.min.session.timeout.ms\) and 70000"):
        known.check({"share.session.timeout.ms": "70001"})
    with pytest.raises(InvalidConfigError, match=r"consumer.session.timeout.ms must be greater than"):
        configs(group_consumer_min_session_timeout_ms=5000).check({"consumer.session.timeout.ms": "5000"})


def test_what_another_broker_allowed_is_brought_within_the_bounds_of_this_one():
    known = configs()
    known.change("g", {"share.session.timeout.ms": "999999", "share.delivery.count.limit": "25"})
    assert (known.of("g").share_session_timeout_ms, known.of("g").share_delivery_count_limit) == (60_000, 10)


@pytest.mark.parametrize(
    ("broker", "says"),
    [
        ({"group_consumer_session_timeout_ms": 6000}, "45000 .group.consumer.min.session.timeout.ms. and 60000"),
        ({"group_share_delivery_count_limit": 5, "group_share_max_delivery_count_limit": 5}, None),
        ({"group_share_delivery_count_limit": 6, "group_share_max_delivery_count_limit": 5}, "share.delivery"),
        (
            {"group_share_session_timeout_ms": 5000, "group_share_min_session_timeout_ms": 1},
            "share.session.timeout.ms must be greater than share.heartbeat.interval.ms",
        ),
    ],
)
def test_a_broker_whose_defaults_are_out_of_its_bounds_does_not_start(broker, says):
    if says is None:
        configs(**broker)
        return
    with pytest.raises(InvalidConfigError, match=says):
        configs(**broker)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("share.session.timeout", "did you mean 'share.session.timeout.ms'"),
        ("streams.num.standby.replicas", "streams groups .* are not served"),
        ("errors.deadletterqueue.topic.names", "did you mean 'errors.deadletterqueue.topic.name'"),
        ("share.assignment.interval.ms", "targets are made at once"),
        ("share.assignor.offload.enable", "assignors run where"),
    ],
)
def test_what_is_none_is_refused_with_a_hint(key, says):
    with pytest.raises(InvalidConfigError, match=says):
        configs().check({key: "1"})


@pytest.mark.parametrize(
    ("text", "reset_ms"),
    [
        ("earliest", None),
        ("latest", None),
        ("by_duration:PT0S", 0),
        ("by_duration:P1DT2H3M4.567S", 93_784_567),
        ("by_duration:pt1.5s", 1500),
        ("by_duration:P2D", 172_800_000),
    ],
)
def test_where_a_share_group_begins(text, reset_ms):
    known = configs()
    known.change("g", {"share.auto.offset.reset": text})
    assert known.of("g").reset_ms == reset_ms


@pytest.mark.parametrize(
    "text", ["none", "", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:-PT1S", "PT1S"]
)
def test_it_begins_nowhere_else(text):
    with pytest.raises(InvalidConfigError, match=r"share\.auto\.offset\.reset="):
        configs().check({"share.auto.offset.reset": text})
