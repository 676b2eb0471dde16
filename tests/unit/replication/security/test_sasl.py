"""SASL on the server: no name is proved without its secret, and one answer is given to everything that is wrong."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.security import proof, sasl, scram
from replication.security.access import Principal
from replication.security.sasl import Begun, Failed, step

SECRET, OTHER = b"s" * 32, b"o" * 32
NONCE = "servernonce"
ADA, PASSWORD = "ada=,lovelace", 'pä=,ss "word\\'


class Users:
    def __init__(self, secret=SECRET):
        self.secret = secret

    def password(self, username):
        return PASSWORD.encode() if username == ADA else None

    def credential(self, mechanism, username):
        if username != ADA:
            return scram.decoy(mechanism, self.secret, username)
        salt = b"salt" * 4
        salted = hashlib.pbkdf2_hmac(scram.hash_of(mechanism), PASSWORD.encode(), salt, 4096)
        return scram.credential_of(mechanism, salted, salt, 4096)


def plain(username, password, named=""):
    return step(Begun("PLAIN"), f"{named}\0{username}\0{password}".encode(), Users(), NONCE)


def scram_login(mechanism, username, password):
    """Our client and our server, message by message."""
    exchange = scram.Exchange(mechanism, username, password, "clientnonce")
    begun = step(Begun(mechanism), exchange.first, Users(), NONCE)
    assert begun.principal is None
    last = step(begun.state, exchange.final(begun.answer), Users(), NONCE)
    if last.principal is not None:
        exchange.check(last.answer)
    return begun, last


def broker_login(secret, known=SECRET):
    prover = proof.Prover(7, secret, "clientnonce")
    begun = step(Begun(proof.MECHANISM), prover.first, Users(known), NONCE)
    assert begun.principal is None
    signed = b"\0".join((b"client", prover.first, begun.answer))
    final = b"p=" + hmac.digest(secret, signed, "sha256").hex().encode()
    return prover, begun, step(begun.state, final, Users(known), NONCE)


def test_who_knows_the_password_is_proved():
    assert plain(ADA, PASSWORD).principal == Principal(ADA)
    assert plain(ADA, PASSWORD, named=ADA).principal == Principal(ADA)
    for mechanism in sasl.SCRAM:
        assert scram_login(mechanism, ADA, PASSWORD)[1].principal == Principal(ADA)


@pytest.mark.parametrize("mechanism", ["PLAIN", *sasl.SCRAM])
@pytest.mark.parametrize(("username", "password"), [(ADA, "wrong"), ("nobody", PASSWORD), (ADA, PASSWORD + "x")])
def test_every_wrong_name_or_password_has_the_same_answer(mechanism, username, password):
    found = plain(username, password) if mechanism == "PLAIN" else scram_login(mechanism, username, password)[1]
    assert found.principal is None
    assert found.answer == b""
    assert found.state == Failed(mechanism)
    assert found.error == sasl.failed(Begun(mechanism)).error


def test_an_unknown_user_is_asked_for_a_proof_like_any_other_and_always_the_same_way():
    unknown, known = (scram_login("SCRAM-SHA-256", name, "wrong")[0].answer for name in ("nobody", ADA))
    assert scram_login("SCRAM-SHA-256", "nobody", "wrong")[0].answer == unknown
    assert unknown.rpartition(b",i=")[2] == known.rpartition(b",i=")[2] == b"4096"
    assert scram_login("SCRAM-SHA-256", "somebody", "wrong")[0].answer != unknown


def test_an_authorization_as_somebody_else_is_refused():
    assert plain(ADA, PASSWORD, named="root").error


@given(st.sampled_from(["PLAIN", *sasl.SCRAM, proof.MECHANISM]), st.lists(st.binary(max_size=200), max_size=3))
def test_no_bytes_prove_a_name_or_raise(mechanism, messages):
    state = Begun(mechanism)
    for message in messages:
        found = step(state, message, Users(), NONCE)
        assert found.principal is None
        state = found.state


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=ada,r=n",  # a channel binding
        b"n,a=root,n=ada,r=n",  # an authorization id
        b"n,,n=,r=n",
        b"n,,n=ada,r=",
        b"n,,m=x,n=ada,r=n",  # an extension that must be known
        b"n,,n=ada=41,r=n",  # not escaped as it must be
        b"n,,n=ada,r=" + b"n" * 5000,
        b"n,,n=\xff,r=n",
        b"",
    ],
)
def test_a_first_message_that_may_not_be_fails(first):
    assert step(Begun("SCRAM-SHA-256"), first, Users(), NONCE).error


def test_a_proof_for_another_nonce_is_none():
    exchange = scram.Exchange("SCRAM-SHA-256", ADA, PASSWORD, "clientnonce")
    begun = step(Begun("SCRAM-SHA-256"), exchange.first, Users(), NONCE)
    final = exchange.final(begun.answer)
    again = step(Begun("SCRAM-SHA-256"), exchange.first, Users(), "another")
    assert step(begun.state, final, Users(), NONCE).principal == Principal(ADA)
    assert step(again.state, final, Users(), NONCE).error


FIRST = scram.Exchange("SCRAM-SHA-256", ADA, PASSWORD, "clientnonce").first


def signed(begun, nonce, *, more=b""):
    """The last message of a client that knows the password, with this nonce in it."""
    salt, bare = b"salt" * 4, b"c=biws,r=" + nonce.encode()
    key = hmac.digest(hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, 4096), b"Client Key", "sha256")
    said = b",".join((FIRST.removeprefix(b"n,,"), begun.answer, bare))
    signature = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
    given = bytes(a ^ b for a, b in zip(key, signature, strict=True)) + more
    return bare + b",p=" + base64.b64encode(given)


def test_a_nonce_may_be_said_again_before_itself_and_no_other_one_is_taken():
    begun = step(Begun("SCRAM-SHA-256"), FIRST, Users(), NONCE)

    def proved(*arguments, **options):
        return step(begun.state, signed(begun, *arguments, **options), Users(), NONCE).principal

    whole = f"clientnonce{NONCE}"
    assert proved(whole) == Principal(ADA)
    assert proved(f"clientnonce{whole}") == Principal(ADA)  # as librdkafka before 2.6.1 has it
    for other in (NONCE, "clientnonce", f"{whole}x", f"clientnonce{NONCE[:-1]}", ""):
        assert proved(other) is None
    assert proved(whole, more=b"x") is None


def test_what_has_failed_stays_so():
    state = plain(ADA, "wrong").state
    assert step(state, f"\0{ADA}\0{PASSWORD}".encode(), Users(), NONCE).principal is None


def test_brokers_that_read_the_same_store_know_each_other():
    prover, begun, last = broker_login(SECRET)
    assert prover.final(begun.answer)  # the server knows the secret, too
    assert last.principal == Principal("7", "Broker")


def test_a_broker_of_another_store_is_none_and_learns_that_the_server_is_of_another():
    prover, begun, last = broker_login(OTHER)
    assert last.error
    with pytest.raises(proof.ProofError, match="secret of the cluster"):
        prover.final(begun.answer)


@pytest.mark.parametrize(
    "first",
    [b"n=" + b"9" * 5000 + b",r=x", b"n=2147483648,r=x", b"n=-1,r=x", b"n=01,r=x", b"n=7,r=", b"n=7,r=a\0b", b"n=7"],
)
def test_what_begins_no_proof_fails(first):
    assert isinstance(step(Begun(proof.MECHANISM), first, Users(), NONCE).state, Failed)


def test_without_a_secret_nobody_is_a_broker():
    prover = proof.Prover(7, b"", "clientnonce")
    assert step(Begun(proof.MECHANISM), prover.first, Users(b""), NONCE).error


def test_the_answer_of_a_broker_is_no_proof_of_one():
    """Nobody proves anything with what a broker said as the server."""
    prover = proof.Prover(7, OTHER, "clientnonce")
    begun = step(Begun(proof.MECHANISM), prover.first, Users(), NONCE)
    said = begun.answer.partition(b",v=")[2]
    assert step(begun.state, b"p=" + said, Users(), NONCE).error


def test_a_credential_is_read_as_it_is_written():
    for mechanism in sasl.SCRAM:
        made = Users().credential(mechanism, ADA)
        text = scram.format_credential(made)
        names = [part.partition("=")[0] for part in text.split(",")]
        assert names == [
            "salt",
            "stored_key",
            "server_key",
            "iterations",
        ]
        assert scram.parse_credential(mechanism, text) == made
        assert repr(made) == "Credential(iterations=4096)"


@pytest.mark.parametrize("iterations", ["0", "4095", "1000001", "9" * 5000, "x", ""])
def test_a_server_that_asks_for_absurd_iterations_is_left(iterations):
    exchange = scram.Exchange("SCRAM-SHA-256", ADA, PASSWORD, "nonce")
    with pytest.raises(scram.ScramError, match="iterations") as caught:
        exchange.final(f"r=nonceother,s=c2FsdA==,i={iterations}".encode())
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("wrong", ["", "salt=,stored_key=,server_key=,iterations=4096", "iterations=4096", "salt=!"])
def test_what_is_no_credential_is_refused_without_its_value(wrong):
    with pytest.raises(scram.ScramError):
        scram.parse_credential("SCRAM-SHA-256", wrong)


@pytest.mark.parametrize("iterations", ["0", "4095", "1000001", "9" * 5000, "x"])
def test_absurd_iterations_are_none(iterations):
    text = scram.format_credential(Users().credential("SCRAM-SHA-256", ADA)).replace("4096", iterations)
    with pytest.raises(scram.ScramError, match="iterations"):
        scram.parse_credential("SCRAM-SHA-256", text)
