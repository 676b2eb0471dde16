"""Quotas: the order in which they count beside a list of Kafka's eight levels, and the values that they take."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.security.quotas import (
    ANY,
    Entity,
    Filter,
    Limits,
    Quota,
    check_value,
    entity_of,
    format_quota,
    quota_of,
    values_of,
)

OF_CLIENTS = [quota for quota in Quota if quota is not Quota.CONNECTIONS]
names = st.sampled_from(["a", "b", ANY])
entities = st.one_of(
    names.map(Entity),
    st.tuples(names, names).map(lambda both: Entity(*both)),
    names.map(lambda name: Entity(None, name)),
)
many = st.dictionaries(
    entities, st.dictionaries(st.sampled_from(OF_CLIENTS), st.integers(1, 99), max_size=3), max_size=10
)


def limits_of(given):
    limits = Limits()
    for entity, values in given.items():
        limits.put(entity, values)
    return limits


def by_levels(given, quota, user, client_id):
    """The rate, and whether users and client ids are counted apart: the eight levels, one below the other."""
    for entity, of_user, of_client in [
        (Entity(user, client_id), True, True),
        (Entity(user, ANY), True, True),
        (Entity(user), True, False),
        (Entity(ANY, client_id), True, True),
        (Entity(ANY, ANY), True, True),
        (Entity(ANY), True, False),
        (Entity(None, client_id), False, True),
        (Entity(None, ANY), False, True),
    ]:
        if quota in given.get(entity, {}):
            return given[entity][quota], (user if of_user else None, client_id if of_client else None)
    return None


@given(many, st.sampled_from(OF_CLIENTS), st.sampled_from(["a", "b", "c"]), st.sampled_from(["a", "b", "c"]))
def test_the_first_of_eight_levels_counts(given, quota, user, client_id):
    found = limits_of(given).of(quota, user, client_id)
    assert (None if found is None else (found.rate, tuple(found.sharer))) == by_levels(given, quota, user, client_id)


@given(many, many, st.sampled_from(OF_CLIENTS))
def test_what_was_given_before_leaves_nothing_behind(before, after, quota):
    limits = limits_of(before)
    for entity in before.keys() - after.keys():
        limits.put(entity, {})
    for entity, values in after.items():
        limits.put(entity, values)
    assert limits.has(quota) == any(quota in values for values in after.values())
    for user in "abc":
        for client_id in "abc":
            assert limits.of(quota, user, client_id) == limits_of(after).of(quota, user, client_id)
    assert set(limits.entities()) == {entity for entity, values in after.items() if values}


def test_a_client_without_an_id_has_the_quotas_of_all_that_have_none_of_their_own():
    limits = limits_of({Entity("a", ANY): {Quota.PRODUCED: 5}, Entity(None, "x"): {Quota.PRODUCED: 7}})
    assert limits.of(Quota.PRODUCED, "a", "").rate == 5
    assert limits.of(Quota.PRODUCED, "b", "") is None


def test_long_names_share_nothing_and_are_not_kept():
    limits = limits_of({Entity(None, ANY): {Quota.PRODUCED: 5}})
    one, other = (limits.of(Quota.PRODUCED, "u", "x" * 30_000 + end).sharer for end in "ab")
    assert one != other
    assert len(one.client_id) < 200


@pytest.mark.parametrize(
    ("address", "expected"), [("10.0.0.1", 5), ("::ffff:10.0.0.1", 5), ("10.0.0.2", 9), ("0:0:0:0:0:0:0:1", 3)]
)
def test_an_address_is_the_same_however_it_is_written(address, expected):
    limits = Limits()
    for ip, rate in (("10.0.0.1", 5), ("::1", 3), (ANY, 9)):
        limits.put(Entity(ip=ip), {Quota.CONNECTIONS: rate})
    assert limits.of_address(address) == expected
    limits.put(Entity(ip=ANY), {})
    assert limits.of_address("10.0.0.2") is None


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"user": ""}, "Empty user not supported"),
        ({"group": "a"}, "Unhandled client quota entity type: group"),
        ({"ip": "1.2.3.4", "user": "a"}, "should not be combined"),
        ({"ip": "1.2.3"}, "is not a valid IP"),
        ({"ip": "example.org"}, "is not a valid IP"),
    ],
)
def test_what_is_no_entity_is_refused_in_kafkas_words(named, says):
    with pytest.raises(ValueError, match=says):
        entity_of(named)


def test_the_quotas_of_clients_and_of_addresses_are_others():
    assert entity_of({"user": None, "client-id": "c"}) == Entity(ANY, "c")
    for entity, other in ((Entity("a"), Quota.CONNECTIONS), (Entity(ip=ANY), Quota.PRODUCED)):
        with pytest.raises(ValueError, match="Invalid configuration key"):
            quota_of(entity, other)
    with pytest.raises(ValueError, match="Invalid configuration key"):
        quota_of(Entity("a"), "SCRAM-SHA-256")


@pytest.mark.parametrize(
    ("quota", "value", "says"),
    [
        (Quota.PRODUCED, 0, "must be greater than 0"),
        (Quota.REQUESTS, -1, "must be greater than 0"),
        (Quota.REQUESTS, math.nan, "must be greater than 0"),
        (Quota.MUTATIONS, math.inf, "must be greater than 0"),
        (Quota.CONSUMED, 1.5, "cannot be a fractional value"),
        (Quota.PRODUCED, 1e30, "too large for a LONG"),
        (Quota.CONNECTIONS, 2**31, "too large for an INT"),
    ],
)
def test_what_is_no_value_is_refused_in_kafkas_words(quota, value, says):
    with pytest.raises(ValueError, match=says):
        check_value(quota, value)


@given(st.sampled_from(Quota), st.floats(1e-3, 1e9))
def test_a_value_is_read_as_it_was_written(quota, value):
    value = value if quota in (Quota.REQUESTS, Quota.MUTATIONS) else float(max(1, int(value)))
    entity = Entity(ip=ANY) if quota is Quota.CONNECTIONS else Entity("a")
    assert values_of(entity, {quota.value: format_quota(quota, value), "SCRAM-SHA-256": "salt"}) == ({quota: value}, [])


def test_a_value_that_cannot_be_understood_does_not_count_and_is_named():
    values, wrong = values_of(Entity("a"), {"producer_byte_rate": "many", "consumer_byte_rate": "10", "other": "-"})
    assert values == {Quota.CONSUMED: 10}
    assert len(wrong) == 1
    assert "producer_byte_rate='many'" in wrong[0]


@given(
    st.dictionaries(st.sampled_from(["user", "client-id"]), st.sampled_from(["a", ANY, None]), max_size=2),
    st.booleans(),
    entities,
)
def test_a_filter_selects_by_each_of_its_parts(parts, is_strict, entity):
    """None: any name."""
    exact = {kind: name for kind, name in parts.items() if name is not None}
    wanted = Filter(exact, frozenset(kind for kind, name in parts.items() if name is None), is_strict)
    named = dict(zip(("user", "client-id"), entity[:2], strict=True))
    expected = all(named[kind] is not None and name in (None, named[kind]) for kind, name in parts.items())
    if is_strict:
        expected = expected and all((named[kind] is None) == (kind not in parts) for kind in named)
    assert wanted.selects(entity) == expected
