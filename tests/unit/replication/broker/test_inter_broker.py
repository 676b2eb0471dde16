"""Requests between brokers are for brokers alone; everything else is another authorizer's."""

from types import SimpleNamespace

import pytest

from replication.broker.inter_broker import BETWEEN_BROKERS, Guard
from replication.broker.needs import needs_of
from replication.model.features import PROVED_BROKERS
from replication.model.metadata import Metadata
from replication.protocol.apis import SERVED, ApiKey
from replication.security.access import NOTHING, Context, Operation, Principal, of_cluster

NEED = of_cluster(Operation.CLUSTER_ACTION)
STRANGER = Context("h", 1, listener="INSIDE")
BROKER = Context("h", 1, Principal("7", "Broker"), "OUTSIDE")
ADMIN = Principal("admin")


class Grants:
    """An authorizer that grants everything to one user, and remembers that it was asked."""

    has_rights = True

    def __init__(self):
        self.asked = 0

    def refused(self, context, needs, request):
        self.asked += 1
        return NOTHING if context.principal == ADMIN else frozenset(needs(request))


def request(key, **body):
    return SimpleNamespace(key=key, version=key.versions.last, body=SimpleNamespace(**body))


def order(key=ApiKey.LEADER_AND_ISR):
    return request(key, replica_id=1, key_type=2)


def refused(guard, context, asked, needs=(NEED,)):
    return guard.refused(context, lambda each: needs, asked)


def guard(level=PROVED_BROKERS, **options):
    return Guard(lambda: level, "INSIDE", **options)


@pytest.mark.parametrize("key", sorted(BETWEEN_BROKERS), ids=lambda key: key.name)
def test_only_brokers_give_orders(key):
    assert refused(guard(), STRANGER, order(key)) == (NEED,)
    assert refused(guard(), BROKER, order(key)) == NOTHING


def test_below_the_level_brokers_of_the_release_before_are_obeyed():
    assert refused(guard(PROVED_BROKERS - 1), STRANGER, order()) == NOTHING


def test_below_the_level_rights_count_where_there_are_any():
    assert refused(guard(PROVED_BROKERS - 1, inner=Grants()), STRANGER, order()) == {NEED}
    assert refused(guard(PROVED_BROKERS - 1, inner=Grants()), BROKER, order()) == NOTHING


@pytest.mark.parametrize("replica", [-1, -2, -(2**31)])
def test_consumers_read(replica):
    assert refused(guard(), STRANGER, request(ApiKey.FETCH, replica_id=replica), ()) == NOTHING


def test_nobody_reads_as_a_replica_by_any_of_its_numbers():
    needs = needs_of(Metadata())[ApiKey.FETCH]
    for replica in (0, 1, 2**31 - 1):
        asked = request(ApiKey.FETCH, replica_id=replica, topics=())
        assert guard().refused(STRANGER, needs, asked) == (NEED,)


def test_what_needs_no_right_of_a_broker_is_everybodys():
    assert refused(guard(), STRANGER, request(ApiKey.FIND_COORDINATOR), ()) == NOTHING
    assert not guard().has_rights
    assert guard(inner=Grants()).has_rights


def test_a_user_as_whom_brokers_log_in_is_one_where_brokers_meet():
    guarding = guard(brokers=(ADMIN,))
    inside, outside = (Context("h", 1, ADMIN, name) for name in ("INSIDE", "OUTSIDE"))
    assert refused(guarding, inside, order()) == NOTHING
    assert refused(guarding, outside, order()) == (NEED,)


def test_another_authorizer_decides_about_users_where_brokers_meet():
    inner = Grants()
    guarding = guard(inner=inner)
    inside, outside = (Context("h", 1, ADMIN, name) for name in ("INSIDE", "OUTSIDE"))
    assert refused(guarding, inside, order()) == NOTHING
    assert refused(guarding, STRANGER, order()) == {NEED}
    assert refused(guarding, outside, order()) == (NEED,)
    assert inner.asked == 2
    assert refused(guarding, BROKER, order()) == NOTHING
    assert refused(guarding, STRANGER, request(ApiKey.METADATA)) == {NEED}
    assert refused(guarding, STRANGER, ("names", "of", "topics")) == {NEED}


def test_every_api_that_always_needs_the_right_of_a_broker_is_between_brokers():
    needs = needs_of(Metadata())
    constant = [key for key in SERVED if getattr(needs.get(key), "__name__", "") == "<lambda>"]
    always = {key for key in constant if needs[key](None) == (NEED,)}
    assert ApiKey.LEADER_AND_ISR in always
    assert always - {ApiKey.WRITE_TXN_MARKERS} <= BETWEEN_BROKERS
    assert ApiKey.WRITE_TXN_MARKERS not in BETWEEN_BROKERS
