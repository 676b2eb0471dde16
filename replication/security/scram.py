"""SCRAM (RFC 5802, 7677) as a client speaks it: messages and proofs out of values, without a socket.

The server learns that the client knows the password, and the client that the server knows it. Like Kafka, names and
passwords are UTF-8 as they are given, without SASLprep, and there is no channel binding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

# Kafka's clients refuse less. More than that many would hold up the event loop for a second.
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 1_000_000
_NO_BINDING = b"n,,"


class ScramError(ValueError):
    """The server does not speak SCRAM, or does not know the password."""


class Exchange:
    """One authentication: `first`, then `final` for the server's answer to it, then `check` of the answer to that."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        self._hash = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
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
        if not count.isdecimal() or not ITERATIONS_MIN <= int(count) <= ITERATIONS_MAX:
            raise ScramError(f"it asks for {count!r} iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX} are done")
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


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("its answer is not in base64") from None
