"""Listeners with TLS: what is no handshake ends with one line, within bounds; long answers hold nobody up."""

import asyncio
import logging
import os
import socket
import ssl
import struct
import time

import pytest

from logstore.errors import InvalidConfigError
from replication.broker.tls import SUITES_OF_TLS_1_3, Contexts, pem, server_context
from replication.config.listener_settings import ListenerSettings
from replication.network import admission, doorman
from replication.network.gate import Gate
from replication.protocol.apis import ApiKey
from replication.protocol.messages import FetchResponse, PartitionFetched, TopicFetched
from replication.security.principals import parse_rules, principal_of
from tests.support.gates import ADA, WHOSE, Known, log_in, name_of, one_line
from tests.support.peer import LIST_GROUPS, PATIENCE_S, Peer, fetch, groups, run, serving, until
from tests.support.secured import PASSWORD, Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    made = Certificates.make(tmp_path_factory.mktemp("certificates"))
    for name in ("server", "elsewhere"):
        both = [(made.directory / f"{name}.{kind}").read_text() for kind in ("key", "pem")]
        (made.directory / f"{name}.both.pem").write_text("".join(both))
    return made


def tls_gate(certificates, **settings):
    given = {"ssl_keystore_location": certificates / "server.both.pem", **settings}
    contexts = Contexts("SSL", ListenerSettings(**given))
    return Gate("SSL", tls=lambda: contexts.at(asyncio.get_running_loop().time()))


def trust(certificates):
    return ssl.create_default_context(cafile=certificates / "ca.pem")


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
