"""Gate: how one listener meets those who connect, and a login on one of its connections.

A login is of one connection: the state of its conversation, which `security.sasl` decides, and for how long its end
holds. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from logstore.env import SYSTEM, Env
from replication.errors import ErrorCode, ProtocolError
from replication.protocol.requests import SaslAuthenticateRequest, SaslHandshakeRequest
from replication.security import proof, sasl
from replication.security.access import ANONYMOUS, BROKER_KIND, LISTENER, Context, Principal
from replication.security.scram import Credential, decoy
from replication.security.tokens import Bearer, TokenError

logger = logging.getLogger(__name__)

TLS_HANDSHAKE_S = 10.0
LOGIN_S = 20.0  # from the first byte to the end of a first login
FRAME_BYTES_MAX = 64 * 1024  # before that


class Nobody:
    """The users of a listener where nobody logs in but brokers: none."""

    def __init__(self, secret: bytes = b"") -> None:
        self.secret = secret

    def password(self, username: str) -> bytes | None:
        return None

    def credential(self, mechanism: str, username: str) -> Credential:
        return decoy(mechanism, b"", username)

    def bearer(self, token: str) -> Bearer:
        raise TokenError("no token is known here")


@dataclass(slots=True)
class Gate:
    """`has_sasl`: clients log in, by one of `mechanisms`; without any, only brokers do.

    `tls` returns the context for the next connection. `principal_of`: whose a client's certificate is.
    """

    name: str = LISTENER
    has_sasl: bool = False
    mechanisms: tuple[str, ...] = ()
    known: sasl.Known = field(default_factory=Nobody)
    tls: Callable[[], ssl.SSLContext] | None = None
    principal_of: Callable[[Mapping[str, Any]], Principal | None] = lambda certificate: ANONYMOUS
    reauth_ms: int = 0  # a login holds for so long; 0: as long as the connection
    failure_delay_ms: int = 100
    env: Env = SYSTEM


class Login:
    """The logins of one connection, one after the other. `principal` is whom the last one proved."""

    __slots__ = ("_gate", "_state", "ends_s", "has_failed", "principal", "why")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._state: sasl.State | None = None  # no conversation is open
        self.principal: Principal | None = None
        self.ends_s = float("inf")  # time of the loop
        self.has_failed = False
        self.why = ""  # it failed, where more may be said than "a wrong password"

    def handshake(self, mechanism: str) -> Mapping[str, Any]:
        """Answer SaslHandshake. Raises: ProtocolError: a login is not over yet."""
        offered = self._gate.mechanisms
        if mechanism == proof.MECHANISM or mechanism in offered:
            if self._state is not None:
                raise ProtocolError("a login begins within another one")
            self._state = sasl.Begun(mechanism)
            return {"error_code": ErrorCode.NONE, "mechanisms": offered}
        if not self._gate.has_sasl:
            return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
        self.has_failed = True
        return {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": offered}

    def authenticate(self, message: bytes) -> Mapping[str, Any]:
        """Answer SaslAuthenticate."""
        if self._state is None:
            code = ErrorCode.ILLEGAL_SASL_STATE
            said = (
                "SaslAuthenticate request received before SaslHandshake" if self._gate.mechanisms else "no login here"
            )
            return _answer(code, said)
        found = self.step(message)
        if found.error:
            return _answer(ErrorCode.SASL_AUTHENTICATION_FAILED, found.error)
        return _answer(ErrorCode.NONE, None, found.answer, self._lifetime_ms(found))

    def step(self, message: bytes) -> sasl.Step:
        """Take a message of the client. Raises: ProtocolError: the login proves another name than the one before."""
        assert self._state is not None, "a handshake came before"
        nonce = f"{self._gate.env.random.getrandbits(proof.NONCE_BITS):048x}"
        found = sasl.step(self._state, message, self._gate.known, nonce)
        self._state = found.state
        if found.error:
            self.has_failed = True
            self.why = f": {found.why}" if found.why else ""
        elif found.principal is not None:
            if self.principal not in (None, found.principal):
                raise ProtocolError("a login again must be of the same user")
            self.principal, self._state = found.principal, None
            lifetime_ms = self._lifetime_ms(found)
            self.ends_s = asyncio.get_running_loop().time() + lifetime_ms / 1000 if lifetime_ms else float("inf")
        return found

    def _lifetime_ms(self, found: sasl.Step) -> int:
        """Return for how long what is proved now holds; 0: as long as the connection."""
        if found.principal is None or found.principal.kind == BROKER_KIND:
            return 0
        bounds = [self._gate.reauth_ms] if self._gate.reauth_ms else []
        if found.ends_s:
            bounds.append(max(1, 1000 * found.ends_s - self._gate.env.clock.now_ms()))
        return min(bounds, default=0)

    @property
    def mechanism(self) -> str:
        return "" if self._state is None else self._state.mechanism


class Named(asyncio.BufferedProtocol):
    """A connection, as far as its client has a name."""

    context: Context

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @cached_property
    def login(self) -> Login:
        return Login(self._gate)

    def logged_in(self) -> None:
        """Take the name that `login` has proved."""
        if self.login.principal is not None:
            self.context = replace(self.context, principal=self.login.principal)

    def refuse_login(self, answer: Any) -> Awaitable[Any]:
        """Begin nothing more; return the answer to a login that failed, which comes after a while: guesses take time.

        The connection is closed behind it.
        """
        self.begin_nothing()
        mechanism = self.login.mechanism or "unknown mechanism"
        logger.warning("client=%s login refused (%s)%s", self.context.host, mechanism, self.login.why)
        return asyncio.sleep(self._gate.failure_delay_ms / 1000, answer)

    def begin_nothing(self) -> None:
        """Serve no further request; close behind the answers to those in work."""


def handshake(work: Any, body: SaslHandshakeRequest) -> Any:
    return _answered(work, work.origin.login.handshake(body.mechanism))


def authenticate(work: Any, body: SaslAuthenticateRequest) -> Any:
    return _answered(work, work.origin.login.authenticate(bytes(body.auth_bytes)))


def _answered(work: Any, answer: Any) -> Any:
    origin: Named = work.origin
    if origin.login.has_failed:
        work.park()  # many logins that fail together must hold up nobody
        return origin.refuse_login(answer)
    origin.logged_in()
    return answer


def _answer(code: ErrorCode, said: str | None, token: bytes = b"", lifetime_ms: int = 0) -> Mapping[str, Any]:
    return {"error_code": code, "error_message": said, "auth_bytes": token, "session_lifetime": lifetime_ms}
