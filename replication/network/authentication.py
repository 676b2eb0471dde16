"""TLS and SASL of a channel, before its first request, as `Security` says; and why a broker refused a channel.

Laws: an error that no repetition mends is an AuthenticationError of one line, without a password. Certificates are
always checked, host names unless the settings say otherwise. The server's SCRAM signature is checked.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from logstore.env import SYSTEM
from logstore.errors import InvalidConfigError, PylogError
from replication.errors import ProtocolError, UnsupportedVersionError
from replication.network.channel import Channel, connect
from replication.network.security import Security
from replication.protocol.apis import ApiKey, Versions
from replication.security import proof
from replication.security.proof import ProofError, Prover
from replication.security.scram import Exchange, ScramError

PROBE_S = 2.0  # a look at what a port speaks
SILENT_S = 1.0  # a broker that has not answered with its versions by then is asked whether it is too old to know them
_NONCE_BITS = 192
_NONE, _UNSUPPORTED_MECHANISM, _ILLEGAL_STATE = 0, 33, 34
_NAMES, _EXPIRED = (62, 64), 10  # OpenSSL's codes: another name, another address; its time is over
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")  # what came is no TLS
Ask = Callable[[ApiKey, Any], Awaitable[Any]]  # sends one request, and returns its answer


class AuthenticationError(PylogError):
    """A broker was reached, and TLS or SASL failed: to repeat it does not help."""


def tls_context(security: Security) -> ssl.SSLContext | None:
    """The client's side of TLS; None: without. Raises: InvalidConfigError: a file cannot be used."""
    if not security.has_tls or security.context is not None:
        return security.context
    setting, file, content = "ssl.ca.location", security.ca_file, "there is no certificate in PEM in it"
    try:
        context = ssl.create_default_context(cafile=file or None)
        if security.certificate_file:
            setting, file = "ssl.certificate.location", security.certificate_file
            content = "certificate and key cannot be read or do not fit; an encrypted key needs ssl.key.password"
            # Without a function OpenSSL would ask the terminal for the password.
            context.load_cert_chain(file, security.key_file or None, lambda: security.key_password)
    except OSError as error:
        why = content if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidConfigError(f"{setting}={file}: {why}", option=setting) from None
    context.check_hostname = security.checks_host_name
    return context


async def prove(security: Security, where: str, ask: Ask) -> None:
    """Show another broker of the cluster, which knows SaslHandshake, that this is one, too.

    Raises: AuthenticationError: it does not know the secret of the cluster, or does not believe this one; as `ask`.
    """
    prover = Prover(security.broker, security.secret, f"{SYSTEM.random.getrandbits(_NONCE_BITS):048x}")
    answer = await ask(ApiKey.SASL_HANDSHAKE, {"mechanism": proof.MECHANISM})
    try:
        if not answer.error_code.value:
            answer = await ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": prover.first})
        if not answer.error_code.value:
            answer = await ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": prover.final(answer.auth_bytes)})
    except ProofError as error:
        raise AuthenticationError(f"{where} is no broker of this cluster: {error}") from None
    if answer.error_code.value:
        raise AuthenticationError(f"{where} does not take broker {security.broker} for one of its cluster")


async def authenticate(security: Security, where: str, versions: Mapping[int, Versions], ask: Ask) -> float | None:
    """Say who we are; return for how many seconds that holds, None: as long as the connection.

    Raises: AuthenticationError; as `ask`.
    """
    if not security.mechanism:
        return None
    answer = None
    if ApiKey.SASL_HANDSHAKE in versions:
        answer = await ask(ApiKey.SASL_HANDSHAKE, {"mechanism": security.mechanism})
    if answer is None or answer.error_code.value == _ILLEGAL_STATE:
        remedy = "SSL" if security.has_tls else "PLAINTEXT"
        raise AuthenticationError(f"{where} asks nobody for a name: set security.protocol={remedy}")
    if answer.error_code.value == _UNSUPPORTED_MECHANISM:
        raise AuthenticationError(
            f"{where} does not offer {security.mechanism}: set sasl.mechanism to one of its own, "
            f"{', '.join(answer.mechanisms)}"
        )
    if answer.error_code.value != _NONE:
        raise AuthenticationError(f"{where} refuses {security.mechanism} with code {answer.error_code.value}")

    async def say(message: bytes) -> Any:
        answer = await ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": message})
        if answer.error_code.value != _NONE:
            said = f": {' '.join(answer.error_message.split())}" if answer.error_message else ""
            raise AuthenticationError(
                f"{where} refuses user {security.username!r} by {security.mechanism}: user or password is wrong{said}"
            )
        return answer

    last = await _converse(security, where, say)
    lifetime = getattr(last, "session_lifetime", None)
    return lifetime.total_seconds() or None if lifetime is not None else None


async def _converse(security: Security, where: str, say: Callable[[bytes], Awaitable[Any]]) -> Any:
    """Prove the password; return the last answer. Raises: as `authenticate`."""
    if security.mechanism == "PLAIN":
        return await say(f"\0{security.username}\0{security.password}".encode())
    nonce = f"{SYSTEM.random.getrandbits(_NONCE_BITS):048x}"
    exchange = Exchange(security.mechanism, security.username, security.password, nonce)
    try:
        answer = await say(exchange.first)
        last = await say(exchange.final(answer.auth_bytes))
        exchange.check(last.auth_bytes)
    except ScramError as error:
        raise AuthenticationError(f"{where} is not to be believed: {error}") from None
    return last


async def refusal(host: str, port: int, security: Security, error: Exception) -> Exception | None:
    """Explain why a channel failed before its first answer; None: `error` says enough.

    The result is an error that ends a call, or one that is worth another attempt. If the other side has closed the
    channel, a second one shows whether the port speaks TLS, or is too old to tell its versions.
    """
    where, cause = f"{host}:{port}", error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return AuthenticationError(_distrust(where, cause))
    sasl = "SASL_" if security.mechanism else ""
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        if cause.reason in _NO_TLS:
            return AuthenticationError(f"{where} speaks no TLS: set security.protocol={sasl}PLAINTEXT")
        why = (cause.reason or "it does not say why").lower().replace("_", " ")
        return AuthenticationError(f"{where} breaks TLS off: {why}{_certificate_hint(security)}")
    is_closed = isinstance(cause, (ConnectionError, ssl.SSLError, ProtocolError))
    if not is_closed or isinstance(cause, ConnectionRefusedError):
        return None
    if not security.has_tls:
        if await _speaks_tls(host, port):
            return AuthenticationError(f"{where} speaks TLS: set security.protocol={sasl}SSL")
        return await too_old(host, port, security) if isinstance(error, ConnectionResetError) else None
    if await _first_answer(host, port, None, ApiKey.API_VERSIONS, 0, {}) is not None:
        return AuthenticationError(f"{where} speaks no TLS: set security.protocol={sasl}PLAINTEXT")
    return ConnectionResetError(f"it closed the connection as TLS began{_certificate_hint(security)}")


async def anonymous_refusal(host: str, port: int, security: Security) -> AuthenticationError | None:
    """Why a port tells its versions and nothing else: it wants a name first, and none was given. None: that is not it.

    A handshake for no mechanism is answered with those that are offered, by a listener with SASL only.
    """
    if security.mechanism:
        return None
    request = {"mechanism": ""}
    answer = await _first_answer(host, port, tls_context(security), ApiKey.SASL_HANDSHAKE, 1, request)
    if answer is None or answer.error_code.value != _UNSUPPORTED_MECHANISM:
        return None
    return AuthenticationError(
        f"{host}:{port} asks for a name: set security.protocol=SASL_{security.protocol} and sasl.mechanism to one of "
        f"{', '.join(answer.mechanisms)}"
    )


def _distrust(where: str, error: ssl.SSLCertVerificationError) -> str:
    said = f"the certificate of {where} is not believed: {error.verify_message.rstrip('.')}"
    if error.verify_code in _NAMES:
        return (
            f"{said}; name the broker as its certificate does, or set ssl.endpoint.identification.algorithm to an "
            "empty text"
        )
    if error.verify_code == _EXPIRED:
        return f"{said}; the broker needs a new one (or the clock here is wrong)"
    return f"{said}; name the authority that signed it by ssl.ca.location"


def _certificate_hint(security: Security) -> str:
    return "" if security.certificate_file else "; for a client's certificate: ssl.certificate.location"


async def too_old(host: str, port: int, security: Security) -> UnsupportedVersionError | None:
    """Return the error if a broker that did not tell its versions answers the oldest of requests, and not that again.

    The second question tells an old broker from one that was busy, or whose former connection was cut.
    """
    error = None
    try:
        async with _probe(host, port, tls_context(security)) as channel:
            async with asyncio.timeout(PROBE_S):
                await channel.send(ApiKey.METADATA, 0, "pylog", {"topics": []})
            error = UnsupportedVersionError(
                f"{host}:{port} is a Kafka before 0.10, which does not tell its versions: brokers of Kafka 1.0 or "
                "later are needed"
            )
            async with asyncio.timeout(SILENT_S):
                await channel.send(ApiKey.API_VERSIONS, 0, "pylog", {})
    except (OSError, ProtocolError):
        return error
    return None


async def _speaks_tls(host: str, port: int) -> bool:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE  # nothing is said over it
    try:
        async with _probe(host, port, tls):
            return True
    except OSError:
        return False


async def _first_answer(
    host: str, port: int, tls: ssl.SSLContext | None, key: ApiKey, version: int, request: Any
) -> Any | None:
    """Send one request over a channel of its own, and return the answer; None without an answer."""
    try:
        async with _probe(host, port, tls) as channel, asyncio.timeout(PROBE_S):
            return await channel.send(key, version, "pylog", request)
    except (OSError, ProtocolError):
        return None


@asynccontextmanager
async def _probe(host: str, port: int, tls: ssl.SSLContext | None) -> AsyncIterator[Channel]:
    channel = await connect(host, port, timeout_s=PROBE_S, tls=tls)
    try:
        yield channel
    finally:
        channel.end(ConnectionAbortedError("it was looked at"))
