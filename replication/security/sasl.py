"""SASL as a server speaks it: which message is answered how, and whose name is proved by it.

Pure: `begin` and `step` make a state and an answer of a state and a message; nonces, credentials and the time are
values. Laws: no name is proved but by the last message of its mechanism; a conversation that has failed stays so; and
every wrong name or password of a mechanism is answered with the same words.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from replication.security import proof, scram, tokens
from replication.security.access import BROKER_KIND, Principal
from replication.security.scram import Credential, ScramError
from replication.security.tokens import Bearer, TokenError

PLAIN = "PLAIN"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PLAIN_BYTES_MAX = 4096
_NOBODY = b"\0" * 32


class Known(Protocol):
    """The users that a server knows, from memory."""

    @property
    def secret(self) -> bytes:
        """Return the secret of the cluster, by which brokers prove themselves; b"": none is known yet."""

    def password(self, username: str) -> bytes | None:
        """Return the password of a user of PLAIN; None: there is none."""

    def credential(self, mechanism: str, username: str) -> Credential:
        """Return what is kept of a user's password; of an unknown user one that no password fits."""

    def bearer(self, token: str) -> Bearer:
        """Return whose a token is. Raises: TokenError."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A mechanism is chosen; the client's first message is awaited."""

    mechanism: str


@dataclass(frozen=True, slots=True)
class InScram:
    mechanism: str
    username: str
    side: scram.ServerSide


@dataclass(frozen=True, slots=True)
class InProof:
    broker: int
    first: bytes
    answered: bytes
    mechanism: str = proof.MECHANISM


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing follows: a client that has failed connects again."""

    mechanism: str


State: TypeAlias = Begun | InScram | InProof | Failed


class Step(NamedTuple):
    """The answer to one message. `principal`: whose name is proved now. `error`: the words of a failure.

    `ends_s`: the second of the epoch at which a name is no longer proved; 0: never. `why`: for the log.
    """

    state: State
    answer: bytes = b""
    principal: Principal | None = None
    error: str = ""
    ends_s: int = 0
    why: str = ""


def step(state: State, message: bytes, known: Known, nonce: str) -> Step:
    """Return the answer to a message of a client. `nonce`: a random text, which is used once."""
    try:
        match state:
            case Begun(mechanism="PLAIN"):
                return _plain(state, message, known)
            case Begun(mechanism=proof.MECHANISM):
                return _begin_proof(message, known, nonce)
            case Begun(mechanism=tokens.MECHANISM):
                return _bearer(state, message, known)
            case Begun(mechanism=mechanism):
                first = scram.parse_first(message)
                side = scram.ServerSide(mechanism, first, known.credential(mechanism, first.username), nonce)
                return Step(InScram(mechanism, first.username, side), side.challenge)
            case InScram(mechanism, username, side):
                last = side.finish(message)
                return failed(state) if last is None else Step(state, last, Principal(username))
            case InProof(broker, first_message, answered):
                is_proved = bool(known.secret) and proof.is_proved(known.secret, first_message, answered, message)
                return Step(state, b"", Principal(str(broker), BROKER_KIND)) if is_proved else failed(state)
            case Failed():
                return failed(state)
    except ScramError:
        return failed(state)


def failed(state: State) -> Step:
    mechanism = state.mechanism
    words = (
        "Invalid username or password" if mechanism == PLAIN else f"invalid credentials with SASL mechanism {mechanism}"
    )
    return Step(Failed(mechanism), error=f"Authentication failed: {words}")


def _plain(state: State, message: bytes, known: Known) -> Step:
    """PLAIN (RFC 4616): authorization id, name and password, with a zero byte before the second and the third."""
    parts = message.split(b"\0")
    if len(message) > PLAIN_BYTES_MAX or len(parts) != 3 or not parts[1] or not parts[2]:
        return failed(state)
    try:
        named, username = parts[0].decode(), parts[1].decode()
    except UnicodeDecodeError:
        return failed(state)
    password = known.password(username)
    # Digests, so that the time says nothing of lengths; of an unknown user as of any other.
    given, wanted = (hmac.digest(_NOBODY, each, "sha256") for each in (parts[2], password or _NOBODY))
    if not hmac.compare_digest(given, wanted) or password is None or named not in ("", username):
        return failed(state)
    return Step(state, b"", Principal(username))


def _bearer(state: State, message: bytes, known: Known) -> Step:
    try:
        named, token = tokens.token_of(message)
        bearer = known.bearer(token)
    except TokenError as error:
        return failed(state)._replace(why=str(error))
    if named not in ("", bearer.name):
        return failed(state)._replace(why="it is somebody else's")
    return Step(state, b"", Principal(bearer.name), ends_s=bearer.ends_s)


def _begin_proof(message: bytes, known: Known, nonce: str) -> Step:
    broker = proof.begun_by(message)
    if broker is None or not known.secret:
        return failed(Begun(proof.MECHANISM))
    answered = proof.answer(known.secret, message, nonce)
    return Step(InProof(broker, message, answered), answered)
