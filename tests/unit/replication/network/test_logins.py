"""Listeners where clients log in: nothing is served before; all that is wrong ends with one line, within bounds."""

import asyncio
import gc
import logging
import random
import struct
import weakref

import pytest

from replication.network import admission, connection
from replication.network.authentication import AuthenticationError
from replication.network.client import Client
from replication.network.gate import Gate
from replication.network.pipeline import Endpoint, no_needs
from replication.network.security import Security
from replication.protocol.apis import ApiKey
from replication.security import scram
from tests.support.gates import ADA, SECRET, WHOSE, Known, log_in, name_of, one_line, sasl_gate
from tests.support.peer import LIST_GROUPS, PATIENCE_S, Peer, run, serving, until

ILLEGAL_STATE, UNSUPPORTED_MECHANISM, FAILED = 34, 33, 58


def test_who_logs_in_is_known_by_that_name():
    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (server, port):
            peer = await Peer.connect(port)
            assert (await log_in(peer)).error_code == 0
            assert await name_of(peer) == ADA
            assert not server.admission.strangers

    run(main())


def test_our_client_logs_in_by_each_mechanism():
    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (_, port):
            for mechanism in ("PLAIN", "SCRAM-SHA-256"):
                security = Security(mechanism=mechanism, username=ADA, password="secret")
                client = Client("127.0.0.1", port, "me", timeout_ms=5000, security=security, asks_versions=True)
                assert (await client.call(*LIST_GROUPS[::2])).groups[0].group_id == ADA
                client.close()

    run(main())


@pytest.mark.parametrize("request_", [LIST_GROUPS, (ApiKey.METADATA, 1, {"topics": []})], ids=["served", "unknown"])
def test_nothing_is_served_before_a_login(request_, caplog):
    def serve(context, body):
        raise AssertionError("it was served")

    async def main():
        async with serving({ApiKey.LIST_GROUPS: serve}, gate=sasl_gate()) as (_, port):
            peer = await Peer.connect(port)
            assert (await peer.ask(ApiKey.API_VERSIONS, 0, {})).api_keys
            peer.send(*request_)
            assert await peer.is_closed()

    run(main())
    one_line(caplog, f"API key {request_[0]} is refused: it has not logged in")


@pytest.mark.parametrize(("username", "password"), [(ADA, "wrong"), ("nobody", "secret")])
def test_a_wrong_login_is_answered_once_and_ends(username, password, caplog):
    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (_, port):
            peer = await Peer.connect(port)
            answer = await log_in(peer, f"\0{username}\0{password}")
            assert (answer.error_code, answer.error_message) == (
                FAILED,
                "Authentication failed: Invalid username or password",
            )
            assert await peer.is_closed()

    run(main())
    assert len(caplog.records) == 1
    assert "login refused (PLAIN)" in caplog.text
    assert "wrong" not in caplog.text.replace("login refused", "")


def test_nothing_is_served_behind_a_login_that_was_refused(caplog):
    """A good login and a request that come while the answer waits are nobody's."""

    async def main():
        gate = sasl_gate()
        gate.failure_delay_ms = 200
        async with serving(WHOSE, gate=gate) as (_, port):
            peer = await Peer.connect(port)
            peer.send(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"})
            peer.send(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
            peer.send(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0ada\0secret"})
            peer.send(*LIST_GROUPS)
            assert await peer.frame() is not None
            assert await peer.frame() is None

    run(main())
    one_line(caplog, "login refused (unknown mechanism)")


def test_logins_that_are_refused_hold_up_nobody():
    """The answers wait without a place among the requests that are in work."""

    async def main():
        gate = sasl_gate()
        gate.failure_delay_ms = 60_000
        async with serving(WHOSE, gate=gate, queued_max_requests=5) as (server, port):
            known = await Peer.connect(port)
            await log_in(known)
            guessing = [await Peer.connect(port) for _ in range(20)]
            for peer in guessing:
                await peer.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
                peer.send(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0ada\0wrong"})
            await until(lambda: sum(bool(each.login.has_failed) for each in server.connections) == 20)
            assert server.admission.in_work == 0
            assert await asyncio.wait_for(name_of(known), PATIENCE_S) == ADA
            for peer in guessing:
                peer.close()

    run(main())


def test_before_a_login_few_frames_are_in_memory():
    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (server, port):
            peer = await Peer.connect(port)
            await until(lambda: server.connections)
            (client,) = server.connections
            assert len(client.get_buffer(-1)) <= 4096  # of which every frame is held until its turn
            peer.writer.write(struct.pack(">ihhih", 10, 18, 0, 1, -1) * 2000)
            for _ in range(2000):
                assert await peer.answered() == 1
            await log_in(peer)
            assert len(client.get_buffer(-1)) > 64 * 1024

    run(main())


def test_who_goes_before_a_login_is_not_remembered():
    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (server, port):
            peer = await Peer.connect(port)
            await until(lambda: server.connections)
            gone = weakref.ref(next(iter(server.connections)))
            peer.close()
            await until(lambda: not server.connections)
            await until(lambda: gc.collect() >= 0 and gone() is None)

    run(main())


def test_a_mechanism_that_is_not_offered_is_answered_with_those_that_are():
    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (_, port):
            peer = await Peer.connect(port)
            answer = await peer.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"})
            assert answer.error_code == UNSUPPORTED_MECHANISM
            assert answer.mechanisms == ("PLAIN", "SCRAM-SHA-256")
            assert await peer.is_closed()

    run(main())


def test_messages_without_requests_around_them_follow_version_0_of_a_handshake():
    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (_, port):
            peer = await Peer.connect(port)
            answer = await peer.ask(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
            assert answer.error_code == 0
            peer.writer.write(struct.pack(">i", 11) + b"\0ada\0secret")
            assert await peer.frame() == b""
            assert await name_of(peer) == ADA
            await peer.ask(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
            assert await name_of(peer) == ADA  # who is known goes on in requests
            peer = await Peer.connect(port)
            exchange = scram.Exchange("SCRAM-SHA-256", ADA, "secret", "nonce")
            await peer.ask(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "SCRAM-SHA-256"})
            peer.writer.write(struct.pack(">i", len(exchange.first)) + exchange.first)
            final = exchange.final(await peer.frame())
            peer.writer.write(struct.pack(">i", len(final)) + final)
            exchange.check(await peer.frame())
            assert await name_of(peer) == ADA
            for wrong in (b"\0ada\0wrong", b"xx"):
                peer = await Peer.connect(port)
                await peer.ask(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
                peer.writer.write(struct.pack(">i", len(wrong)) + wrong)
                assert await peer.frame() is None

    run(main())


@pytest.mark.parametrize(
    ("size", "key"), [(64 * 1024 + 1, 36), (100 << 20, 36), (64 * 1024 + 1, 0), (1, 36), (0, 36), (-1, 36)]
)
def test_giant_and_tiny_frames_before_a_login_end_it_at_once(size, key, caplog):
    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (server, port):
            peer = await Peer.connect(port)
            peer.writer.write(struct.pack(">i", size) + struct.pack(">hhi", key, 2, 1))
            assert await peer.is_closed()
            assert server.admission.held_bytes == 0

    run(main())
    one_line(caplog, f"a request of {size} bytes")


def test_large_requests_are_taken_after_a_login():
    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (_, port):
            peer = await Peer.connect(port)
            await log_in(peer)
            peer.writer.write(struct.pack(">i", 70_000) + struct.pack(">hhih", 16, 0, 9, -1) + bytes(69_990))
            assert await name_of(peer) == ADA if await peer.answered() == 9 else False

    run(main())


def test_who_does_not_log_in_in_time_goes(monkeypatch, caplog):
    monkeypatch.setattr(connection, "LOGIN_S", 0.2)

    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (server, port):
            slow, known = await Peer.connect(port), await Peer.connect(port)
            await log_in(known)
            slow.writer.write(b"\0")
            assert await slow.is_closed()
            assert not server.admission.strangers
            assert await name_of(known) == ADA

    run(main())
    one_line(caplog, "no login within 0.2 s")


def test_the_oldest_of_too_many_strangers_gives_way_and_who_is_known_stays(monkeypatch, caplog):
    monkeypatch.setattr(admission, "STRANGERS_MAX", 20)

    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (server, port):
            known = await Peer.connect(port)
            await log_in(known)
            flood = [await Peer.connect(port) for _ in range(50)]
            for oldest in flood[:30]:
                assert await oldest.is_closed()
            assert len(server.admission.strangers) == 20
            assert server.admission.given_way == 30
            others = await asyncio.gather(*(Peer.connect(port) for _ in range(20)))  # in one turn
            await until(lambda: server.admission.given_way == 50)
            assert len(server.admission.strangers) == len(others)
            latest = await Peer.connect(port)
            assert (await log_in(latest)).error_code == 0
            assert await name_of(known) == ADA

    run(main())
    one_line(caplog, "connections=20 have not logged in")


def test_a_login_holds_for_a_while_and_is_renewed_in_place(caplog):
    async def main():
        async with serving(WHOSE, gate=sasl_gate(reauth_ms=400)) as (_, port):
            late, renewing = await Peer.connect(port), await Peer.connect(port)
            answer = await log_in(renewing)
            assert answer.session_lifetime.total_seconds() == 0.4
            await log_in(late)
            end = asyncio.get_running_loop().time() + 0.8
            while asyncio.get_running_loop().time() < end:
                await asyncio.sleep(0.1)
                assert (await log_in(renewing)).error_code == 0
                assert await name_of(renewing) == ADA
            late.send(*LIST_GROUPS)
            assert await late.is_closed()

    run(main())
    one_line(caplog, "is refused: its login has ended")


def test_a_login_again_as_somebody_else_ends_the_connection(caplog):
    class Two(Known):
        def password(self, username):
            return b"secret"

    async def main():
        async with serving(WHOSE, gate=Gate("SASL", True, ("PLAIN",), Two())) as (_, port):
            peer = await Peer.connect(port)
            await log_in(peer)
            await peer.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
            peer.send(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0bob\0secret"})
            assert await peer.is_closed()

    run(main())
    one_line(caplog, "of the same user")


def test_brokers_prove_themselves_where_nobody_logs_in():
    async def main():
        async with serving(WHOSE, gate=Gate(known=Known())) as (_, port):
            security = Security(broker=7, secret=SECRET)
            client = Client("127.0.0.1", port, "me", timeout_ms=5000, security=security)
            assert (await client.call(*LIST_GROUPS[::2])).groups[0].group_id == "7"
            client.close()
            stranger = Client("127.0.0.1", port, "me", timeout_ms=5000, security=Security(broker=7, secret=b"x" * 32))
            with pytest.raises(ConnectionRefusedError, match="is no broker of this cluster"):
                await stranger.call(*LIST_GROUPS[::2])
            stranger.close()
            peer = await Peer.connect(port)
            answer = await peer.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
            assert answer.error_code == ILLEGAL_STATE
            assert await name_of(peer) == "ANONYMOUS"

    run(main())


def test_from_the_level_on_a_port_that_cannot_prove_anything_is_no_broker():
    async def main():
        async with serving(WHOSE) as (server, port):
            rows = [{"api_key": key, "min_version": 0, "max_version": 0} for key in (18, int(ApiKey.LIST_GROUPS))]
            old = Endpoint(no_needs, lambda work, body: (0, {"error_code": 0, "api_keys": rows}))
            server.pipeline.endpoints[ApiKey.API_VERSIONS] = old
            for must_prove in (False, True):
                security = Security(broker=7, secret=SECRET, must_prove=must_prove)
                client = Client("127.0.0.1", port, "me", timeout_ms=5000, security=security)
                if must_prove:
                    with pytest.raises(ConnectionRefusedError, match="does not prove that it is a broker"):
                        await client.call(*LIST_GROUPS[::2])
                else:
                    assert (await client.call(*LIST_GROUPS[::2])).groups[0].group_id == "ANONYMOUS"
                client.close()

    run(main())


def test_our_client_is_told_that_a_listener_asks_for_a_name():
    async def main():
        async with serving(WHOSE, gate=sasl_gate()) as (_, port):
            client = Client("127.0.0.1", port, "me", timeout_ms=5000, asks_versions=True)
            with pytest.raises(AuthenticationError, match="asks for a name"):
                await client.call(*LIST_GROUPS[::2])
            client.close()

    run(main())


def random_begin(random):
    """Frames as a hostile client may begin with: of logins and of others, whole, cut and changed."""
    made = []
    for _ in range(random.randrange(1, 5)):
        key = random.choice((*connection.LOGINS, *connection.LOGINS, 0, 3, 16, random.randrange(1 << 16)))
        head = struct.pack(">HHih", key, random.randrange(4), 1, random.choice((-1, 0, 3)))
        scram_first = struct.pack(">i", 12) + b"n,,n=ada,r=x"
        body = random.choice((b"\0\5PLAIN", b"\0\x0dSCRAM-SHA-256", b"\0\x0cPYLOG-BROKER", scram_first, b""))
        frame = bytearray(head + body + random.randbytes(random.choice((0, 0, 1, 40, 5000))))
        for _ in range(random.choice((0, 0, 1, 3))):
            frame[random.randrange(len(frame))] = random.randrange(256)
        size = random.choice((len(frame),) * 5 + (random.randrange(-5, 70_000),))
        made.append(struct.pack(">i", size) + frame)
    return b"".join(made)


def test_whatever_a_stranger_sends_is_served_to_nobody_and_is_no_error_here(caplog):
    def serve(context, body):
        raise AssertionError("it was served")

    async def main():
        async with serving({ApiKey.LIST_GROUPS: serve, ApiKey.METADATA: serve}, gate=sasl_gate()) as (server, port):
            known = random.Random(37)
            for _ in range(300):
                peer = await Peer.connect(port)
                peer.writer.write(random_begin(known))
                peer.writer.write_eof()
                await peer.is_closed()
            await until(lambda: not server.connections)
            assert not server.admission.strangers
            assert (server.admission.in_work, server.admission.held_bytes) == (0, 0)

    run(main())
    assert not [record for record in caplog.records if record.levelno > logging.WARNING], caplog.text
