"""Connections by their addresses: how many, and how fast they come."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.network import admission
from replication.network import arrivals as arrivals_module
from replication.network.arrivals import TURN_MS_MAX, Arrivals, ArrivalSettings, Fate, ListenerLimits
from replication.network.throttle import Throttle
from replication.protocol.apis import ApiKey
from replication.security.quotas import ANY, Entity, Limits, Quota
from replication.security.rates import QuotaWindows, Window
from tests.support.peer import LIST_GROUPS, Peer, groups, run, serving, settled, until

WINDOW = Window(11, 1000)


def arrivals_of(rates=(), **settings):
    limits = Limits()
    for ip, rate in rates:
        limits.put(Entity(ip=ip), {Quota.CONNECTIONS: rate})
    return Arrivals(limits, WINDOW, ArrivalSettings(**settings))


@given(st.lists(st.tuples(st.sampled_from(["10.0.0.1", "::ffff:10.0.0.1", "::1", "10.0.0.2"]), st.booleans())))
def test_an_address_has_no_more_connections_than_it_may(events):
    arrivals = arrivals_of(
        max_connections_per_ip=2, max_connections_per_ip_overrides=frozenset({"::1:1", "10.0.0.2:0"})
    )
    most, here = {"10.0.0.1": 2, "::1": 1, "10.0.0.2": 0}, {"10.0.0.1": 0, "::1": 0, "10.0.0.2": 0}
    for host, comes in events:
        address = host.removeprefix("::ffff:")
        if comes:
            found = arrivals.arrive(host, 0)
            assert (found.fate is Fate.SERVED) == (here[address] < most[address])
            here[address] += found.fate is Fate.SERVED
        elif here[address]:
            arrivals.leave(host)
            here[address] -= 1


def test_localhost_is_an_address_of_overrides():
    arrivals = arrivals_of(max_connections_per_ip_overrides=frozenset({"localhost:1"}))
    for host in ("127.0.0.1", "::1"):
        assert [arrivals.arrive(host, 0).fate for _ in range(2)] == [Fate.SERVED, Fate.CLOSED]


def test_connections_that_come_too_fast_from_an_address_are_closed_and_others_are_served():
    arrivals = arrivals_of([("10.0.0.1", 2)])
    found = [arrivals.arrive("10.0.0.1", 0) for _ in range(25)]
    assert [each.fate for each in found] == [Fate.SERVED] * 20 + [Fate.CLOSED] * 5
    assert {each.wait_ms for each in found[20:]} == {500}
    assert arrivals.arrive("10.0.0.2", 0).fate is Fate.SERVED
    assert arrivals.arrive("10.0.0.1", 11_000).fate is Fate.SERVED


def test_a_default_counts_for_each_address_by_itself():
    arrivals = arrivals_of([(ANY, 1), ("10.0.0.9", 3)])
    for host, most in (("10.0.0.1", 10), ("10.0.0.2", 10), ("10.0.0.9", 30)):
        assert sum(arrivals.arrive(host, 0).fate is Fate.SERVED for _ in range(50)) == most


def test_connections_are_served_in_their_turn():
    arrivals = arrivals_of(max_connection_creation_rate=2)
    waits = [arrivals.arrive("h", 0).wait_ms for _ in range(30)]
    assert waits[:20] == [0] * 20
    assert waits[20] == 500
    assert waits == sorted(waits)


def test_a_connection_whose_turn_is_too_late_is_closed_and_takes_no_turn():
    arrivals = arrivals_of(max_connection_creation_rate=1)
    found = [arrivals.arrive("h", 0) for _ in range(40)]
    served = [each.wait_ms for each in found if each.fate is Fate.SERVED]
    assert max(served) == TURN_MS_MAX
    late = found[len(served) :]
    assert {(each.fate, each.wait_ms) for each in late} == {(Fate.CLOSED, 0)}
    assert arrivals.arrive("h", 2000).wait_ms <= TURN_MS_MAX


def test_few_addresses_are_kept(monkeypatch):
    monkeypatch.setattr(arrivals_module, "ADDRESSES_KEPT", 3)
    arrivals = arrivals_of([(ANY, 1)])
    assert sum(arrivals.arrive("10.0.0.0", 0).fate is Fate.SERVED for _ in range(20)) == 10
    for number in range(1, 4):
        arrivals.arrive(f"10.0.0.{number}", 0)
    assert arrivals.arrive("10.0.0.0", 0).fate is Fate.SERVED  # it came first, and is forgotten
    assert arrivals.arrive("10.0.0.3", 0).fate is Fate.SERVED


@given(st.lists(st.integers(0, 2000), max_size=120), st.integers(1, 20))
def test_no_more_connections_are_served_than_the_rate_allows(pauses_ms, rate):
    arrivals, now_ms, served = arrivals_of(max_connection_creation_rate=rate), 0, []
    for pause_ms in pauses_ms:
        now_ms += pause_ms
        fate, wait_ms, _ = arrivals.arrive("h", now_ms)
        if fate is Fate.SERVED:
            assert wait_ms <= TURN_MS_MAX
            served.append(now_ms + wait_ms)
    assert served == sorted(served)
    for at, first_ms in enumerate(served):
        within = [each for each in served[at:] if each - first_ms <= 10_000]
        assert len(within) <= rate * 21 + 1


def test_a_setting_counts_from_now_on():
    arrivals = arrivals_of()
    assert [arrivals.arrive("h", 0).fate for _ in range(3)] == [Fate.SERVED] * 3
    arrivals.limit(ArrivalSettings(max_connections_per_ip=3))
    assert arrivals.arrive("h", 0).fate is Fate.CLOSED
    arrivals.leave("h")
    assert arrivals.arrive("h", 0).fate is Fate.SERVED


def test_listeners_have_numbers_and_rates_of_their_own():
    limits = {"A": ListenerLimits(2), "B": ListenerLimits(per_second=1)}
    arrivals = arrivals_of(of_listeners=limits)
    assert [arrivals.arrive("h", 0, "A").fate for _ in range(3)] == [Fate.SERVED, Fate.SERVED, Fate.CLOSED]
    arrivals.leave("h", "A")
    assert arrivals.arrive("h", 0, "A").fate is Fate.SERVED
    waits = [arrivals.arrive("h", 0, "B").wait_ms for _ in range(12)]
    assert waits[:10] == [0] * 10
    assert 0 < waits[10] < waits[11]
    assert arrivals.arrive("h", 0, "C") == (Fate.SERVED, 0, "")


def test_the_rate_of_a_broker_is_not_that_of_the_listener_of_brokers():
    arrivals = arrivals_of(max_connection_creation_rate=1, apart="OWN")
    waits = [arrivals.arrive("h", 0, name).wait_ms for name in ["CLIENTS"] * 12 + ["OWN"] * 12]
    assert waits[11] > 0
    assert waits[12:] == [0] * 12


# ------------------------------------------------------------------ at a server


def test_a_server_turns_connections_away_by_their_address(caplog):
    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups}) as (server, port):
            server.admission.arrivals.limit(ArrivalSettings(max_connections_per_ip=2))
            first, second = await Peer.connect(port), await Peer.connect(port)
            for _ in range(3):
                assert await (await Peer.connect(port)).is_closed()
            assert (server.admission.refused, len(caplog.records)) == (3, 1)
            first.close()
            await until(lambda: len(server.connections) == 1)
            late = await Peer.connect(port)
            for peer in (second, late):
                peer.send(*LIST_GROUPS)
                assert await peer.answered() == 1

    run(main())


def test_a_connection_that_came_too_fast_is_closed_after_a_while_and_takes_nobodys_place(caplog):
    throttle = Throttle(QuotaWindows(quota_window_num=2))
    throttle.put(Entity(ip="127.0.0.1"), {Quota.CONNECTIONS: 2})

    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups}, throttle=throttle, max_connections=3) as (server, port):
            here = [await Peer.connect(port) for _ in range(2)]
            begin_s = time.monotonic()
            away = await Peer.connect(port)
            away.send(*LIST_GROUPS)
            await settled()
            assert len(server.connections) == 2
            assert await away.is_closed()
            assert time.monotonic() - begin_s > 0.3
            for peer in here:
                peer.send(*LIST_GROUPS)
                assert await peer.answered() == 1

    run(main())
    assert len(caplog.records) == 1


def test_few_connections_are_closed_only_after_a_while(monkeypatch):
    monkeypatch.setattr(admission, "TURNED_AWAY_MAX", 1)
    throttle = Throttle(QuotaWindows(quota_window_num=2))
    throttle.put(Entity(ip="127.0.0.1"), {Quota.CONNECTIONS: 1})

    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups}, throttle=throttle) as (_, port):
            await Peer.connect(port)
            later, at_once = await Peer.connect(port), await Peer.connect(port)
            assert await at_once.is_closed()
            assert not later.reader.at_eof()
            assert await later.is_closed()

    run(main())


@pytest.mark.parametrize("is_early", [True, False])
def test_a_connection_is_read_when_its_turn_comes(is_early):
    throttle = Throttle(QuotaWindows(quota_window_num=2))

    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups}, throttle=throttle) as (server, port):
            server.admission.arrivals.limit(ArrivalSettings(max_connection_creation_rate=2))
            for _ in range(2):
                peer = await Peer.connect(port)
                peer.send(*LIST_GROUPS)
                assert await peer.answered() == 1
            begin_s = time.monotonic()
            late = await Peer.connect(port)
            if not is_early:
                await settled()
            for _ in range(3):
                late.send(*LIST_GROUPS)
            assert [await late.answered() for _ in range(3)] == [1, 2, 3]
            assert 0.4 < time.monotonic() - begin_s < 2

    run(main())
