"""New passwords of SCRAM: salted and hashed where they are given, since brokers never get a password."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError
from replication.security.scram import ITERATIONS_MIN, NEW_ITERATIONS_MAX, SALT_BYTES, hash_of

ITERATIONS = ITERATIONS_MIN  # of Kafka's tools, unless they are told others


class NewPassword(NamedTuple):
    password: str
    iterations: int = ITERATIONS

    def __repr__(self) -> str:
        return f"NewPassword(iterations={self.iterations})"

    def check(self) -> None:
        """Raises: InvalidRequestError: brokers refuse this number of iterations."""
        if not ITERATIONS_MIN <= self.iterations <= NEW_ITERATIONS_MAX:
            raise InvalidRequestError(f"iterations: {ITERATIONS_MIN} to {NEW_ITERATIONS_MAX}")

    def salted(self, mechanism: str) -> tuple[bytes, bytes]:
        """Return a new salt, and the password with it as brokers are told of it."""
        salt = SYSTEM.random.getrandbits(8 * SALT_BYTES).to_bytes(SALT_BYTES, "big")
        return salt, hashlib.pbkdf2_hmac(hash_of(mechanism), self.password.encode(), salt, self.iterations)
