"""A listener with TLS and SASL before a broker that has neither, and certificates for it.

It rewrites nothing but ApiVersions, to which it adds the two APIs of SASL: the broker must advertise the listener's
address. The broker itself, known by its client id, is let through without either, as by a listener of its own.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from replication.protocol import apis
from replication.protocol.apis import ApiKey
from tests.support.inside import broker_settings
from tests.support.tried_cluster import TriedCluster

USER, PASSWORD = "ada", 'pä=,ss "word\\'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
FAILED, UNSUPPORTED_MECHANISM, ILLEGAL_STATE = 58, 33, 34
ITERATIONS = 4096
REQUEST_BYTES_MAX = 100 * 1024 * 1024
TLS_FIRST_BYTE = 0x16
_HEAD = struct.Struct(">ihhih")  # size, API, version, correlation id, bytes of the client id


@dataclass(frozen=True)
class Certificates:
    """PEM files: of an authority, of servers that it signed, and of a client, whose key has the password."""

    directory: Path

    def __truediv__(self, name):
        return str(self.directory / name)

    @classmethod
    def make(cls, directory):
        if shutil.which("openssl") is None:
            pytest.skip("the command openssl, which makes certificates, is not installed")
        made = cls(directory)
        for authority in ("ca", "other"):
            key = [*made._key(f"{authority}.key"), "-nodes"]
            made._openssl("req", "-x509", *key, "-days", "2", "-out", f"{authority}.pem", "-subj", "/CN=test")
        made._sign("server", "DNS:localhost,IP:127.0.0.1")
        made._sign("elsewhere", "DNS:kafka.example")
        made._sign("expired", "DNS:localhost", days=-1)
        made._sign("client", "DNS:client", "-passout", f"pass:{PASSWORD}")
        both = [(directory / f"client.{kind}").read_text() for kind in ("key", "pem")]
        (directory / "keystore.pem").write_text("".join(both))
        return made

    def _sign(self, name, names, *password, days=2):
        (self.directory / f"{name}.names").write_text(f"subjectAltName={names}")
        key = [*self._key(f"{name}.key"), *(password or ["-nodes"])]
        self._openssl("req", *key, "-out", f"{name}.csr", "-subj", f"/CN={name}")
        authority = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.names"]
        self._openssl("x509", "-req", "-in", f"{name}.csr", *authority, "-days", str(days), "-out", f"{name}.pem")

    @staticmethod
    def _key(name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", name]

    def _openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)

    def context(self, name="server", *, asks_client=False):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self / f"{name}.pem", self / f"{name}.key")
        if asks_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self / "ca.pem")
        return context


class ClosedError(Exception):
    """The other side has gone."""


@dataclass(frozen=True)
class Manner:
    """How the listener treats who comes."""

    tls: ssl.SSLContext | None = None
    mechanisms: tuple[str, ...] = ()  # none: it asks nobody for a name
    lifetime_ms: int = 0  # of an authentication; 0: without end
    is_impostor: bool = False  # it does not know the password, and says that all is well
    iterations: int = ITERATIONS


@dataclass
class SecuredListener:
    """One port; `manner` may be changed at any time, for connections to come.

    `seen`: authentications. `late`: requests after the end of one.
    """

    manner: Manner = field(default_factory=Manner)
    broker: tuple[str, int] | None = None
    seen: list[str] = field(default_factory=list)
    late: int = 0

    def __post_init__(self):
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._open = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self):
        return f"localhost:{self.port}"

    @contextlib.contextmanager
    def treating(self, **manner):
        before, self.manner = self.manner, replace(self.manner, **manner)
        try:
            yield
        finally:
            self.manner = before

    def close(self):
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in tuple(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection, self.manner], daemon=True).start()

    def _serve(self, raw, manner):
        self._open.add(raw)
        with contextlib.ExitStack() as stack:
            stack.callback(self._open.discard, raw)
            stack.enter_context(contextlib.suppress(ClosedError, OSError))
            stack.callback(raw.close)
            is_broker = self._is_broker(raw)
            if is_broker or manner.tls is None:
                client = raw
            else:
                client = stack.enter_context(manner.tls.wrap_socket(raw, server_side=True))
            broker = stack.enter_context(socket.create_connection(self.broker))
            session = None if is_broker or not manner.mechanisms else Session(manner)
            while True:
                self._one(client, broker, session)

    @staticmethod
    def _is_broker(raw):
        """Looks at what is first said without taking it."""
        while True:
            data = raw.recv(64, socket.MSG_PEEK)
            if not data:
                raise ClosedError
            if data[0] == TLS_FIRST_BYTE:
                return False
            if len(data) >= _HEAD.size and len(data) >= _HEAD.size + min(7, _HEAD.unpack_from(data)[4]):
                return data[_HEAD.size :].startswith(b"broker-")
            time.sleep(0.001)

    def _one(self, client, broker, session):
        """One request, and its answer."""
        frame = _frame(client)
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        if session is not None and key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            answer = session.answer(apis.ApiKey(key), version, frame)
            if session.ended is not None:
                self.seen.append(session.ended)
                session.ended = None
            client.sendall(_bytes(apis.encode_response(ApiKey(key), version, correlation_id, answer)))
            return
        if key != ApiKey.API_VERSIONS and session is not None and not session.is_open:
            self.late += session.was_open
            raise ClosedError
        broker.sendall(struct.pack(">i", len(frame)) + frame)
        answer = _frame(broker)
        if key == ApiKey.API_VERSIONS and session is not None:
            answer = _with_sasl(version, correlation_id, answer)
        client.sendall(struct.pack(">i", len(answer)) + answer)


def _frame(connection):
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    if size > REQUEST_BYTES_MAX:
        raise ClosedError  # as Kafka does
    return _exactly(connection, size)


def _exactly(connection, count):
    data = bytearray()
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ClosedError
        data += more
    return bytes(data)


def _bytes(parts):
    return b"".join(map(bytes, parts))


def _with_sasl(version, correlation_id, answer):
    version = version if version <= apis.SERVED[ApiKey.API_VERSIONS].last else 0
    _, found = apis.decode_response(ApiKey.API_VERSIONS, version, memoryview(answer))
    row = type(found.api_keys[0])
    added = [row(api_key=k, min_version=a, max_version=b) for k, a, b in ((17, 0, 1), (36, 0, 2))]
    found = replace(found, api_keys=(*found.api_keys, *added))
    return _bytes(apis.encode_response(ApiKey.API_VERSIONS, version, correlation_id, found))[4:]


class Session:
    """The server's side of SASL on one connection."""

    def __init__(self, manner):
        self._manner = manner
        self._mechanism = None
        self._scram = None
        self._open_until = None
        self.ended = None

    @property
    def is_open(self):
        return self._open_until is not None and time.monotonic() < self._open_until

    @property
    def was_open(self):
        return self._open_until is not None

    def answer(self, key, version, frame):
        body = _body(key, version, frame)
        if key is ApiKey.SASL_HANDSHAKE:
            self._mechanism = body.mechanism if body.mechanism in self._manner.mechanisms else None
            code = 0 if self._mechanism else UNSUPPORTED_MECHANISM
            return {"error_code": code, "mechanisms": self._manner.mechanisms}
        if self._mechanism is None:
            return _refused(ILLEGAL_STATE, "no handshake")
        message = self._plain(body.auth_bytes) if self._mechanism == "PLAIN" else self._scrammed(body.auth_bytes)
        if message is None:
            return _refused(FAILED, "Authentication failed")
        if self.ended is not None:
            lifetime_s = self._manner.lifetime_ms / 1000
            self._open_until = time.monotonic() + lifetime_s if lifetime_s else float("inf")
        return _refused(0, None) | {"auth_bytes": message, "session_lifetime": self._manner.lifetime_ms}

    def _plain(self, message):
        _, user, password = message.decode().split("\0")
        if (user, password) != (USER, PASSWORD):
            return None
        self.ended = f"PLAIN {user}"
        return b""

    def _scrammed(self, message):
        name = self._mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        if self._scram is None:
            return self._challenged(name, message)
        bare, challenge, salted = self._scram
        without_proof, _, proof = message.rpartition(b",p=")
        said = b",".join((bare, challenge, without_proof))
        stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
        signature = hmac.digest(stored, said, name)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(name, key).digest() != stored and not self._manner.is_impostor:
            return None
        self.ended = f"{self._mechanism} {USER}"
        return b"v=" + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", name), said, name))

    def _challenged(self, name, message):
        header, _, bare = message.partition(b",,")
        user, nonce = (part.partition(b"=")[2] for part in bare.split(b","))
        assert header == b"n"
        password = "unknown" if self._manner.is_impostor else PASSWORD
        if user.decode() != USER:
            return None
        salt = os.urandom(16)
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, ITERATIONS)
        more = base64.b64encode(os.urandom(9))
        challenge = b"r=" + nonce + more + b",s=" + base64.b64encode(salt)
        challenge += b",i=%d" % self._manner.iterations
        self._scram = bare, challenge, salted
        return challenge


def _refused(code, message):
    return {"error_code": code, "error_message": message, "auth_bytes": b"", "session_lifetime": 0}


def _body(key, version, frame):
    at = 8
    (size,) = struct.unpack_from(">h", frame, at)
    at += 2 + max(0, size)
    if apis.is_flexible(key, version):
        at += 1  # no tags
    return apis.decode_request_body(key, version, memoryview(frame), at)


@contextlib.contextmanager
def secured_broker(directory, **settings):
    """(listener, certificates) of a broker of which clients are told the listener only: SASL_SSL, all mechanisms."""
    directory.mkdir(exist_ok=True)
    certificates = Certificates.make(directory)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listener = SecuredListener(broker=("127.0.0.1", port))
    cluster = TriedCluster(1, directory / "cluster", settings)
    broker_settings(cluster, 1).update(
        {
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "advertised.listeners": f"PLAINTEXT://{listener.address}",
        }
    )
    try:
        with cluster:
            listener.manner = Manner(certificates.context(), MECHANISMS)
            yield listener, certificates
    finally:
        listener.close()


def settings_of(certificates, mechanism="SCRAM-SHA-256", **more):
    """The settings that let a client in; by librdkafka's names, which confluent-kafka takes, too."""
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": certificates / "ca.pem",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def lines_of(settings):
    """The settings as a file; a backslash at the end of a value is written twice."""
    ends = {name: "\\" * str(value).endswith("\\") for name, value in settings.items()}
    return "".join(f"{name}={value}{ends[name]}\n" for name, value in settings.items())
