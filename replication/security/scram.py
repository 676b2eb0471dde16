"""SCRAM (RFC 5802, 7677), both sides: messages and proofs out of values, without a socket.

The server learns that the client knows the password, and the client that the server knows it. Like Kafka, names and
passwords are UTF-8 as they are given, without SASLprep, and there is no channel binding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import NamedTuple

# Kafka's clients refuse less. More than that many would hold up the event loop for a second.
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 1_000_000
NEW_ITERATIONS_MAX = 16_384  # of passwords that are set here, as of Kafka's brokers
_NO_BINDING = b"n,,"
_BINDINGS = ("biws", "eSws")  # of a client's last message: n,, and y,, in base64
FIRST_BYTES_MAX = 4096
SALT_BYTES = 16  # of passwords that are set by our tools


class ScramError(ValueError):
    """The server does not speak SCRAM, or does not know the password."""


class Exchange:
    """One authentication: `first`, then `final` for the server's answer to it, then `check` of the answer to that."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        self._hash = hash_of(mechanism)
        self._password = password.encode()
        self._nonce = nonce
        self._bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}".encode()
        self._signature = b""

    @property
    def first(self) -> bytes:
        return _NO_BINDING + self._bare

    def final(self, answer: bytes) -> bytes:
        """The message with the proof. Raises: ScramError."""
        found = _attributes(answer)
        nonce, salt = found.get("r", ""), _decoded(found.get("s", ""))
        count = found.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("its nonce does not go on where the client's ends")
        if not _is_usual(count):
            raise ScramError(f"it asks for {count[:20]!r} iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX} are done")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, int(count))
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        bare = b"c=" + base64.b64encode(_NO_BINDING) + b",r=" + nonce.encode()
        signed = b",".join((self._bare, answer, bare))
        signature = self._hmac(stored_key, signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return bare + b",p=" + base64.b64encode(proof)

    def check(self, answer: bytes) -> None:
        """Raises: ScramError: whoever answered does not know the password."""
        found = _attributes(answer)
        if "e" in found:
            raise ScramError(f"it says {found['e']!r}")
        if not self._signature or not hmac.compare_digest(_decoded(found.get("v", "")), self._signature):
            raise ScramError("its signature is wrong: it does not know the password")

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self._hash)


def _attributes(message: bytes) -> dict[str, str]:
    try:
        pairs = [part.partition("=") for part in message.decode().split(",")]
    except UnicodeDecodeError:
        raise ScramError("its answer is no text") from None
    if pairs[0][0] == "m":
        raise ScramError("it asks for an extension that is not known here")
    return {name: value for name, _, value in pairs}


def _is_usual(count: str) -> bool:
    is_number = count.isdecimal() and len(count) <= len(str(ITERATIONS_MAX))
    return is_number and ITERATIONS_MIN <= int(count) <= ITERATIONS_MAX


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("its answer is not in base64") from None


@dataclass(frozen=True, slots=True)
class Credential:
    """The part of a password that a server keeps: it proves nothing to other servers. The fields are Kafka's."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def hash_of(mechanism: str) -> str:
    return mechanism.removeprefix("SCRAM-").replace("-", "").lower()


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """Return what a server keeps of a salted password (RFC 5802: SaltedPassword)."""
    name = hash_of(mechanism)
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return Credential(salt, stored_key, hmac.digest(salted, b"Server Key", name), iterations)


def decoy(mechanism: str, key: bytes, username: str) -> Credential:
    """Return a credential that no password fits: a user that there is not is asked for a proof as any other.

    Salt and iterations are as our tools make them.
    """
    name = hash_of(mechanism)
    salt, stored_key, server_key = (
        hmac.digest(key, f"{part} {mechanism} {username}".encode(), name) for part in ("salt", "stored", "server")
    )
    return Credential(salt[:SALT_BYTES], stored_key, server_key, ITERATIONS_MIN)


class First(NamedTuple):
    """The begin of an authentication, as a client sends it. `bare` is what is signed of it."""

    username: str
    nonce: str
    bare: bytes


def parse_first(message: bytes) -> First:
    """Read a client's first message. Raises: ScramError."""
    if len(message) > FIRST_BYTES_MAX:
        raise ScramError("the first message is too long")
    head, mark, bare = message.partition(b",,")
    if not mark or head not in (b"n", b"y"):
        raise ScramError("a channel binding or an authorization id is not known here")
    found = _attributes(bare)
    username, nonce = found.get("n", ""), found.get("r", "")
    if not username or not nonce or not nonce.isascii() or not nonce.isprintable():
        raise ScramError("the first message has no user, or no nonce")
    return First(_unescaped(username), nonce, bare)


class ServerSide:
    """One authentication as the server has it, once the client's first message is known. Frozen: values only."""

    __slots__ = ("_credential", "_first", "_hash", "_nonce", "challenge")

    def __init__(self, mechanism: str, first: First, credential: Credential, nonce: str) -> None:
        self._hash, self._first, self._credential = hash_of(mechanism), first, credential
        self._nonce = first.nonce + nonce
        salt = base64.b64encode(credential.salt).decode()
        self.challenge = f"r={self._nonce},s={salt},i={credential.iterations}".encode()

    def finish(self, message: bytes) -> bytes | None:
        """Return the server's last message; None: the client does not know the password. Raises: ScramError."""
        bare, mark, proof = message.rpartition(b",p=")
        found = _attributes(bare)
        # librdkafka before 2.6.1 puts its nonce before it once more, and Kafka takes that. The proof signs it.
        goes_on = found.get("r", "").endswith(self._nonce)
        if not mark or not goes_on or found.get("c") not in _BINDINGS:
            raise ScramError("the proof does not go on where the first message ends")
        signed = b",".join((self._first.bare, self.challenge, bare))
        signature = hmac.digest(self._credential.stored_key, signed, self._hash)
        given = _decoded(proof.decode("ascii", "replace"))
        client_key = bytes(a ^ b for a, b in zip(given, signature, strict=False))
        stored_key = hashlib.new(self._hash, client_key).digest()
        if len(given) != len(signature) or not hmac.compare_digest(stored_key, self._credential.stored_key):
            return None
        return b"v=" + base64.b64encode(hmac.digest(self._credential.server_key, signed, self._hash))


def _unescaped(username: str) -> str:
    if re.search(r"=(?!2C|3D)", username):
        raise ScramError("the user is not escaped as it must be")
    return username.replace("=2C", ",").replace("=3D", "=")


def format_credential(credential: Credential) -> str:
    """Return a credential as Kafka keeps it."""
    salt, stored, server = (
        base64.b64encode(each).decode() for each in (credential.salt, credential.stored_key, credential.server_key)
    )
    return f"salt={salt},stored_key={stored},server_key={server},iterations={credential.iterations}"


def parse_credential(mechanism: str, text: str) -> Credential:
    """Read a credential as Kafka keeps it. Raises: ScramError, without a value."""
    found = dict(part.strip().partition("=")[::2] for part in text.split(","))
    size = hashlib.new(hash_of(mechanism)).digest_size
    count = found.get("iterations", "")
    salt, stored, server = (_decoded(found.get(name, "")) for name in ("salt", "stored_key", "server_key"))
    if not salt or len(stored) != size or len(server) != size:
        raise ScramError("salt, stored_key and server_key are needed, of the size of the mechanism")
    if not _is_usual(count):
        raise ScramError(f"iterations must be {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return Credential(salt, stored, server, int(count))
