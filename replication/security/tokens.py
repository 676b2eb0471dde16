"""Tokens of OAUTHBEARER (RFC 7628): signed JWTs, checked with the keys of their issuer (JWKS).

Pure: keys, the time and the rules are values. An unsigned token, one of another audience or issuer, and one whose time
is over are all nobody's. Symmetric keys are left out: who checks by them could also sign.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

MECHANISM = "OAUTHBEARER"
# Asymmetric signatures.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
KINDS = ("RSA", "EC", "OKP")
TOKEN_BYTES_MAX = 32 * 1024
NAME_CHARACTERS_MAX = 1024
SECONDS_MAX = 253_402_300_800  # of the epoch: the year 10,000
_MARK = b"\x01"  # behind each part of a message, and behind all
_HEAD, _AUTH = re.compile(rb"n,(?:a=([^,]*))?,"), re.compile(rb"Bearer +([A-Za-z0-9._~+/=-]+)")


class TokenError(ValueError):
    """The token proves nothing. The message says why, without a part of it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`audience` (): any. `issuer` "": any. `name_claim`: whose value is the user."""

    audience: frozenset[str] = frozenset()
    issuer: str = ""
    name_claim: str = "sub"
    skew_s: int = 30


class Bearer(NamedTuple):
    """A user, until a time in seconds of the epoch."""

    name: str
    ends_s: int


def token_of(message: bytes) -> tuple[str, str]:
    """Return the name that a client's message asks for ("": that of the token), and the token. Raises: TokenError."""
    head, *pairs = message.split(_MARK) if len(message) <= TOKEN_BYTES_MAX else (b"",)
    named = _HEAD.fullmatch(head)
    given = [value for key, _, value in (pair.partition(b"=") for pair in pairs) if key == b"auth"]
    token = _AUTH.fullmatch(given[0]) if len(given) == 1 and pairs[-2:] == [b"", b""] else None
    if named is None or token is None:
        raise TokenError("the message has no token")
    try:
        return (named[1] or b"").decode(), token[1].decode()
    except UnicodeDecodeError:
        raise TokenError("the name is no text") from None


def keys_of(text: str) -> Any:
    """Return the keys of a JWKS. Raises: ValueError: there are none that can check a signature."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    try:
        rows = json.loads(text)["keys"]
        usable = [row for row in rows if row.get("kty") in KINDS and row.get("use", "sig") == "sig"]
        return KeySet.import_key_set({"keys": usable})
    except (JoseError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"no JWKS with a key of {', '.join(KINDS)} ({type(error).__name__})") from None


def bearer_of(token: str, keys: Any, rules: Rules, now_s: int) -> Bearer:
    """Return whose a token is. Raises: TokenError."""
    from joserfc import jwt
    from joserfc.errors import JoseError

    try:
        claims: Mapping[str, Any] = jwt.decode(token, keys, algorithms=ALGORITHMS).claims
    except (JoseError, ValueError, TypeError, LookupError) as error:
        raise TokenError(f"its signature is not good ({type(error).__name__})") from None
    return judge(claims, rules, now_s)


def judge(claims: Mapping[str, Any], rules: Rules, now_s: int) -> Bearer:
    """Return the bearer of a token with these claims, whose signature is good. Raises: TokenError."""
    ends, begins, issued = (_time(claims, name) for name in ("exp", "nbf", "iat"))
    if ends is None:
        raise TokenError("it has no end")
    if now_s >= ends + rules.skew_s:
        raise TokenError("its time is over")
    if any(time is not None and now_s < time - rules.skew_s for time in (begins, issued)):
        raise TokenError("its time has not come")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise TokenError("it is of another issuer")
    audience = claims.get("aud")
    meant = audience if isinstance(audience, list) else [audience]
    if rules.audience and not any(isinstance(each, str) and each in rules.audience for each in meant):
        raise TokenError("it is for another audience")
    name = claims.get(rules.name_claim)
    if not isinstance(name, str) or not name.strip() or len(name) > NAME_CHARACTERS_MAX:
        raise TokenError(f"it has no {rules.name_claim}")
    return Bearer(name, ends)


def _time(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < SECONDS_MAX:
        raise TokenError(f"{name} is no time")
    return int(value)
