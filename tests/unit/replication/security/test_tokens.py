"""Tokens: only a good signature, in its time, for this audience, is a name."""

import base64
import hmac
import json
import time

import pytest

from replication.network.gate import Nobody
from replication.security.access import Principal
from replication.security.sasl import Begun, step
from replication.security.tokens import Bearer, Rules, TokenError, bearer_of, judge, keys_of, token_of

jwt = pytest.importorskip("joserfc.jwt")
jwk = pytest.importorskip("joserfc.jwk")

NOW = 1_800_000_000
RULES = Rules(frozenset({"pylog"}), "https://issuer")
CLAIMS = {"sub": "ada", "aud": ["other", "pylog"], "iss": "https://issuer", "exp": NOW + 60, "iat": NOW - 5}


@pytest.fixture(scope="module")
def key():
    return jwk.ECKey.generate_key("P-256", {"kid": "one"})


@pytest.fixture(scope="module")
def keys(key):
    return keys_of(json.dumps({"keys": [key.as_dict(private=False)]}))


def signed(key, claims=CLAIMS, **header):
    return jwt.encode({"alg": "ES256", "kid": "one", **header}, claims, key)


def part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_a_signed_token_is_its_users_until_its_end(key, keys):
    assert bearer_of(signed(key), keys, RULES, NOW) == Bearer("ada", NOW + 60)


def test_a_token_of_another_key_or_of_none_is_nobodys(key, keys):
    other = jwk.ECKey.generate_key("P-256", {"kid": "one"})
    unsigned = f"{part({'alg': 'none'})}.{part(CLAIMS)}."
    content = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(CLAIMS)}"  # signed with what everybody knows
    sealed = hmac.digest(key.as_pem(private=False), content.encode(), "sha256")
    confused = f"{content}.{base64.urlsafe_b64encode(sealed).decode().rstrip('=')}"
    head, body, signature = signed(key).split(".")
    changed = f"{head}.{part({**CLAIMS, 'sub': 'root'})}.{signature}"
    for token in (signed(other), unsigned, confused, changed, f"{head}.{body}.", "a.b.c", "", "x" * 5000):
        with pytest.raises(TokenError, match="signature"):
            bearer_of(token, keys, RULES, NOW)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"exp": NOW - 30}, "is over"),
        ({"exp": None}, "no end"),
        ({"exp": "tomorrow"}, "no time"),
        ({"exp": True}, "no time"),
        ({"nbf": NOW + 31}, "has not come"),
        ({"iat": NOW + 31}, "has not come"),
        ({"iss": "https://other"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "other"}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": 5}, "another audience"),
        ({"aud": [["pylog"]]}, "another audience"),
        ({"exp": 1 << 52}, "no time"),
        ({"sub": ""}, "no sub"),
        ({"sub": " "}, "no sub"),
        ({"sub": 5}, "no sub"),
        ({"sub": "x" * 2000}, "no sub"),
    ],
)
def test_claims_that_are_wrong_are_nobodys(changed, says):
    with pytest.raises(TokenError, match=says):
        judge(CLAIMS | changed, RULES, NOW)


def test_clocks_may_differ_a_little():
    assert judge(CLAIMS | {"exp": NOW - 29, "nbf": NOW + 29}, RULES, NOW).name == "ada"


def test_a_claim_of_another_name_may_be_the_user():
    rules = Rules(name_claim="client_id")
    assert judge({"exp": NOW + 1, "client_id": "bob"}, rules, NOW) == Bearer("bob", NOW + 1)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (b"n,,\x01auth=Bearer a.b.c\x01\x01", ("", "a.b.c")),
        (b"n,a=ada,\x01auth=Bearer a.b.c\x01\x01", ("ada", "a.b.c")),
        (b"n,,\x01host=h\x01auth=Bearer a.b.c\x01port=9\x01\x01", ("", "a.b.c")),
    ],
)
def test_a_message_is_read_as_clients_write_it(message, found):
    assert token_of(message) == found


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,\x01auth=Bearer \x01\x01", b"n,,\x01auth=Basic abc\x01\x01", b"n,,\x01auth=Bearer a\x01", b"\x01",
     b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01", b"n,,\x01auth=Bearer a\x01\x01x",
     b"y,,\x01auth=Bearer a\x01\x01", b"n,a=\xff,\x01auth=Bearer a\x01\x01",
     b"n,,\x01auth=Bearer " + b"a" * 40_000 + b"\x01\x01"],
)  # fmt: skip
def test_a_message_that_is_none_is_refused(message):
    with pytest.raises(TokenError):
        token_of(message)


def test_hostile_messages_and_tokens_take_no_time(keys):
    deep = base64.urlsafe_b64encode(b"[" * 20_000).decode()
    begin = time.perf_counter()
    for ending in (b"auth=Bearer a\x01" * 2000, b"a" * 30_000, b"auth=Bearer " + b" " * 30_000):
        message = b"n,,\x01" + ending
        with pytest.raises(TokenError):
            token_of(message)
    for token in (f"{deep}.{deep}.x", f"{part({'alg': 'ES256', 'kid': 'one'})}.{deep}.x", "." * 30_000):
        with pytest.raises(TokenError, match="signature"):
            bearer_of(token, keys, RULES, NOW)
    assert time.perf_counter() - begin < 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "x"])
def test_keys_that_check_no_signature_are_none(text):
    with pytest.raises(ValueError, match="no JWKS"):
        keys_of(text)


def test_a_login_is_the_bearers_for_as_long_as_the_token(key, keys):
    class Known(Nobody):
        def bearer(self, token):
            return bearer_of(token, keys, RULES, NOW)

    message = f"n,,\x01auth=Bearer {signed(key)}\x01\x01".encode()
    found = step(Begun("OAUTHBEARER"), message, Known(), "")
    assert (found.principal, found.ends_s) == (Principal("ada"), NOW + 60)
    somebody = f"n,a=root,\x01auth=Bearer {signed(key)}\x01\x01".encode()
    assert step(Begun("OAUTHBEARER"), somebody, Known(), "").principal is None
    assert step(Begun("OAUTHBEARER"), message, Nobody(), "").principal is None
    wrong = step(Begun("OAUTHBEARER"), b"n,,\x01auth=Bearer a.b.c\x01\x01", Known(), "")
    assert "signature" in wrong.why
    assert "signature" not in wrong.error
