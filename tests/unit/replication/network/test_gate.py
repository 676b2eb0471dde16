"""Listeners with TLS and logins: nothing is served before; all that is wrong ends with one line, within bounds."""

import asyncio
import gc
import hashlib
import logging
import os
import random
import socket
import ssl
import struct
import time
import weakref

import pytest

from logstore.errors import InvalidConfigError
from replication.broker.tls import SUITES_OF_TLS_1_3, Contexts, pem, server_context
from replication.config.listener_settings import ListenerSettings
from replication.network import admission, connection, doorman
from replication.network.authentication import AuthenticationError
from replication.network.client import Client
from replication.network.gate import Gate
from replication.network.pipeline import Endpoint, no_needs
from replication.network.security import Security
from replication.protocol.apis import ApiKey
from replication.protocol.messages import FetchResponse, PartitionFetched, TopicFetched
from replication.security import scram
from replication.security.principals import parse_rules, principal_of
from tests.support.peer import LIST_GROUPS, PATIENCE_S, Peer, fetch, groups, run, serving, until
from tests.support.secured import PASSWORD, Certificates

ADA, SECRET = "ada", b"s" * 32
ILLEGAL_STATE, UNSUPPORTED_MECHANISM, FAILED = 34, 33, 58


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    made = Certificates.make(tmp_path_factory.mktemp("certificates"))
    for name in ("server", "elsewhere"):
        both = [(made.directory / f"{name}.{kind}").read_text() for kind in ("key", "pem")]
        (made.directory / f"{name}.both.pem").write_text("".join(both))
    return made


class Known:
    secret = SECRET

    def password(self, username):
        return b"secret" if username == ADA else None

    def credential(self, mechanism, username):
        if username != ADA:
            return scram.decoy(mechanism, SECRET, username)
        salted = hashlib.pbkdf2_hmac(scram.hash_of(mechanism), b"secret", b"salt", 4096)
        return scram.credential_of(mechanism, salted, b"salt", 4096)


def sasl_gate(**options):
    mechanisms = ("PLAIN", "SCRAM-SHA-256")
    return Gate("SASL", True, mechanisms, Known(), failure_delay_ms=1, **options)


def tls_gate(certificates, **settings):
    given = {"ssl_keystore_location": certificates / "server.both.pem", **settings}
    contexts = Contexts("SSL", ListenerSettings(**given))
    return Gate("SSL", tls=lambda: contexts.at(asyncio.get_running_loop().time()))


def trust(certificates):
    return ssl.create_default_context(cafile=certificates / "ca.pem")


def whose(context, body):
    """A handler that answers with the client's name."""
    name = context.origin.context.principal.name
    return {"error_code": 0, "groups": [{"group_id": name, "protocol_type": "", "group_state": "", "group_type": ""}]}


WHOSE = {ApiKey.LIST_GROUPS: whose}


async def name_of(peer):
    return (await peer.ask(*LIST_GROUPS)).groups[0].group_id


async def log_in(peer, token=f"\0{ADA}\0secret", mechanism="PLAIN"):
    answer = await peer.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    assert answer.error_code == 0
    return await peer.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token.encode()})


def one_line(caplog, part):
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1, caplog.text
    assert part in lines[0].getMessage()
    assert "secret" not in caplog.text


# ------------------------------------------------------------------ logins


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


# --------------------------------------------------------------------- TLS


def test_requests_through_tls_are_answered(certificates):
    async def main():
        async with serving(WHOSE, gate=tls_gate(certificates)) as (server, port):
            peer = await Peer.connect(port, ssl=trust(certificates), server_hostname="localhost")
            assert await name_of(peer) == "ANONYMOUS"
            assert not server.admission.strangers

    run(main())


def test_a_client_is_known_by_its_certificate(certificates):
    rules = parse_rules("RULE:^CN=(.*)$/$1/U")
    own = trust(certificates)
    own.load_cert_chain(certificates / "client.pem", certificates / "client.key", PASSWORD)

    async def main(auth):
        gate = tls_gate(certificates, ssl_client_auth=auth, ssl_truststore_location=certificates / "ca.pem")
        gate.principal_of = lambda certificate: principal_of(certificate, rules)
        async with serving(WHOSE, gate=gate) as (_, port):
            peer = await Peer.connect(port, ssl=own, server_hostname="localhost")
            assert await name_of(peer) == "CLIENT"
            peer = await Peer.connect(port, ssl=trust(certificates), server_hostname="localhost")
            if auth == "requested":
                assert await name_of(peer) == "ANONYMOUS"
            else:
                assert await peer.is_closed()

    run(main("requested"))
    run(main("required"))


def test_a_certificate_of_which_no_rule_says_anything_is_turned_away(certificates, caplog):
    async def main():
        gate = tls_gate(certificates, ssl_client_auth="requested", ssl_truststore_location=certificates / "ca.pem")
        gate.principal_of = lambda certificate: principal_of({"subject": ()}, parse_rules("RULE:a/b/"))
        async with serving(WHOSE, gate=gate) as (_, port):
            peer = await Peer.connect(port, ssl=trust(certificates), server_hostname="localhost")
            assert await peer.is_closed()

    run(main())
    one_line(caplog, "no rule of ssl.principal.mapping.rules")


@pytest.mark.parametrize(
    "sent", [struct.pack(">ihhih", 10, 18, 0, 1, -1), b"GET / HTTP/1.1\r\n\r\n", bytes(600), b"\x80" * 600]
)
def test_bytes_that_are_no_tls_end_with_one_line_at_once(certificates, sent, caplog):
    async def main():
        async with serving(WHOSE, gate=tls_gate(certificates)) as (server, port):
            peer = await Peer.connect(port)
            peer.writer.write(sent)
            assert await peer.is_closed()
            assert not server.admission.strangers

    run(main())
    one_line(caplog, "connection to listener SSL closed: TLS handshake")


def test_tls_where_none_is_spoken_ends_with_one_line_at_once(certificates, caplog):
    async def main():
        async with serving(WHOSE) as (_, port):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await Peer.connect(port, ssl=trust(certificates), server_hostname="localhost")

    run(main())
    one_line(caplog, "it speaks TLS, and this listener does not")


def test_half_handshakes_end_in_time_and_hold_nobody_up(certificates, monkeypatch, caplog):
    monkeypatch.setattr(doorman, "TLS_HANDSHAKE_S", 0.5)
    monkeypatch.setattr(admission, "STRANGERS_MAX", 30)

    async def main():
        async with serving(WHOSE, gate=tls_gate(certificates)) as (server, port):
            half = [await Peer.connect(port) for _ in range(60)]
            for peer in half:
                peer.writer.write(b"\x16\x03\x01\x02\x00\x01")
            served = await Peer.connect(port, ssl=trust(certificates), server_hostname="localhost")
            assert await name_of(served) == "ANONYMOUS"
            assert len(server.admission.strangers) <= 30
            for peer in half:
                assert await peer.is_closed()
            await until(lambda: not server.admission.strangers)
            assert await name_of(served) == "ANONYMOUS"

    run(main())
    assert "not done within 0.5 s" in caplog.text


def test_handshakes_take_places_of_connections(certificates, caplog):
    """So that logs always find a file descriptor."""

    async def main():
        async with serving(WHOSE, gate=tls_gate(certificates), max_connections=6) as (server, port):
            served = [await Peer.connect(port, ssl=trust(certificates), server_hostname="localhost") for _ in range(4)]
            half = [await Peer.connect(port) for _ in range(2)]
            await until(lambda: len(server.admission.strangers) == 2)
            assert await (await Peer.connect(port)).is_closed()
            assert len(server.admission.strangers) == 2
            half[0].close()
            await until(lambda: len(server.admission.strangers) == 1)
            served.append(await Peer.connect(port, ssl=trust(certificates), server_hostname="localhost"))
            for peer in served:
                assert await name_of(peer) == "ANONYMOUS"

    run(main())
    one_line(caplog, "connections=6 are all that there may be")


def test_who_goes_away_during_a_handshake_leaves_nothing_behind(certificates):
    async def main():
        async with serving(WHOSE, gate=tls_gate(certificates)) as (server, port):
            for sent in (b"", b"\x16\x03\x01"):
                peer = await Peer.connect(port)
                peer.writer.write(sent)
                await until(lambda: server.admission.strangers)
                peer.close()
            await until(lambda: not server.admission.strangers)
            assert not server.connections

    run(main())


def test_a_long_answer_through_tls_does_not_hold_the_loop_up(certificates):
    size = 64 << 20
    records = os.urandom(1 << 20) * (size >> 20)

    def answer(context, body):
        row = PartitionFetched(0, 0, records=records)
        return FetchResponse([TopicFetched("t", None, [row])])

    async def main():
        async with serving({ApiKey.FETCH: answer, ApiKey.LIST_GROUPS: groups}, gate=tls_gate(certificates)) as (
            _,
            port,
        ):
            peer = await asyncio.to_thread(reading, port, trust(certificates))
            other = await Peer.connect(port, ssl=trust(certificates), server_hostname="localhost")
            got = asyncio.create_task(asyncio.to_thread(asked, peer))
            worst_s, rounds = 0.0, 0
            while not got.done():
                begin = time.perf_counter()
                await other.ask(*LIST_GROUPS)
                worst_s, rounds = max(worst_s, time.perf_counter() - begin), rounds + 1
            assert await got >= size
            assert rounds > 5, worst_s

    run(main())


def reading(port, tls):
    """A client that reads in a thread of its own, as another process would."""
    return tls.wrap_socket(socket.create_connection(("127.0.0.1", port), PATIENCE_S), server_hostname="localhost")


def asked(peer):
    from replication.protocol import apis

    peer.sendall(b"".join(map(bytes, apis.encode_request(ApiKey.FETCH, 11, 1, "me", fetch()[2]))))
    buffer, size = bytearray(1 << 20), None
    got = 0
    while size is None or got < size:
        count = peer.recv_into(buffer)
        assert count, "the server closed the connection"
        size = 4 + struct.unpack_from(">i", buffer)[0] if size is None else size
        got += count
    peer.close()
    return got


def test_a_client_that_does_not_read_costs_no_more_than_its_answer(certificates):
    """Memory stays with the answer, and the connection is read again once it is gone."""

    async def main():
        async with serving({ApiKey.LIST_GROUPS: groups, ApiKey.FETCH: big}, gate=tls_gate(certificates)) as (
            server,
            port,
        ):
            peer = await asyncio.to_thread(reading, port, trust(certificates))
            from replication.protocol import apis

            one = b"".join(map(bytes, apis.encode_request(ApiKey.FETCH, 11, 1, "me", fetch()[2])))
            await asyncio.to_thread(peer.sendall, one * 20)
            await until(lambda: server.admission.unsent_bytes > 0)
            (open_,) = server.connections
            assert open_.admission.unsent_bytes <= 16 << 20
            assert await asyncio.to_thread(drained, peer, 20) == 20
            await until(lambda: server.admission.unsent_bytes == 0)

    run(main())


def big(context, body):
    row = PartitionFetched(0, 0, records=bytes(8 << 20))
    return FetchResponse([TopicFetched("t", None, [row])])


def drained(peer, count):
    file = peer.makefile("rb")
    found = 0
    for _ in range(count):
        (size,) = struct.unpack(">i", file.read(4))
        found += len(file.read(size)) == size
    peer.close()
    return found


def test_another_certificate_counts_without_a_restart(certificates, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    file = tmp_path / "server.pem"
    file.write_text((certificates.directory / "server.both.pem").read_text())
    contexts = Contexts("SSL", ListenerSettings(ssl_keystore_location=str(file)))
    first = contexts.at(0.0)
    assert contexts.at(5.0) is first
    (tmp_path / "new").write_text((certificates.directory / "elsewhere.both.pem").read_text())
    (tmp_path / "new").rename(file)
    assert contexts.at(5.5) is first  # it is looked at once a second
    second = contexts.at(7.0)
    assert second is not first
    file.write_text("half a file")
    assert contexts.at(9.0) is contexts.at(20.0) is second
    assert caplog.text.count("keeps its former certificate") == 1


def test_inline_certificates_are_taken_on_one_line_too(certificates):
    key, chain = ((certificates.directory / f"server.{kind}").read_text() for kind in ("key", "pem"))
    for form in (str, lambda text: text.replace("\n", " "), lambda text: text.replace("\n", "\\n")):
        settings = ListenerSettings(ssl_keystore_key=form(key), ssl_keystore_certificate_chain=form(chain))
        assert server_context(settings).verify_mode is ssl.CERT_NONE
        assert pem(form(chain)).split() == chain.split()
    own = {"ssl_keystore_key": (certificates.directory / "client.key").read_text()}
    own |= {"ssl_keystore_certificate_chain": (certificates.directory / "client.pem").read_text()}
    assert server_context(ListenerSettings(**own, ssl_key_password=PASSWORD))
    with pytest.raises(InvalidConfigError, match=r"ssl\.key\.password") as caught:
        server_context(ListenerSettings(**own, ssl_key_password="wrong"))
    assert "PRIVATE" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "TLS needs a certificate and its key"),
        ({"ssl_keystore_location": "/nowhere.pem"}, "No such file"),
        ({"ssl_keystore_location": "{ca.pem}"}, "do not fit"),
        ({"ssl_keystore_location": "{server.both.pem}", "ssl_keystore_key": "x"}, "are both given"),
        ({"ssl_keystore_certificate_chain": "x"}, "TLS needs a certificate"),
        ({"ssl_keystore_location": "{server.both.pem}", "ssl_client_auth": "required"}, "name the authorities"),
        (
            {
                "ssl_keystore_location": "{server.both.pem}",
                "ssl_client_auth": "required",
                "ssl_truststore_certificates": "no PEM",
            },
            "no certificate",
        ),
        ({"ssl_keystore_location": "{server.both.pem}", "ssl_enabled_protocols": frozenset()}, "TLSv1.2, TLSv1.3"),
        ({"ssl_keystore_location": "{server.both.pem}", "ssl_cipher_suites": frozenset({"TLS_NONE"})}, "not known"),
        (
            {"ssl_keystore_location": "{server.both.pem}", "ssl_cipher_suites": frozenset({"TLS_AES_256_GCM_SHA384"})},
            "all or none",
        ),
        (
            {
                "ssl_keystore_location": "{server.both.pem}",
                "ssl_cipher_suites": SUITES_OF_TLS_1_3,
                "ssl_enabled_protocols": frozenset({"TLSv1.2"}),
            },
            "none of them is of a version",
        ),
    ],
)
def test_settings_of_tls_that_cannot_be_are_refused_with_one_line(certificates, settings, says):
    placed = {
        key: certificates / value[1:-1] if isinstance(value, str) and value.startswith("{") else value
        for key, value in settings.items()
    }
    with pytest.raises(InvalidConfigError, match=r"^[^\n]*$") as caught:
        server_context(ListenerSettings(**placed))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "version", "cipher"),
    [
        ({}, "TLSv1.3", None),
        ({"ssl_enabled_protocols": frozenset({"TLSv1.2"})}, "TLSv1.2", None),
        (
            {"ssl_cipher_suites": frozenset({"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"})},
            "TLSv1.2",
            "ECDHE-ECDSA-AES256-GCM-SHA384",
        ),
        (
            {"ssl_cipher_suites": frozenset({"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"})},
            "TLSv1.2",
            "ECDHE-ECDSA-CHACHA20-POLY1305",
        ),
        ({"ssl_cipher_suites": SUITES_OF_TLS_1_3}, "TLSv1.3", None),
    ],
)
def test_versions_and_suites_are_those_of_the_settings(certificates, settings, version, cipher):
    async def main():
        async with serving(WHOSE, gate=tls_gate(certificates, **settings)) as (_, port):
            peer = await Peer.connect(port, ssl=trust(certificates), server_hostname="localhost")
            assert await name_of(peer) == "ANONYMOUS"
            spoken = peer.writer.get_extra_info("ssl_object")
            assert spoken.version() == version
            assert cipher in (None, spoken.cipher()[0])

    run(main())


def test_a_client_with_an_old_version_is_turned_away(certificates, caplog):
    old = trust(certificates)
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    async def main():
        async with serving(WHOSE, gate=tls_gate(certificates, ssl_enabled_protocols=frozenset({"TLSv1.3"}))) as (
            _,
            port,
        ):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await Peer.connect(port, ssl=old, server_hostname="localhost")

    run(main())
    one_line(caplog, "unsupported protocol")


def test_logins_over_tls(certificates):
    async def main():
        inner = tls_gate(certificates)
        both = Gate("SASL_SSL", True, ("PLAIN",), Known(), inner.tls, failure_delay_ms=1)
        async with serving(WHOSE, gate=both) as (server, port):
            peer = await Peer.connect(port, ssl=trust(certificates), server_hostname="localhost")
            assert len(server.admission.strangers) == 1
            await log_in(peer)
            assert await name_of(peer) == ADA
            assert not server.admission.strangers

    run(main())
