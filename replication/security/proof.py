"""Proof: how brokers show each other that they read the same coordination store, by the secret that it holds.

Each side sends a nonce, and the other an HMAC over both: nobody learns the secret from it, nothing can be said again,
and both sides know whom they speak to. The secret is random and long, so that one hash over it is enough.
"""

from __future__ import annotations

import hmac
import re

MECHANISM = "PYLOG-BROKER"
NONCE_BITS = 192
_HASH = "sha256"
_FIRST = re.compile(rb"n=(0|[1-9][0-9]{0,9}),r=[!-~]{1,200}")
_NUMBERS_MAX = 2**31 - 1


class ProofError(ValueError):
    """The other side does not know the secret, or does not speak of it."""


class Prover:
    """One proof by the broker that connects: `first`, then `final` for the answer to it."""

    def __init__(self, broker: int, secret: bytes, nonce: str) -> None:
        self._secret = secret
        self.first = f"n={broker},r={nonce}".encode()

    def final(self, answer: bytes) -> bytes:
        """Return the proof. Raises: ProofError: the other side has none."""
        nonce, mark, proof = answer.partition(b",v=")
        if not mark or not hmac.compare_digest(proof, _signed(self._secret, b"server", self.first, nonce)):
            raise ProofError("it does not know the secret of the cluster")
        return b"p=" + _signed(self._secret, b"client", self.first, answer)


def begun_by(first: bytes) -> int | None:
    """Return the broker that begins a proof; None: this is no begin of one."""
    found = _FIRST.fullmatch(first)
    return int(found[1]) if found is not None and int(found[1]) <= _NUMBERS_MAX else None


def answer(secret: bytes, first: bytes, nonce: str) -> bytes:
    """Return the answer to the begin of a proof: that this side knows the secret, too."""
    own = f"r={nonce}".encode()
    return own + b",v=" + _signed(secret, b"server", first, own)


def is_proved(secret: bytes, first: bytes, answered: bytes, final: bytes) -> bool:
    return hmac.compare_digest(final, b"p=" + _signed(secret, b"client", first, answered))


def _signed(secret: bytes, side: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, b"\0".join((side, first, second)), _HASH).hex().encode()
